"""Random placements of parts: legal ones, of every type that a table can have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span
from evenshard.placement.placement import check_sharding, parts_by_table
from evenshard.placement.sharding import SHARDING_TYPES, sharding_type
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.sharders.simple import possible_types, random_sharding
from support.builders import table

TABLES = (
    table("a", 100, 16),
    table("b", 3, 8),
    table("c", 100, 6),
    replace(table("d", 50, 8), pooling="none"),
    replace(table("e", 50, 8), pooling="mean"),
)
TWO_NODES = Nodes(4, 2, intra="gloo", inter="gloo")


def task_on(machine: Nodes, room: int = 10**9) -> ShardingTask:
    return ShardingTask(TABLES, machine, (room,) * machine.num_devices, 64)


def test_what_a_table_can_be() -> None:
    task = task_on(TWO_NODES)
    wide, few_rows, odd, sequence, mean = (set(possible_types(task, position)) for position in range(5))
    assert wide == set(SHARDING_TYPES)
    assert few_rows == wide - {"row_wise"}
    assert odd == {"table_wise", "row_wise", "table_row_wise", "data_parallel"}
    assert sequence == {"table_wise", "row_wise", "data_parallel"}
    assert mean == {"table_wise", "column_wise", "table_column_wise", "data_parallel"}
    assert set(possible_types(task_on(Nodes.one_node(2)), 0)) == sequence | {"column_wise"}


def test_every_type_is_drawn_and_every_placement_is_legal() -> None:
    task, rng, seen = task_on(TWO_NODES), np.random.default_rng(0), set()
    for _ in range(60):
        parts = random_sharding(task, SHARDING_TYPES, rng)
        check_sharding(task, parts)
        by_table = parts_by_table(task, parts)
        seen |= {sharding_type(by_table[one.name], one, TWO_NODES) for one in TABLES}
    assert seen >= set(SHARDING_TYPES) - {"table_column_wise"}  # its parts are read as column_wise


def test_limits_of_a_table_are_kept() -> None:
    limits = (TableLimits(types=frozenset({"row_wise"})), *(TableLimits(),) * 4)
    task, rng = replace(task_on(TWO_NODES), limits=limits), np.random.default_rng(0)
    assert possible_types(task, 0) == ("row_wise",)
    for _ in range(10):
        parts = random_sharding(task, ("row_wise", "table_wise", "column_wise"), rng)
        check_sharding(task, parts)


def test_rows_and_columns_are_cut_as_torchrec_does() -> None:
    """Blocks of rows of ceil(10 / 4); 5 times 4 columns in 2, 3 or 4 parts, the wider ones first."""
    task = ShardingTask((table("t", 10, 20),), TWO_NODES, (10**9,) * 4, 64)
    rng, cuts = np.random.default_rng(0), set()
    for _ in range(30):
        parts = random_sharding(task, ("row_wise",), rng)
        assert [part.rows for part in parts] == [Span(0, 3), Span(3, 6), Span(6, 9), Span(9, 10)]
        cuts.add(tuple(part.columns.size for part in random_sharding(task, ("column_wise",), rng)))
    assert cuts == {(12, 8), (8, 8, 4), (8, 4, 4, 4)}
    with pytest.raises(InfeasibleTask, match="needs"):
        random_sharding(task_on(TWO_NODES, room=10), SHARDING_TYPES, np.random.default_rng(0))
