"""What a placement costs: the records of one measurement, and how the visits to a placement become one cost."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.base.errors import MeasurementFailed
from evenshard.price.costs import (
    LAST_MOMENT,
    MOST_MS,
    OUT_OF_MEMORY,
    DeviceCost,
    PlacementCost,
    combine_visits,
    interquartile_range,
    moment_problem,
    time_problem,
)
from support.builders import cost, device_costs

FULL = DeviceCost.out_of_memory()


def test_a_step_waits_for_the_device_with_the_largest_sum_of_its_four_times() -> None:
    busy_all_along = DeviceCost(2.0, 3.0, 4.0, 5.0)
    slowest_forward = DeviceCost(9.0, 0.0, 0.0, 0.0)
    slowest_backward = DeviceCost(0.0, 0.0, 0.0, 10.0)
    assert busy_all_along.total_ms == 14.0
    assert PlacementCost((slowest_forward, busy_all_along, slowest_backward), "modelled").max_device_ms == 14.0


def test_a_device_that_ran_out_of_memory_takes_forever_and_its_placement_does_not_fit() -> None:
    assert (FULL.status, FULL.total_ms) == (OUT_OF_MEMORY, math.inf)
    some_room = PlacementCost((*cost(1.0, 2.0).devices, FULL), "modelled")
    assert some_room.max_device_ms == math.inf and not some_room.fits
    assert cost(1.0, 2.0).fits


def test_what_nobody_can_measure_is_no_cost() -> None:
    fine, names = cost(4.0).devices[0], DeviceCost.__dataclass_fields__.keys() - {"fwd_bwd_compute_ms", "status"}
    for name, value in product(sorted(names), (math.nan, math.inf, -1e-9, 1e13, "1.0", None)):
        with pytest.raises(MeasurementFailed, match=f"device 1: {name} is .*, not a time"):
            PlacementCost((fine, replace(fine, **{name: value})), "modelled")


def test_of_a_shard_timed_as_a_whole_the_sum_is_known_and_no_part() -> None:
    whole, parts = PlacementCost((DeviceCost.of_total(5.0),), "modelled"), DeviceCost(1.0, 10.0, 20.0, 4.0)
    assert whole.max_device_ms == whole.devices[0].compute_ms == parts.compute_ms == 5.0
    assert whole.devices[0].fwd_compute_ms is None and whole.devices[0].bwd_compute_ms is None
    assert all(map(math.isnan, whole.devices[0].split_ms)) and parts.split_ms == (1.0, 4.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fwd_bwd_compute_ms": -1.0}, "fwd_bwd_compute_ms is -1.0, not a time"),
        ({"fwd_bwd_compute_ms": None}, "fwd_compute_ms is None, not a time"),
        ({"bwd_compute_ms": 1.0}, "fwd_bwd_compute_ms cannot be given together with fwd_compute_ms or"),
        ({"fwd_wait_ms": 1.0}, "given together with communication or wait times"),
    ],
)
def test_a_whole_and_its_parts_are_not_both_given(change: dict[str, Any], why: str) -> None:
    with pytest.raises(MeasurementFailed, match=why):
        PlacementCost((replace(DeviceCost.of_total(5.0), **change),), "modelled")


def test_times_at_the_limits_are_costs() -> None:
    assert PlacementCost((DeviceCost(0.0, MOST_MS, MOST_MS, MOST_MS), DeviceCost(1, 2, 3, 4)), "modelled").fits
    assert time_problem("it", 0) is time_problem("it", MOST_MS) is time_problem("it", 0.5) is None
    assert moment_problem("it", 0.0) is moment_problem("it", LAST_MOMENT) is None
    more = math.nextafter(LAST_MOMENT, math.inf)
    assert moment_problem("it", more) == f"it is {more}, not a Unix timestamp up to the year 9999"


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (replace(FULL, status="tired"), "status is 'tired'"),
        (DeviceCost(1.0, 1.0, 1.0, 1.0, status=OUT_OF_MEMORY), "out_of_memory, but times are given"),
        (replace(FULL, status="ok"), "fwd_compute_ms is inf, not a time"),
    ],
)
def test_status_and_times_belong_together(device: DeviceCost, why: str) -> None:
    with pytest.raises(MeasurementFailed, match=f"device 0: .*{why}"):
        PlacementCost((device,), "modelled")


def test_interquartile_range_by_hand() -> None:
    assert interquartile_range([4.0, 1.0, 2.0, 5.0, 3.0]) == 2.0
    assert interquartile_range([7.0]) == 0.0


def visit(fwd: float, bwd: float, fwd_spread: float, bwd_spread: float) -> PlacementCost:
    """Two devices; the first waits a hundredth of its forward, the second is the same in every visit."""
    first = DeviceCost(fwd, fwd + 10, bwd + 10, bwd, fwd_spread, bwd_spread, fwd_wait_ms=fwd / 100)
    return PlacementCost((first, cost(1.0).devices[0]), "measured")


def test_visits_are_combined_part_by_part_with_the_median_and_the_larger_spread() -> None:
    """The spread between visits, or that within one."""
    visits = [visit(1.0, 30.0, 0.1, 15.0), visit(3.0, 10.0, 0.1, 16.0), visit(2.0, 20.0, 0.1, 50.0)]
    combined = combine_visits(visits)
    first = combined.devices[0]
    assert (first.fwd_compute_ms, first.bwd_compute_ms) == (2.0, 20.0)
    assert (first.fwd_all_to_all_ms, first.bwd_all_to_all_ms) == (12.0, 30.0)
    assert first.fwd_wait_ms == 0.02
    assert first.fwd_compute_spread_ms == pytest.approx(1.0)  # between: 1.5 to 2.5
    assert first.bwd_compute_spread_ms == pytest.approx(16.0)  # between: 10; within: the median of 15, 16, 50
    assert combined.devices[1] == cost(1.0).devices[0]
    assert combined.all_to_all == "measured"


def test_a_device_that_ran_out_of_memory_once_is_out_of_memory_and_the_others_are_not() -> None:
    fine, full_once = visit(1.0, 2.0, 0.3, 0.4), PlacementCost((FULL, cost(1.0).devices[0]), "measured")
    assert combine_visits([fine, full_once, fine]).devices == (FULL, cost(1.0).devices[0])


@settings(max_examples=50, deadline=None)
@given(data=st.data(), num_visits=st.integers(2, 5))
def test_the_order_of_the_visits_does_not_matter(data: st.DataObject, num_visits: int) -> None:
    visits = [PlacementCost((data.draw(device_costs),), "modelled") for _ in range(num_visits)]
    assert combine_visits(data.draw(st.permutations(visits))) == combine_visits(visits)
