"""The records of sharding types: what each does, and that the parts that it makes are read as it."""

from __future__ import annotations

import numpy as np
import pytest

from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import (
    EVERYWHERE,
    ROWS_ALONE,
    SEQUENCE_TYPES,
    SHARDING_TYPES,
    TYPES,
    allowed_sets,
    least_limited_column_type,
    matching_types,
    sharding_type,
    types_on_all,
)
from evenshard.sharders.simple import _parts
from support.builders import table

MACHINE = Nodes(4, 2, intra="nvlink_v100", inter="ethernet_25g")
TABLE = table("a", rows=100, dim=16, pooling=2.0)


@pytest.mark.parametrize("name", SHARDING_TYPES)
def test_parts_are_as_the_record_of_their_type_says(name: str) -> None:
    of, rng = TYPES[name], np.random.default_rng(0)
    for _ in range(20):
        parts = _parts(TABLE, name, MACHINE, rng)
        assert name in matching_types(parts, TABLE, MACHINE)
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


def test_where_rows_live() -> None:
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


def test_parts_by_columns_have_places_of_their_own() -> None:
    most = {name: one.most_column_parts(MACHINE) for name, one in TYPES.items() if one.cuts_columns}
    assert most == {"column_wise": 4, "table_column_wise": 2, "grid_shard": 2}
    assert allowed_sets(MACHINE, 2, frozenset({0, 2, 3})) == (range(2, 4),)
    assert allowed_sets(MACHINE, 2, None) == (range(0, 2), range(2, 4))


def test_what_all_parts_of_a_table_are_among() -> None:
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
            parts = _parts(TABLE, one.within_node, Nodes.one_node(4), np.random.default_rng(0))
            assert TYPES[sharding_type(parts, TABLE, Nodes.one_node(4))].cuts_rows == one.cuts_rows, name
