"""Costs of devices that are measured one after the other: the waits, and whole tables as parts that are whole."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest

from evenshard.measure.config import MeasureConfig
from evenshard.measure.sequential import combine_whole_tables, compute_skew_ms, measure_parts, sequential_cost
from evenshard.measure.simulated_hardware import SimulatedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import ExchangeTimes, Links
from evenshard.price.costs import DeviceCost
from evenshard.price.link_model import Link
from support.builders import table

BATCH = 4096


def test_exchanges_and_waits_join_the_compute_times_and_a_device_out_of_memory_stays_so() -> None:
    computes = [DeviceCost(5.0, 0.0, 0.0, 9.0, 0.5, 0.9), DeviceCost.out_of_memory(), DeviceCost(7.0, 0.0, 0.0, 8.0)]
    exchanges = ExchangeTimes(*np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]]))
    found = sequential_cost(computes, exchanges)
    assert found.all_to_all == "modelled"
    assert found.devices == (
        DeviceCost(5.0, 10.0, 100.0, 9.0, 0.5, 0.9, fwd_wait_ms=2.0, input_dist_ms=1.0),
        DeviceCost.out_of_memory(),
        DeviceCost(7.0, 30.0, 300.0, 8.0, input_dist_ms=3.0),
    )


def test_whole_tables_by_hand() -> None:
    """500,000 samples each: 3 values of 4 bytes for the other's half are 6 MB; forward takes half the time."""
    link = Link(0.0, "by hand", bandwidth_gb_s=1.0, forward_share=0.5)
    of_task = ShardingTask.whole("task", (table("a", 10, 2), table("b", 10, 1), table("c", 10, 1)), 2, 10**9, 10**6)
    computes = [DeviceCost(1.0, 0.0, 0.0, 1.0)] * 2
    found = combine_whole_tables(of_task, Placement((0, 0, 1), 2), computes, link)
    assert [astuple(one)[:4] for one in found.devices] == [pytest.approx((1.0, 3.0, 6.0, 1.0))] * 2
    assert all(one.input_dist_ms == one.fwd_wait_ms == 0 for one in found.devices)


def test_parts_that_are_whole_tables_cost_what_whole_tables_do() -> None:
    """But for the exchange of indices, which these links leave out."""
    tables = tuple(table(f"t{number}", 10 ** (3 + number), 16 * (1 + number), 1.0 + number) for number in range(4))
    of_task, placement = ShardingTask.whole("task", tables, 3, 10**12, BATCH), Placement((0, 2, 0, 2), 3)
    hardware = SimulatedHardware(MeasureConfig("simulated:h200", noise=0.0))
    expected = hardware.measure(of_task, placement)
    links = Links(hardware.link, counts_inputs=False)
    found = measure_parts(hardware, of_task, placement.parts(tables), links)
    assert [astuple(one) for one in found.devices] == [pytest.approx(astuple(one)) for one in expected.devices]
    with_inputs = measure_parts(hardware, of_task, placement.parts(tables), Links(hardware.link))
    assert all(one.input_dist_ms > 0 for one in with_inputs.devices)


def test_devices_wait_for_the_slowest_forward_by_hand() -> None:
    """Nobody waits for a device that ran out of memory, nor does it wait."""
    assert compute_skew_ms([5.0, 7.0, 0.0, 4.0]) == (2.0, 0.0, 7.0, 3.0)
    assert compute_skew_ms([3.0]) == (0.0,)
    assert compute_skew_ms([0.0, 0.0]) == (0.0, 0.0)
    assert compute_skew_ms([5.0, math.inf, 7.0]) == (2.0, 0.0, 0.0)
    assert compute_skew_ms([math.inf, math.inf]) == (0.0, 0.0)
