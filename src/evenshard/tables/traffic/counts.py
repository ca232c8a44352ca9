"""Streaming counts of lookups: reuse histograms of batches, miss ratios of LRU caches, and shares of row ranges.

An LRU cache for the rows of k batches misses the distinct rows of a batch that none of the previous k batches read. A
row's reuse interval is the number of batches since it was last read. At its first read in a sample of W batches, only a
lower bound is known: the number of earlier batches. The miss ratio for k therefore counts only the W - k batches that
have at least k earlier batches.

Few batches have many earlier batches, so k is limited such that W / 8 batches remain. Larger caches are extrapolated:
the rows that they lack have gone unread longer and are less likely in the next batch, so misses are assumed to
decrease in proportion to the missing rows, to 0 if the cache has all rows. With independent lookups, this is an upper
bound.

If there are many rows, only a random sample of them is tracked: those whose hash is below a limit, which is halved when
they become too many. Counts are scaled up accordingly (Waldspurger et al., SHARDS, 2015).

Legend: L lookups, U unique rows of one table in one window, K = 17 bins, P pairs of a row and a batch, W batches,
D intervals in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadFile
from evenshard.base.messages import brief
from evenshard.tables.reuse import NUM_REUSE_BINS, FloatArray, reuse_bins_of_counts
from evenshard.tables.table import LOAD_FACTORS
from evenshard.tables.traffic.sample import Block, IntArray

COMPACT_AT = 1 << 20  # pending lookups of one table above which they are replaced by distinct rows and their counts
# Row ranges ("runs") of a table. 256 are fine enough for row-wise shards on 128 devices; they are stored in the file.
MAX_RUNS = 256
FIRST_RUNS = 2048  # runs of a table with an unknown number of rows; a power of two, because pairs of them are merged
REMEMBERED_ROWS = 1 << 22  # tracked rows of all tables together: 64 MiB, and half as much for pending counts
# Most and fewest tracked rows of one table.
MAX_REMEMBERED, MIN_REMEMBERED = 1 << 16, 1 << 10
ROWS_AT_A_TIME = 1 << 17  # rows whose hashes are computed per step, to limit memory
LAST_BATCHES = 8  # an interval counts if at least 1 in this many batches has so many earlier batches


class RowRuns:
    """Lookups by row range ("run") of a table, to predict the imbalance of row-wise shards; all runs are equally long.

    If the number of rows is unknown (None), the counted runs have lengths of powers of two, and the shares are accurate
    to an eighth of a run.
    """

    def __init__(self, num_rows: int | None) -> None:
        self._num_rows, self._length = num_rows, 1
        self._counts = np.zeros(FIRST_RUNS if num_rows is None else min(num_rows, MAX_RUNS), dtype=np.int64)

    def add(self, rows_L: IntArray, largest: int) -> None:
        """Add lookups of rows; ``largest`` is the largest row."""
        if self._num_rows is not None:
            runs_L = rows_L * len(self._counts) // self._num_rows
        else:
            while largest >= self._length * len(self._counts):
                pairs = self._counts.reshape(-1, 2).sum(axis=1)
                self._counts, self._length = np.concatenate([pairs, np.zeros_like(pairs)]), 2 * self._length
            runs_L = rows_L // self._length
        self._counts += np.bincount(runs_L, minlength=len(self._counts))

    def shares(self, num_rows: int) -> tuple[float, ...] | None:
        """Return the lookup share of each of ``MAX_RUNS`` row ranges, or of each row if fewer; None without lookups."""
        total = int(self._counts.sum())
        if not total:
            return None
        counts = self._counts.astype(np.float64)
        if self._num_rows is None:
            ends = np.minimum(np.arange(len(counts) + 1) * self._length, num_rows)
            edges = np.linspace(0, num_rows, min(num_rows, MAX_RUNS) + 1)
            counts = np.diff(np.interp(edges, ends, np.concatenate([[0.0], np.cumsum(counts)])))
        return tuple(np.round(counts / total, 7).tolist())  # seven decimals keep files short


class ReuseIntervals:
    """Distinct rows of a table's batches by reuse interval: batches since the row was last read.

    At most ``max_rows`` rows are tracked.
    """

    def __init__(self, max_rows: int = MAX_REMEMBERED) -> None:
        self._max_rows = max_rows
        self._distinct_W: list[int] = []
        self._halvings = 0  # of the limit for hashes: 1 in 2**halvings rows is tracked
        self._count_D = np.zeros(1, dtype=np.int64)  # distinct rows of all batches by interval, or its lower bound
        self._forget()

    def add(self, rows_U: IntArray) -> None:
        """Add the distinct rows of the next batch."""
        for start in range(0, rows_U.size, ROWS_AT_A_TIME):
            rows_P = rows_U[start : start + ROWS_AT_A_TIME]
            rows_P = rows_P[self._is_remembered(rows_P)]
            self._pending.append((rows_P, np.full(rows_P.size, len(self._distinct_W))))
            self._num_pending += rows_P.size
            if self._num_pending > self._max_rows // 2:
                self._count()
        self._distinct_W.append(rows_U.size)

    def finish(self) -> None:
        """Count the rows not yet counted, and free the memory of tracked rows."""
        self._count()
        self._forget()

    def miss_ratios(self, num_rows: int) -> tuple[float, ...] | None:
        """Return the miss ratio at each of ``LOAD_FACTORS``; None with fewer than two batches or without lookups."""
        num_batches, num_distinct = len(self._distinct_W), sum(self._distinct_W)
        if num_batches < 2 or not num_distinct:
            return None
        depth = num_batches - -(-num_batches // LAST_BATCHES)
        missed = _sums_from(self._count_D, depth + 2)[1:]  # rows with longer intervals, by cached batches, 0 to depth
        looked_up = _sums_from(self._distinct_W, depth + 1)  # rows of batches with at least so many earlier batches
        ratios = np.minimum(missed / np.maximum(looked_up, 1), 1.0)
        ratios[0] = 1.0
        ratios = np.maximum.accumulate(ratios[::-1])[::-1]  # a larger cache has no more misses, except by chance
        held = np.concatenate([[0.0], np.cumsum(ratios)[:-1]]) * num_distinct / num_batches
        held = np.minimum(held, num_rows)
        found = np.interp(np.array(LOAD_FACTORS[:-1]) * num_rows, [*held, num_rows], [*ratios, 0.0])
        return (*np.round(found, 5).tolist(), 0.0)

    def _forget(self) -> None:
        self._pending: list[tuple[IntArray, IntArray]] = []
        self._num_pending = 0
        self._rows = self._last = np.zeros(0, dtype=np.int64)

    def _is_remembered(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        if not self._halvings:
            return np.ones(rows.size, dtype=np.bool_)
        return np.asarray(_hashes(rows) >> np.uint64(64 - self._halvings) == 0)

    def _count(self) -> None:
        if not self._num_pending:
            return
        rows_P, batches_P = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._num_pending = [], 0
        # Tracked rows come first, so that a stable sort puts them before equal rows of the pending batches, in order.
        rows_P, batches_P = np.concatenate([self._rows, rows_P]), np.concatenate([self._last, batches_P])
        is_new = np.arange(rows_P.size) >= self._rows.size
        order_P = np.argsort(rows_P, kind="stable")
        rows_P, batches_P, is_new = rows_P[order_P], batches_P[order_P], is_new[order_P]
        is_first = np.diff(rows_P, prepend=-1) != 0
        intervals_P = np.where(is_first, batches_P + 1, np.diff(batches_P, prepend=0))
        counts_D = np.bincount(intervals_P[is_new], minlength=len(self._count_D)) << self._halvings
        counts_D[: len(self._count_D)] += self._count_D
        self._count_D = counts_D
        is_last = np.append(is_first[1:], True)
        self._rows, self._last = rows_P[is_last], batches_P[is_last]
        while self._rows.size > self._max_rows:
            self._halvings += 1
            kept = self._is_remembered(self._rows)
            self._rows, self._last = self._rows[kept], self._last[kept]


def rows_to_remember(num_tables: int) -> int:
    """Return the number of rows to track per table."""
    return min(max(REMEMBERED_ROWS // max(num_tables, 1), MIN_REMEMBERED), MAX_REMEMBERED)


def _sums_from(counts: Sequence[int] | IntArray, size: int) -> FloatArray:
    padded = np.zeros(max(size, len(counts)))
    padded[: len(counts)] = counts
    return np.asarray(np.cumsum(padded[::-1])[::-1][:size])


def _hashes(rows: IntArray) -> npt.NDArray[np.uint64]:
    """Hash row numbers evenly to 64 bits with the final mix of MurmurHash3."""
    mixed = rows.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(33)))


class TableCounts:
    """Counts of one table in a sample.

    Attributes:
        columns: columns of the sample that are features of the table.
        num_lookups: lookups of each column in the whole sample.
        largest_row: largest row that was looked up; -1 without lookups.
        unique_K: unique rows of all full windows, by reuse bin. Their shares are the mean histogram of the windows,
            weighted by numbers of unique rows, so that it has the sample's mean lookups per unique row. In the plain
            mean, a window with one hot row would count as much as a window with a thousand cold rows.
        rest_K: unique rows of the incomplete last window, by reuse bin.
    """

    def __init__(
        self, name: str, num_rows: int | None, columns: Sequence[str], max_remembered: int = MAX_REMEMBERED
    ) -> None:
        self.name, self._num_rows, self.columns = name, num_rows, tuple(columns)
        self.num_lookups = dict.fromkeys(self.columns, 0)
        self.largest_row = -1
        self.row_runs = RowRuns(num_rows)
        self.intervals = ReuseIntervals(max_remembered)
        self.unique_K = np.zeros(NUM_REUSE_BINS, dtype=np.int64)
        self.rest_K = np.zeros(NUM_REUSE_BINS, dtype=np.int64)
        self._clear()

    def add(self, column: str, rows_L: IntArray, path: Path) -> None:
        """Add lookups of a column in the current window; raise BadFile for a row number outside of the table."""
        if rows_L.size == 0:
            return
        smallest, largest = int(rows_L.min()), int(rows_L.max())
        where = f"table {brief(self.name)}" + (f", feature {brief(column)}" if column != self.name else "")
        if smallest < 0:
            raise BadFile(
                path, f"index {smallest} is negative", 'Correct the sample; -1 does not mean "no lookup".', where
            )
        if self._num_rows is not None and largest >= self._num_rows:
            problem = f"index {largest} is beyond the table's {self._num_rows} rows"
            raise BadFile(path, problem, "Correct num_rows or the sample.", where)
        self.num_lookups[column] += rows_L.size
        self.largest_row = max(self.largest_row, largest)
        self.row_runs.add(rows_L, largest)
        self._pending.append(rows_L)
        self._num_pending += rows_L.size
        if self._num_pending > max(COMPACT_AT, self._rows_U.size):
            self._compact()

    def close_window(self, is_full: bool) -> None:
        """Count the current window and start the next."""
        self._compact()
        if is_full:
            self.intervals.add(self._rows_U)
        if self._counts_U.size:
            shares_K = np.array(reuse_bins_of_counts(self._counts_U))
            unique_K = np.rint(shares_K * self._counts_U.size).astype(np.int64)
            if is_full:
                self.unique_K += unique_K
            else:
                self.rest_K += unique_K
        self._clear()

    def _clear(self) -> None:
        self._pending: list[IntArray] = []
        self._num_pending = 0
        self._rows_U = self._counts_U = np.zeros(0, dtype=np.int64)

    def _compact(self) -> None:
        if not self._num_pending:
            return
        rows_L = np.concatenate(self._pending)
        self._pending, self._num_pending = [], 0
        rows, counts = np.unique(rows_L, return_counts=True)
        if self._rows_U.size:
            rows, counts = np.concatenate([self._rows_U, rows]), np.concatenate([self._counts_U, counts])
            order = np.argsort(rows, kind="stable")
            rows, counts = rows[order], counts[order]
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            rows, counts = rows[starts], np.add.reduceat(counts, starts)
        self._rows_U, self._counts_U = rows, counts


class WindowedCounts:
    """Counts over windows of ``batch_size`` samples, which may span blocks and files."""

    def __init__(self, tables: Sequence[TableCounts], batch_size: int) -> None:
        self._tables, self._batch_size = tables, batch_size
        self._filled = 0

    def add(self, block: Block, path: Path) -> None:
        """Add a block; raise BadFile for an invalid row number."""
        start = 0
        while start < block.num_samples:
            end = min(block.num_samples, start + self._batch_size - self._filled)
            for table in self._tables:
                for column in table.columns:
                    lookups = block.lookups[column]
                    table.add(column, lookups.rows[lookups.offsets[start] : lookups.offsets[end]], path)
            self._filled += end - start
            start = end
            if self._filled == self._batch_size:
                self._close(is_full=True)

    def finish(self) -> None:
        """Count the incomplete last window separately, and free memory."""
        if self._filled:
            self._close(is_full=False)
        for table in self._tables:
            table.intervals.finish()

    def _close(self, is_full: bool) -> None:
        for table in self._tables:
            table.close_window(is_full)
        self._filled = 0
