"""A comparison of two models: both place the same tasks, and one run measures all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import MeasuredPlacement
from evenshard.measure.hardware import Hardware
from evenshard.measure.journal import Journal
from evenshard.measure.noise import Noise, controls_of, noise_of
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSplit
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.models import PlacementModel
from evenshard.stages.decisions.promotion import PairedTask
from evenshard.stages.propose import measure_answers
from evenshard.stages.sharder_comparison import Answer, ask
from evenshard.utils.console import progress
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.process import one_thread

_CANDIDATE, _CHAMPION = "candidate", "champion"


@dataclass(frozen=True)
class ModelComparison:
    """What was measured.

    Attributes:
        tasks: the held-out tasks, in their order.
        noise: noise of the measurements.
        measured: all of them, controls included. A placement that both chose stands there once, as the candidate's.
    """

    tasks: tuple[PairedTask, ...]
    noise: Noise
    measured: tuple[MeasuredPlacement, ...]


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
    """Places and measures the test tasks with both models.

    Args:
        split: the train tasks give the controls.
        journal: keeps every measurement at once; started again with it, the comparison goes on.
        earlier: runs whose controls tell the noise between runs.

    Raises:
        InfeasibleTask: if neither model can place any task.
        MeasurementFailed: if a kernel fails.
    """
    ours = _answers(_CANDIDATE, candidate, split.test, search)
    theirs = _answers(_CHAMPION, champion, split.test, search)
    answers, ids = dict[str, Answer](), list[tuple[str, str]]()
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        first, second = f"{_CANDIDATE}-{number:05d}", f"{_CHAMPION}-{number:05d}"
        ids.append((first, first if _same(own, other) else second))
        answers |= {first: own, **({} if _same(own, other) else {second: other})}
    if all(one.placement is None for one in answers.values()):
        raise InfeasibleTask(f"no held-out task fits its devices: {ours[0].reason}")
    measured = measure_answers(answers, split.train, hardware, measure, journal, "promote")
    cost_ms = {one.measurement_id: one.cost.max_device_ms for one in measured}
    tasks = tuple(
        PairedTask(one.task.task_id, cost_ms.get(first, math.inf), cost_ms.get(second, math.inf), first == second)
        for one, (first, second) in zip(ours, ids, strict=True)
    )
    return ModelComparison(tasks, noise_of([controls_of(run) for run in (*earlier, measured)]), tuple(measured))


def _answers(who: str, model: PlacementModel, tasks: Sequence[ShardingTask], search: SearchConfig) -> list[Answer]:
    sharder = EvenshardSharder(model.cost_model, model.policy, search)
    with one_thread():
        return [replace(ask(sharder, task), sharder=who) for task in progress(tasks, f"placing with {model.source}")]


def _same(ours: Answer, theirs: Answer) -> bool:
    """Whether both keep the same tables together: the tasks' devices are alike, their ids are names."""
    if ours.placement is None or theirs.placement is None:
        return False
    return frozenset(ours.placement.shards()) == frozenset(theirs.placement.shards())
