"""The accuracy of the cost networks on random placements of unseen tables, and on evenshard's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

Samples = Sequence[Sequence[Mapping[str, Any]]]
Placing = Mapping[str, Any]


def network_accuracy(samples: Samples, placings: Sequence[Placing]) -> dict[str, Any]:
    """Accuracy of ``dreamshard`` and ``convex`` over all samples, tasks and seeds, JSON.

    Args:
        samples: by task: placements with their measured ms.
        placings: one result of ``PlaceLearned`` per seed.
    """
    found: dict[str, Any] = {}
    for network in ("dreamshard", "convex"):
        errors: list[float] = []
        taus: list[float] = []
        inside: list[bool] = []
        for placing in placings:
            for of_task, predicted in zip(samples, placing["predictions"], strict=True):
                pairs = [(p, s["ms"]) for p, s in zip(predicted[network], of_task, strict=True) if s["ms"] is not None]
                errors += [abs(guess / ms - 1) * 100 for guess, ms in pairs]
                taus += _tau(pairs)
                if network == "convex":
                    ends = zip(predicted["convex_low"], of_task, predicted["convex_high"], strict=True)
                    inside += [low <= one["ms"] <= high for low, one, high in ends if one["ms"] is not None]
        found[network] = {
            "median_abs_pct_error": median(errors) if errors else None,
            "kendall_tau": fmean(taus) if taus else None,
            "num_placements": len(errors),
        }
        if network == "convex":
            found[network]["share_in_90_pct_interval"] = fmean(inside) if inside else None
    return found


def _tau(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """The rank correlation of one task's placements; nothing where there is none."""
    from scipy.stats import kendalltau

    if len(pairs) < 2:
        return []
    tau = float(kendalltau(*zip(*pairs, strict=True)).statistic)
    return [tau] if math.isfinite(tau) else []


def own_placements(
    answers: Sequence[Sequence[Mapping[str, Any]]], measured_ms: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """What evenshard said about its own placements against what they cost, over seeds and tasks, JSON.

    Args:
        answers: seeds x tasks, with predicted_ms, low_ms, high_ms and lower_bound_ms where feasible.
        measured_ms: likewise; infinite where infeasible.
    """
    pairs = [
        (answer, ms)
        for of_seed, ms_of_seed in zip(answers, measured_ms, strict=True)
        for answer, ms in zip(of_seed, ms_of_seed, strict=True)
        if "predicted_ms" in answer and math.isfinite(ms)
    ]
    if not pairs:
        return {"share_in_90_pct_interval": None, "median_abs_pct_error": None, "predicted_above_bound_pct": None}
    return {
        "share_in_90_pct_interval": fmean(answer["low_ms"] <= ms <= answer["high_ms"] for answer, ms in pairs),
        "median_abs_pct_error": median(abs(answer["predicted_ms"] / ms - 1) * 100 for answer, ms in pairs),
        "predicted_above_bound_pct": fmean((one["predicted_ms"] / one["lower_bound_ms"] - 1) * 100 for one, _ in pairs),
    }
