"""The trainings of the studies in memory: they learn what is measured, and do so again with the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from benchmarks.studies.measuring import measured_balance
from benchmarks.studies.trainings import (
    AutoShardConfig,
    DreamShardConfig,
    measure_random_shards,
    train_autoshard,
    train_dreamshard,
)
from evenshard.base.errors import InfeasibleTask
from evenshard.measure.hardware import Measure
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import MeasuredPlacement, PlacementCost
from evenshard.sharders.autoshard.env import AutoShardCostNet
from evenshard.sharders.autoshard.impala import ImpalaConfig
from evenshard.sharders.learned import Sharder
from evenshard.sharders.simple import RandomSharder
from evenshard.sharders.training import FitConfig
from support.builders import FakeHardware, capped, sized, some_tables, table, task

# DreamShard -----------------------------------------------------------------------------------------------------------

POOL = some_tables(60)
TRAIN = [task(POOL[6 * n : 6 * n + 6], devices=2, task_id=f"train-{n}") for n in range(5)]
TEST = [task(POOL[30 + 6 * n : 36 + 6 * n], devices=2, task_id=f"test-{n}") for n in range(5)]
SMALL = DreamShardConfig(
    num_rounds=2, placements_per_round=12, cost_updates=150, policy_updates=40, num_episodes=8, learning_rate=5e-3
)


def measuring(hardware: FakeHardware) -> Measure:
    def measure(jobs: Sequence[tuple[ShardingTask, Placement]]) -> list[PlacementCost]:
        return [hardware.measure(of_task, placement) for of_task, placement in jobs]

    return measure


@pytest.mark.slow
def test_it_measures_random_placements_first_and_the_policys_then() -> None:
    hardware = FakeHardware()
    trained = train_dreamshard(TRAIN, measuring(hardware), hardware.provenance, SMALL, seed=0)
    assert len(trained.measured) == len(hardware.calls) == 24
    assert [one.proposed_by for one in trained.measured] == ["random"] * 12 + ["dreamshard"] * 12
    assert [one.round for one in trained.measured] == [1] * 12 + [2] * 12
    assert len({one.measurement_id for one in trained.measured}) == 24
    assert float(trained.cost_net.cost_scale_ms) == pytest.approx(
        fmean(one.cost.max_device_ms for one in trained.measured[:12])
    )
    for one in trained.measured:
        check_placement(one.task, one.placement)
        assert one.cost == hardware.measure(one.task, one.placement)


def test_it_learns_to_place_unseen_tables_better_than_chance() -> None:
    hardware = FakeHardware()
    sharder = train_dreamshard(TRAIN, measuring(hardware), hardware.provenance, SMALL, seed=1).sharder(32)

    def mean_ms(own: Sharder) -> float:
        return fmean(hardware.measure(one, own.place(one)).max_device_ms for one in TEST)

    assert mean_ms(sharder) < 0.95 * mean_ms(RandomSharder(0))


def test_the_same_seed_gives_the_same_networks() -> None:
    quick = DreamShardConfig(num_rounds=2, placements_per_round=3, cost_updates=3, policy_updates=2, num_episodes=2)
    nets = [
        train_dreamshard(TRAIN, measuring(FakeHardware()), FakeHardware().provenance, quick, seed).policy
        for seed in (3, 3, 4)
    ]
    weights = [torch.cat([value.flatten() for value in net.state_dict().values()]) for net in nets]
    assert weights[0].equal(weights[1]) and not weights[0].equal(weights[2])


def test_tasks_that_fit_nowhere_are_left_out_and_none_at_all_is_an_error() -> None:
    full = task([table("big", 1000), table("large", 1000)], 2, cap=10, task_id="full")
    hardware = FakeHardware()
    quick = DreamShardConfig(num_rounds=1, placements_per_round=8, cost_updates=2, policy_updates=1, num_episodes=2)
    trained = train_dreamshard([full, task(sized(1, 2, 3))], measuring(hardware), hardware.provenance, quick, seed=0)
    assert {one.task.task_id for one in trained.measured} == {"task"}
    with pytest.raises(InfeasibleTask, match="None of the train tasks"):
        train_dreamshard([full], measuring(hardware), hardware.provenance, quick, seed=0)


# AutoShard ------------------------------------------------------------------------------------------------------------

BALANCE = AutoShardConfig(
    fit=FitConfig(num_updates=300, minibatch_size=64, learning_rate=3e-3),
    impala=ImpalaConfig(num_updates=40, num_slots=16, unroll_length=20, sync_every=2, learning_rate=3e-3),
)
FEW = some_tables(24)
SHARDS_OF = [task(FEW[first : first + 10], devices=2, task_id=f"train-{first}") for first in range(5)]
UNSEEN = [task(FEW[first : first + 10], devices=2, task_id=f"test-{first}") for first in range(10, 15)]


def shards() -> list[MeasuredPlacement]:
    return measure_random_shards(FakeHardware(), SHARDS_OF, 200, seed=0)


@pytest.mark.slow
def test_from_measured_shards_to_a_balance_above_random() -> None:
    trained = train_autoshard(SHARDS_OF, shards(), BALANCE, seed=0)
    mean = [
        sum(measured_balance(FakeHardware().measure(one, who.place(one))) for one in UNSEEN) / len(UNSEEN)
        for who in (trained, RandomSharder(0))
    ]
    assert mean[0] > mean[1] + 0.15 and mean[0] > 0.75


def test_the_same_seed_gives_the_same_sharder_and_touches_no_global_randomness() -> None:
    short = AutoShardConfig(replace(BALANCE.fit, num_updates=5), replace(BALANCE.impala, num_updates=2))
    measured = shards()
    torch.manual_seed(11)
    one = train_autoshard(SHARDS_OF, measured, short, seed=1)
    drawn = torch.rand(())
    torch.manual_seed(11)
    assert torch.rand(()).equal(drawn)
    other, third = (train_autoshard(SHARDS_OF, measured, short, seed=seed) for seed in (1, 2))
    for mine, its in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert mine.equal(its)
    assert any(
        not mine.equal(its) for mine, its in zip(one.policy.parameters(), third.policy.parameters(), strict=True)
    )


def test_training_the_policy_leaves_the_cost_network_alone() -> None:
    measured = shards()
    fits = (replace(BALANCE.impala, num_updates=updates) for updates in (0, 3))
    nets = [train_autoshard(SHARDS_OF, measured, AutoShardConfig(BALANCE.fit, impala), 0).cost_net for impala in fits]
    assert isinstance(nets[0], AutoShardCostNet) and isinstance(nets[1], AutoShardCostNet)
    assert all(one.equal(other) for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True))


def test_tasks_that_do_not_fit_are_left_out_of_training_and_without_others_it_is_refused() -> None:
    short = AutoShardConfig(replace(BALANCE.fit, num_updates=2), replace(BALANCE.impala, num_updates=2))
    too_small = [capped(one, 4) for one in SHARDS_OF]
    train_autoshard([*too_small, SHARDS_OF[0]], shards(), short, seed=0)
    with pytest.raises(InfeasibleTask, match="No train task fits"):
        train_autoshard(too_small, shards(), short, seed=0)
