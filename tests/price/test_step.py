"""Predicted steps of placements: the times of each device, by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import whole_part
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.link import link
from evenshard.price.simulated_price import build_device_kind
from evenshard.price.step import DENSE_PASSES, DIVISION_PASSES, DeviceKind, PartCosts, dense_ms
from evenshard.price.step_time import LARGEST_SUM, PIPELINES
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from support.additive_price import AdditivePrice
from support.search_builders import costs_of, some_tables

# Device 0 has the most lookups, device 1 the widest outputs: each window of a step has another slowest device.
TABLES = (Table("looked up", 10**6, 16, 200.0), Table("wide", 10**4, 1024, 1.0), Table("small", 10**4, 16, 2.0))


@pytest.mark.parametrize("pipeline", [LARGEST_SUM, *PIPELINES])
def test_devices_wait_for_what_is_left_of_the_step(pipeline: str) -> None:
    """Device 3 holds nothing. Where sums are compared, the slowest device does not wait."""
    machine = Nodes.one_node(4)
    task = ShardingTask(TABLES, machine, (2**33,) * 4, 65_536)
    kind = build_device_kind(gpu_profile("h100"), machine)
    costs = PartCosts(task, [kind], [0] * 4, Links(link("nvlink_h100"), None), pipeline)
    found = costs.predict([whole_part(table, (device,)) for table, device in zip(TABLES, (0, 1, 2), strict=True)])
    for device in found.devices:
        assert device.predicted_total_ms + device.predicted_wait_ms == pytest.approx(found.predicted_ms, rel=1e-9)
    waits = [device.predicted_wait_ms for device in found.devices]
    assert waits[3] == max(waits)
    assert min(waits) == pytest.approx(0.0, abs=1e-9) if pipeline == LARGEST_SUM else min(waits) > 0.01


def test_parts_take_the_compute_time_that_devices_have_alone_and_save_without_them() -> None:
    """Two tables on device 0, and a replica on both devices, which are of two kinds. Exchanges count in both times."""
    machine = Nodes.one_node(2)
    kinds = [build_device_kind(gpu_profile(name), machine) for name in ("h100", "a100_80gb")]
    parts = [whole_part(table, devices) for table, devices in zip(TABLES, ((0,), (0,), (0, 1)), strict=True)]

    def costs_of(tables: Sequence[Table]) -> PartCosts:
        task = ShardingTask(tuple(tables), machine, (2**33,) * 2, 65_536)
        return PartCosts(task, kinds, [0, 1], Links(link("nvlink_h200"), None))

    def compute_ms(numbers: Collection[int], device: int) -> float:
        found = costs_of([TABLES[one] for one in numbers]).predict([parts[one] for one in numbers]).devices[device]
        return found.predicted_fwd_compute_ms + found.predicted_bwd_compute_ms

    alone_ms, adds_ms = costs_of(TABLES).part_ms(parts)
    busiest = max((0, 1), key=lambda device: compute_ms(range(3), device))
    for number, device in enumerate((0, 0, busiest)):
        left = [one for one in range(3) if one != number]
        saved_ms = compute_ms(range(3), device) - compute_ms(left, device)
        expected = compute_ms([number], device) - saved_ms
        assert alone_ms[number] - adds_ms[number] == pytest.approx(expected, rel=1e-3)


class Unsure(AdditivePrice):
    def interval(self, members_M: FloatArray) -> float:
        return float(np.log(2.0))


def test_replicas_are_updated_backward_and_means_divided_by_the_slowest_memory() -> None:
    """Of 16 million weights on devices of 100 and 50 bytes a ns: each is updated at its own speed."""
    table = Table("t", 10**6, 16, 1.0, pooling="mean", module="m")
    task, kinds = ShardingTask((table,), Nodes.one_node(2), (2**33,) * 2, 1_000), [100.0, 50.0]
    kinds_of = [DeviceKind(Unsure({"t": 2.5}), one) for one in kinds]
    costs = PartCosts(task, kinds_of, [0, 1], Links(link("nvlink_h200"), None))
    found = costs.predict([whole_part(table, (0, 1))])
    for device, bytes_per_ns in zip(found.devices, kinds, strict=True):
        assert device.predicted_bwd_compute_ms == pytest.approx(16e6 * 4 * DENSE_PASSES / bytes_per_ns / 1e6)
    assert (found.low_ms, found.high_ms) == pytest.approx((found.predicted_ms / 2, found.predicted_ms * 2))
    assert costs.division_ms({table.collection}) == pytest.approx(DIVISION_PASSES * 4 * 500 * 16 / 50 / 1e6)
    assert dense_ms(1e6, 10.0, "adam") == pytest.approx(4 * (DENSE_PASSES + 2 * 2) / 10)  # two states in and out


def test_placements_that_are_predicted_together_take_what_each_takes() -> None:
    costs = costs_of(some_tables(3), Nodes.one_node(2))
    placements = [Placement(one, 2) for one in ((0, 1, 1), (1, 1, 1), (0, 0, 1))]
    each = [costs.predict(one.parts(costs.task.tables)).predicted_ms for one in placements]
    assert [one.predicted_ms for one in costs.predict_whole(placements)] == pytest.approx(each)
