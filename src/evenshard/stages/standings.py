"""The standings of sharders: every sharder places every task; the placements are measured and compared task by task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from evenshard.measure.costs import MeasuredPlacement
from evenshard.measure.noise import Noise
from evenshard.placement.placement import Placement
from evenshard.placement.task import PlacementTask
from evenshard.sharders.base import Sharder
from evenshard.utils.errors import InfeasibleTask

EXPERTS = ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
PRIVILEGED = ("single_cost_greedy",)
QUIET = Noise(None, None, None, num_controls=0, num_runs=0)
"""Where no control was measured, nothing is known about the noise."""


@dataclass(frozen=True)
class Answer:
    """What one sharder said to one task.

    Attributes:
        placement: None where the sharder found no room.
        reason: why not, with table and numbers; empty otherwise.
        predicted_ms: the cost network's opinion of the placement; NaN where there is no placement.
    """

    task: PlacementTask
    sharder: str
    placement: Placement | None
    reason: str
    predicted_ms: float


def ask(sharder: Sharder, task: PlacementTask) -> Answer:
    """The sharder's answer; "it fits nowhere" is an answer too, never a gap."""
    try:
        return Answer(task, sharder.name, sharder.place(task), "", math.nan)
    except InfeasibleTask as error:
        return Answer(task, sharder.name, None, str(error), math.nan)


@dataclass(frozen=True)
class Result:
    """An answer with its measurement; None for an infeasible answer."""

    answer: Answer
    measured: MeasuredPlacement | None

    @property
    def measured_ms(self) -> float:
        """Measured cost of a step; infinite for an infeasible answer, and for one that ran out of memory."""
        return self.measured.cost.max_device_ms if self.measured else math.inf


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval (Student's t over tasks)."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """Mean and interval; the interval of a single value is the whole line."""
        from scipy.stats import t

        mean = fmean(values)
        if len(values) < 2:
            return Interval(mean, -math.inf, math.inf)
        half = float(t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Standing:
    """How one sharder stands.

    Attributes:
        sharder: its name.
        privileged: True if it measured the test tables before placing them.
        measured_ms: mean over the tasks that every sharder could place.
        is_best_heuristic: True for the one the others are compared with.
        against_best_pct: paired difference to the best heuristic, per cent of the latter's mean; negative is faster.
        num_infeasible: tasks this sharder could not place, or whose placement ran out of memory.
        noise_pct: a mean difference below this is no more than measuring noise.
    """

    sharder: str
    privileged: bool
    is_best_heuristic: bool
    measured_ms: Interval
    against_best_pct: Interval
    num_infeasible: int
    noise_pct: float

    @property
    def verdict(self) -> str:
        """What the interval allows to say about the difference to the best heuristic."""
        if self.is_best_heuristic:
            return "the best heuristic"
        if math.isnan(self.against_best_pct.mean):
            return "no task that all could place"
        if abs(self.against_best_pct.mean) < self.noise_pct:
            return "equal (within the noise)"
        if self.against_best_pct.high < 0:
            return "faster"
        if self.against_best_pct.low > 0:
            return "slower"
        return "not separable from it"


def standings(results: Sequence[Result], noise: Noise = QUIET) -> list[Standing]:
    """Compares the sharders over the tasks that all of them could place: means over different tasks compare nothing.

    Args:
        noise: of the measurements; two sharders closer than it are called equal.
    """
    by_sharder: dict[str, dict[str, Result]] = {}
    for result in results:
        by_sharder.setdefault(result.answer.sharder, {})[result.answer.task.task_id] = result
    common = [
        task_id
        for task_id in next(iter(by_sharder.values()))
        if all(math.isfinite(results_of[task_id].measured_ms) for results_of in by_sharder.values())
    ]
    costs = {name: [results_of[t].measured_ms for t in common] for name, results_of in by_sharder.items()}
    nothing = Interval(math.nan, math.nan, math.nan)
    best = min((name for name in EXPERTS if name in costs), key=lambda name: fmean(costs[name])) if common else ""
    scale = 100 / fmean(costs[best]) if common else math.nan

    def standing(name: str) -> Standing:
        differences = [(own - other) * scale for own, other in zip(costs[name], costs.get(best, []), strict=True)]
        return Standing(
            sharder=name,
            privileged=name in PRIVILEGED,
            is_best_heuristic=name == best,
            measured_ms=Interval.of(costs[name]) if common else nothing,
            against_best_pct=Interval.of(differences) if common else nothing,
            num_infeasible=sum(1 for result in by_sharder[name].values() if math.isinf(result.measured_ms)),
            noise_pct=noise.difference_pct(len(common)),
        )

    return [standing(name) for name in by_sharder]


def infeasible_tasks(results: Sequence[Result]) -> int:
    """Tasks that at least one sharder could not place."""
    return len({result.answer.task.task_id for result in results if math.isinf(result.measured_ms)})


@dataclass(frozen=True)
class NetworkAccuracy:
    """How well the cost network foretells measured placements of unseen tables.

    Attributes:
        median_abs_pct_error: of the overall cost, per cent.
        kendall_tau: mean over tasks of the rank correlation between predicted and measured placements of one task.
    """

    median_abs_pct_error: float
    kendall_tau: float


def network_accuracy(results: Sequence[Result]) -> NetworkAccuracy:
    """Compares predictions with measurements over all measured placements."""
    from scipy.stats import kendalltau

    measured = [result for result in results if math.isfinite(result.measured_ms)]
    errors = [abs(r.answer.predicted_ms / r.measured_ms - 1) * 100 for r in measured]
    taus = []
    for task_id in dict.fromkeys(r.answer.task.task_id for r in measured):
        own = [r for r in measured if r.answer.task.task_id == task_id]
        if len(own) < 2:
            continue
        tau = float(kendalltau([r.answer.predicted_ms for r in own], [r.measured_ms for r in own]).statistic)
        if math.isfinite(tau):
            taus.append(tau)
    return NetworkAccuracy(median(errors) if errors else math.nan, fmean(taus) if taus else math.nan)
