"""What an answer knows of its parts: their order, types, devices and memory, and what each costs."""

from __future__ import annotations

import math

import pytest

from evenshard.base.errors import BadConfig
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.price.evidence import DeviceError, widen_interval
from support.answer_builders import answer
from support.builders import table
from support.effort import LITTLE
from support.request_builders import request, untrained

ROWS = Span(0, 1000)
HALVES = (Span(0, 500), Span(500, 1000))
PARTS = (
    TablePart("c", HALVES[1], Span(0, 32), (1,)),
    TablePart("c", HALVES[0], Span(0, 32), (0,)),
    TablePart("b", ROWS, Span(16, 64), (0,)),
    TablePart("b", ROWS, Span(0, 16), (1,)),
    TablePart("a", ROWS, Span(0, 8), (0, 1)),
)
TABLES = [table(name, 1000, dim) for name, dim in zip("abc", (8, 64, 32), strict=True)]
CUT = answer(
    tables=TABLES, parts=PARTS, alone_ms=(1, 2, 3, 4, 5), adds_ms=(6, 7, 8, 9, 10), asked={"sharding_types": ()}
)


def test_parts_and_their_times_are_in_the_order_of_tables_columns_and_rows_and_replicas_on_every_device() -> None:
    assert CUT.parts == PARTS[::-1]
    assert (CUT.alone_ms, CUT.adds_ms) == ((5, 4, 3, 2, 1), (10, 9, 8, 7, 6))
    assert CUT.parts_of_table["c"] == (PARTS[1], PARTS[0])
    assert CUT.type_of_table == {"a": "data_parallel", "b": "column_wise", "c": "row_wise"}
    assert CUT.parts_on_device == ((0, 2, 3), (0, 1, 4))
    assert CUT.part_bytes == tuple(4 * size for size in (1000 * 8, 1000 * 16, 1000 * 48, 500 * 32, 500 * 32))
    assert CUT.used_bytes == (4 * 1000 * (8 + 48 + 16), 4 * 1000 * (8 + 16 + 16))


def test_only_whole_tables_have_a_device_and_parts_of_no_sharding_type_are_refused() -> None:
    assert answer((0, 1, 1)).device_of_table == (0, 1, 1)
    with pytest.raises(BadConfig, match=r"table 'a' is sharded data_parallel.*place with sharding_types table_wise"):
        _ = CUT.device_of_table
    with pytest.raises(BadConfig, match=r"'b' has several shards on device 0\. Merge them into one wider shard"):
        answer((0, 0, 0, 0), tables=TABLES, cuts={"b": (16,)})


def test_the_type_of_a_table_depends_on_the_machine() -> None:
    """Rows on two devices are on all devices of a node, or of the machine."""
    parts = [TablePart("a", rows, Span(0, 8), (device,)) for device, rows in enumerate(HALVES)]
    two_nodes = {"machine": Nodes(4, 2, inter="infiniband_ndr"), "sharding_types": ()}
    one = answer(totals_ms=(4, 3, 2, 1), tables=TABLES[:1], parts=tuple(parts), asked=two_nodes)
    assert one.type_of_table == {"a": "table_row_wise"}
    one = answer(tables=TABLES[:1], parts=tuple(parts), asked={"sharding_types": ()})
    assert one.type_of_table == {"a": "row_wise"}


def test_a_device_takes_no_less_than_each_of_its_parts_alone() -> None:
    one = place_request(request(8, 16, 64, 32, 8, 128), untrained(), PlaceConfig(LITTLE))
    for device, numbers in zip(one.devices, one.parts_on_device, strict=True):
        for number in numbers:
            assert one.alone_ms[number] <= device.predicted_total_ms
    step_ms = [device.predicted_total_ms + device.predicted_wait_ms for device in one.devices]
    assert step_ms == pytest.approx([one.predicted_ms] * len(step_ms))
    assert 0 < one.lower_bound_ms <= one.predicted_ms


def test_an_answer_tells_the_wide_interval_keeps_the_models_and_has_a_gap_to_the_lower_bound() -> None:
    """Errors of the model and of the device add up as squares."""
    one = answer(device_error=DeviceError(12.0, 40))
    assert (one.model_low_ms, one.model_high_ms) == (3.6, pytest.approx(4.4))
    assert one.low_ms == pytest.approx(4 * math.exp(-math.hypot(math.log(0.9), 0.12)))
    assert one.high_ms == pytest.approx(4 * math.exp(math.hypot(math.log(1.1), 0.12)))
    assert one.uncertainty_ms == pytest.approx((one.high_ms - one.low_ms) / 2)
    assert answer(lower_bound_ms=3.2).gap_pct == pytest.approx(25)


@pytest.mark.parametrize("ends", [(0.0, 0.0, 0.0), (10.0, 0.0, 12.0), (1e-300, 1e-308, 1e300)])
def test_extreme_intervals_stay_intervals(ends: tuple[float, float, float]) -> None:
    low, high = widen_interval(DeviceError(), *ends)
    assert 0 <= low <= ends[1] and ends[2] <= high < math.inf
