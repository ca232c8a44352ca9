"""DreamShard's networks, also in the form that rollouts ask: the same answers with fewer calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evenshard.sharders.dreamshard.env import EpisodeBatch, choose_sampled, rollout
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, lean_cost_net, lean_policy
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import REPRESENTATION_SIZE
from support.builders import cost_net, policy, some_tables, task

TABLES = some_tables(10)


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


def test_table_representations_are_never_negative_so_that_they_add_up() -> None:
    assert (cost_net().encode(torch.randn(50, 21, generator=torch.Generator().manual_seed(0))) >= 0).all()


def test_the_three_costs_stand_in_the_order_forward_exchange_backward() -> None:
    net = cost_net(scale_ms=1.0)
    with torch.no_grad():
        for number, head in enumerate((net.fwd_compute_head, net.bwd_all_to_all_head, net.bwd_compute_head), start=1):
            last = [layer for layer in head if isinstance(layer, nn.Linear)][-1]
            last.weight.zero_()
            last.bias.fill_(number)
    assert net.device_costs(torch.zeros(2, REPRESENTATION_SIZE)).tolist() == [[1.0, 2.0, 3.0]] * 2


def test_all_costs_are_in_units_of_the_scale() -> None:
    unit, scaled = cost_net(scale_ms=1.0), cost_net(scale_ms=250.0)
    sums = torch.rand(2, REPRESENTATION_SIZE, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scaled.device_costs(sums), unit.device_costs(sums) * 250)
    torch.testing.assert_close(overall(scaled, sums, True, True), overall(unit, sums, True, True) * 250)
