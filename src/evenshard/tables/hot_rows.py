"""Whether the hot rows of a table lie side by side in memory, or scattered over it.

A row is hot if a batch reads it more than once. Hashed indices scatter hot rows; indices in the order of frequency, or
of first sight, put them side by side, where they share pages and lines of a CPU's caches. Traffic tells which it is:
``Table.row_shares`` has the lookups of equal runs of rows.

Legend: K = 17 reuse bins, R runs of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from evenshard.tables.reuse import FloatArray, feasible_reuse_bins, rows_and_counts
from evenshard.tables.table import Table

# Runs of rows that a drawn table's ``row_shares`` have; enough to tell, and few to store.
MOST_RUNS = 32
# The least share of the lookups by which hot rows side by side must differ from scattered ones to be told apart.
LEAST_DIFFERENCE = 0.1


@dataclass(frozen=True)
class _HotRows:
    """The hottest ``rows_K``, bin after bin, of ``num_rows``; ``shares_K`` of the lookups go to as many."""

    num_rows: int
    rows_K: FloatArray
    shares_K: FloatArray

    @staticmethod
    def of(table: Table, batch_size: int) -> _HotRows:
        lookups = table.pooling_factor * batch_size
        bins_K = table.reuse_bins or feasible_reuse_bins(table.num_rows, lookups)
        rows_1K, counts_1K = rows_and_counts(np.array([bins_K]), np.array([float(table.num_rows)]), np.array([lookups]))
        hot_K, each_K = rows_1K[0, :0:-1], counts_1K[0, :0:-1]
        shares_K = np.cumsum(hot_K * each_K) / max(lookups, 1e-300)
        return _HotRows(table.num_rows, np.append(0.0, np.cumsum(hot_K)), np.append(0.0, shares_K))

    def share(self, hottest: FloatArray | float) -> FloatArray:
        beyond = np.maximum(np.asarray(hottest) - self.rows_K[-1], 0.0) / max(self.num_rows - self.rows_K[-1], 1e-9)
        return np.asarray(np.interp(hottest, self.rows_K, self.shares_K) + (1 - self.shares_K[-1]) * beyond)


@lru_cache(maxsize=8_192)  # a search asks of the same tables again and again
def hot_rows_together(table: Table, batch_size: int) -> float | None:
    """Share of a table's hot rows that lie side by side; 0 if all are scattered, or where it makes no difference.

    The busiest runs, as many as hold all hot rows if these lie side by side, have more of the lookups then.

    Args:
        table: its ``reuse_bins`` hold for this batch size.
        batch_size: samples of a batch.

    Returns:
        None where no traffic was counted.
    """
    if table.row_shares is None:
        return None
    hot, runs = _HotRows.of(table, batch_size), len(table.row_shares)
    run_rows = table.num_rows / runs
    busiest = min(int(np.ceil(hot.rows_K[-1] / run_rows)) + 1, runs)  # they may begin anywhere in a run
    found = float(np.sort(table.row_shares)[-busiest:].sum())
    together = float(hot.share(busiest * run_rows))
    hottest = float(hot.share(busiest))  # each in a run of its own
    scattered = hottest + (1 - hottest) * busiest / runs
    if together - scattered < LEAST_DIFFERENCE:
        return 0.0
    return round(float(np.clip((found - scattered) / (together - scattered), 0.0, 1.0)), 3)


def with_hot_rows(table: Table, batch_size: int, together: bool) -> Table:
    """The table with hot rows at its beginning, in the order of their lookups, or scattered over all runs."""
    runs = min(table.num_rows, MOST_RUNS)
    if not together:
        return replace(table, row_shares=(1 / runs,) * runs)
    ends_R = _HotRows.of(table, batch_size).share(np.linspace(0, table.num_rows, runs + 1))
    return replace(table, row_shares=tuple(np.round(np.diff(ends_R), 7).tolist()))
