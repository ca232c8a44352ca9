"""DreamShard's cost network: what must not change its predictions, and what must not count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenshard.sharders.dreamshard.sharder import DreamShardCostNet
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import REPRESENTATION_SIZE
from support.builders import BATCH_SIZE, cost_net, some_tables

TABLES = some_tables(8)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)
FEATURES_PF = NORMALIZER(TABLES, BATCH_SIZE)


def sums_DH(net: DreamShardCostNet, device_of_table: list[int], devices: int) -> torch.Tensor:
    representations = net.encode(FEATURES_PF).detach()
    return torch.zeros(devices, REPRESENTATION_SIZE).index_add(0, torch.tensor(device_of_table), representations)


def layer_sizes(module: nn.Module) -> list[tuple[int, int]]:
    return [(layer.in_features, layer.out_features) for layer in module.modules() if isinstance(layer, nn.Linear)]


def test_layers_have_the_published_sizes() -> None:
    net = DreamShardCostNet()
    assert layer_sizes(net.table_mlp) == [(21, 128), (128, 32)]
    for head in (net.fwd_compute_head, net.bwd_all_to_all_head, net.bwd_compute_head, net.overall_head):
        assert layer_sizes(head) == [(32, 64), (64, 1)]
    assert len(layer_sizes(net)) == 10


@settings(deadline=None)
@given(order=st.permutations(range(8)), placed=st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_the_order_of_tables_on_a_device_does_not_matter(order: list[int], placed: list[int]) -> None:
    net, mask = cost_net(), torch.ones(1, 4, dtype=torch.bool)
    shuffled = torch.zeros(4, REPRESENTATION_SIZE).index_add(
        0, torch.tensor(placed)[order], net.encode(FEATURES_PF[order]).detach()
    )
    sums = sums_DH(net, placed, 4)
    torch.testing.assert_close(net.device_costs(shuffled), net.device_costs(sums), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        net.overall_cost(shuffled[None], mask), net.overall_cost(sums[None], mask), atol=1e-5, rtol=1e-5
    )


@settings(deadline=None)
@given(order=st.permutations(range(4)), placed=st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_renamed_devices_swap_their_costs_and_keep_the_overall_cost(order: list[int], placed: list[int]) -> None:
    net, mask = cost_net(), torch.ones(1, 4, dtype=torch.bool)
    sums = sums_DH(net, placed, 4)
    torch.testing.assert_close(net.device_costs(sums[order]), net.device_costs(sums)[order])
    torch.testing.assert_close(net.overall_cost(sums[order][None], mask), net.overall_cost(sums[None], mask))


def test_devices_outside_the_mask_do_not_count() -> None:
    net = cost_net()
    sums = sums_DH(net, [0, 0, 1, 1, 2, 2, 2, 0], 3)
    padded = torch.cat([sums, torch.full((2, REPRESENTATION_SIZE), 1e4)])[None]
    mask = torch.tensor([[True, True, True, False, False]])
    alone = net.overall_cost(sums[None], torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(net.overall_cost(padded, mask), alone)
    assert float((net.overall_cost(padded, torch.ones_like(mask)) - alone).abs().detach()) > 1


def test_a_device_outside_the_mask_is_no_zero_in_the_maximum() -> None:
    net, below_zero = cost_net(), torch.full((1, 2, REPRESENTATION_SIZE), -3.0)
    masked = net.overall_cost(below_zero, torch.tensor([[True, False]]))
    torch.testing.assert_close(masked, net.overall_cost(below_zero[:, :1], torch.ones(1, 1, dtype=torch.bool)))


def test_an_empty_device_inside_the_mask_is_zero_in_the_maximum() -> None:
    net = cost_net()
    sums = torch.full((1, 2, REPRESENTATION_SIZE), -3.0)
    with_empty = torch.cat([sums, torch.zeros(1, 1, REPRESENTATION_SIZE)], dim=1)
    overall = net.overall_cost(with_empty, torch.ones(1, 3, dtype=torch.bool))
    at_zero = net.overall_head(torch.zeros(1, REPRESENTATION_SIZE)).squeeze(-1) * net.cost_scale_ms
    torch.testing.assert_close(overall, at_zero)


def test_the_overall_cost_reads_the_maximum_over_devices_element_by_element() -> None:
    net, mask = cost_net(), torch.ones(1, 2, dtype=torch.bool)
    low, high = torch.zeros(REPRESENTATION_SIZE), torch.ones(REPRESENTATION_SIZE)
    half = torch.cat([low[:16], high[:16]])
    halves = torch.stack([half, 1 - half])[None]
    torch.testing.assert_close(net.overall_cost(halves, mask), net.overall_cost(torch.stack([high, low])[None], mask))


def test_table_representations_are_never_negative_so_that_they_add_up() -> None:
    assert (cost_net().encode(torch.randn(50, 21, generator=torch.Generator().manual_seed(0))) >= 0).all()


@pytest.mark.parametrize("scale_ms", [0.01, 250.0])
def test_all_costs_are_in_units_of_the_scale(scale_ms: float) -> None:
    unit, scaled = cost_net(scale_ms=1.0), cost_net(scale_ms=scale_ms)
    sums, mask = sums_DH(unit, [0, 1, 0, 1, 0, 1, 0, 1], 2), torch.ones(1, 2, dtype=torch.bool)
    torch.testing.assert_close(scaled.device_costs(sums), unit.device_costs(sums) * scale_ms)
    torch.testing.assert_close(scaled.overall_cost(sums[None], mask), unit.overall_cost(sums[None], mask) * scale_ms)
    assert "cost_scale_ms" in scaled.state_dict()


def test_the_three_costs_stand_in_the_order_forward_exchange_backward() -> None:
    net = cost_net(scale_ms=1.0)
    with torch.no_grad():
        for number, head in enumerate((net.fwd_compute_head, net.bwd_all_to_all_head, net.bwd_compute_head), start=1):
            last = [layer for layer in head if isinstance(layer, nn.Linear)][-1]
            last.weight.zero_()
            last.bias.fill_(number)
    assert net.device_costs(torch.zeros(2, REPRESENTATION_SIZE)).tolist() == [[1.0, 2.0, 3.0]] * 2
