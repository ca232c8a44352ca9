"""Parts of tables: their names and widths, and the devices that they live on."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, column_parts, tables_of_parts, whole_tables
from evenshard.placement.placement import Placement, by_table, parts_on
from evenshard.utils.errors import BadConfig
from support.builders import cuts_of, parts_of, table


def test_a_whole_table_is_one_part_and_its_own_table() -> None:
    one = table("a", rows=100, dim=8)
    assert whole_tables([one]) == (TablePart("a", Span(0, 100), Span(0, 8)),)
    assert tables_of_parts(whole_tables([one]), [one]) == (one,)


def test_parts_keep_rows_and_lookups_and_share_the_dims_and_the_bytes() -> None:
    whole = table("a", rows=100, dim=24, pooling=3.5, bits=16)
    left, right = tables_of_parts(column_parts(whole, (8,)), [whole])
    assert (left.name, left.embedding_dim, right.name, right.embedding_dim) == ("a[0:8]", 8, "a[8:24]", 16)
    assert (left.num_rows, left.pooling_factor, left.weight_bits) == (100, 3.5, 16)
    assert left.size_bytes + right.size_bytes == whole.size_bytes


@pytest.mark.parametrize(("dim", "cut"), [(8, (4,)), (12, (8,)), (16, (8,)), (128, (64,)), (4, ()), (10, ()), (7, ())])
def test_halves_are_as_even_as_multiples_of_four_allow(dim: int, cut: tuple[int, ...]) -> None:
    whole = table("a", dim=dim)
    (part,) = column_parts(whole)
    assert part.halves() == (column_parts(whole, cut) if cut else ())


def test_a_part_is_halved_at_its_own_middle() -> None:
    right = column_parts(table("a", dim=64), (32,))[1]
    assert [half.columns for half in right.halves()] == [(32, 48), (48, 64)]


@given(st.integers(1, 64), st.integers(0, 6))
def test_halving_again_and_again_leaves_multiples_of_four(steps: int, times: int) -> None:
    whole = table("a", dim=steps * COLUMN_STEP)
    parts = column_parts(whole)
    for _ in range(times):
        parts = tuple(half for part in parts for half in part.halves() or (part,))
    assert sum(part.columns.size for part in parts) == whole.embedding_dim
    assert all(part.columns.size % COLUMN_STEP == 0 for part in parts)
    placement = Placement(tuple(range(len(parts))), len(parts))
    assert by_table(parts_on(parts[::-1], placement)[::-1], [whole], len(parts))["a"] == parts_on(
        parts, Placement(tuple(range(len(parts)))[::-1], len(parts))
    )


def test_a_placement_says_which_part_lives_where() -> None:
    parts = parts_of([table("a", 10, 16), table("b", 20, 4)], {"a": (8,)})
    assert parts_on(parts, Placement((1, 0, 1), 2)) == (
        TablePart("a", Span(0, 10), Span(0, 8), (1,)),
        TablePart("a", Span(0, 10), Span(8, 16), (0,)),
        TablePart("b", Span(0, 20), Span(0, 4), (1,)),
    )
    with pytest.raises(BadConfig, match="the placement has 2 tables, but 3 tables are given"):
        parts_on(parts, Placement((1, 0), 2))


def test_the_device_of_replicas_is_not_one() -> None:
    assert TablePart("a", Span(0, 10), Span(0, 4), (3,)).device == 3
    for devices in ((), (0, 1)):
        with pytest.raises(ValueError, match="unpack"):
            TablePart("a", Span(0, 10), Span(0, 4), devices).device  # noqa: B018


def test_a_part_is_written_with_the_ends_of_its_rows_and_columns() -> None:
    written = json.loads(json.dumps(asdict(TablePart("a", Span(0, 10), Span(4, 8), (1,)))))
    assert written == {"table": "a", "rows": [0, 10], "columns": [4, 8], "devices": [1]}
    assert f"{Span(4, 8)}" == "4:8"


def test_a_table_called_as_a_part_would_be_is_refused() -> None:
    tables = [table("a", dim=16), table("a[0:8]")]
    with pytest.raises(BadConfig, match=r"'a\[0:8\]'.*Rename it"):
        tables_of_parts(parts_of(tables, {"a": (8,)}), tables)


# What is legal -------------------------------------------------------------------------------------------------------

ROWS, DIM = 100, 24
ALL_ROWS = Span(0, ROWS)


def wide(*parts: tuple[tuple[int, int], tuple[int, int], tuple[int, ...]]) -> list[TablePart]:
    """Rows, columns and devices of parts of one table."""
    return [TablePart("wide", Span(*rows), Span(*columns), devices) for rows, columns, devices in parts]


def test_parts_come_by_table_in_the_order_of_their_columns() -> None:
    tables = [table("b", 5, 4), table("wide", ROWS, DIM)]
    right, left = wide((ALL_ROWS, (8, 24), (1,)), (ALL_ROWS, (0, 8), (0,)))
    other = TablePart("b", Span(0, 5), Span(0, 4), (1,))
    found = by_table([right, other, left], tables, 2)
    assert list(found.items()) == [("b", (other,)), ("wide", (left, right))]
    assert cuts_of(found["wide"]) == {"wide": (8,)}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (wide(), "'wide' hold the columns none; each of its 24 columns must be in exactly one"),
        (wide((ALL_ROWS, (0, 8), (0,)), (ALL_ROWS, (12, 24), (1,))), "hold the columns 0:8, 12:24;"),
        (wide((ALL_ROWS, (0, 16), (0,)), (ALL_ROWS, (12, 24), (1,))), "hold the columns 0:16, 12:24;"),
        (wide((ALL_ROWS, (0, 24), (0,)), (ALL_ROWS, (24, 24), (1,))), "hold the columns 0:24, 24:24;"),
        (wide((ALL_ROWS, (0, 28), (0,))), "hold the columns 0:28;"),
        (wide((ALL_ROWS, (0, 24), (0,)), (ALL_ROWS, (0, 24), (1,))), "hold the rows 0:100, 0:100; each of its 100"),
        (wide(((0, 50), (0, 24), (0,))), "hold the rows 0:50; each of its 100 rows"),
        (wide(((0, 101), (0, 24), (0,))), "hold the rows 0:101;"),
        (wide((ALL_ROWS, (0, 8), (0,)), ((0, 50), (8, 24), (0,)), ((60, 100), (8, 24), (1,))), "rows 0:50, 60:100;"),
        (wide(((0, 50), (0, 24), (0,)), ((50, 100), (0, 24), (1,))), "'wide' is cut by rows. Cut it by columns"),
        (wide((ALL_ROWS, (0, 24), (0, 1))), r"'wide' is on the devices \(0, 1\). Place each part on one device"),
        (wide((ALL_ROWS, (0, 24), ())), r"'wide' is on the devices \(\)"),
        (wide((ALL_ROWS, (0, 10), (0,)), (ALL_ROWS, (10, 24), (1,))), "10, 14 columns. Make all multiples of 4"),
        (wide((ALL_ROWS, (0, 24), (2,))), "on device 2, but the devices are 0 to 1"),
        (wide((ALL_ROWS, (0, 24), (0, -1))), "on device -1"),
        ([TablePart("narrow", ALL_ROWS, Span(0, 24), (0,))], "'narrow', which is not among the tables"),
    ],
)
def test_parts_that_are_not_the_table_are_refused(parts: list[TablePart], message: str) -> None:
    with pytest.raises(BadConfig, match=message) as caught:
        by_table(parts, [table("wide", ROWS, DIM)], 2)
    assert "\n" not in str(caught.value)


def test_parts_of_tables_of_one_name_are_refused() -> None:
    with pytest.raises(BadConfig, match="two tables are called 'a'"):
        by_table((), [table("a"), table("a")], 1)
