"""A contest of two models: both place the same tasks, and one run measures all of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from evenshard.measure.campaign import Job, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import MeasuredPlacement
from evenshard.measure.hardware import Hardware
from evenshard.measure.journal import Journal
from evenshard.measure.noise import Noise, controls_of, noise_of
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSplit
from evenshard.sharders.convex_search.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.models import PlacementModel
from evenshard.stages.decisions.promotion import PairedTask
from evenshard.stages.propose import among_controls
from evenshard.stages.standings import Answer, ask
from evenshard.utils.console import progress
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.process import one_thread

_CANDIDATE, _CHAMPION = "candidate", "champion"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contest:
    """What was measured.

    Attributes:
        tasks: the held-out tasks, in their order.
        noise: noise of the measurements.
        measured: all of them, controls included. A placement that both chose stands there once, as the candidate's.
    """

    tasks: tuple[PairedTask, ...]
    noise: Noise
    measured: tuple[MeasuredPlacement, ...]


def contest(
    candidate: PlacementModel,
    champion: PlacementModel,
    split: TaskSplit,
    search: SearchConfig,
    hardware: Hardware,
    measure: MeasureConfig,
    journal: Journal,
    earlier: Sequence[Sequence[MeasuredPlacement]] = (),
) -> Contest:
    """Places and measures the test tasks with both models.

    Args:
        split: the train tasks give the controls.
        journal: keeps every measurement at once; started again with it, the contest goes on.
        earlier: runs whose controls tell the noise between runs.

    Raises:
        InfeasibleTask: if neither model can place any task.
        MeasurementFailed: if a kernel fails.
    """
    ours, theirs = (_answers(model, split.test, search) for model in (candidate, champion))
    same = [_same(one, other) for one, other in zip(ours, theirs, strict=True)]
    jobs = [
        Job.whole(_measurement_id(who, number), one.task, one.placement, 0, who, one.task.task_id)
        for number in range(len(split.test))
        for who, one in ((_CANDIDATE, ours[number]), (_CHAMPION, theirs[number]))
        if one.placement is not None and not (who == _CHAMPION and same[number])
    ]
    if not jobs:
        raise InfeasibleTask(f"no held-out task fits its devices: {ours[0].reason}")
    log.info(
        "timing %d placements of %d held-out tasks on %s", len(jobs), len(split.test), hardware.provenance.hardware
    )
    show = partial(progress, description="promote")
    measured = measure_jobs(hardware, among_controls(jobs, split.train, measure), measure, journal, track=show)
    cost_ms = {one.measurement_id: one.cost.max_device_ms for one in measured}
    tasks = [
        PairedTask(
            task_id=one.task.task_id,
            candidate_ms=cost_ms.get(_measurement_id(_CANDIDATE, number), math.inf),
            champion_ms=cost_ms.get(_measurement_id(_CANDIDATE if same[number] else _CHAMPION, number), math.inf),
            same_placement=same[number],
        )
        for number, one in enumerate(ours)
    ]
    return Contest(tuple(tasks), noise_of([controls_of(run) for run in (*earlier, measured)]), tuple(measured))


def _answers(model: PlacementModel, tasks: Sequence[ShardingTask], search: SearchConfig) -> list[Answer]:
    sharder = EvenshardSharder(model.cost_model, model.policy, search)
    with one_thread():
        return [ask(sharder, task) for task in progress(tasks, f"placing with {model.source}")]


def _same(ours: Answer, theirs: Answer) -> bool:
    """Whether both keep the same tables together: the tasks' devices are alike, their ids are names."""
    if ours.placement is None or theirs.placement is None:
        return False
    return frozenset(ours.placement.shards()) == frozenset(theirs.placement.shards())


def _measurement_id(who: str, number: int) -> str:
    return f"{who}-{number:05d}"
