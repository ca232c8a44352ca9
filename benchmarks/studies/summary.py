"""Statistics of measured answers: means, intervals and paired differences; pure functions of numbers.

Means are over the tasks that every row could place. A trained sharder's cost of a task is its mean over the seeds: the
intervals are those over tasks, and the deviation from training to training is a separate number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from benchmarks.studies.rows import EXTERNAL, PRIVILEGED_ROWS, SUFFIX, TRANSFERRED
from evenshard.loop.sharder_comparison import Interval, common_tasks, find_fastest
from evenshard.sharders.catalog import HEURISTICS
from evenshard.sharders.simple import SINGLE_COST

# Every row is also compared with these.
COMPARED = (*EXTERNAL, SINGLE_COST)


@dataclass(frozen=True)
class Measured:
    """The measured answers of one sharder: seeds x tasks, infinite (0 for balance and speedup) where infeasible.

    Attributes:
        ms: time of a step.
        balance: the degree of balance.
        compute_speedup: speedup of compute over random; None if random is infeasible.
    """

    ms: tuple[tuple[float, ...], ...]
    balance: tuple[tuple[float, ...], ...] = ()
    compute_speedup: tuple[tuple[float | None, ...], ...] = ()

    @staticmethod
    def of(rows: Sequence[Mapping[str, Any]]) -> Measured:
        """Combine the rows of one sharder from ``MeasureAnswers``, one per seed."""
        ms = tuple(tuple(math.inf if one is None else one for one in row["ms"]) for row in rows)
        balance = tuple(tuple(one or 0.0 for one in row["balance"]) for row in rows)
        return Measured(ms, balance, tuple(tuple(row["compute_speedup"]) for row in rows))

    @property
    def task_ms(self) -> list[float]:
        """Return the mean over the seeds by task; infinite if the task is infeasible for one of them."""
        return [fmean(of_task) for of_task in zip(*self.ms, strict=True)]


def comparison(measured: Mapping[str, Measured], balance: bool = False) -> dict[str, Any]:
    """Return the comparison of one setting as JSON: ``best_heuristic``, ``num_common_tasks`` and ``sharders``."""
    ms_of = {name: one.task_ms for name, one in measured.items()}
    common = common_tasks(ms_of)
    costs = {name: [ms[task] for task in common] for name, ms in ms_of.items()} if common else {}
    best = find_fastest(costs, [name for name in HEURISTICS if name != "random"])
    sharders = {}
    for name, one in measured.items():
        row = _row(name, costs, best) | {
            "infeasible": sum(map(math.isinf, ms_of[name])),
            "privileged": name in PRIVILEGED_ROWS,
            "num_seeds": len(one.ms),
            "seed_deviation_ms": _seed_deviation(one, common),
        }
        if balance:
            speedups = [value for of_seed in one.compute_speedup for t in common if (value := of_seed[t]) is not None]
            row["degree_of_balance"] = _mean([of_seed[t] for of_seed in one.balance for t in common])
            row["compute_speedup"] = _mean(speedups)
        sharders[name] = row
    return {"best_heuristic": best, "num_common_tasks": len(common), "sharders": sharders}


def _row(name: str, costs: Mapping[str, Sequence[float]], best: str | None) -> dict[str, Any]:
    own = costs.get(name)
    row: dict[str, Any] = {
        "mean_ms": fmean(own) if own else None,
        "ci95_ms": ends(Interval.of(own)) if own else None,
        "speedup_over_random_pct": above_pct(costs.get("random"), own),
        **difference("difference_to_best_heuristic_pct", "difference_ci95_pct", own, costs.get(best or "")),
    }
    for other in COMPARED:
        if other in costs:
            row |= difference(f"difference_to_{other}_pct", f"difference_to_{other}_ci95_pct", own, costs[other])
    if name in TRANSFERRED:
        at_home = costs.get(name.removesuffix(SUFFIX))
        row |= difference("drop_pct", "drop_ci95_pct", own, at_home)
        row |= difference("drop_ms", "drop_ci95_ms", own, at_home, in_pct=False)
    return row


def above_pct(costs: Sequence[float] | None, base: Sequence[float] | None) -> float | None:
    """Return the excess of the mean of ``costs`` over the mean of ``base``, per cent of ``base``."""
    return (fmean(costs) / fmean(base) - 1) * 100 if costs and base else None


def difference(
    mean_key: str, ends_key: str, own: Sequence[float] | None, base: Sequence[float] | None, in_pct: bool = True
) -> dict[str, Any]:
    """Return the paired difference with its interval, in ms or in per cent of the base's mean; negative is faster."""
    if not own or not base:
        return {mean_key: None, ends_key: None}
    interval = Interval.of_difference_pct(own, base) if in_pct else Interval.of_difference(own, base)
    return {mean_key: interval.mean, ends_key: ends(interval)}


def ends(interval: Interval) -> list[float] | None:
    """Return the interval as JSON; None for a single task, whose interval is unbounded."""
    return [interval.low, interval.high] if math.isfinite(interval.low) else None


def _seed_deviation(one: Measured, common: Sequence[int]) -> float | None:
    if len(one.ms) < 2 or not common:
        return None
    return stdev(fmean(of_seed[task] for task in common) for of_seed in one.ms)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
