"""Training of the model that comes with the package for a simulated profile: on broad data, without any user's tables.

The cost model learns from shards and placements of many imaginary recommenders (``broad_data.py``), and then from its
own first answers to others. The policy is DreamShard's, from its own loop at the usual batch size.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from evenshard.measure.costs import MeasuredPlacement
from evenshard.measure.simulated.hardware import SimulatedHardware
from evenshard.placement.task import ShardingTask
from evenshard.sharders.bundled.broad_data import (
    USUAL_BATCH,
    BroadConfig,
    World,
    draw_task,
    draw_world,
    world_placement_jobs,
    world_shard_jobs,
)
from evenshard.sharders.convex_search.fit import CostModelFitConfig
from evenshard.sharders.convex_search.train import EvenshardConfig, TrainedEvenshard, train_evenshard
from evenshard.sharders.dreamshard.train import DreamShardConfig, TrainedDreamShard, train_dreamshard
from evenshard.utils.process import one_thread

log = logging.getLogger(__name__)
ROOM_SHARE = 0.7  # of the devices' memory that a policy task may need: an episode must not end without room


@dataclass(frozen=True)
class BundleConfig:
    """How much is measured, and how the networks learn.

    Attributes:
        broad: the worlds.
        search_tasks: tasks of the same worlds, from which the cost model's own placements come.
        evenshard: training of the cost model.
        policy_tasks: tasks of DreamShard's loop, at the usual batch size.
        dreamshard: settings of DreamShard's loop.
        seed: seed of everything.
    """

    broad: BroadConfig = field(default_factory=BroadConfig)
    search_tasks: int = 400
    evenshard: EvenshardConfig = field(
        default_factory=lambda: EvenshardConfig(
            num_shards=0,
            own_placements=150,
            own_rounds=2,
            fit=CostModelFitConfig(table_hidden=32, num_updates=8000, minibatch_size=256, across_batches=True),
        )
    )
    policy_tasks: int = 40
    dreamshard: DreamShardConfig = field(
        default_factory=lambda: DreamShardConfig(
            num_rounds=6, placements_per_round=30, cost_updates=500, policy_updates=20
        )
    )
    seed: int = 0


@dataclass(frozen=True)
class TrainedBundle:
    """A model for any user's tables.

    Attributes:
        dreamshard: DreamShard, with the policy.
        evenshard: evenshard's method, with the cost model.
        measured: all that the cost model has learned from.
    """

    dreamshard: TrainedDreamShard
    evenshard: TrainedEvenshard
    measured: tuple[MeasuredPlacement, ...]


@one_thread()
def train_bundle(hardware: SimulatedHardware, config: BundleConfig) -> TrainedBundle:
    """Trains both networks; the same profile and config give the same networks on the same machine."""
    rng = np.random.default_rng([config.seed, 11])
    memory_bytes = int(hardware.profile.memory_bytes)
    worlds = [draw_world(f"w{n:03d}", config.broad, memory_bytes, rng) for n in range(config.broad.num_worlds)]
    known = [one for world in worlds for one in _measured(hardware, world, config.broad, rng)]
    log.info("simulated %d shards and placements of %d worlds", len(known), len(worlds))
    search_tasks = [
        draw_task(worlds[n % len(worlds)], f"search-{n // len(worlds)}", rng) for n in range(config.search_tasks)
    ]
    policy_tasks = _policy_tasks(config, memory_bytes, rng)
    measure, provenance = hardware.measure_many, hardware.provenance
    dreamshard = train_dreamshard(policy_tasks, measure, provenance, config.dreamshard, config.seed)
    known.extend(dreamshard.measured)
    log.info("the policy is trained; the cost model takes longer")
    evenshard = train_evenshard(search_tasks, known, measure, provenance, config.evenshard, config.seed)
    return TrainedBundle(dreamshard, evenshard, (*known, *evenshard.measured))


def _measured(
    hardware: SimulatedHardware, world: World, config: BroadConfig, rng: np.random.Generator
) -> list[MeasuredPlacement]:
    jobs = world_shard_jobs(world, config.shards_per_world, rng)
    for number in range(config.tasks_per_world):
        jobs.extend(world_placement_jobs(draw_task(world, f"task-{number}", rng), config.placements_per_task, rng))
    costs = hardware.measure_many([(task, placement) for _, task, placement in jobs])
    return [
        MeasuredPlacement.whole(f"{world.name}-{number:03d}", 1, who, task, placement, cost, hardware.provenance)
        for number, ((who, task, placement), cost) in enumerate(zip(jobs, costs, strict=True))
    ]


def _policy_tasks(config: BundleConfig, memory_bytes: int, rng: np.random.Generator) -> list[ShardingTask]:
    """30 to 60 tables on 4 or 8 devices, each task of a world of its own, with room for all tables."""
    tasks: list[ShardingTask] = []
    while len(tasks) < config.policy_tasks:
        world = draw_world(f"p{len(tasks):03d}", config.broad, memory_bytes, rng, USUAL_BATCH)
        tables = world.tables[: int(rng.integers(30, 61))]
        task = ShardingTask.whole(f"{world.name}-task", tables, int(rng.choice((4, 8))), memory_bytes, USUAL_BATCH)
        if sum(table.size_bytes for table in tables) > ROOM_SHARE * memory_bytes * task.num_devices:
            continue
        tasks.append(task)
    return tasks
