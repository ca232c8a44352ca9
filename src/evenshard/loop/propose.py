"""Placements to measure in a round: proposals of policy and search, random shards, and control placements."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from evenshard.base.console import progress
from evenshard.base.errors import InfeasibleTask, require
from evenshard.base.messages import brief
from evenshard.base.process import one_thread
from evenshard.loop.sharder_comparison import Answer
from evenshard.measure.campaign import Job, Placed, insert_controls, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import Hardware
from evenshard.measure.journal import Journal
from evenshard.measure.torchrec_step import ShardedJob
from evenshard.placement.nodes import Nodes
from evenshard.placement.placement import Placement, place_on_one_device
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import sample_shards
from evenshard.price.costs import CONTROL, RANDOM_SHARD, MeasuredPlacement
from evenshard.sharders.catalog import TrainedSharder, load_sharder
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.simple import RandomSharder, random_placement, random_sharding
from evenshard.tables.table import Table

log = logging.getLogger(__name__)
# Budget of the search, in device scores per table. A longer search does not expose more errors of the model.
SCORES_PER_TABLE = 1_000
MEASURED_LINK = "measured"  # link of a machine whose communication is measured, not modelled


@dataclass(frozen=True)
class Proposers:
    """The previous round's networks that propose placements; none in round 1."""

    policy: TrainedSharder | None = None  # samples placements; None for random placements
    cost_model: CostModel | None = None  # predicts costs in the search; None for no search
    searched_share: float = 0.0  # share of the placements that the search proposes, 0 to 1

    @staticmethod
    def load(cost_net: Path | None, policy: Path | None, cost_model: Path | None, searched_share: float) -> Proposers:
        """Load the networks from the folders of the previous round; a policy needs the cost network, too."""
        sharder = None
        if policy is not None and cost_net is not None:
            sharder = load_sharder(cost_net, policy)
        model = None if cost_model is None else CostModel.load(cost_model)
        return Proposers(sharder, model, searched_share)

    def searches(self, number: int) -> bool:
        """Return True if the search proposes the placement with this number (from 0), such as every fifth placement."""
        if self.cost_model is None:
            return False
        return int((number + 1) * self.searched_share) > int(number * self.searched_share)


def placement_jobs(
    tasks: Sequence[ShardingTask], count: int, round_number: int, seed: int, proposers: Proposers | None = None
) -> list[Job]:
    """Propose ``count`` placements by the search, by the policy, or at random if neither proposes any.

    Every task is used once, in random order, before any is repeated, so that rounds are comparable.

    Raises:
        InfeasibleTask: if no task fits its devices.
    """
    if not count:
        return []
    proposers = proposers or Proposers()
    order_rng, rng = np.random.default_rng([seed, round_number]), np.random.default_rng([seed, round_number, 1])
    order: list[int] = []
    while len(order) < count:
        order.extend(order_rng.permutation(len(tasks)).tolist())
    chosen = [tasks[number] for number in order[:count]]
    proposed: list[tuple[Placement | None, str]] = [(None, "")] * count
    if proposers.policy is not None:
        sampled = proposers.policy.sample(chosen, torch.Generator().manual_seed(seed * 1000 + round_number))
        proposed = [(placement, proposers.policy.name) for placement in sampled]
    proposed = _replace_searched(chosen, proposed, proposers, seed * 1000 + round_number)
    jobs: list[Job] = []
    for task, (placement, proposed_by) in zip(chosen, proposed, strict=True):
        if placement is None:
            try:
                placement, proposed_by = random_placement(task, rng), "random"
            except InfeasibleTask as error:
                log.warning("skipped: %s", error)
                continue
        name, parts = f"round{round_number}-{len(jobs):05d}", placement.parts(task.tables)
        jobs.append(Job(name, task, parts, round_number, proposed_by, str(len(jobs))))
    if not jobs:
        raise InfeasibleTask("No train task fits its devices. Raise memory_cap_gb or num_devices.")
    return jobs


def _replace_searched(
    tasks: Sequence[ShardingTask], proposed: Sequence[tuple[Placement | None, str]], proposers: Proposers, seed: int
) -> list[tuple[Placement | None, str]]:
    """Replace a share of the proposals by the search's best placements; a repeated task gets its next best one."""
    mixed, asked = list(proposed), Counter[str]()
    if proposers.cost_model is None:
        return mixed
    sharder = EvenshardSharder(
        proposers.cost_model, proposers.policy, SearchConfig(scores_per_table=SCORES_PER_TABLE, seed=seed)
    )
    found: dict[str, Sequence[Placement]] = {}
    for number, task in enumerate(tasks):
        if not proposers.searches(number):
            continue
        if task.task_id not in found:
            found[task.task_id] = ()  # for an infeasible task
            with suppress(InfeasibleTask), one_thread():
                found[task.task_id] = sharder.search(task).candidates  # lowest predicted cost first
        rank = asked[task.task_id]
        asked[task.task_id] += 1
        if rank < len(found[task.task_id]):
            mixed[number] = (found[task.task_id][rank], sharder.name)
    return mixed


