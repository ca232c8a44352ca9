"""Comparison of a candidate model with the champion, and the rule for promoting the candidate.

A candidate is promoted if its placements are faster, or if they are as fast and it was trained on fewer measurements or
places more tasks. Both models place the same held-out tasks, and one run measures all placements, so the differences
are paired. A difference below the measurement noise is ignored (docs/decisions/0011). "As fast" means that the upper
end of the 95 % interval of the slowdown is at most ``tolerance_pct``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from evenshard.base.console import progress
from evenshard.base.errors import InfeasibleTask
from evenshard.base.messages import count_text
from evenshard.base.process import one_thread
from evenshard.loop.propose import measure_answers
from evenshard.loop.sharder_comparison import Answer, Interval, ask
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import Hardware
from evenshard.measure.journal import Journal
from evenshard.measure.noise import Noise, estimate_noise, find_controls
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSplit
from evenshard.price.costs import MeasuredPlacement
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.models import PlacementModel

_CANDIDATE, _CHAMPION = "candidate", "champion"


class Verdict(StrEnum):
    """Result of comparing the candidate's placements with the champion's."""

    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class PairedTask:
    """A held-out task with the measured costs of both models' placements."""

    task_id: str
    candidate_ms: float  # measured cost of a step; infinite without a placement, or if it ran out of memory
    champion_ms: float
    same_placement: bool = False  # True if both models group the tables alike; one measurement then counts for both


@dataclass(frozen=True)
class ModelComparison:
    """Measured placements of two models."""

    tasks: tuple[PairedTask, ...]
    noise: Noise
    measured: tuple[MeasuredPlacement, ...]  # with controls; if both models agree, only the candidate's placement


def compare_models(
    candidate: PlacementModel,
    champion: PlacementModel,
    split: TaskSplit,
    search: SearchConfig,
    hardware: Hardware,
    measure: MeasureConfig,
    journal: Journal,
    earlier: Sequence[Sequence[MeasuredPlacement]] = (),
) -> ModelComparison:
    """Place and measure the test tasks with both models.

    Args:
        split: test tasks to place, and train tasks for the controls.
        journal: stores each measurement immediately, so that an interrupted comparison can resume.
        earlier: earlier runs, to estimate the noise between runs.

    Raises:
        InfeasibleTask: if neither model can place any task.
        MeasurementFailed: if a kernel fails.
    """
    ours = _answers(_CANDIDATE, candidate, split.test, search)
    theirs = _answers(_CHAMPION, champion, split.test, search)
    answers, ids = dict[str, Answer](), list[tuple[str, str]]()
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        first, second = f"{_CANDIDATE}-{number:05d}", f"{_CHAMPION}-{number:05d}"
        ids.append((first, first if _group_alike(own, other) else second))
        answers |= {first: own, **({} if _group_alike(own, other) else {second: other})}
    if all(answer.placement is None for answer in answers.values()):
        raise InfeasibleTask(f"no held-out task fits its devices: {ours[0].reason}")
    measured = measure_answers(answers, split.train, hardware, measure, journal, "promote")
    cost_ms = {placement.measurement_id: placement.cost.max_device_ms for placement in measured}
    tasks = tuple(
        PairedTask(answer.task.task_id, cost_ms.get(first, math.inf), cost_ms.get(second, math.inf), first == second)
        for answer, (first, second) in zip(ours, ids, strict=True)
    )
    return ModelComparison(tasks, estimate_noise([find_controls(run) for run in (*earlier, measured)]), tuple(measured))


def _answers(who: str, model: PlacementModel, tasks: Sequence[ShardingTask], search: SearchConfig) -> list[Answer]:
    sharder = EvenshardSharder(model.cost_model, model.policy, search)
    with one_thread():
        return [replace(ask(sharder, task), sharder=who) for task in progress(tasks, f"placing with {model.source}")]


def _group_alike(ours: Answer, theirs: Answer) -> bool:
    """Return True if both placements put the same tables together, even if on other devices."""
    if ours.placement is None or theirs.placement is None:
        return False
    return frozenset(ours.placement.shards()) == frozenset(theirs.placement.shards())


