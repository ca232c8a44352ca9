"""Which placements shall a round measure? Those of the policy so far, random shards, and the controls among them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from evenshard.checkpoint import load_checkpoint
from evenshard.cost_nets.dreamshard import DreamShardCostNet
from evenshard.costs import RANDOM_SHARD
from evenshard.errors import InfeasibleTask
from evenshard.measure import Job, MeasureConfig, with_controls
from evenshard.placement import Placement, alone
from evenshard.sharders.dreamshard import DreamShardPolicy, DreamShardSharder
from evenshard.sharders.random import random_placement
from evenshard.tables import Table
from evenshard.tasks import PlacementTask, sample_shards

log = logging.getLogger(__name__)


def placement_jobs(
    tasks: Sequence[PlacementTask],
    count: int,
    round_number: int,
    seed: int,
    cost_net: Path | None = None,
    policy: Path | None = None,
) -> list[Job]:
    """``count`` placements of the tasks: sampled from the policy; random without one, or where it found no room.

    Every task comes once, in random order, before any comes again: rounds then compare like with like.

    Raises:
        InfeasibleTask: if no task fits its devices.
    """
    if not count:
        return []
    order_rng, rng = np.random.default_rng([seed, round_number]), np.random.default_rng([seed, round_number, 1])
    order: list[int] = []
    while len(order) < count:
        order.extend(order_rng.permutation(len(tasks)).tolist())
    chosen = [tasks[number] for number in order[:count]]
    sampled: list[Placement | None] = [None] * count
    if policy is not None and cost_net is not None:
        trained = load_checkpoint(policy, DreamShardPolicy)
        sharder = DreamShardSharder(load_checkpoint(cost_net, DreamShardCostNet).net, trained.net, trained.normalizer)
        sampled = sharder.sample(chosen, torch.Generator().manual_seed(seed * 1000 + round_number))
    proposals = list(_filled(chosen, sampled, rng))
    if not proposals:
        raise InfeasibleTask("No train task fits its devices. Raise memory_cap_gb or num_devices.")
    return [
        Job(f"round{round_number}-{number:05d}", task, placement, round_number, proposed_by, str(number))
        for number, (task, placement, proposed_by) in enumerate(proposals)
    ]


def _filled(
    tasks: Sequence[PlacementTask], sampled: Sequence[Placement | None], rng: np.random.Generator
) -> Iterator[tuple[PlacementTask, Placement, str]]:
    for task, placement in zip(tasks, sampled, strict=True):
        if placement is not None:
            yield task, placement, "dreamshard"
            continue
        try:
            yield task, random_placement(task, rng), "random"
        except InfeasibleTask as error:
            log.warning("skipped: %s", error)


def shard_jobs(pool: Sequence[Table], like: PlacementTask, count: int, round_number: int, seed: int) -> list[Job]:
    """Random shards of the pool, each alone on a device, with the batch size and memory cap of the task ``like``."""
    rng = np.random.default_rng([seed, round_number, 2])
    shards = sample_shards(pool, count, like.batch_size, like.memory_cap_bytes, rng)
    return [
        Job(f"round{round_number}-{task.task_id}", task, alone(task), round_number, RANDOM_SHARD, task.task_id)
        for task in shards
    ]


def among_controls(jobs: Sequence[Job], tasks: Sequence[PlacementTask], measure: MeasureConfig) -> list[Job]:
    """The jobs with the controls of ``measure`` among them.

    Controls are random placements of the first tasks that have one. They do not depend on the round, so that the same
    placements come back in every run and tell how much a run differs from the next.
    """
    controls: list[tuple[PlacementTask, Placement]] = []
    for number, task in enumerate(tasks):
        if len(controls) == measure.controls:
            break
        try:
            controls.append((task, random_placement(task, np.random.default_rng([measure.seed, number]))))
        except InfeasibleTask:
            continue
    return with_controls(jobs, controls, measure.control_repeats)
