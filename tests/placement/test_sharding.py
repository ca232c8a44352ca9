"""The seven ways to shard a table, read off hand-made parts, and which answers are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart, whole_part
from evenshard.placement.placement import check_sharding, parts_by_table
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    EVERYWHERE,
    GRID_SHARD,
    ROW_WISE,
    ROWS_ALONE,
    SEQUENCE_TYPES,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    TYPES,
    Communication,
    allowed_sets,
    least_limited_column_type,
    matching_types,
    sharding_problem,
    sharding_type,
    types_on_all,
)
from evenshard.placement.task import ShardingTask, TableLimits, part_bytes, used_bytes
from evenshard.sharders.simple import _parts
from evenshard.tables.table import Table
from support.builders import table

# Two nodes, with the devices 0 and 1, and 2 and 3.
MACHINE = Nodes(4, 2, inter="ethernet_25g")
T = table("t", rows=100, dim=16)


def part(rows: tuple[int, int], columns: tuple[int, int], *devices: int, name: str = "t") -> TablePart:
    return TablePart(name, Span(*rows), Span(*columns), devices)


def blocks(one: Table, devices: Sequence[int], columns: Span) -> list[TablePart]:
    """Rows as TorchRec cuts them."""
    block = -(-one.num_rows // len(devices))
    starts = range(0, one.num_rows, block)
    return [
        TablePart(one.name, Span(start, min(start + block, one.num_rows)), columns, (device,))
        for start, device in zip(starts, devices, strict=False)
    ]


def in_rows(*devices: int, columns: tuple[int, int] = (0, 16), rows: int = 100) -> list[TablePart]:
    """Equal blocks of rows, one on each device."""
    return blocks(replace(T, num_rows=rows), devices, Span(*columns))


WHOLE = [part((0, 100), (0, 16), 3)]
ACROSS = [part((0, 100), (0, 4), 1), part((0, 100), (4, 16), 2)]
ON_ONE_NODE = [part((0, 100), (0, 8), 2), part((0, 100), (8, 16), 3)]
UNEVEN_ROWS = [
    part((0, 1), (0, 16), 0),
    part((1, 90), (0, 16), 3),
    part((90, 99), (0, 16), 1),
    part((99, 100), (0, 16), 2),
]
GRID = [*in_rows(0, 1, columns=(0, 8)), *in_rows(3, 2, columns=(8, 16))]
REPLICAS = [part((0, 100), (0, 16), 0, 1, 2, 3)]
WAYS = [
    (WHOLE, TABLE_WISE),
    (ACROSS, COLUMN_WISE),
    (ON_ONE_NODE, COLUMN_WISE),
    (in_rows(0, 1, 2, 3), ROW_WISE),
    (UNEVEN_ROWS, ROW_WISE),
    (in_rows(3, 2), TABLE_ROW_WISE),
    (GRID, GRID_SHARD),
    (REPLICAS, DATA_PARALLEL),
]


@pytest.mark.parametrize(
    ("parts", "way", "one", "machine"),
    [
        *((parts, way, T, MACHINE) for parts, way in WAYS),
        (in_rows(0, 1), ROW_WISE, T, Nodes.one_node(2)),
        ([part((0, 100), (0, 16), 0)], TABLE_WISE, T, Nodes.one_node(1)),
        # Of 5 rows, 4 devices get 2, 2, 1 and none, as TorchRec cuts them.
        (in_rows(0, 1, 2, rows=5), ROW_WISE, replace(T, num_rows=5), MACHINE),
        (in_rows(0, 1, 2, rows=3), ROW_WISE, replace(T, num_rows=3), MACHINE),
        (in_rows(0, rows=1), TABLE_WISE, replace(T, num_rows=1), MACHINE),
        # A narrow table is not cut by columns, and so has any width.
        (in_rows(0, 1, 2, 3, columns=(0, 6)), ROW_WISE, replace(T, embedding_dim=6), MACHINE),
    ],
)
def test_the_type_is_read_off_parts_in_any_order(parts: list[TablePart], way: str, one: Table, machine: Nodes) -> None:
    assert sharding_problem(parts, one, machine) is None
    assert sharding_type(parts, one, machine) == way == sharding_type(parts[::-1], one, machine)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "has shards with the columns none; each of its 16 columns must be in exactly one shard."),
        ([part((0, 100), (0, 8), 0)], "has shards with the columns 0:8; each of its 16 columns"),
        ([part((0, 99), (0, 16), 0)], "has shards with the rows 0:99; each of its 100 rows must be in exactly one"),
        ([*WHOLE, *WHOLE], "has shards with the rows 0:100, 0:100; each of its 100 rows"),
        ([*WHOLE, part((100, 100), (0, 16), 0)], "has shards with the rows 0:100, 100:100; each of"),
        ([part((0, 100), (0, 16))], "has a shard without a device. Place each shard."),
        ([part((0, 100), (0, 8), 0), part((0, 100), (8, 16), 1, 2)], "is split, but a shard is on the devices (1, 2)."),
        ([part((0, 100), (0, 16), 0, 1)], "is on the devices (0, 1). Place it on one device, or replicate it on all"),
        ([part((0, 100), (0, 16), 0, 1, 2, 2)], "is on the devices (0, 1, 2, 2). Place it on one device"),
        ([part((0, 100), (0, 8), 1), part((0, 100), (8, 16), 1)], "has several shards on device 1. Merge them"),
        ([part((0, 100), (0, 6), 1), part((0, 100), (6, 16), 2)], "is split into shards of 6, 10 columns. Make each"),
        (in_rows(0, 1, 2), "is split by rows over the devices [0, 1, 2]. Use all 4 devices, or all devices of one"),
        ([*in_rows(0, 2, columns=(0, 8)), *in_rows(1, 3, columns=(8, 16))], "is split by rows over the devices [0, 2]"),
        ([part((0, 100), (0, 8), 0), *in_rows(2, 3, columns=(8, 16))], "is split by rows over the devices [0]. Use"),
    ],
)
def test_parts_that_make_none_of_the_seven(parts: list[TablePart], problem: str) -> None:
    found = sharding_problem(parts, T, MACHINE)
    assert found is not None and found.startswith(problem)
    with pytest.raises(BadConfig, match=r"^table 't' "):
        sharding_type(parts, T, MACHINE)


def test_rows_on_some_devices_of_a_node_are_refused_and_a_device_is_left_out_of_equal_blocks_only() -> None:
    uneven = [part((0, 3), (0, 16), 0), part((3, 4), (0, 16), 1), part((4, 5), (0, 16), 2)]
    assert sharding_problem(uneven, replace(T, num_rows=5), MACHINE) is not None
    eight = Nodes(8, 4, inter="ethernet_25g")
    found = sharding_problem(in_rows(0, 1), T, eight)
    assert found == "is split by rows over the devices [0, 1]. Use all 8 devices, or all devices of one node."
    assert sharding_problem(in_rows(0, 1), T, Nodes.one_node(8)) is not None


def of_task(*tables: Table, room: int = 10**9, **rules: object) -> ShardingTask:
    return ShardingTask(tables or (T,), MACHINE, (room,) * 4, 64, **rules)  # type: ignore[arg-type]


def test_parts_are_given_back_by_table_then_columns_then_rows() -> None:
    other = replace(T, name="u")
    parts = [part((0, 100), (0, 16), 1, name="u"), *GRID[::-1]]
    found = parts_by_table(of_task(T, other), parts)
    assert list(found) == ["t", "u"]
    assert [(one.columns, one.rows) for one in found["t"]] == [
        ((0, 8), (0, 50)), ((0, 8), (50, 100)), ((8, 16), (0, 50)), ((8, 16), (50, 100)),
    ]  # fmt: skip


def test_memory_of_parts_by_hand() -> None:
    """100 x 16 weights of 4 bytes; rowwise adagrad keeps 4 bytes for each row, of each part by columns again."""
    assert used_bytes(of_task(), WHOLE) == [0, 0, 0, 6400]
    assert used_bytes(of_task(), REPLICAS) == [6400] * 4
    assert used_bytes(of_task(), UNEVEN_ROWS) == [64, 9 * 64, 64, 89 * 64]
    rowwise = of_task(optimizer="rowwise_adagrad")
    assert used_bytes(rowwise, ACROSS) == [0, 100 * 4 * 4 + 400, 100 * 12 * 4 + 400, 0]
    assert part_bytes(rowwise, T, GRID[0]) == 50 * 8 * 4 + 50 * 4
    half = replace(T, name="half", weight_bits=16)
    assert used_bytes(of_task(half), whole_parts(half, 2)) == [0, 0, 3200, 0]


def whole_parts(one: Table, device: int) -> list[TablePart]:
    return [whole_part(one, (device,))]


def test_a_device_that_would_hold_too_much_is_named() -> None:
    check_sharding(of_task(room=6400), WHOLE)
    with pytest.raises(InfeasibleTask, match=r"^device \d needs "):
        check_sharding(of_task(room=6399), WHOLE)
    gb = 2**30
    large = replace(T, num_rows=3 * 2**24)  # 3 GB
    with pytest.raises(InfeasibleTask, match=r"^device 2 needs 3\.00 GB, but has 2\.00 GB\. Raise memory_cap_gb"):
        check_sharding(of_task(large, room=2 * gb), whole_parts(large, 2))


@pytest.mark.parametrize(("parts", "way"), WAYS)
def test_a_type_that_the_rules_leave_out_is_named(parts: list[TablePart], way: str) -> None:
    every = {one for _, one in WAYS}
    check_sharding(of_task(limits=(TableLimits(types=frozenset({way})),)), parts)
    with pytest.raises(InfeasibleTask, match=f"^table 't' is sharded {way}, but only "):
        check_sharding(of_task(limits=(TableLimits(types=frozenset(every - {way})),)), parts)


def test_columns_on_one_node_are_table_column_wise_too() -> None:
    allowed = of_task(limits=(TableLimits(types=frozenset({TABLE_COLUMN_WISE})),))
    check_sharding(allowed, ON_ONE_NODE)
    with pytest.raises(InfeasibleTask, match="sharded column_wise, but only table_column_wise"):
        check_sharding(allowed, ACROSS)


def test_every_device_and_width_of_a_part_must_be_allowed() -> None:
    check_sharding(of_task(limits=(TableLimits(devices=frozenset({1, 2})),)), ACROSS)
    with pytest.raises(
        InfeasibleTask, match=r"^table 't' is on device 2, but its allowed devices are \[1, 3\]\. Place it again"
    ):
        check_sharding(of_task(limits=(TableLimits(devices=frozenset({1, 3})),)), ACROSS)
    assert [TableLimits(min_columns=columns).min_column_steps for columns in (1, 4, 5, 8)] == [1, 1, 2, 2]
    check_sharding(of_task(limits=(TableLimits(min_columns=8),)), ON_ONE_NODE)
    with pytest.raises(InfeasibleTask, match=r"^table 't' has a shard of 4 columns, but min_columns is 8"):
        check_sharding(of_task(limits=(TableLimits(min_columns=8),)), ACROSS)
    with pytest.raises(InfeasibleTask, match=r"^table 't' has a shard of 8 columns, but min_columns is 9"):
        check_sharding(of_task(limits=(TableLimits(min_columns=9),)), ON_ONE_NODE)
    check_sharding(of_task(limits=(TableLimits(min_columns=32),)), WHOLE)  # the table itself is narrower


def test_tables_together_and_apart() -> None:
    other = replace(T, name="u")
    both = [*whole_parts(T, 1), *whole_parts(other, 1)]
    parted = [*whole_parts(T, 1), *whole_parts(other, 2)]
    together, apart = of_task(T, other, together=((0, 1),)), of_task(T, other, apart=((0, 1),))
    check_sharding(together, both)
    check_sharding(apart, parted)
    with pytest.raises(InfeasibleTask, match=r"^tables t, u are not on the same device"):
        check_sharding(together, parted)
    with pytest.raises(InfeasibleTask, match=r"^tables t, u share a device"):
        check_sharding(apart, both)
    with pytest.raises(InfeasibleTask, match="share a device"):
        check_sharding(apart, [*ACROSS, *whole_parts(other, 2)])


@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 40), st.integers(1, 6))
def test_equal_blocks_of_rows_over_any_machine_are_row_wise(nodes: int, devices: int, rows: int, columns: int) -> None:
    """As are all parts of a grid with as many nodes as parts by columns."""
    machine = Nodes(nodes * devices, devices, inter="ethernet_25g")
    one = Table("t", rows, 4 * columns, 1.0)
    everywhere = blocks(one, range(machine.num_devices), Span(0, 4 * columns))
    way = sharding_type(everywhere, one, machine)
    assert way == ROW_WISE or (rows <= devices and way in (TABLE_ROW_WISE, TABLE_WISE))
    if columns > nodes or rows == 1 or devices == 1:
        return
    grid = [
        cell
        for number in range(columns)
        for cell in blocks(one, machine.devices_of_node(number), Span(4 * number, 4 * number + 4))
    ]
    assert sharding_type(grid, one, machine) == (GRID_SHARD if columns > 1 else TABLE_ROW_WISE)


def test_data_types_on_the_way() -> None:
    assert Communication.of(()) == Communication("fp32", "fp32")
    assert Communication.of(["fp16"]) == Communication("fp16", "fp16")
    assert Communication.of(["fp16", "bf16"]) == Communication("fp16", "bf16")
    assert (Communication("int8").forward_bytes, Communication("int8").backward_bytes) == (1, 4)
    for wrong in (["fp12"], ["fp16", "fp16", "fp16"]):
        with pytest.raises(BadConfig, match="communication is"):
            Communication.of(wrong)


@pytest.mark.parametrize("name", SHARDING_TYPES)
def test_parts_are_as_the_record_of_their_type_says(name: str) -> None:
    of, rng = TYPES[name], np.random.default_rng(0)
    for _ in range(20):
        parts = _parts(T, name, MACHINE, rng)
        assert name in matching_types(parts, T, MACHINE)
        if of.is_replicated:
            assert parts[0].devices == (0, 1, 2, 3)
            continue
        assert (len({part.rows for part in parts}) > 1) == of.cuts_rows
        assert len({part.columns for part in parts}) == 1 or of.cuts_columns
        for columns in {part.columns for part in parts}:
            held = [part.device for part in parts if part.columns == columns]
            assert sorted(held) == list(of.row_devices(MACHINE, held[0]))


def test_what_a_type_is_on_a_machine() -> None:
    one_node, one_device = Nodes.one_node(4), Nodes.one_node(1)
    assert types_on_all(MACHINE) == ("row_wise", "data_parallel")
    assert types_on_all(one_node) == ("row_wise", "table_row_wise", "data_parallel")
    distinct = {name for name in SHARDING_TYPES if TYPES[name].is_distinct_on(one_node)}
    assert distinct == {"table_wise", "column_wise", "row_wise", "data_parallel"}
    assert [name for name in SHARDING_TYPES if TYPES[name].is_distinct_on(one_device)] == ["table_wise"]
    assert all(TYPES[name].is_distinct_on(MACHINE) for name in SHARDING_TYPES)


def test_where_rows_columns_and_all_parts_of_a_table_live() -> None:
    assert [list(TYPES[name].row_devices(MACHINE, 2)) for name in ("column_wise", "grid_shard", "row_wise")] == [
        [2],
        [2, 3],
        [0, 1, 2, 3],
    ]
    assert {name for name, one in TYPES.items() if one.cuts_rows} == {"row_wise", "table_row_wise", "grid_shard"}
    places = {name: list(map(list, one.places(MACHINE))) for name, one in TYPES.items()}
    assert places["table_wise"] == places["table_column_wise"] == [[0], [1], [2], [3]]
    assert places["table_row_wise"] == places["grid_shard"] == [[0, 1], [2, 3]]
    assert places["row_wise"] == places["data_parallel"] == [[0, 1, 2, 3]]
    most = {name: one.most_column_parts(MACHINE) for name, one in TYPES.items() if one.cuts_columns}
    assert most == {"column_wise": 4, "table_column_wise": 2, "grid_shard": 2}
    assert allowed_sets(MACHINE, 2, frozenset({0, 2, 3})) == (range(2, 4),)
    assert allowed_sets(MACHINE, 2, None) == (range(0, 2), range(2, 4))
    homes = {name: list(map(list, one.homes(MACHINE))) for name, one in TYPES.items()}
    assert homes["table_row_wise"] == homes["table_column_wise"] == [[0, 1], [2, 3]]
    assert all(homes[name] == [[0, 1, 2, 3]] for name in TYPES if TYPES[name].within == EVERYWHERE)
    assert least_limited_column_type(SHARDING_TYPES, MACHINE, "") == "column_wise"
    assert least_limited_column_type({"row_wise", "table_column_wise"}, MACHINE, "") == "table_column_wise"
    assert least_limited_column_type({"row_wise"}, MACHINE, "none") == "none"
    assert ROWS_ALONE == ("row_wise", "table_row_wise")
    assert SEQUENCE_TYPES == ("table_wise", "column_wise", "row_wise", "data_parallel")


def test_a_type_shares_the_calls_of_the_one_that_it_is_a_case_of() -> None:
    assert {name: one.call for name, one in TYPES.items() if one.call} == {
        "table_wise": "column_wise",
        "table_column_wise": "column_wise",
        "table_row_wise": "grid_shard",
    }
    assert [name for name, one in TYPES.items() if one.with_more_columns] == ["table_wise", "table_row_wise"]
    for name, one in TYPES.items():
        if one.within_node:
            parts = _parts(T, one.within_node, Nodes.one_node(4), np.random.default_rng(0))
            assert TYPES[sharding_type(parts, T, Nodes.one_node(4))].cuts_rows == one.cuts_rows, name
