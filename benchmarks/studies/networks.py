"""Accuracy of the cost networks on random placements of unseen tables, and on evenshard's own placements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from statistics import fmean, median
from typing import Any

from evenshard.loop.sharder_comparison import NetworkAccuracy

Samples = Sequence[Sequence[Mapping[str, Any]]]
Placing = Mapping[str, Any]


def sample_accuracy(samples: Samples, placings: Sequence[Placing]) -> dict[str, Any]:
    """Compute the accuracy of ``dreamshard`` and ``convex`` over all samples, tasks and seeds, as JSON."""

    def pairs_of(what: str) -> list[list[tuple[float, float]]]:
        """Return predicted and measured ms of the samples that ran, by seed and task."""
        return [
            [(guess, one["ms"]) for guess, one in zip(predictions[what], of_task, strict=True) if one["ms"] is not None]
            for placing in placings
            for of_task, predictions in zip(samples, placing["predictions"], strict=True)
        ]

    found: dict[str, Any] = {}
    for network in ("dreamshard", "convex"):
        pairs = pairs_of(network)
        accuracy = {
            key: None if math.isnan(value) else value for key, value in asdict(NetworkAccuracy.of(pairs)).items()
        }
        found[network] = {**accuracy, "num_placements": sum(map(len, pairs))}
    ends = zip(chain(*pairs_of("convex_low")), chain(*pairs_of("convex_high")), strict=True)
    inside = [low <= ms <= high for (low, ms), (high, _) in ends]
    found["convex"]["share_in_90_pct_interval"] = fmean(inside) if inside else None
    return found


def own_placements(
    answers: Sequence[Sequence[Mapping[str, Any]]], measured_ms: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Summarize predicted and measured costs of evenshard's own placements over seeds and tasks, as JSON."""
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
