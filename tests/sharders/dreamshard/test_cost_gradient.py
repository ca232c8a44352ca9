"""The gradient written by hand against automatic differentiation of the loss as the paper tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from evenshard.measure.costs import MeasuredPlacement
from evenshard.placement.placement import Placement
from evenshard.sharders.dreamshard.cost_gradient import CostGradient
from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.dreamshard.fit import CostTensors, predict
from evenshard.sharders.features import FeatureNormalizer
from support.builders import BATCH_SIZE, FakeHardware, cost_net, measured, some_tables, task

TABLES = some_tables(9)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)


def ran(first_table: int, devices: int, device_of_table: Sequence[int]) -> MeasuredPlacement:
    of_task = task(TABLES[first_table : first_table + len(device_of_table)], devices=devices)
    cost = FakeHardware(slowness=(1e-3,)).measure(of_task, Placement(tuple(device_of_table), devices))
    return measured(of_task, device_of_table, cost)


PLACEMENTS = [
    ran(0, 3, (0, 1, 2, 0, 1)),
    ran(2, 4, (3, 3, 0, 1)),  # device 2 is empty
    ran(4, 2, (1, 1, 1)),
    ran(8, 1, (0,)),
    ran(0, 4, (0, 1, 2, 3, 0, 1, 2, 3)),
]
DATA = CostTensors.of(PLACEMENTS, NORMALIZER)


def plain_loss(net: DreamShardCostNet, data: CostTensors, drawn: Sequence[int]) -> torch.Tensor:
    """Three mean squared errors over the devices that there are, and one over placements, one placement at a time."""
    squared, overall, num_devices = torch.zeros(()), torch.zeros(()), 0
    for row in drawn:
        mask_D = data.device_mask_ND[row]
        (costs_DC,), (overall_ms,) = predict(net, data, torch.tensor([row]))
        errors_DC = (costs_DC[mask_D] - data.costs_NDC[row][mask_D]) / net.cost_scale_ms
        squared = squared + errors_DC.square().sum()
        overall = overall + ((overall_ms - data.overall_N[row]) / net.cost_scale_ms).square()
        num_devices += int(mask_D.sum())
    return squared / num_devices + overall / len(drawn)


def both(
    data: CostTensors, drawn: Sequence[int], seed: int = 0, scale_ms: float = 2.5
) -> tuple[DreamShardCostNet, float, DreamShardCostNet, float]:
    """A network with the gradient by hand and its loss, and one with that of automatic differentiation."""
    by_hand, automatic = cost_net(seed, scale_ms), cost_net(seed, scale_ms)
    rows_U, times_U = torch.tensor(drawn).unique(return_counts=True)
    loss_by_hand = CostGradient(by_hand, data)(rows_U, times_U)
    loss = plain_loss(automatic, data, drawn)
    loss.backward()  # type: ignore[no-untyped-call]
    return by_hand, loss_by_hand, automatic, float(loss.detach())


@pytest.mark.parametrize("drawn", [[0], [1], [2], [3], [4], [0, 1, 2, 3, 4], [1, 0, 1, 1, 4, 3, 0]])
@pytest.mark.parametrize("seed", range(2))
def test_loss_and_gradient_are_those_of_automatic_differentiation(drawn: list[int], seed: int) -> None:
    by_hand, loss_by_hand, automatic, loss = both(DATA, drawn, seed)
    assert loss_by_hand == pytest.approx(loss, rel=1e-5)
    for (name, mine), theirs in zip(by_hand.named_parameters(), automatic.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None and mine.grad.shape == mine.shape, name
        torch.testing.assert_close(
            mine.grad, theirs.grad, atol=1e-6, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_no_part_of_the_gradient_vanishes_in_these_cases() -> None:
    """What the comparison above needs in order to say anything."""
    by_hand, _, _, _ = both(DATA, [0, 1, 2, 3, 4])
    assert all(float(weight.grad.abs().max()) > 1e-3 for weight in by_hand.parameters() if weight.grad is not None)


def test_equally_bad_devices_share_the_slope() -> None:
    """Two devices that hold equal tables: the maximum over them has no one place."""
    twins = [replace(TABLES[0], name="one"), replace(TABLES[0], name="other")]
    of_task = task(twins, devices=2)
    cost = FakeHardware(slowness=(1e-3,)).measure(of_task, Placement((0, 1), 2))
    by_hand, _, automatic, _ = both(CostTensors.of([measured(of_task, (0, 1), cost)], NORMALIZER), [0])
    for mine, theirs in zip(by_hand.parameters(), automatic.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-6, rtol=1e-4)


def test_every_call_writes_the_gradient_anew_and_of_the_weights_of_the_moment() -> None:
    net = cost_net(scale_ms=2.5)
    gradient, rows, times = CostGradient(net, DATA), torch.arange(5), torch.ones(5, dtype=torch.int64)
    first = gradient(rows, times)
    grads = [weight.grad for weight in net.parameters()]
    assert gradient(rows, times) == first
    assert all(weight.grad.equal(old) for weight, old in zip(net.parameters(), grads, strict=True))
    with torch.no_grad():
        for weight in net.parameters():
            weight.sub_(1e-3 * weight.grad)
    assert gradient(rows, times) < first
