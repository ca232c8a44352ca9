"""DreamShard's networks, also in the form that rollouts ask: the same answers with fewer calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement, check_placement
from evenshard.sharders.catalog import roll_out
from evenshard.sharders.dreamshard.env import EpisodeBatch, choose_sampled, rollout
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardSharder, lean_cost_net, lean_policy
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import REPRESENTATION_SIZE
from support.builders import (
    BATCH_SIZE,
    PLAIN_FEATURES,
    AdditiveCostNet,
    ByPredictedCost,
    FakeHardware,
    cost_net,
    play_slowly,
    policy,
    some_tables,
    split_by,
    task,
    working,
)

TABLES = some_tables(10)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)


def test_lean_networks_play_the_same_episodes() -> None:
    batch = EpisodeBatch.of([task(TABLES, devices=3), task(TABLES[:4], devices=5)], FeatureNormalizer.fit(TABLES, 64))
    plain, lean = (
        rollout(batch.repeat(8), net, chooser, choose_sampled(torch.Generator().manual_seed(0)))
        for net, chooser in ((cost_net(), policy()), (lean_cost_net(cost_net()), lean_policy(policy())))
    )
    assert lean.device_BT.equal(plain.device_BT)
    torch.testing.assert_close(lean.predicted_ms_B, plain.predicted_ms_B)


@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_lean_networks_answer_as_the_networks_do(shape: tuple[int, ...]) -> None:
    net, chooser = cost_net(scale_ms=30.0), policy(scale_ms=30.0)
    lean_net, lean_chooser = lean_cost_net(net), lean_policy(chooser)
    generator = torch.Generator().manual_seed(0)
    sums, costs = torch.rand(*shape, 32, generator=generator), 30 * torch.rand(*shape, 3, generator=generator)
    torch.testing.assert_close(lean_net.device_costs(sums), net.device_costs(sums).detach(), atol=1e-5, rtol=1e-5)
    expected = chooser.device_logits(sums, costs).detach()
    torch.testing.assert_close(lean_chooser.device_logits(sums, costs).detach(), expected, atol=1e-5, rtol=1e-5)
    assert lean_policy(lean_chooser) is lean_chooser


def overall(net: DreamShardCostNet, sums: torch.Tensor, *counts: bool) -> torch.Tensor:
    """Of one placement with these devices."""
    return net.overall_cost(sums[None], torch.tensor([counts])).detach()


def test_devices_outside_the_mask_do_not_count_neither_as_large_nor_as_zero_and_empty_ones_inside_are_zero() -> None:
    net, below_zero = cost_net(), torch.full((1, REPRESENTATION_SIZE), -3.0)
    large, empty = torch.full_like(below_zero, 1e4), torch.zeros_like(below_zero)
    alone = overall(net, below_zero, True)
    for outside in (large, empty):
        torch.testing.assert_close(overall(net, torch.cat([below_zero, outside]), True, False), alone)
    assert (overall(net, torch.cat([below_zero, large]), True, True) - alone).abs() > 1
    torch.testing.assert_close(overall(net, torch.cat([below_zero, empty]), True, True), overall(net, empty, True))


def test_the_overall_cost_reads_the_maximum_over_devices_element_by_element() -> None:
    net, mask = cost_net(), torch.ones(1, 2, dtype=torch.bool)
    low, high = torch.zeros(REPRESENTATION_SIZE), torch.ones(REPRESENTATION_SIZE)
    half = torch.cat([low[:16], high[:16]])
    halves = torch.stack([half, 1 - half])[None]
    torch.testing.assert_close(net.overall_cost(halves, mask), net.overall_cost(torch.stack([high, low])[None], mask))


def test_representations_are_never_negative_and_the_costs_are_in_the_order_forward_exchange_backward() -> None:
    assert (cost_net().encode(torch.randn(50, 21, generator=torch.Generator().manual_seed(0))) >= 0).all()
    net = cost_net(scale_ms=1.0)
    with torch.no_grad():
        for number, head in enumerate((net.fwd_compute_head, net.bwd_all_to_all_head, net.bwd_compute_head), start=1):
            last = [layer for layer in head if isinstance(layer, nn.Linear)][-1]
            last.weight.zero_()
            last.bias.fill_(number)
    assert net.device_costs(torch.zeros(2, REPRESENTATION_SIZE)).tolist() == [[1.0, 2.0, 3.0]] * 2


def test_costs_are_in_units_of_the_scale_of_the_network_and_of_the_policy() -> None:
    unit, scaled = cost_net(scale_ms=1.0), cost_net(scale_ms=250.0)
    sums = torch.rand(2, REPRESENTATION_SIZE, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scaled.device_costs(sums), unit.device_costs(sums) * 250)
    torch.testing.assert_close(overall(scaled, sums, True, True), overall(unit, sums, True, True) * 250)
    costs = torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 1.0]])
    ten_times = policy(scale_ms=30.0).device_logits(sums, 10 * costs)
    torch.testing.assert_close(ten_times, policy(scale_ms=3.0).device_logits(sums, costs))
    assert (policy(scale_ms=30.0).device_logits(sums, costs) - ten_times).abs().max().detach() > 1e-3


def untrained() -> DreamShardSharder:
    return DreamShardSharder(cost_net(), policy(), NORMALIZER)


def by_hand(factor: float, num_rollouts: int = 0) -> DreamShardSharder:
    return DreamShardSharder(AdditiveCostNet(), ByPredictedCost(factor), PLAIN_FEATURES, num_rollouts)


def test_dreamshard_goes_where_the_policy_points_unless_rollouts_predict_less() -> None:
    of_task = task(working(4.0, 7.0, 3.0), devices=2)
    assert split_by(by_hand(-1.0).place(of_task)) == {(1,), (0, 2)}
    assert split_by(by_hand(+1.0).place(of_task)) == {(0, 1, 2)}
    of_task = task(working(4.0, 7.0, 3.0), devices=2)
    assert split_by(by_hand(0.001).place(of_task)) == {(0, 1, 2)}
    assert split_by(by_hand(0.001, num_rollouts=64).place(of_task)) == {(1,), (0, 2)}
    of_task = task(working(5.0, 4.0, 3.0, 3.0, 3.0), devices=3)
    most_probable = by_hand(-0.001).place(of_task)
    assert by_hand(-0.001, num_rollouts=1).place(of_task) == most_probable
    chance = by_hand(0.0).sample([of_task], torch.Generator().manual_seed(0))[0]
    assert chance is not None and split_by(chance) != split_by(most_probable)


def test_the_prediction_for_a_placement_is_the_cost_models() -> None:
    of_task, hardware = task(some_tables(5), devices=3), FakeHardware()
    for placement in (Placement((0, 1, 2, 0, 1), 3), Placement((2, 2, 2, 2, 2), 3), Placement((1, 0, 1, 0, 1), 3)):
        expected = hardware.measure(of_task, placement).max_device_ms
        assert by_hand(0.0).predict_ms(of_task, placement) == pytest.approx(expected, rel=1e-5)


def test_a_dead_end_of_the_best_guess_is_rescued_and_the_cheapest_of_the_samples_counts() -> None:
    """The policy fills the first device with 3 + 1 + 1, the second with 6, and has no room of 10 for the other 6.

    Six placements fit; their slower devices do 22, 20, 20, 18, 19 and, with the first and fourth table alone, 17.
    """
    sizes, works = (3, 1, 1, 6, 6), (9.0, 8.0, 6.0, 5.0, 3.0)
    tables = tuple(replace(one, num_rows=rows) for one, rows in zip(working(*works), sizes, strict=True))
    of_task = task(tables, devices=2, cap=4 * 10)
    with pytest.raises(InfeasibleTask):
        play_slowly(of_task, PLAIN_FEATURES, AdditiveCostNet(), ByPredictedCost(0.001))
    assert split_by(by_hand(0.001).place(of_task)) == {(0, 3), (1, 2, 4)}


def test_samples_explore_and_are_legal_and_none_without_room() -> None:
    roomy, impossible = task(TABLES, devices=3, task_id="a"), task(TABLES, devices=3, cap=8, task_id="b")
    first, none, other = untrained().sample([roomy, impossible, roomy], torch.Generator().manual_seed(0))
    assert none is None and first is not None and other is not None and first != other
    check_placement(roomy, first)


def test_many_samples_of_one_task_are_those_of_equal_tasks_and_a_roll_out_takes_few_of_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_task, sharder = task(TABLES, devices=3), untrained()
    repeated, equal, otherwise = (
        sharder.sample(tasks, torch.Generator().manual_seed(seed))
        for tasks, seed in (([of_task] * 4, 0), ([replace(of_task) for _ in range(4)], 0), ([of_task] * 4, 1))
    )
    assert repeated == equal != otherwise
    assert roll_out(sharder, of_task, seed=0, count=4) == repeated
    monkeypatch.setattr("evenshard.sharders.catalog.MOST_CHOICES", 3 * 10 * 3)
    assert len(roll_out(sharder, of_task, seed=0)) == 3
