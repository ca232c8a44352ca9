"""AutoShard's cost network: what it reads of a measurement, and that it learns; and the MDP by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from benchmarks.studies.trainings import measure_random_shards
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import CONTROL, DeviceCost, MeasuredPlacement, PlacementCost
from evenshard.sharders.autoshard.env import AutoShardCostNet, BalanceEnv
from evenshard.sharders.autoshard.fit import (
    ShardTensors,
    cost_net_round,
    fit_autoshard_net,
    predict_shards,
    select_shards,
)
from evenshard.sharders.checkpoint import Round, new_checkpoint
from evenshard.sharders.dreamshard.env import EpisodeBatch
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import FitConfig
from evenshard.tables.table import Table
from support.autoshard_builders import AdditiveShardModel, shard_net
from support.builders import BATCH_SIZE, PLAIN_FEATURES, FakeHardware, measured, sized, some_tables, task, working

TABLES = some_tables(30)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)
DEVICE_MS = DeviceCost(2.0, 100.0, 200.0, 5.0)


def shards_of(tables: tuple[Table, ...], count: int, seed: int = 0) -> list[MeasuredPlacement]:
    return measure_random_shards(FakeHardware(), [task(tables, devices=2)], count, seed)


def fit(
    seed: int, updates: int, data: ShardTensors, learning_rate: float = 3e-3
) -> tuple[AutoShardCostNet, list[float]]:
    made = shard_net(scale_ms=float(data.cost_S.mean()))
    optimizer = torch.optim.Adam(made.parameters(), lr=123.0)
    config = FitConfig(updates, minibatch_size=64, learning_rate=learning_rate)
    return made, fit_autoshard_net(made, optimizer, data, config, torch.Generator().manual_seed(seed))


def test_the_answer_is_in_units_of_the_cost_scale_and_has_the_shape_of_the_question() -> None:
    sums = torch.rand(4, 3, 32)
    cost, tenfold = shard_net().shard_cost(sums), shard_net(scale_ms=10.0).shard_cost(sums)
    assert cost.shape == (4, 3)
    torch.testing.assert_close(tenfold, 10 * cost)


def test_devices_with_tables_and_a_time_are_shards_that_share_their_tables_and_exchange_does_not_count() -> None:
    of_task = task(TABLES[:3], devices=4)
    costs = (DEVICE_MS, DeviceCost.out_of_memory(), DeviceCost(0.0, 9.0, 9.0, 0.0), DeviceCost(1.0, 0.0, 0.0, 0.5))
    data = ShardTensors.of([measured(of_task, (3, 0, 0), PlacementCost(costs, "modelled"))], NORMALIZER)
    assert data.cost_S.tolist() == [7.0, 1.5]
    assert data.holds_SP.tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]

    full = measured(of_task, (3, 1, 1), PlacementCost(costs, "modelled"))
    assert ShardTensors.of([full], NORMALIZER).cost_S.tolist() == [1.5]
    one, other = task(TABLES[:3], devices=1), task(TABLES[1:4], devices=1)
    alone = PlacementCost((DEVICE_MS,), "modelled")
    data = ShardTensors.of([measured(one, (0, 0, 0), alone), measured(other, (0, 0, 0), alone)], NORMALIZER)
    assert data.holds_SP.tolist() == [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]]
    torch.testing.assert_close(data.features_PF, NORMALIZER(TABLES[:4], BATCH_SIZE))


def test_the_first_loss_is_the_mean_squared_error_in_units_of_the_scale() -> None:
    data = ShardTensors.of(shards_of(TABLES, 40), NORMALIZER)
    _, (first,) = fit(seed=4, updates=1, data=data)
    rows_M = torch.randint(40, (64,), generator=torch.Generator().manual_seed(4))
    untrained = shard_net(scale_ms=float(data.cost_S.mean()))
    with torch.no_grad():
        error_M = (predict_shards(untrained, data, rows_M) - data.cost_S[rows_M]) / data.cost_S.mean()
    assert first == pytest.approx(float(error_M.square().mean()))


def test_it_learns_what_shards_of_unseen_composition_cost() -> None:
    data, unseen = (ShardTensors.of(shards_of(TABLES, 300, seed), NORMALIZER) for seed in (0, 1))
    made, losses = fit(seed=0, updates=400, data=data)
    assert sum(losses[-20:]) < 0.01 * sum(losses[:20])
    with torch.no_grad():
        predicted_S = predict_shards(made, unseen, torch.arange(300))
    assert float((predicted_S / unseen.cost_S - 1).abs().median()) < 0.05


def test_the_learning_rate_falls_to_nothing() -> None:
    data, made = ShardTensors.of(shards_of(TABLES, 40), NORMALIZER), shard_net()
    optimizer = torch.optim.Adam(made.parameters())
    fit_autoshard_net(made, optimizer, data, FitConfig(10, 8, 1e-3), torch.Generator().manual_seed(0))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


def test_a_round_goes_on_from_the_last_with_its_scale() -> None:
    data, generator = shards_of(TABLES, 40), torch.Generator().manual_seed(0)
    new, config = new_checkpoint(shard_net(), NORMALIZER), FitConfig(1, 8, 1e-3)
    first = cost_net_round(new, data[:20], config, Round(1, 2), generator).checkpoint
    scale_ms = ShardTensors.of(data[:20], NORMALIZER).cost_S.mean()
    assert float(first.net.cost_scale_ms) == pytest.approx(float(scale_ms))
    second = cost_net_round(first, data, config, Round(2, 2), generator)
    assert float(second.checkpoint.net.cost_scale_ms) == pytest.approx(float(scale_ms)) and second.checkpoint.round == 2
    tensors = ShardTensors.of(data, NORMALIZER)
    errors = predict_shards(first.net, tensors, torch.arange(40)) / tensors.cost_S - 1
    assert second.median_abs_pct_error == pytest.approx(100 * float(errors.abs().median().detach()))


def test_controls_and_what_ran_out_of_memory_are_not_learned_from() -> None:
    fine, control, full = shards_of(TABLES, 3)
    control = replace(control, proposed_by=CONTROL)
    full = replace(full, cost=PlacementCost((DeviceCost.out_of_memory(),), "modelled"))
    assert select_shards([fine, control, full]) == [fine]


def env_of(tasks: Sequence[ShardingTask], mask_illegal: bool = True) -> BalanceEnv:
    """Additive costs; one slot per task."""
    return BalanceEnv(EpisodeBatch.of(tasks, PLAIN_FEATURES), AdditiveShardModel(), len(tasks), mask_illegal)


def to(*devices: int) -> torch.Tensor:
    return torch.tensor(devices)


def test_one_episode_by_hand() -> None:
    env = env_of([task(working(1.0, 6.0, 3.0), devices=2)])
    assert env.position_KT.tolist() == [[1, 2, 0]]  # dearest first
    seen = env.observe()
    assert seen.step_ratio_B.tolist() == [0.0] and seen.fresh_B.tolist() == [True]
    assert seen.costs_BD.tolist() == [[0.0, 0.0]]
    for device, ratio, costs in ((0, 1 / 3, [6.0, 0.0]), (1, 2 / 3, [6.0, 3.0])):
        outcome = env.step(to(device))
        assert outcome.reward_B.tolist() == [0.0] and outcome.done_B.tolist() == [False]
        seen = env.observe()
        assert seen.step_ratio_B.tolist() == pytest.approx([ratio]) and not seen.fresh_B.any()
        assert seen.costs_BD[0].tolist() == pytest.approx(costs)
    last = env.step(to(1))
    assert last.reward_B.tolist() == pytest.approx([4 / 6]) and last.done_B.tolist() == [True]
    assert not env.active_B.any()


def test_a_dead_end_costs_the_overflow_of_the_freest_device_or_without_the_mask_of_the_chosen_one() -> None:
    env = env_of([task(sized(6, 5, 5), devices=2, cap=4 * 8)])
    assert env.step(to(0)).done_B.tolist() == [False]
    assert env.observe().legal_BD.tolist() == [[False, True]]
    outcome = env.step(to(1))  # 6 and 5 of 8 are taken; the freest would hold 10
    assert outcome.done_B.tolist() == [True] and outcome.reward_B.tolist() == pytest.approx([-2 / 8])
    env = env_of([task(sized(6, 6, 6), devices=2, cap=4 * 8)], mask_illegal=False)
    for device in (0, 1):
        env.step(to(device))
        assert env.observe().legal_BD.tolist() == [[True, True]]
    outcome = env.step(to(0))  # equal costs: balance 6 / 12; 12 of 8 are taken
    assert outcome.done_B.tolist() == [True] and outcome.reward_B.tolist() == pytest.approx([0.5 - 0.5])


def test_a_finished_slot_waits_until_it_is_restarted_and_then_forgets() -> None:
    env = env_of([task(working(2.0), devices=2), task(working(3.0, 2.0, 1.0), devices=2)])
    env.step(to(0, 0))
    waiting = env.observe()
    assert env.step(to(1, 1)).reward_B.tolist() == [0.0, 0.0]
    for name in ("sums_BDH", "costs_BD", "used_gb_BD", "step_ratio_B"):
        assert getattr(env.observe(), name)[0].equal(getattr(waiting, name)[0])
    env.restart(torch.tensor([True, False]), to(1, 0))
    seen = env.observe()
    assert seen.fresh_B.tolist() == [True, False] and env.task_B.tolist() == [1, 1]
    assert seen.costs_BD.tolist() == [[0.0, 0.0], [3.0, pytest.approx(2.0)]]
    assert not seen.used_gb_BD[0].any() and not seen.sums_BDH[0].any()
