"""Fitting the cost network: the tensors, the loss by hand, and a golden curve."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
import torch

from evenshard.price.costs import CONTROL, RANDOM_SHARD, DeviceCost, MeasuredPlacement, PlacementCost
from evenshard.sharders.checkpoint import Round, new_checkpoint
from evenshard.sharders.dreamshard.fit import (
    CostTensors,
    ReinforceConfig,
    cost_loss,
    cost_net_round,
    fit_cost_net,
    policy_round,
    predict,
    select_placements,
)
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.simple import RandomSharder
from evenshard.sharders.training import FitConfig
from support.builders import BATCH_SIZE, FakeHardware, cost, cost_net, measured, policy, some_tables, task

TABLES = some_tables(12)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)


def random_placements(count: int, seed: int = 0) -> list[MeasuredPlacement]:
    """Placements on 2 to 4 devices with their costs on ``FakeHardware``, in units of 1000 ms."""
    found = []
    for number in range(count):
        first = number % 5
        of_task = task(TABLES[first : first + 6], devices=2 + number % 3, task_id=f"task-{number}")
        placement = RandomSharder(seed).place(of_task)
        devices = FakeHardware(slowness=(1e-3,)).measure(of_task, placement)
        found.append(measured(of_task, placement.device_of_table, devices))
    return found


DATA = CostTensors.of(random_placements(40), NORMALIZER)


def fitted(config: FitConfig, seed: int = 0) -> tuple[DreamShardCostNet, list[float]]:
    net = cost_net(seed=1, scale_ms=float(DATA.overall_N.mean()))
    optimizer = torch.optim.Adam(net.parameters(), lr=123.0)
    return net, fit_cost_net(net, optimizer, DATA, config, torch.Generator().manual_seed(seed))


def test_of_a_shard_timed_as_a_whole_the_sum_of_both_heads_is_learned() -> None:
    alone = measured(task(TABLES[:2], devices=1), (0, 0), PlacementCost((DeviceCost.of_total(6.0),), "modelled"))
    data, net = CostTensors.of([alone], NORMALIZER), cost_net(seed=1, scale_ms=2.0)
    ((predicted,),), (overall,) = (one.tolist() for one in predict(net, data, torch.arange(1)))
    forward, all_to_all, backward = predicted
    by_hand = ((forward + backward - 6.0) / 2) ** 2 + (all_to_all / 2) ** 2 + ((overall - 6.0) / 2) ** 2
    loss = cost_loss(net, data, torch.arange(1))
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(bool(weight.grad.isfinite().all()) for weight in net.parameters() if weight.grad is not None)


def test_measured_placements_become_tensors_by_hand() -> None:
    two, three = task(TABLES[:2], devices=2, task_id="a"), task(TABLES[1:4], devices=3, task_id="b")
    costs = PlacementCost((DeviceCost(1.0, 9.0, 2.0, 3.0), DeviceCost(4.0, 9.0, 5.0, 6.0)), "modelled")
    data = CostTensors.of([measured(two, (1, 0), costs), measured(three, (2, 2, 0), cost(4.0, 8.0, 2.0))], NORMALIZER)
    torch.testing.assert_close(data.features_PF, NORMALIZER(TABLES[:4], BATCH_SIZE))
    assert data.holds_NDP.tolist() == [
        [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
        [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]],
    ]
    assert data.device_mask_ND.tolist() == [[True, True, False], [True, True, True]]
    # forward compute, backward all-to-all, backward compute: the forward all-to-all is not a target
    assert data.costs_NDC.tolist() == [
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.0, 0.0, 0.0]],
        [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.5, 0.5, 0.5]],
    ]
    assert data.compute_ND.tolist() == [[4.0, 10.0, 0.0], [2.0, 4.0, 1.0]]
    assert data.overall_N.tolist() == [24.0, 8.0]


def test_predictions_sum_the_representations_of_each_device_and_leave_an_empty_one_at_zero() -> None:
    net, of_task = cost_net(), task(TABLES[:3], devices=3)
    data = CostTensors.of([measured(of_task, (0, 2, 0), cost(1.0, 1.0, 1.0))], NORMALIZER)
    encoded = net.encode(NORMALIZER(TABLES[:3], BATCH_SIZE))
    sums = torch.stack([encoded[0] + encoded[2], torch.zeros(32), encoded[1]])
    device_costs, overall = predict(net, data, torch.tensor([0]))
    torch.testing.assert_close(device_costs[0], net.device_costs(sums))
    torch.testing.assert_close(overall, net.overall_cost(sums[None], torch.ones(1, 3, dtype=torch.bool)))


def test_the_loss_is_three_mean_squared_errors_over_devices_and_one_over_placements() -> None:
    net, placements = cost_net(scale_ms=2.0), random_placements(2)  # on 2 and on 3 devices: 5 in all
    data = CostTensors.of(placements, NORMALIZER)
    squared = overall = 0.0
    picked = torch.randint(2, (8,), generator=torch.Generator().manual_seed(3)).tolist()
    assert set(picked) == {0, 1}
    for row in picked:
        device_costs, (total,) = predict(net, CostTensors.of([placements[row]], NORMALIZER), torch.tensor([0]))
        measured_cost = placements[row].cost
        for predicted, device in zip(device_costs[0].tolist(), measured_cost.devices, strict=True):
            actual = (device.fwd_compute_ms, device.bwd_all_to_all_ms, device.bwd_compute_ms)
            squared += sum(((p - a) / 2.0) ** 2 for p, a in zip(predicted, actual, strict=True))
        overall += ((float(total.detach()) - measured_cost.max_device_ms) / 2.0) ** 2
    num_devices = sum(placements[row].task.num_devices for row in picked)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    (loss,) = fit_cost_net(net, optimizer, data, FitConfig(1, 8, 0.0), torch.Generator().manual_seed(3))
    assert loss == pytest.approx(squared / num_devices + overall / 8, rel=1e-4)


def test_golden_curve() -> None:
    _, losses = fitted(FitConfig(num_updates=150, minibatch_size=16, learning_rate=2e-3))
    assert [losses[0], losses[59], losses[149]] == pytest.approx([1.138678, 0.00874542, 0.000558838], rel=1e-3)


def test_a_round_goes_on_from_the_last_with_its_scale_and_a_lower_learning_rate() -> None:
    placements = random_placements(24)
    tasks = [one.task for one in placements[:5]]
    new_net, new_policy = new_checkpoint(cost_net(), NORMALIZER), new_checkpoint(policy(), NORMALIZER)
    fit, learn, generator = FitConfig(2, 4, 1e-3), ReinforceConfig(2, 4, 1e-3, 0.0), torch.Generator().manual_seed(0)
    first = cost_net_round(new_net, placements[:12], fit, Round(1, 2), generator)
    scale_ms = float(first.checkpoint.net.cost_scale_ms)
    assert scale_ms == pytest.approx(fmean(one.cost.max_device_ms for one in placements[:12]))
    trained, history = policy_round(new_policy, first.checkpoint.net, tasks, learn, Round(1, 2), generator)
    assert len(first.losses) == len(history) == 2 and float(trained.net.cost_scale_ms) == pytest.approx(scale_ms)

    second = cost_net_round(first.checkpoint, placements, fit, Round(2, 2), generator).checkpoint
    trained, _ = policy_round(trained, second.net, tasks, learn, Round(2, 2), generator)
    assert float(second.net.cost_scale_ms) == scale_ms and second.round == trained.round == 2
    for optimizer in (second.optimizer, trained.optimizer):
        assert [group["lr"] for group in optimizer.param_groups] == [5e-4]


def test_controls_and_what_ran_out_of_memory_are_not_learned_from_nor_lone_shards_beside_placements() -> None:
    whole, control, shard, full = random_placements(4)
    no_room = replace(full.cost, devices=(DeviceCost.out_of_memory(), *full.cost.devices[1:]))
    others = [
        replace(control, proposed_by=CONTROL),
        replace(shard, proposed_by=RANDOM_SHARD),
        replace(full, cost=no_room),
    ]
    assert select_placements([whole, *others]) == [whole]
    assert select_placements(others) == [others[1]]
