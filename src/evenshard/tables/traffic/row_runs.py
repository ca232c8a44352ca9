"""Lookups of equal runs of a table's rows, counted while they are read: they say how uneven parts by rows are."""

from __future__ import annotations

import numpy as np

from evenshard.tables.traffic.sample import IntArray

# Fine enough for parts on 128 devices; each table's shares stand in its file.
MAX_RUNS = 256
# Runs of a table whose rows are not known before all are read; a power of two.
FIRST_RUNS = 2048


class RowRuns:
    """Counts of one table.

    Args:
        num_rows: rows of the table; None if only its largest index will tell. Runs are counted in lengths of powers of
            two then, and their shares are right to an eighth of a run.
    """

    def __init__(self, num_rows: int | None) -> None:
        self._num_rows, self._length = num_rows, 1
        self._counts = np.zeros(FIRST_RUNS if num_rows is None else min(num_rows, MAX_RUNS), dtype=np.int64)

    def add(self, rows_L: IntArray, largest: int) -> None:
        """Lookups of rows, of which ``largest`` is the last; they are within the table."""
        if self._num_rows is not None:
            runs_L = rows_L * len(self._counts) // self._num_rows
        else:
            while largest >= self._length * len(self._counts):
                pairs = self._counts.reshape(-1, 2).sum(axis=1)
                self._counts, self._length = np.concatenate([pairs, np.zeros_like(pairs)]), 2 * self._length
            runs_L = rows_L // self._length
        self._counts += np.bincount(runs_L, minlength=len(self._counts))

    def shares(self, num_rows: int) -> tuple[float, ...] | None:
        """Shares of the lookups that go to each of 256 equal runs, or to each row of fewer; None without lookups."""
        total = int(self._counts.sum())
        if not total:
            return None
        counts = self._counts.astype(np.float64)
        if self._num_rows is None:
            ends = np.minimum(np.arange(len(counts) + 1) * self._length, num_rows)
            edges = np.linspace(0, num_rows, min(num_rows, MAX_RUNS) + 1)
            counts = np.diff(np.interp(edges, ends, np.concatenate([[0.0], np.cumsum(counts)])))
        return tuple(np.round(counts / total, 7).tolist())