@dataclass(frozen=True)
class Decision:
    """Decision whether the candidate becomes the champion, and the comparison behind it."""

    promote: bool
    verdict: Verdict
    reason: str  # one clause about the candidate
    candidate_ms: float  # mean measured cost over the common tasks; NaN without a common task
    champion_ms: float
    difference_pct: Interval  # paired, % of the champion's mean; negative if the candidate is faster
    noise_pct: float  # a mean difference below this is measurement noise
    num_common: int  # tasks that both models could place
    num_same: int  # common tasks with the same placement
    num_candidate_missed: int  # tasks that the candidate could not place
    num_champion_missed: int
    only_candidate: tuple[str, ...]  # ids of tasks that only the candidate could place
    only_champion: tuple[str, ...]
    candidate_measured: int  # measured placements in the candidate's training set
    champion_measured: int


def decide(
    tasks: Sequence[PairedTask],
    noise: Noise,
    candidate_measured: int,
    champion_measured: int,
    tolerance_pct: float = 1.0,
) -> Decision:
    """Decide whether to promote the candidate.

    Args:
        tasks: held-out tasks, at least one.
        candidate_measured, champion_measured: number of measured placements that each model was trained on.
        tolerance_pct: largest slowdown, %, that still counts as equally fast (95 % confidence).
    """
    common = [task for task in tasks if math.isfinite(task.candidate_ms) and math.isfinite(task.champion_ms)]
    only_champion = tuple(one.task_id for one in tasks if math.isinf(one.candidate_ms) and one.champion_ms < math.inf)
    only_candidate = tuple(one.task_id for one in tasks if math.isinf(one.champion_ms) and one.candidate_ms < math.inf)
    num_same = sum(task.same_placement for task in common)
    difference_pct = Interval(*[0.0 if common else math.nan] * 3)  # without uncertainty
    if not all(task.same_placement for task in common):
        times = [task.candidate_ms for task in common], [task.champion_ms for task in common]
        difference_pct = Interval.of_difference_pct(*times)
    # Tasks with equal placements have no noise: only n - num_same of n tasks add noise to the mean, so its standard
    # error is sqrt((n - num_same) / n) as large.
    noise_pct = noise.difference_pct(len(common)) * math.sqrt((len(common) - num_same) / max(len(common), 1))
    found = Decision(
        promote=False,
        verdict=_verdict(difference_pct, noise_pct, tolerance_pct),
        reason="",
        candidate_ms=fmean(task.candidate_ms for task in common) if common else math.nan,
        champion_ms=fmean(task.champion_ms for task in common) if common else math.nan,
        difference_pct=difference_pct,
        noise_pct=noise_pct,
        num_common=len(common),
        num_same=num_same,
        num_candidate_missed=sum(math.isinf(task.candidate_ms) for task in tasks),
        num_champion_missed=sum(math.isinf(task.champion_ms) for task in tasks),
        only_candidate=only_candidate,
        only_champion=only_champion,
        candidate_measured=candidate_measured,
        champion_measured=champion_measured,
    )
    promote, reason = _conclusion(found, tolerance_pct)
    return replace(found, promote=promote, reason=reason)


def _verdict(difference_pct: Interval, noise_pct: float, tolerance_pct: float) -> Verdict:
    if difference_pct.high < 0 and difference_pct.mean < -noise_pct:
        return Verdict.BETTER
    if difference_pct.low > 0 and difference_pct.mean > noise_pct:
        return Verdict.WORSE
    return Verdict.EQUAL if difference_pct.high <= tolerance_pct else Verdict.UNCLEAR


def _conclusion(found: Decision, tolerance_pct: float) -> tuple[bool, str]:
    mean, high = found.difference_pct.mean, found.difference_pct.high
    if found.only_champion:
        return (
            False,
            f"it finds no placement for {count_text(len(found.only_champion), 'task')} that the champion places",
        )
    if math.isnan(mean):
        return False, "no task was placed by both models"
    if found.verdict is Verdict.BETTER:
        return True, f"its placements are {-mean:.2g} % faster (at least {-high:.2g} % with 95 % confidence)"
    if found.verdict is Verdict.WORSE:
        return False, f"its placements are {mean:.2g} % slower, above the noise of {found.noise_pct:.2g} %"
    if found.verdict is Verdict.UNCLEAR:
        may_be = "an unknown amount" if math.isinf(high) else f"{high:.2g} %"
        return False, f"its placements may be slower by {may_be}; the tolerance is {tolerance_pct:g} %. Use more tasks"
    same, own, other = "its placements cost the same, and it", found.candidate_measured, found.champion_measured
    if found.only_candidate:
        return True, f"{same} places {count_text(len(found.only_candidate), 'task')} that the champion does not"
    if own < other:
        return True, f"{same} learned from fewer placements ({own:,}; champion: {other:,})"
    return False, f"{same} did not learn from fewer placements ({own:,}; champion: {other:,})"
