"""The trainings of the studies in memory: they learn what is measured, and do so again with the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from benchmarks.studies.measuring import measured_balance
from benchmarks.studies.trainings import (
    AutoShardConfig,
    DreamShardConfig,
    EvenshardConfig,
    TrainedEvenshard,
    measure_random_shards,
    train_autoshard,
    train_dreamshard,
    train_evenshard,
)
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import RANDOM_SHARD, MeasuredPlacement, PlacementCost
from evenshard.sharders.autoshard.fit import ImpalaConfig
from evenshard.sharders.cost_model.fit import CostModelFitConfig
from evenshard.sharders.cost_model.sharder import SearchConfig
from evenshard.sharders.simple import RandomSharder, random_placement
from evenshard.sharders.training import FitConfig
from support.builders import BATCH_SIZE, PROVENANCE, FakeHardware, capped, sized, some_tables, table, task
from support.convex_builders import bound_ms


def measure(jobs: Sequence[tuple[ShardingTask, Placement]]) -> list[PlacementCost]:
    return [FakeHardware().measure(*job) for job in jobs]


POOL = some_tables(60)
TRAIN = [task(POOL[6 * n : 6 * n + 6], devices=2, task_id=f"train-{n}") for n in range(5)]
TEST = [task(POOL[30 + 6 * n : 36 + 6 * n], devices=2, task_id=f"test-{n}") for n in range(5)]
SMALL = DreamShardConfig(
    num_rounds=2, placements_per_round=12, cost_updates=150, policy_updates=40, num_episodes=8, learning_rate=5e-3
)
QUICK = DreamShardConfig(num_rounds=2, placements_per_round=3, cost_updates=3, policy_updates=2, num_episodes=2)


def test_dreamshard_measures_random_placements_then_its_own_and_learns() -> None:
    trained = train_dreamshard(TRAIN, measure, PROVENANCE, SMALL, seed=1)
    assert [(one.round, one.proposed_by) for one in trained.measured] == [(1, "random")] * 12 + [(2, "dreamshard")] * 12
    assert len({one.measurement_id for one in trained.measured}) == 24
    scale = fmean(one.cost.max_device_ms for one in trained.measured[:12])
    assert float(trained.cost_net.cost_scale_ms) == pytest.approx(scale)
    for one in trained.measured:
        check_placement(one.task, one.placement)
        assert [one.cost] == measure([(one.task, one.placement)])
    own, chance = (
        fmean(cost.max_device_ms for cost in measure([(one, who.place(one)) for one in TEST]))
        for who in (trained.sharder(32), RandomSharder(0))
    )
    assert own < 0.95 * chance


def test_dreamshard_leaves_out_tasks_that_fit_nowhere() -> None:
    full = task([table("big", 1000), table("large", 1000)], 2, cap=10, task_id="full")
    trained = train_dreamshard([full, task(sized(1, 2, 3))], measure, PROVENANCE, QUICK, seed=0)
    assert {one.task.task_id for one in trained.measured} == {"task"}


BALANCE = AutoShardConfig(
    fit=FitConfig(num_updates=300, minibatch_size=64, learning_rate=3e-3),
    impala=ImpalaConfig(num_updates=40, num_slots=16, unroll_length=20, sync_every=2, learning_rate=3e-3),
)
FEW = some_tables(24)
SHARDS_OF = [task(FEW[first : first + 10], devices=2, task_id=f"train-{first}") for first in range(5)]
UNSEEN = [task(FEW[first : first + 10], devices=2, task_id=f"test-{first}") for first in range(10, 15)]


def test_from_measured_shards_to_a_balance_above_random() -> None:
    trained = train_autoshard(SHARDS_OF, measure_random_shards(FakeHardware(), SHARDS_OF, 200, seed=0), BALANCE, seed=0)
    mean = [
        fmean(measured_balance(cost) for cost in measure([(one, who.place(one)) for one in UNSEEN]))
        for who in (trained, RandomSharder(0))
    ]
    assert mean[0] > mean[1] + 0.15 and mean[0] > 0.75


TABLES = some_tables(30)
TASKS = tuple(task([TABLES[(n * 7 + i) % 30] for i in range(8)], 3, task_id=f"train-{n}") for n in range(6))
OWN = EvenshardConfig(
    num_shards=12,
    own_placements=4,
    fit=CostModelFitConfig(num_updates=30),
    search=SearchConfig(num_rollouts=0, scores_per_table=50),
)


def trained(config: EvenshardConfig = OWN, seed: int = 0, tasks: Sequence[ShardingTask] = TASKS) -> TrainedEvenshard:
    rng = np.random.default_rng(0)
    jobs = [(one, random_placement(one, rng)) for one in TASKS * 3]
    known = [
        MeasuredPlacement(f"m{n}", 1 + n // 9, "random", one, placement.parts(one.tables), cost, PROVENANCE)
        for n, ((one, placement), cost) in enumerate(zip(jobs, measure(jobs), strict=True))
    ]
    return train_evenshard(tasks, known, measure, PROVENANCE, config, seed)


def test_random_shards_and_own_placements_of_different_train_tasks_are_measured() -> None:
    first = trained()
    shards, own = first.measured[:12], first.measured[12:]
    assert {one.proposed_by for one in shards} == {RANDOM_SHARD} and {one.task.num_devices for one in shards} == {1}
    assert [one.proposed_by for one in own] == ["evenshard"] * 4
    assert len({one.task.task_id for one in own}) == 4 and {one.task for one in own} <= set(TASKS)
    for one in first.measured:
        check_placement(one.task, one.placement)
        assert one.round == 3 and [one.cost] == measure([(one.task, one.placement)])
    assert len({one.measurement_id for one in first.measured}) == 16
    same, other = trained(), trained(seed=1)
    assert first.measured == same.measured != other.measured
    assert bound_ms(first.model, TASKS[0]) == bound_ms(same.model, TASKS[0])
    more = trained(replace(OWN, own_rounds=2))
    assert more.measured[:16] == first.measured
    assert [one.proposed_by for one in more.measured[16:]] == ["evenshard"] * 4
    for part in (more, trained(replace(OWN, num_shards=0)), trained(replace(OWN, own_placements=0))):
        assert bound_ms(part.model, TASKS[0]) != bound_ms(first.model, TASKS[0])


def test_shards_keep_to_the_batch_size_of_their_tables_and_tasks_without_room_are_no_trouble() -> None:
    """Two thirds of the tasks have the larger batch; their tables are others."""
    small = [replace(one, batch_size=BATCH_SIZE) for one in TASKS[:2]]
    large = [task(some_tables(8, seed=n + 9), 3, task_id=f"large-{n}", batch_size=256) for n in range(4)]
    config = replace(OWN, own_placements=0, fit=replace(OWN.fit, across_batches=True))
    shards = trained(config, tasks=[*small, *large]).measured
    assert [one.task.batch_size for one in shards] == [64] * 4 + [256] * 8
    for one in shards:
        pool = small if one.task.batch_size == 64 else large
        assert set(one.task.tables) <= {table for of_task in pool for table in of_task.tables}
    full = capped(replace(TASKS[0], task_id="full"), max(table.size_bytes for table in TABLES))
    added = trained(tasks=(*TASKS[:2], full)).measured
    assert sorted(one.task.task_id for one in added if one.proposed_by == "evenshard") == ["train-0", "train-1"]
