"""evenshard's training: what it measures beside what is known, and that this reaches the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.studies.trainings import EvenshardConfig, TrainedEvenshard, train_evenshard
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import RANDOM_SHARD, MeasuredPlacement, PlacementCost
from evenshard.sharders.cost_model import fit as evenshard_loop
from evenshard.sharders.cost_model.fit import CostModelFitConfig
from evenshard.sharders.cost_model.sharder import SearchConfig
from evenshard.sharders.simple import random_placement
from support.builders import BATCH_SIZE, PROVENANCE, FakeHardware, capped, some_tables, task
from support.convex_builders import bound_ms, predicted

pytestmark = pytest.mark.full_search

TABLES = some_tables(30)
TASKS = tuple(task([TABLES[(n * 7 + i) % 30] for i in range(8)], 3, task_id=f"train-{n}") for n in range(6))
QUICK = EvenshardConfig(
    num_shards=12,
    own_placements=4,
    fit=CostModelFitConfig(num_updates=30),
    search=SearchConfig(num_rollouts=0, scores_per_table=50),
)


def measure(jobs: Sequence[tuple[ShardingTask, Placement]]) -> list[PlacementCost]:
    return [FakeHardware().measure(*job) for job in jobs]


def known() -> list[MeasuredPlacement]:
    rng = np.random.default_rng(0)
    jobs = [(one, random_placement(one, rng)) for one in TASKS * 3]
    return [
        MeasuredPlacement(f"m{n}", 1 + n // 9, "random", one, placement.parts(one.tables), cost, PROVENANCE)
        for n, ((one, placement), cost) in enumerate(zip(jobs, measure(jobs), strict=True))
    ]


def trained(config: EvenshardConfig = QUICK, seed: int = 0, tasks: Sequence[ShardingTask] = TASKS) -> TrainedEvenshard:
    return train_evenshard(tasks, known(), measure, PROVENANCE, config, seed)


def test_random_shards_and_own_placements_of_different_train_tasks_are_measured() -> None:
    added = trained().measured
    shards, own = added[:12], added[12:]
    assert {one.proposed_by for one in shards} == {RANDOM_SHARD} and {one.task.num_devices for one in shards} == {1}
    assert {table for one in shards for table in one.task.tables} <= set(TABLES)
    assert [one.proposed_by for one in own] == ["evenshard"] * 4
    assert len({one.task.task_id for one in own}) == 4 and {one.task for one in own} <= set(TASKS)
    for one in added:
        check_placement(one.task, one.placement)
        assert one.round == 3 and one.cost == measure([(one.task, one.placement)])[0]
    assert len({one.measurement_id for one in added}) == 16


@pytest.mark.slow
@pytest.mark.parametrize("without", ["num_shards", "own_placements"])
def test_each_part_can_be_left_out_and_each_changes_the_model(without: str) -> None:
    part = trained(replace(QUICK, **{without: 0}))
    assert len(part.measured) == 16 - getattr(QUICK, without)
    assert bound_ms(part.model, TASKS[0]) != bound_ms(trained().model, TASKS[0])


@pytest.mark.slow
def test_a_second_round_of_its_own_placements_comes_from_a_better_model() -> None:
    one, two = trained(), trained(replace(QUICK, own_rounds=2))
    assert two.measured[: len(one.measured)] == one.measured
    assert [who.proposed_by for who in two.measured[len(one.measured) :]] == ["evenshard"] * 4
    assert bound_ms(two.model, TASKS[0]) != bound_ms(one.model, TASKS[0])


def test_a_model_is_judged_by_choices_it_had_not_seen_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[list[str]] = []
    monkeypatch.setattr(
        evenshard_loop,
        "calibrate_for_chosen",
        lambda model, first, own: judged.append([m.measurement_id for m in own]),
    )
    own = [one.measurement_id for one in trained(replace(QUICK, own_rounds=2)).measured[12:]]
    assert judged == [own[:4], own[4:]]


def test_shards_keep_to_the_batch_size_of_their_tables() -> None:
    """Two thirds of the tasks have the larger batch; their tables are others."""
    small = [replace(one, batch_size=BATCH_SIZE) for one in TASKS[:2]]
    large = [task(some_tables(8, seed=n + 9), 3, task_id=f"large-{n}", batch_size=256) for n in range(4)]
    config = replace(QUICK, own_placements=0, fit=replace(QUICK.fit, across_batches=True))
    shards = trained(config, tasks=[*small, *large]).measured
    assert [one.task.batch_size for one in shards] == [64] * 4 + [256] * 8
    for one in shards:
        pool = small if one.task.batch_size == 64 else large
        assert set(one.task.tables) <= {table for of_task in pool for table in of_task.tables}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model() -> None:
    one, same, other = trained(), trained(), trained(seed=1)
    assert one.measured == same.measured != other.measured
    assert bound_ms(one.model, TASKS[0]) == bound_ms(same.model, TASKS[0])


def test_fewer_tasks_than_placements_and_tasks_without_room_are_no_trouble() -> None:
    full = capped(replace(TASKS[0], task_id="full"), max(table.size_bytes for table in TABLES))
    added = trained(tasks=(*TASKS[:2], full)).measured
    assert [one.task.task_id for one in added if one.proposed_by == "evenshard"] in (
        ["train-0", "train-1"],
        ["train-1", "train-0"],
    )


@pytest.mark.slow
def test_intervals_widen_to_what_the_models_own_choices_cost() -> None:
    """Its own placements turn out half as slow again as anything it knows lets it expect: up to exp(0.4) and beyond."""

    def disappointing(jobs: Sequence[tuple[ShardingTask, Placement]]) -> list[PlacementCost]:
        return [
            PlacementCost(
                tuple(replace(d, bwd_compute_ms=d.bwd_compute_ms + 0.5 * d.total_ms) for d in one.devices), ""
            )
            if of_task.num_devices > 1
            else one
            for (of_task, _), one in zip(jobs, measure(jobs), strict=True)
        ]

    config = replace(QUICK, fit=CostModelFitConfig(num_updates=300))
    well, badly = (
        train_evenshard(TASKS, known(), how, PROVENANCE, config, 0).model for how in (measure, disappointing)
    )
    placement = random_placement(TASKS[0], np.random.default_rng(1))
    unsure, sure = (predicted(model, TASKS[0], placement) for model in (badly, well))
    assert min(unsure.high_ms / unsure.predicted_ms, unsure.predicted_ms / unsure.low_ms) > math.exp(0.3)
    assert sure.high_ms / sure.predicted_ms < math.exp(0.3)
