"""Miss ratios counted in batches: by hand, beside an exact LRU cache, and where only some rows are remembered.

Legend: U distinct rows of a batch.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.tables.table import LOAD_FACTORS
from evenshard.tables.traffic import counts, tables_from_traffic
from evenshard.tables.traffic import tables as tables_module
from evenshard.tables.traffic.counts import (
    MAX_REMEMBERED,
    MIN_REMEMBERED,
    REMEMBERED_ROWS,
    ReuseIntervals,
    rows_to_remember,
)
from support.builders import table
from support.traffic_builders import write_parquet

IntArray = npt.NDArray[np.int64]


def counted(batches: Sequence[Sequence[int] | IntArray], num_rows: int, max_rows: int = 1 << 16) -> list[float] | None:
    intervals = ReuseIntervals(max_rows)
    for batch in batches:
        intervals.add(np.unique(np.asarray(batch, dtype=np.int64)))
    intervals.finish()
    found = intervals.miss_ratios(num_rows)
    return None if found is None else list(found)


def between(load_factors: Sequence[float], ratios: Sequence[float]) -> object:
    return pytest.approx(np.interp(LOAD_FACTORS, load_factors, ratios).tolist(), abs=1e-5)


# By hand -------------------------------------------------------------------------------------------------------------


def test_one_batch_and_no_lookups_have_no_curve() -> None:
    assert counted([[1, 2, 3]], 10) is None
    assert counted([[], []], 10) is None


def test_batches_that_repeat() -> None:
    """Two rows of ten in each batch: a cache of one of them hits half; of two batches in turn, one of both hits all."""
    assert counted([[3, 7]] * 5, 10) == between([0, 0.2, 1], [1, 0, 0])
    assert counted([[0, 1], [2, 3]] * 3, 10) == between([0, 0.2, 0.4, 1], [1, 1, 0, 0])


def test_rows_that_come_once_are_missed_as_far_as_the_sample_goes() -> None:
    """17 batches of two new rows: caches of 14 batches, 28 rows, are seen to miss all; what larger ones miss is not."""
    assert counted([[2 * number, 2 * number + 1] for number in range(17)], 100) == between([0, 0.28, 1], [1, 1, 0])


def test_a_row_that_comes_late_counts_for_caches_of_fewer_batches_than_stand_before_it() -> None:
    """Row 9 comes in the third of four batches. Caches of 1, 2 and 3 batches: batches 2-4, 3-4 and 4 count for them."""
    ratios = [1, 1 / 4, 1 / 3, 0]  # of 4, 3 and 2 rows looked up; 9 is new in the third
    highest = [1, 1 / 3, 1 / 3, 0]  # a larger cache cannot miss more
    held = np.cumsum([0, *highest[:3]]) * 5 / 4
    assert ratios[1] < highest[1]
    assert counted([[0], [0], [0, 9], [0]], 10) == between([*(held / 10), 1], [*highest, 0])


def test_all_rows_in_the_cache_miss_nothing_whatever_came_for_the_first_time() -> None:
    found = counted([[0], [1], [2], [3]], 4)
    assert found is not None and found[-1] == 0 and found == between([0, 0.75, 1], [1, 1, 0])


def test_a_batch_without_lookups_is_a_batch() -> None:
    found = counted([[0, 1], [], [0, 1], []], 10)
    assert found == between([0, 0.1, 0.2, 1], [1, 1, 0, 0])  # one row in each batch, on average


# Beside an exact cache -----------------------------------------------------------------------------------------------

NUM_ROWS = 10_000


def drawn(alpha: float, lookups: int, count: int, rng: np.random.Generator, drift: int = 0) -> list[IntArray]:
    """Batches of lookups: rank r as often as r**-alpha; the row of each rank moves by so many each batch."""
    shares = np.cumsum(np.arange(1.0, NUM_ROWS + 1) ** -alpha)
    row_of_rank = rng.permutation(NUM_ROWS)
    return [
        np.unique(row_of_rank[(np.searchsorted(shares, rng.random(lookups) * shares[-1]) + number * drift) % NUM_ROWS])
        for number in range(count)
    ]


def misses_of_lru(batches: Sequence[IntArray], size: int, first: int, rng: np.random.Generator) -> float:
    """Of the distinct rows of the batches from the first that counts on, those that are not in the cache."""
    last, held = np.zeros(NUM_ROWS), np.zeros(NUM_ROWS, dtype=bool)
    missed = looked_up = 0
    for number, rows_U in enumerate(batches):
        if number >= first:
            missed, looked_up = missed + int((~held[rows_U]).sum()), looked_up + rows_U.size
        last[rows_U] = number + rng.random(rows_U.size)
        held[rows_U] = True
        if (here := np.flatnonzero(held)).size > size:
            held[here[np.argpartition(last[here], here.size - size)[: here.size - size]]] = False
    return missed / looked_up


@pytest.mark.parametrize(("alpha", "lookups", "drift"), [(0.0, 500, 0), (1.0, 1_000, 0), (1.0, 1_000, 20)])
def test_within_two_points_of_an_exact_cache_as_far_as_the_sample_goes_and_no_less_beyond(
    alpha: float, lookups: int, drift: int
) -> None:
    rng = np.random.default_rng(0)
    batches = drawn(alpha, lookups, 160, rng, drift)
    found = counted(batches[:40], NUM_ROWS)
    assert found is not None
    seen = np.unique(np.concatenate(batches[:35])).size
    for load_factor, ratio in [*zip(LOAD_FACTORS[:-1], found, strict=False)][2::3]:
        size = round(load_factor * NUM_ROWS)
        exact = misses_of_lru(batches, size, 120, rng)
        assert ratio >= exact - 0.02, load_factor
        assert size > seen or ratio <= exact + 0.02, load_factor


@pytest.mark.parametrize(("alpha", "max_rows"), [(0.5, 4_096), (1.0, 1_024)])
def test_rows_that_are_not_remembered_change_little(alpha: float, max_rows: int) -> None:
    """Of a few thousand rows in place of all 10,000."""
    batches = drawn(alpha, 5_000, 30, np.random.default_rng(1))
    exact, some = counted(batches, NUM_ROWS), counted(batches, NUM_ROWS, max_rows)
    assert exact is not None and some is not None
    assert np.abs(np.array(exact) - some).max() < 2 / max_rows**0.5


# As they are read ----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=2, max_size=20),
    st.integers(1, 40),
)
def test_any_curve_is_one_of_a_table(batches: list[list[int]], at_a_time: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "ROWS_AT_A_TIME", at_a_time)
        found = counted(batches, 31, max_rows=62)
    assert found == counted(batches, 31)  # wherever it is cut
    if found is not None:
        one = table("t", rows=31)
        assert type(one)(**{**one.__dict__, "miss_ratios": tuple(found)}).problem() is None


def test_rows_are_remembered_in_a_bounded_place() -> None:
    rng = np.random.default_rng(0)
    intervals = ReuseIntervals(1_000)
    for _ in range(10):
        intervals.add(np.unique(rng.integers(1 << 40, size=10_000)))
        assert intervals._rows.size <= 1_000 and intervals._num_pending <= 500 + 10_000
    intervals.finish()
    assert intervals._rows.size == 0
    found = intervals.miss_ratios(1 << 40)
    assert found is not None and found[0] == pytest.approx(1, abs=0.15)  # 2**40 rows: none comes again


def test_traffic_gives_tables_their_curves(tmp_path: Path) -> None:
    """Windows of two samples: {0, 1}, {2, 3}, {0, 1}, {2, 3}, and a fifth that is not full."""
    lookups = [[0], [1], [2, 3], [2], [1, 0], [], [3], [2], [7]]
    source = write_parquet(tmp_path, {"ads": lookups, "user": [[0]] * 9})
    ads, user = tables_from_traffic(source, 2, [table("ads", rows=10), table("user", rows=10)]).tables
    assert list(ads.miss_ratios or ()) == between([0, 0.2, 0.4, 1], [1, 1, 0, 0])
    assert list(user.miss_ratios or ()) == between([0, 0.1, 1], [1, 0, 0])
    assert ads.problem() is None
    (alone,) = tables_from_traffic(source, 8, [ads]).tables
    assert alone.miss_ratios is None  # one full window


def test_a_hot_table_is_kept_as_counts() -> None:
    table_counts = counts.TableCounts("ads", None, ["ads"])
    block = np.arange(1000, dtype=np.int64).repeat(100)
    tracemalloc.start()
    for _ in range(40):
        table_counts.add("ads", block.copy(), Path("a.pt"))  # 30 MiB together
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    table_counts.close_window(is_full=True)
    assert table_counts.unique_K.tolist() == [0] * 12 + [1000, 0, 0, 0, 0]  # 4,000 times each
    assert peak < 32 << 20


def test_many_tables_share_the_place() -> None:
    found = [rows_to_remember(count) for count in (1, 64, 400, 10**6)]
    assert found == [MAX_REMEMBERED, MAX_REMEMBERED, REMEMBERED_ROWS // 400, MIN_REMEMBERED]


@pytest.mark.slow
def test_reading_is_bounded_whatever_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(0, 10**6, 4 << 19)  # 16 MiB of each table, in one row group
    column = pa.ListArray.from_arrays(np.arange(0, len(rows) + 1, 4, dtype=np.int32), pa.array(rows))
    pq.write_table(pa.table({"a": column, "b": column}), tmp_path / "a.parquet", row_group_size=1 << 19)
    for name in ("GROUP_LOOKUPS", "BLOCK_LOOKUPS"):
        monkeypatch.setattr(tables_module, name, 1 << 14)
    arrow = []
    add = counts.WindowedCounts.add

    def watched(self: Any, *args: Any) -> None:
        arrow.append(pa.total_allocated_bytes())
        add(self, *args)

    monkeypatch.setattr(counts.WindowedCounts, "add", watched)
    before = pa.total_allocated_bytes()
    found = tables_from_traffic(tmp_path / "a.parquet", 4096, embedding_dim=8)
    assert [one.pooling_factor for one in found.tables] == [4, 4]
    assert found.tables[0].reuse_bins == found.tables[1].reuse_bins
    assert len(arrow) > 300 and max(arrow) - before < 4 << 20
