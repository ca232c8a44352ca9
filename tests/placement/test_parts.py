"""Splits by columns: parts, their names and widths, and the way to shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenshard.placement.parts import COLUMN_STEP, TablePart, TableShard, by_table, parts_of, shards_of_parts
from evenshard.placement.placement import Placement
from evenshard.utils.errors import BadConfig
from support.builders import table


def test_a_whole_table_is_its_own_part() -> None:
    one = table("a", dim=8)
    assert parts_of([one], {}) == (TablePart(one, "a", 0, 8),)


def test_parts_keep_rows_and_lookups_and_share_the_dims_and_the_bytes() -> None:
    whole = table("a", rows=100, dim=24, pooling=3.5, bits=16)
    left, right = (part.table for part in parts_of([whole], {"a": (8,)}))
    assert (left.name, left.embedding_dim, right.name, right.embedding_dim) == ("a[0:8]", 8, "a[8:24]", 16)
    assert (left.num_rows, left.pooling_factor, left.weight_bits) == (100, 3.5, 16)
    assert left.size_bytes + right.size_bytes == whole.size_bytes


@pytest.mark.parametrize(("dim", "cut"), [(8, (4,)), (12, (8,)), (16, (8,)), (128, (64,)), (4, ()), (10, ()), (7, ())])
def test_halves_are_as_even_as_multiples_of_four_allow(dim: int, cut: tuple[int, ...]) -> None:
    assert parts_of([table("a", dim=dim)], {})[0].halves == cut


def test_a_part_is_halved_at_its_own_middle() -> None:
    right = parts_of([table("a", dim=64)], {"a": (32,)})[1]
    assert right.halves == (48,)


@given(st.integers(1, 64), st.integers(0, 6))
def test_halving_again_and_again_leaves_multiples_of_four(steps: int, times: int) -> None:
    whole = table("a", dim=steps * COLUMN_STEP)
    cuts: tuple[int, ...] = ()
    for _ in range(times):
        parts = parts_of([whole], {"a": cuts})
        cuts = tuple(sorted({*cuts, *(cut for part in parts for cut in part.halves)}))
    parts = parts_of([whole], {"a": cuts})
    assert sum(part.table.embedding_dim for part in parts) == whole.embedding_dim
    assert all(part.table.embedding_dim % COLUMN_STEP == 0 for part in parts)
    placement = Placement(tuple(range(len(parts))), len(parts))
    assert len(by_table(shards_of_parts(parts, placement), [whole], len(parts))["a"]) == len(parts)


def test_shards_say_which_columns_live_where() -> None:
    parts = parts_of([table("a", dim=16), table("b", dim=4)], {"a": (8,)})
    assert shards_of_parts(parts, Placement((1, 0, 1), 2)) == (
        TableShard("a", 1, 0, 8),
        TableShard("a", 0, 8, 16),
        TableShard("b", 1, 0, 4),
    )


def test_a_table_called_as_a_part_would_be_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"'a\[0:8\]'.*Rename it"):
        parts_of([table("a", dim=16), table("a[0:8]")], {"a": (8,)})
