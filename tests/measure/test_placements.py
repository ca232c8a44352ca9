"""Costs of placements of parts: as one device and its link where those say it, and by hand where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from evenshard.base.errors import BadConfig
from evenshard.measure.config import MeasureConfig
from evenshard.measure.placements import open_measurer, simulate_cost
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.nodes import DeviceGroup, Nodes
from evenshard.placement.parts import TablePart, cut_rows, replica_table
from evenshard.placement.placement import Placement, parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.planner.request import PlacementRequest
from evenshard.price.collectives import Links, exchange_times, volumes_of
from evenshard.price.costs import PlacementCost
from evenshard.price.device_model import backward_ms, forward_ms
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import LINKS, link
from evenshard.price.shard_work import WorkCounter
from evenshard.price.step import dense_ms
from evenshard.sharders.model import DeviceModel
from evenshard.tables.reuse import feasible_reuse_bins
from evenshard.tables.table import Table
from support.builders import column_parts

BATCH = 4096
H200 = gpu_profile("h200")
TABLES = tuple(
    Table(f"t{number}", 10 ** (3 + number % 4), 16 * (1 + number % 5), 1.5 * number, None) for number in range(12)
)
NODES = Nodes(8, 4, inter="infiniband_ndr")
LINKS_OF_NODES = Links(LINKS["nvlink_h200"], LINKS["infiniband_ndr"])


def cost(task: ShardingTask, parts: Sequence[TablePart]) -> PlacementCost:
    links = LINKS_OF_NODES if task.machine.num_domains > 1 else Links(link(H200.link))
    return simulate_cost(task, parts, [H200] * task.num_devices, links)


def of_task(*tables: Table, machine: Nodes = NODES, optimizer: str = "sgd") -> ShardingTask:
    return ShardingTask(tables, machine, (10**12,) * machine.num_devices, BATCH, optimizer)


def on(one: Table, *devices: int) -> TablePart:
    return replace(column_parts(one)[0], devices=devices)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_whole_tables_on_one_node_cost_what_the_device_model_says(optimizer: str) -> None:
    """And the input besides, which DreamShard's cost leaves out."""
    machine = Nodes.one_node(4)
    placement = Placement(tuple(number % 3 for number in range(len(TABLES))), 4)  # the last device is empty
    hardware = SimulatedHardware(MeasureConfig("simulated:h200", noise=0.0, optimizer=optimizer))
    expected = hardware.measure(ShardingTask.whole("task", TABLES, 4, 10**12, BATCH), placement)
    parts = [on(one, device) for one, device in zip(TABLES, placement.device_of_table, strict=True)]
    found = cost(of_task(*TABLES, machine=machine, optimizer=optimizer), parts)
    assert len(found.devices) == 4 and found.all_to_all == expected.all_to_all
    for ours, theirs in zip(found.devices, expected.devices, strict=True):
        assert ours.input_dist_ms > theirs.input_dist_ms == 0
        for name in ("fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms", "fwd_wait_ms"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name)), name


def test_exchanges_are_those_of_the_collectives() -> None:
    one = replace(TABLES[7], embedding_dim=32)
    task, parts = of_task(one), cut_rows(one, range(4, 8))
    found = cost(task, parts)
    expected = exchange_times(task, volumes_of(task, parts_by_table(task, parts)), LINKS_OF_NODES)
    assert [device.input_dist_ms for device in found.devices] == expected.input_dist.tolist()
    assert [device.fwd_all_to_all_ms for device in found.devices] == expected.forward.tolist()
    assert [device.bwd_all_to_all_ms for device in found.devices] == expected.backward.tolist()


def kernel_ms(one: Table, batch_size: int = BATCH, dense: float = 0.0) -> tuple[float, float]:
    """Forward and backward of a call for one table; a dense call checks no bounds."""
    counter = WorkCounter(H200)
    work = counter.shard_work(counter.columns([one], batch_size), np.zeros(1, dtype=np.int64), 1)
    work = replace(work, dense=np.array([dense]))
    return float(forward_ms(H200, work)[0]), float(backward_ms(H200, work)[0])


