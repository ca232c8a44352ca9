"""Parts of tables: their names and widths, and the devices that they live on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig
from evenshard.placement.parts import (
    COLUMN_STEP,
    COMPUTE_KERNELS,
    FUSED,
    FUSED_UVM,
    FUSED_UVM_CACHING,
    HOST,
    KEY_VALUE,
    Span,
    Storage,
    TablePart,
    busiest_rows,
    cut_rows,
    deduplicate_table,
    lookup_share,
    part_table,
    replica_table,
    storages_of,
    tables_of_parts,
)
from evenshard.placement.placement import group_parts, parts_by_table
from evenshard.placement.sharding import tiling_problem
from evenshard.tables.reuse import thin_reuse_bins
from support.builders import column_parts, table, task


def test_parts_keep_rows_and_lookups_and_share_the_dims_and_the_bytes() -> None:
    whole = table("a", rows=100, dim=24, pooling=3.5, bits=16)
    left, right = tables_of_parts(column_parts(whole, (8,)), [whole])
    assert (left.name, left.embedding_dim, right.name, right.embedding_dim) == ("a[0:8]", 8, "a[8:24]", 16)
    assert (left.num_rows, left.pooling_factor, left.weight_bits) == (100, 3.5, 16)
    assert left.size_bytes + right.size_bytes == whole.size_bytes


@given(st.integers(1, 64), st.sets(st.integers(1, 63)))
def test_columns_that_are_cut_anywhere_are_grouped_and_tile_their_table(steps: int, cuts: set[int]) -> None:
    whole = table("a", dim=steps * COLUMN_STEP)
    parts = column_parts(whole, [cut * COLUMN_STEP for cut in sorted(cuts) if cut < steps])
    assert sum(part.columns.size for part in parts) == whole.embedding_dim
    placed = tuple(replace(part, devices=(device,)) for device, part in enumerate(parts))
    assert group_parts([whole], len(parts), placed[::-1])["a"] == placed
    assert tiling_problem(placed, whole) is None


def test_rows_are_cut_into_equal_blocks_of_which_the_last_devices_may_have_none() -> None:
    one = table("a", rows=5, dim=8)
    assert [(part.rows, part.device) for part in cut_rows(one, range(4, 8))] == [((0, 2), 4), ((2, 4), 5), ((4, 5), 6)]
    (whole,) = cut_rows(one, [3], Span(0, 4))
    assert (whole.rows, whole.columns) == (Span(0, 5), Span(0, 4))
    assert busiest_rows(one, 4) == Span(0, 2)
    assert busiest_rows(replace(one, row_shares=(0.0, 0.1, 0.1, 0.1, 0.7)), 4) == Span(4, 5)


# The first quarter of its rows has seven tenths of its lookups.
HOT = replace(table("hot", rows=100, dim=8, pooling=10.0), row_shares=(0.7, 0.2, 0.1, 0.0))


@pytest.mark.parametrize(
    ("rows", "share"),
    [((0, 100), 1.0), ((0, 25), 0.7), ((25, 75), 0.3), ((75, 100), 0.0), ((0, 50), 0.9), ((20, 30), 0.14 + 0.04)],
)
def test_lookups_of_rows_are_counted_in_traffic_or_even(rows: tuple[int, int], share: float) -> None:
    assert lookup_share(HOT, Span(*rows)) == pytest.approx(share)
    part = part_table(TablePart("hot", Span(*rows), Span(0, 8)), HOT)
    assert part.pooling_factor == pytest.approx(10 * share)
    assert lookup_share(replace(HOT, row_shares=None), Span(*rows)) == (rows[1] - rows[0]) / 100


@given(st.integers(1, 101), st.integers(1, 16))
def test_shares_of_all_parts_add_up(num_rows: int, num_runs: int) -> None:
    runs = min(num_runs, num_rows)
    shares = tuple((run + 1) / (runs * (runs + 1) / 2) for run in range(runs))
    one, edges = (
        replace(table("t", rows=num_rows), row_shares=shares),
        sorted({0, num_rows // 3, num_rows // 2, num_rows}),
    )
    assert sum(lookup_share(one, Span(*rows)) for rows in pairwise(edges)) == pytest.approx(1)


def test_a_part_of_rows_and_columns_is_a_table() -> None:
    shared = replace(HOT, feature_names=("a", "b"), feature_pooling_factors=(4.0, 6.0), pooling="mean", module="m")
    part = part_table(TablePart("hot", Span(25, 50), Span(4, 8)), shared)
    assert part == replace(
        shared,
        name="hot[rows 25:50, 4:8]",
        num_rows=25,
        embedding_dim=4,
        pooling_factor=pytest.approx(2.0),
        feature_pooling_factors=(pytest.approx(0.8), pytest.approx(1.2)),
        row_shares=None,
    )
    assert part.problem() is None
    columns = part_table(TablePart("hot", Span(0, 100), Span(4, 8)), shared)
    assert columns == replace(shared, name="hot[4:8]", embedding_dim=4)


def test_a_replica_keeps_the_lookups_of_a_sample_and_a_deduplicated_table_sends_each_index_once() -> None:
    assert replica_table(HOT, 8) == HOT  # every row is looked up once at most
    often = replace(HOT, reuse_bins=(0.0, 0.0, 0.0, 0.0, 1.0) + (0.0,) * 12)
    seen = replica_table(often, 2)
    assert seen.pooling_factor == 10 and seen.reuse_bins is not None
    assert sum(seen.reuse_bins[2:5]) > 0.95  # 9 to 16 lookups, of which half fall on a device
    assert replica_table(often, 1) == often
    for devices in (2, 3, 8):  # one of them sees its share of the lookups of a row
        thinned = thin_reuse_bins(often.reuse_bins or (), 1 / devices)
        assert replica_table(often, devices) == replace(often, reuse_bins=thinned)
    assert replica_table(replace(often, reuse_bins=None), 2).reuse_bins is None
    # Two lookups of a row, dealt to 2 devices, are sent 1.5 times.
    twice = replace(HOT, reuse_bins=(0.0, 1.0) + (0.0,) * 15, is_deduplicated=True, feature_pooling_factors=(4.0, 6.0))
    sent = deduplicate_table(twice, 2)
    assert (sent.pooling_factor, sent.feature_pooling_factors) == (7.5, (3.0, 4.5))
    assert deduplicate_table(twice, 1).pooling_factor == 5.0
    assert deduplicate_table(replace(twice, is_deduplicated=False), 2) == replace(twice, is_deduplicated=False)
    uncounted = deduplicate_table(replace(twice, reuse_bins=None), 2)  # 100 rows: a million lookups find few
    assert uncounted.pooling_factor < 0.1


def test_kernels_say_where_weights_are_and_only_caches_have_several_sizes() -> None:
    on_device = {one for one in COMPUTE_KERNELS if Storage(one).is_on_device}
    on_host = {one for one in COMPUTE_KERNELS if Storage(one).is_on_host}
    cached = {one for one in COMPUTE_KERNELS if Storage(one).is_cached}
    assert on_device == {FUSED}
    assert on_host == {FUSED_UVM, FUSED_UVM_CACHING, HOST}
    assert cached == {FUSED_UVM_CACHING, KEY_VALUE}
    assert [storage.load_factor for storage in storages_of(KEY_VALUE, (0.1, 0.4))] == [0.1, 0.4]
    assert storages_of(HOST, (0.1, 0.4)) == (Storage(HOST),)


def test_what_makes_no_sense_is_refused() -> None:
    for kernel, load_factor, what in (
        ("uvm", 1.0, "compute kernel is 'uvm'"),
        (FUSED_UVM_CACHING, 0.0, "load_factor"),
        (FUSED_UVM_CACHING, 1.5, "load_factor"),
        (FUSED_UVM, 0.5, "no cache"),
    ):
        with pytest.raises(BadConfig, match=what):
            Storage(kernel, load_factor)


ROWS, DIM = 100, 24
ALL_ROWS = Span(0, ROWS)


def wide(*parts: tuple[tuple[int, int], tuple[int, int], tuple[int, ...]]) -> list[TablePart]:
    """Rows, columns and devices of parts of one table."""
    return [TablePart("wide", Span(*rows), Span(*columns), devices) for rows, columns, devices in parts]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (wide((ALL_ROWS, (0, 8), (0,)), (ALL_ROWS, (12, 24), (1,))), "with the columns 0:8, 12:24;"),
        (wide((ALL_ROWS, (0, 16), (0,)), (ALL_ROWS, (12, 24), (1,))), "with the columns 0:16, 12:24;"),
        (wide((ALL_ROWS, (0, 24), (0,)), (ALL_ROWS, (24, 24), (1,))), "with the columns 0:24, 24:24;"),
        (wide((ALL_ROWS, (0, 28), (0,))), "with the columns 0:28;"),
        (wide((ALL_ROWS, (0, 24), (0,)), (ALL_ROWS, (0, 24), (1,))), "with the rows 0:100, 0:100; each of its 100"),
        (wide(((0, 101), (0, 24), (0,))), "with the rows 0:101;"),
        (wide((ALL_ROWS, (0, 8), (0,)), ((0, 50), (8, 24), (0,)), ((60, 100), (8, 24), (1,))), "rows 0:50, 60:100;"),
        (wide(((0, 50), (0, 24), (0,)), ((50, 100), (0, 24), (2,))), "on device 2, but the devices are 0 to 1"),
        (wide((ALL_ROWS, (0, 24), (2,))), "on device 2, but the devices are 0 to 1"),
        (wide((ALL_ROWS, (0, 24), (0, -1))), "on device -1"),
        ([TablePart("narrow", ALL_ROWS, Span(0, 24), (0,))], "'narrow', which is not among the tables"),
    ],
)
def test_parts_that_are_not_the_table_are_refused(parts: list[TablePart], message: str) -> None:
    with pytest.raises(BadConfig, match=message) as caught:
        parts_by_table(task([table("wide", ROWS, DIM)], 2), parts)
    assert "\n" not in str(caught.value)