def shard_jobs(pool: Sequence[Table], like: ShardingTask, count: int, round_number: int, seed: int) -> list[Job]:
    """Sample random shards of the pool, each alone on a device, with batch size and memory cap of ``like``."""
    rng = np.random.default_rng([seed, round_number, 2])
    shards = sample_shards(pool, count, like.batch_size, like.memory_cap_bytes, rng)
    placed = [(f"round{round_number}-{task.task_id}", task, place_on_one_device(task)) for task in shards]
    return [
        Job(name, task, placement.parts(task.tables), round_number, RANDOM_SHARD, task.task_id)
        for name, task, placement in placed
    ]


def sharding_jobs(
    tasks: Sequence[ShardingTask],
    count: int,
    types: Sequence[str],
    devices_per_node: int,
    optimizer: str,
    round_number: int,
    seed: int,
) -> list[ShardedJob]:
    """Sample ``count`` random placements with sharded tables, cycling through the tasks.

    Raises:
        BadConfig: if a sharding type is unknown, or the devices of a task do not form whole nodes.
        InfeasibleTask: if a task does not fit its devices.
    """
    unknown = next((name for name in types if name not in SHARDING_TYPES), None)
    require(
        unknown is None, f"benchmark.sharding_types contains {brief(unknown)}. Choose from {', '.join(SHARDING_TYPES)}."
    )
    rng = np.random.default_rng([seed, round_number, 4])
    jobs = []
    for number in range(count):
        task = tasks[number % len(tasks)]
        nodes = min(devices_per_node or task.num_devices, task.num_devices)
        machine = Nodes(task.num_devices, nodes, intra=MEASURED_LINK, inter=MEASURED_LINK)
        problem = machine.problem()
        require(problem is None, f"task {task.task_id}: {problem}")
        sharding = replace(task, machine=machine, optimizer=optimizer, limits=())
        parts = random_sharding(sharding, types or SHARDING_TYPES, rng)
        name = f"round{round_number}-sharded-{number:05d}"
        jobs.append(ShardedJob(name, sharding, parts, round_number, RandomSharder.name, name))
    return jobs


def select_part(
    jobs: Sequence[Job], part: int, num_parts: int, tasks: Sequence[ShardingTask], measure: MeasureConfig
) -> list[Job]:
    """Return one part of a round (every ``num_parts``-th job, from job ``part``), with ``mix_controls``.

    Raises:
        BadConfig: if there are more parts than jobs.
    """
    if num_parts == 1:
        return mix_controls(jobs, tasks, measure)
    require(
        num_parts <= len(jobs),
        f"num_parts is {num_parts}, but the round has {len(jobs)} placements and shards. Set at most {len(jobs)}.",
    )
    return [
        replace(job, measurement_id=f"part{part}-{job.measurement_id}") if job.proposed_by == CONTROL else job
        for job in mix_controls(jobs[part - 1 :: num_parts], tasks, measure)
    ]


def mix_controls(jobs: Sequence[Job], tasks: Sequence[ShardingTask], measure: MeasureConfig) -> list[Job]:
    """Insert ``measure.controls`` control placements into the jobs, repeatedly.

    Controls are random placements of the first feasible tasks. All runs measure the same controls, which shows the
    differences between runs.
    """
    controls: list[Placed] = []
    for number, task in enumerate(tasks):
        if len(controls) == measure.controls:
            break
        try:
            placement = random_placement(task, np.random.default_rng([measure.seed, number]))
        except InfeasibleTask:
            continue
        controls.append((task, placement.parts(task.tables)))
    return insert_controls(jobs, controls, measure.control_repeats)


def measure_answers(
    answers: Mapping[str, Answer],
    train_tasks: Sequence[ShardingTask],
    hardware: Hardware,
    measure: MeasureConfig,
    journal: Journal,
    description: str,
) -> list[MeasuredPlacement]:
    """Measure the placements in ``answers`` (by measurement id), together with control placements of train tasks."""
    jobs = [
        Job(name, answer.task, answer.placement.parts(answer.task.tables), 0, answer.sharder, answer.task.task_id)
        for name, answer in answers.items()
        if answer.placement is not None
    ]
    log.info("measuring %d placements of held-out tasks on %s", len(jobs), hardware.provenance.hardware)
    show = partial(progress, description=description)
    return measure_jobs(hardware, mix_controls(jobs, train_tasks, measure), measure, journal, track=show)
