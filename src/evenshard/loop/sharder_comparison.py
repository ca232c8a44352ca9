"""Comparison of sharders: all of them place the same tasks, and their measured placements are compared in pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from evenshard.base.errors import InfeasibleTask
from evenshard.measure.noise import Noise
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import MeasuredPlacement
from evenshard.sharders.catalog import HEURISTICS, SHARDERS, Sharder

PRIVILEGED = frozenset(entry.name for entry in SHARDERS if entry.is_privileged)
UNKNOWN_NOISE = Noise(None, None, None, num_controls=0, num_runs=0)  # unknown noise, of a run without controls


@dataclass(frozen=True)
class Answer:
    """A sharder's placement of a task, or the reason why it found none."""

    task: ShardingTask
    sharder: str
    placement: Placement | None  # None for an infeasible task
    reason: str  # reason for an infeasible task, with table and numbers; else empty
    predicted_ms: float  # by the cost network; NaN without a placement


def ask(sharder: Sharder, task: ShardingTask) -> Answer:
    """Place a task with a sharder; return the placement, or the reason why the task is infeasible."""
    try:
        return Answer(task, sharder.name, sharder.place(task), "", math.nan)
    except InfeasibleTask as error:
        return Answer(task, sharder.name, None, str(error), math.nan)


@dataclass(frozen=True)
class Result:
    """A sharder's answer and the measurement of the placement, which is None if the task is infeasible."""

    answer: Answer
    measured: MeasuredPlacement | None

    @property
    def measured_ms(self) -> float:
        """Return the measured cost of a step; infinite if the task is infeasible or the placement out of memory."""
        return self.measured.cost.max_device_ms if self.measured else math.inf


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval (Student's t over tasks)."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """Return mean and interval; the interval of a single value is infinite."""
        from scipy.stats import t

        mean = fmean(values)
        if len(values) < 2:
            return Interval(mean, -math.inf, math.inf)
        # half width: the t quantile times the standard error of the mean
        half = float(t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return Interval(mean, mean - half, mean + half)

    @staticmethod
    def of_difference(own: Sequence[float], base: Sequence[float], scale: float = 1.0) -> Interval:
        """Return mean and interval of the paired differences, own minus base, times ``scale``."""
        return Interval.of([(ours - other) * scale for ours, other in zip(own, base, strict=True)])

    @staticmethod
    def of_difference_pct(own: Sequence[float], base: Sequence[float]) -> Interval:
        """Return mean and interval of the paired differences, own minus base, in per cent of the base's mean."""
        return Interval.of_difference(own, base, 100 / fmean(base))


def common_tasks(ms_of: Mapping[str, Sequence[float]]) -> list[int]:
    """Return the positions of the tasks that every sharder could place.

    Args:
        ms_of: cost of each task, by sharder; infinite if infeasible.
    """
    return [number for number, ms in enumerate(zip(*ms_of.values(), strict=True)) if all(map(math.isfinite, ms))]


def find_fastest(costs: Mapping[str, Sequence[float]], names: Iterable[str]) -> str | None:
    """Return the sharder with the least mean cost among ``names``; None if none has costs."""
    return min((name for name in names if name in costs), key=lambda name: fmean(costs[name]), default=None)


@dataclass(frozen=True)
class Standing:
    """Measured cost of a sharder and its comparison with the best heuristic, over tasks that every sharder placed."""

    sharder: str
    privileged: bool  # needs measurements of the test tables
    is_best_heuristic: bool  # the baseline of the comparison
    measured_ms: Interval
    against_best_pct: Interval  # paired difference from the best heuristic, % of its mean; negative if faster
    num_infeasible: int  # tasks that it could not place, or that ran out of memory
    noise_pct: float  # a mean difference below this is measurement noise

    @property
    def verdict(self) -> str:
        """Describe the difference from the best heuristic in words."""
        if self.is_best_heuristic:
            return "the best heuristic"
        difference_pct = self.against_best_pct
        if math.isnan(difference_pct.mean):
            return "no task that all could place"
        if abs(difference_pct.mean) < self.noise_pct:
            return "equal (within the noise)"
        if difference_pct.high < 0:
            return "faster"
        return "slower" if difference_pct.low > 0 else "not separable from it"


def standings(results: Sequence[Result], noise: Noise = UNKNOWN_NOISE) -> list[Standing]:
    """Compare the sharders over the tasks that all of them could place.

    Args:
        results: results of all sharders, each with the tasks in the same order.
        noise: measurement noise; sharders that differ by less count as equal.
    """
    ms_of: dict[str, list[float]] = {}
    for result in results:
        ms_of.setdefault(result.answer.sharder, []).append(result.measured_ms)
    common = common_tasks(ms_of)
    costs = {name: [ms[task] for task in common] for name, ms in ms_of.items()} if common else {}
    best = find_fastest(costs, HEURISTICS)
    nothing = Interval(math.nan, math.nan, math.nan)
    return [
        Standing(
            sharder=name,
            privileged=name in PRIVILEGED,
            is_best_heuristic=name == best,
            measured_ms=Interval.of(costs[name]) if common else nothing,
            against_best_pct=Interval.of_difference_pct(costs[name], costs[best]) if best is not None else nothing,
            num_infeasible=sum(map(math.isinf, ms)),
            noise_pct=noise.difference_pct(len(common)),
        )
        for name, ms in ms_of.items()
    ]


def infeasible_tasks(results: Sequence[Result]) -> int:
    """Return the number of tasks that at least one sharder could not place."""
    return len({result.answer.task.task_id for result in results if math.isinf(result.measured_ms)})


@dataclass(frozen=True)
class NetworkAccuracy:
    """Accuracy of a network on measured placements of unseen tables."""

    median_abs_pct_error: float  # of the overall cost; NaN without placements
    kendall_tau: float  # mean over tasks of the rank correlation of their placements; NaN without ranks

    @staticmethod
    def of(pairs_of_tasks: Iterable[Sequence[tuple[float, float]]]) -> NetworkAccuracy:
        """Compute the accuracy from (predicted, measured) ms of the placements of each task."""
        from scipy.stats import kendalltau

        errors, taus = [], []
        for pairs in pairs_of_tasks:
            errors += [abs(predicted_ms / measured_ms - 1) * 100 for predicted_ms, measured_ms in pairs]
            tau = float(kendalltau(*zip(*pairs, strict=True)).statistic) if len(pairs) > 1 else math.nan
            taus += [tau] if math.isfinite(tau) else []
        return NetworkAccuracy(median(errors) if errors else math.nan, fmean(taus) if taus else math.nan)


def network_accuracy(results: Sequence[Result]) -> NetworkAccuracy:
    """Compare predictions with measurements over all measured placements."""
    pairs_of: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        if math.isfinite(result.measured_ms):
            pairs_of.setdefault(result.answer.task.task_id, []).append((result.answer.predicted_ms, result.measured_ms))
    return NetworkAccuracy.of(pairs_of.values())
