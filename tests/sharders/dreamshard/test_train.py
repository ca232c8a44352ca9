"""DreamShard's whole loop in memory: it measures what it says, learns, and does so again with the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from evenshard.measure.costs import CONTROL, RANDOM_SHARD, DeviceCost, PlacementCost
from evenshard.placement.placement import Placement
from evenshard.placement.plan import check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.base import Sharder
from evenshard.sharders.checkpoint import Round
from evenshard.sharders.dreamshard.fit import FitConfig, cost_net_round, new_cost_net, whole_placements
from evenshard.sharders.dreamshard.reinforce import ReinforceConfig, new_policy, policy_round
from evenshard.sharders.dreamshard.train import DreamShardConfig, Measure, train_dreamshard
from evenshard.sharders.random import RandomSharder
from evenshard.utils.errors import InfeasibleTask
from support.builders import FakeHardware, sized, some_tables, table, task

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


# One round ------------------------------------------------------------------------------------------------------------


def test_learning_rates_fall_linearly_over_the_rounds() -> None:
    assert [Round(number, 4).decay(0.8) for number in (1, 2, 3, 4)] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_a_round_goes_on_from_the_last_with_its_scale_and_a_lower_learning_rate() -> None:
    hardware = FakeHardware()
    measured = train_dreamshard(TRAIN, measuring(hardware), hardware.provenance, SMALL, seed=0).measured
    torch.manual_seed(0)
    fit, learn, generator = FitConfig(2, 4, 1e-3), ReinforceConfig(2, 4, 1e-3, 0.0), torch.Generator().manual_seed(0)
    first = cost_net_round(new_cost_net(TRAIN), measured[:12], fit, Round(1, 2), generator)
    scale_ms = float(first.checkpoint.net.cost_scale_ms)
    assert scale_ms == pytest.approx(fmean(one.cost.max_device_ms for one in measured[:12]))
    policy, history = policy_round(
        new_policy(first.checkpoint.normalizer), first.checkpoint.net, TRAIN, learn, Round(1, 2), generator
    )
    assert len(first.losses) == len(history) == 2 and float(policy.net.cost_scale_ms) == pytest.approx(scale_ms)

    second = cost_net_round(first.checkpoint, measured, fit, Round(2, 2), generator).checkpoint
    policy, _ = policy_round(policy, second.net, TRAIN, learn, Round(2, 2), generator)
    assert float(second.net.cost_scale_ms) == scale_ms and second.round == policy.round == 2
    for optimizer in (second.optimizer, policy.optimizer):
        assert [group["lr"] for group in optimizer.param_groups] == [5e-4]


def test_controls_and_what_ran_out_of_memory_are_not_learned_from_nor_lone_shards_beside_placements() -> None:
    hardware = FakeHardware()
    whole, control, shard, full = train_dreamshard(
        TRAIN, measuring(hardware), hardware.provenance, SMALL, seed=0
    ).measured[:4]
    no_room = replace(full.cost, devices=(DeviceCost.out_of_memory(), *full.cost.devices[1:]))
    others = [
        replace(control, proposed_by=CONTROL),
        replace(shard, proposed_by=RANDOM_SHARD),
        replace(full, cost=no_room),
    ]
    assert whole_placements([whole, *others]) == [whole]
    assert whole_placements(others) == [others[1]]
