"""Lookups counted into reuse histograms, in windows of one batch each.

Legend: L lookups, U unique rows of one table in one window, K = 17 bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenshard.tables.reuse import NUM_REUSE_BINS, reuse_bins_of_counts
from evenshard.tables.traffic.reuse_intervals import MAX_REMEMBERED, ReuseIntervals
from evenshard.tables.traffic.row_runs import RowRuns
from evenshard.tables.traffic.sample import Block, IntArray
from evenshard.utils.errors import BadFile
from evenshard.utils.messages import brief

# Lookups of one table that are kept as they came; beyond, rows and their counts are kept instead.
COMPACT_AT = 1 << 20


class TableCounts:
    """What the sample shows of one table.

    Attributes:
        columns: columns of the sample that are its features.
        num_lookups: lookups of each column in the whole sample.
        largest_row: largest row that was looked up, -1 if none was.
        unique_K: unique rows of all full windows together by the number of lookups in their window, bin by bin. Their
            shares are the mean histogram of the windows, each weighted by its number of unique rows. So weighted, the
            mean lookups per unique row that the histogram implies are those of the sample; in the plain mean, a
            window of one hot row would count as much as one of a thousand cold rows.
        rest_K: the same of the incomplete last window.
        row_runs: how the lookups of the whole sample spread over the rows.
        intervals: how many windows ago the rows of each full window were looked up last.
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
        """Lookups of a column in the present window.

        Raises:
            BadFile: a row number is negative or beyond the table.
        """
        if rows_L.size == 0:
            return
        smallest, largest = int(rows_L.min()), int(rows_L.max())
        where = f"table {brief(self.name)}" + (f", feature {brief(column)}" if column != self.name else "")
        if smallest < 0:
            raise BadFile(
                path, f"index {smallest} is negative", "Correct the sample; -1 does not stand for no lookup.", where
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
        """Counts the present window and starts the next."""
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
    """Cuts successive blocks into windows of ``batch_size`` samples, across the borders of blocks and files."""

    def __init__(self, tables: Sequence[TableCounts], batch_size: int) -> None:
        self._tables, self._batch_size = tables, batch_size
        self._filled = 0

    def add(self, block: Block, path: Path) -> None:
        """Raises BadFile for an impossible row number."""
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
        """Counts the incomplete last window, apart from the others, and forgets the rows."""
        if self._filled:
            self._close(is_full=False)
        for table in self._tables:
            table.intervals.finish()

    def _close(self, is_full: bool) -> None:
        for table in self._tables:
            table.close_window(is_full)
        self._filled = 0
