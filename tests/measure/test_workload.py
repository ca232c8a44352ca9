"""Drawn lookups against the table they are drawn for: pooling factor, reuse histogram, rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenshard.base.errors import BadConfig
from evenshard.measure.workload import RecordedLookups, _draw_counts, _round_shares, draw_lookups
from evenshard.tables.dlrm_batch import DlrmBatch
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import (
    BIN_MEAN_COUNTS,
    DLRM_2021_REUSE,
    MAX_COUNT_OF_BIN,
    MIN_COUNT_OF_BIN,
    NUM_REUSE_BINS,
    ReuseBins,
    feasible_reuse_bins,
    reuse_bins_of_counts,
)
from evenshard.tables.table import Table
from support.builders import READ_ONCE, table


def one_hot(position: int) -> tuple[float, ...]:
    return tuple(1.0 if number == position else 0.0 for number in range(NUM_REUSE_BINS))


@pytest.mark.parametrize(("batch_size", "num_tables"), [(512, 20), (8192, 3)])
def test_a_batch_has_the_pooling_factor_and_the_reuse_of_its_table(batch_size: int, num_tables: int) -> None:
    """Tolerances: half a lookup; and five rows or 1 % of the read rows in another bin than the histogram says.

    Bins hold whole rows, so of a handful of rows some must go to a neighbouring bin.
    """
    pool = generate_tables(GeneratorConfig(856, max_rows=500_000), batch_size, seed=1)
    for one in pool[:num_tables]:
        lookups = draw_lookups(one, batch_size, seed=3)
        assert float(lookups.lengths.double().mean()) == pytest.approx(one.pooling_factor, abs=0.5001 / batch_size)
        assert int(lookups.lengths.sum()) == len(lookups.indices)
        assert int(lookups.indices.min()) >= 0 and int(lookups.indices.max()) < one.num_rows
        counts = np.unique(lookups.indices.numpy(), return_counts=True)[1]
        moved = np.abs(np.array(reuse_bins_of_counts(counts)) - np.array(one.reuse_bins)).sum() / 2
        assert moved * len(counts) <= 5 + 0.01 * len(counts), one


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3000), st.floats(0, 20), st.integers(1, 300), st.floats(-2, 2), st.integers(0, 2**32 - 1))
@example(1, 20.0, 300, 0.0, 0)
@example(2, 0.0, 1, 0.0, 0)
def test_any_table_gets_possible_lookups(rows: int, pooling: float, batch_size: int, tilt: float, seed: int) -> None:
    num_lookups = round(pooling * batch_size)
    one = Table("any", rows, 4, pooling, feasible_reuse_bins(rows, num_lookups, tilt))
    lookups = draw_lookups(one, batch_size, seed, batch_number=5)
    assert lookups.indices.dtype == lookups.lengths.dtype == torch.int64
    assert len(lookups.indices) == num_lookups == int(lookups.lengths.sum())
    assert lookups.lengths.shape == (batch_size,)
    assert not num_lookups or (int(lookups.indices.min()) >= 0 and int(lookups.indices.max()) < rows)


def test_each_sample_has_the_floor_or_the_ceiling_of_the_pooling_factor() -> None:
    for pooling, expected in ((2.3, {2: 700, 3: 300}), (0.5, {0: 500, 1: 500}), (0.0, {0: 1000})):
        lookups = draw_lookups(table(rows=10_000, pooling=pooling), 1000, seed=0)
        assert Counter(lookups.lengths.tolist()) == expected and len(lookups.indices) == round(1000 * pooling)
        assert pooling == 0 or 0 < lookups.lengths[:500].sum() - 500 * int(pooling) < len(lookups.indices)


LOW = np.array(MIN_COUNT_OF_BIN)
HIGH = np.array([*MAX_COUNT_OF_BIN, 2 * MAX_COUNT_OF_BIN[-1]])


def counts_U(bins: ReuseBins, num_lookups: int, num_rows: int) -> np.ndarray:
    return _draw_counts(np.asarray(bins), num_lookups, num_rows, "cpu").numpy()


def asked_rows(bins: ReuseBins, num_lookups: int, num_rows: int) -> int:
    """Lookups over the mean count; at least one row, and no more than there are rows or lookups."""
    wanted = round(num_lookups / float(np.dot(bins, BIN_MEAN_COUNTS)))
    return min(max(wanted, 1), num_rows, num_lookups)


def check_counts(bins: ReuseBins, num_lookups: int, num_rows: int) -> None:
    counts = counts_U(bins, num_lookups, num_rows)
    assert counts.dtype == np.int64 and counts.sum() == num_lookups and (counts >= 1).all()
    assert len(counts) == asked_rows(bins, num_lookups, num_rows)
    rows_of_bin = _round_shares(np.asarray(bins), len(counts))
    bin_of_row = np.repeat(np.arange(NUM_REUSE_BINS), rows_of_bin)[::-1]  # upper bins first
    low, high = LOW[bin_of_row], HIGH[bin_of_row]
    if low.sum() <= num_lookups <= high.sum():
        assert (low <= counts).all() and (counts <= high).all()
    elif num_lookups < low.sum():
        assert (counts <= low).all()
    else:
        hottest = max(1, len(counts) // 100)
        assert (counts >= high).all() and (counts[hottest:] == high[hottest:]).all()
    num_hot = int((counts > 1).sum())
    assert (counts[:num_hot] > 1).all()  # rows that come back in every batch stand before those that do not


histograms = (
    st.lists(st.floats(0, 1), min_size=NUM_REUSE_BINS, max_size=NUM_REUSE_BINS)
    .filter(lambda shares: sum(shares) > 1e-3)
    .map(lambda shares: tuple(share / sum(shares) for share in shares))
    | st.integers(0, NUM_REUSE_BINS - 1).map(one_hot)
    | st.just(DLRM_2021_REUSE)
)


@settings(max_examples=60, deadline=None)
@given(bins=histograms, num_lookups=st.integers(1, 2000) | st.integers(1, 10), num_rows=st.integers(1, 3000))
def test_counts_are_exact_and_inside_their_bins_if_possible(bins: ReuseBins, num_lookups: int, num_rows: int) -> None:
    """Also for histograms that the rows or the lookups make impossible."""
    check_counts(bins, num_lookups, num_rows)


def test_counts_of_large_batches() -> None:
    for bins, num_lookups, num_rows in (
        (DLRM_2021_REUSE, 1_000_000, 100_000_000),
        (feasible_reuse_bins(10**5, 300_000, 1.5), 300_000, 10**5),
        (one_hot(16), 10**9, 10**6),
        (one_hot(16), 2**31 - 1, 10),
        (READ_ONCE, 2**31 - 1, 3),
    ):
        check_counts(bins, num_lookups, num_rows)


def by_hand(*shares: float) -> ReuseBins:
    return shares + (0.0,) * (NUM_REUSE_BINS - len(shares))


@pytest.mark.parametrize(
    ("bins", "num_lookups", "num_rows", "expected"),
    [
        (READ_ONCE, 1, 1, [1]),
        (one_hot(16), 1, 1, [1]),  # the bin wants 32769 at least
        (one_hot(3), 3, 100, [3]),
        (READ_ONCE, 4, 4, [1, 1, 1, 1]),
        (READ_ONCE, 10, 4, [7, 1, 1, 1]),  # one row of a hundred takes what the bin cannot hold
        (by_hand(0.5, 0.5), 6, 100, [2, 2, 1, 1]),
        (by_hand(0, 0, 1), 6, 2, [3, 3]),
        (by_hand(0, 0, 1), 8, 2, [4, 4]),
        (by_hand(0, 0, 0, 1), 14, 2, [8, 6]),  # between 5 and 8: 7.25 and 5.75 add up to 13, then both move up
        (by_hand(0, 1), 3, 2, [2, 1]),
        (READ_ONCE, 0, 10, []),
    ],
)
def test_counts_by_hand(bins: ReuseBins, num_lookups: int, num_rows: int, expected: list[int]) -> None:
    assert counts_U(bins, num_lookups, num_rows).tolist() == expected


@pytest.mark.parametrize("rows", [1, 2, 3, 60, 1001])
def test_rows_that_are_read_once_are_all_different(rows: int) -> None:
    """As many lookups as rows, none twice: every row of the table is read."""
    indices = draw_lookups(Table("once", rows, 4, 1.0, READ_ONCE), rows, 7, 3).indices
    assert indices.sort().values.tolist() == list(range(rows))


def test_hot_rows_recur_in_every_batch_and_cold_ones_are_new() -> None:
    """A fifth of the rows is read 5 to 8 times; the table has room for 12 batches of new rows."""
    bins = (0.8, 0.0, 0.0, 0.2) + (0.0,) * 13
    one = Table("traffic", 50_000, 4, 10.0, bins)
    batches = [draw_lookups(one, 1000, seed=0, batch_number=number).indices for number in range(4)]
    read = [Counter(batch.tolist()) for batch in batches]
    hot = [{row for row, count in rows.items() if count > 1} for rows in read]
    cold = [{row for row, count in rows.items() if count == 1} for rows in read]
    assert hot[0] == hot[1] == hot[2] == hot[3] and len(hot[0]) > 900
    assert all(not cold[a] & cold[b] for a in range(4) for b in range(a))
    assert all(not hot[0] & rows for rows in cold)
    assert [read[0][row] for row in hot[0]] == [read[1][row] for row in hot[0]]


def test_rows_are_scattered_over_the_table_however_many_it_has() -> None:
    for rows in (10**6, 2_000_000_000):
        indices = draw_lookups(Table("wide", rows, 4, 1.0, READ_ONCE), 1000, seed=0, batch_number=3).indices
        assert (torch.bincount(indices // (rows // 10), minlength=10) > 50).all() and len(set(indices.tolist())) == 1000
        assert int(indices.min()) >= 0 and int(indices.max()) < rows


def test_hot_rows_lie_together_in_the_busiest_run_where_the_counts_say_so() -> None:
    """All lookups in the third of four runs; or in the last, where the block ends with the table."""
    one = Table("t", 4000, 4, 1.0, by_hand(0, 0, 1.0), row_shares=(0.0, 0.0, 1.0, 0.0))
    read = sorted(set(draw_lookups(one, 1000, seed=0).indices.tolist()))
    assert read == [*range(2000, 2000 + len(read))] and len(read) > 250
    at_end = replace(one, num_rows=1120, row_shares=(0.0, 0.0, 0.0, 1.0))
    read = sorted(set(draw_lookups(at_end, 1000, seed=0).indices.tolist()))
    assert read == [*range(1120 - len(read), 1120)]


def test_the_same_seed_gives_the_same_batch_and_batches_tables_and_seeds_differ() -> None:
    one = table("ads", rows=10_000, pooling=5.0)
    drawn = draw_lookups(one, 256, seed=0).indices
    assert drawn.equal(draw_lookups(one, 256, seed=0).indices)
    assert not drawn.equal(draw_lookups(one, 256, seed=1).indices)
    assert not drawn.equal(draw_lookups(one, 256, seed=0, batch_number=1).indices)
    assert not drawn.equal(draw_lookups(replace(one, name="users"), 256, seed=0).indices)
    ads, users = (draw_lookups(table(name, pooling=0.5), 512, seed=0).lengths for name in ("ads", "users"))
    assert 0.3 < (ads == users).double().mean() < 0.7  # samples are not long in all tables at once


def test_a_table_nobody_has_counted_is_read_as_the_stated_default() -> None:
    uncounted = Table("new", 10**5, 4, 20.0)
    counted = replace(uncounted, reuse_bins=feasible_reuse_bins(10**5, 20 * 1000))
    assert draw_lookups(uncounted, 1000, seed=0).indices.equal(draw_lookups(counted, 1000, seed=0).indices)


# Two tables, five samples: the first reads rows 7 7 | 2 | | 1 | 9, the second one row per sample.
RECORDED = DlrmBatch(
    indices=torch.tensor([7, 7, 2, 1, 9, 0, 1, 2, 3, 4]),
    offsets=torch.tensor([0, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10]),
    lengths=torch.tensor([[2, 1, 0, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.uint8),
    names=("t000", "t001"),
)
LOOKUPS = RecordedLookups(RECORDED, Path("batch.pt"))


def replayed(table_index: int, batch_size: int, batch_number: int) -> tuple[list[int], list[int]]:
    lookups = LOOKUPS(table(RECORDED.names[table_index]), batch_size, batch_number)
    return lookups.indices.tolist(), lookups.lengths.tolist()


def test_recorded_lookups_are_replayed_batch_by_batch_and_others_are_refused() -> None:
    """Five samples make two whole batches of two."""
    assert replayed(0, 2, 0) == ([7, 7, 2], [2, 1])
    assert replayed(0, 2, 1) == ([1], [0, 1])
    assert replayed(0, 2, 2) == replayed(0, 2, 0)
    assert replayed(0, 5, 1) == ([7, 7, 2, 1, 9], [2, 1, 0, 1, 1])
    assert replayed(1, 2, 1) == ([2, 3], [1, 1])
    # Generated tables and those of a recorded batch share their names, and FBGEMM reads row 0 for a row too many.
    with pytest.raises(BadConfig, match=r"batch_size is 6, but measure\.recorded_batch has only 5 samples"):
        replayed(0, 6, 0)
    with pytest.raises(BadConfig, match="has no table 'users'"):
        LOOKUPS(table("users"), 2, 0)
    with pytest.raises(BadConfig, match="reads row 9 of table 't000', which has 9 rows"):
        LOOKUPS(table("t000", rows=9), 2, 0)