def test_rows_by_hand() -> None:
    """A quarter of the rows gets a quarter of the lookups, in as many bags; the other node computes nothing."""
    whole = Table("t", 1000, 32, 20.0, None)
    found = cost(of_task(whole), cut_rows(whole, range(4, 8)))
    fwd, bwd = kernel_ms(Table("part", 250, 32, 5.0, None))
    for device in found.devices[4:]:
        assert (device.fwd_compute_ms, device.bwd_compute_ms) == pytest.approx((fwd, bwd))
        assert device.fwd_wait_ms == 0
    for device in found.devices[:4]:
        assert device.fwd_compute_ms == device.bwd_compute_ms == 0 and device.fwd_wait_ms == pytest.approx(fwd)


def test_a_replica_costs_the_same_on_all_devices() -> None:
    """It looks up the device's own samples, and reads and writes all its weights: 320 million of 4 bytes, 4 times."""
    rows, pooling_factor = 10**7, 20_000.0
    whole = Table("t", rows, 32, pooling_factor, feasible_reuse_bins(rows, pooling_factor * BATCH))
    found = cost(of_task(whole), [on(whole, *range(8))])
    assert len(set(found.devices)) == 1
    fwd, bwd = kernel_ms(replica_table(whole, 8), BATCH // 8, dense=1.0)
    values = rows * 32
    update_ms = values * 4 * 4 / H200.hbm_bytes_per_ns / 1e6
    assert dense_ms(values, H200.hbm_bytes_per_ns, "sgd") == pytest.approx(update_ms)
    assert dense_ms(values, H200.hbm_bytes_per_ns, "adam") == pytest.approx(2 * update_ms)  # reads and writes 2 states
    device = found.devices[0]
    assert (device.fwd_compute_ms, device.bwd_compute_ms) == pytest.approx((fwd, bwd + update_ms))
    assert device.fwd_all_to_all_ms == device.input_dist_ms == 0 < device.bwd_all_to_all_ms


def test_each_type_of_a_device_is_a_call_of_its_own() -> None:
    """The host launches the kernels of a call while those of another run; these two take less than their launches."""
    first, second = (Table(name, 1000, 32, 20.0, None) for name in "ab")
    alone_ms = (H200.fwd_overhead_us + H200.fwd_host_us) / 1e3
    assert kernel_ms(first)[0] == pytest.approx(alone_ms)
    for others, expected in (
        ([on(second, 0)], alone_ms),
        (cut_rows(second, range(8)), alone_ms + H200.fwd_host_us / 1e3),
        ([on(second, *range(8))], alone_ms + H200.fwd_host_us / 1e3),
    ):
        device = cost(of_task(first, second), [on(first, 0), *others]).devices[0]
        assert device.fwd_compute_ms == pytest.approx(expected)


def test_a_slow_device_is_slower_with_the_same_parts() -> None:
    machine = Nodes(4, 2, inter="infiniband_ndr")
    profiles = [H200, H200, gpu_profile("v100"), gpu_profile("v100")]
    whole = Table("t", 10**6, 32, 400.0, None)
    for parts in ([on(whole, *range(4))], cut_rows(whole, range(4))):
        fast, _, slow, _ = simulate_cost(of_task(whole, machine=machine), parts, profiles, LINKS_OF_NODES).devices
        assert fast.fwd_compute_ms is not None and slow.fwd_compute_ms is not None
        assert fast.bwd_compute_ms is not None and slow.bwd_compute_ms is not None
        assert fast.fwd_compute_ms < slow.fwd_compute_ms and fast.bwd_compute_ms < slow.bwd_compute_ms
        alone = cost(of_task(whole, machine=machine), parts).devices[0]
        assert (fast.fwd_compute_ms, fast.bwd_compute_ms) == (alone.fwd_compute_ms, alone.bwd_compute_ms)


def test_a_simulated_machine_is_not_measured_and_devices_of_several_kinds_are_refused() -> None:
    one = TABLES[3]
    request = PlacementRequest((one,), (2**40,) * 8, BATCH, hardware="simulated:h200")
    with open_measurer(request, DeviceModel("simulated:h200"), visits=3) as measure:
        task = ShardingTask.whole("task", (one,), 8, 2**40, BATCH)
        assert measure(task, [[on(one, 1)]]) == [simulate_cost(task, [on(one, 1)], [H200] * 8, Links(link(H200.link)))]
    machine = Nodes(2, 2, groups=(DeviceGroup("cpu", 1), DeviceGroup("simulated:h100", 1)))
    request = PlacementRequest((one,), (2**30,) * 2, 64, machine=machine, hardware="cpu")
    with (
        pytest.raises(BadConfig, match="devices of several kinds cannot be measured"),
        open_measurer(request, DeviceModel("simulated:h100"), visits=1),
    ):
        pass
