"""Locality of a batch's rows: miss ratios of caches of a table's weights, and contiguous or scattered hot rows.

A miss ratio is the share of a batch's distinct rows that the cache does not contain.

Weights are in host memory, and a cache in device memory holds a share of each table's rows, the load factor (TorchRec:
``fused_uvm_caching``). A batch's missing rows are fetched before its lookups and replace the least recently used rows
(LRU). A table's *curve* is its miss ratio as a function of the load factor. It is counted in traffic
(``Table.miss_ratios``), or else it is an upper bound from the table's reuse histogram or from the default histogram.

The bound. Lookups are independent: a batch looks row r up Poisson(l_r) times, with constant l_r. Of R rows, a batch is
expected to read U distinct rows, n_c of them c times, and M = sum of exp(-l) (1 - exp(-l)) rows that the previous batch
did not read. A sum over all rows weighted by exp(-l) is a sum over the R - U rows that a batch does not read.

- A cache of U rows contains the rows of the last batch and misses M rows of the next batch. The rows outside of a
  larger cache have gone unread longer, so each is less likely in the next batch: with C >= U rows in the cache and
  R - C outside, at most M (R - C) / (R - U) rows are missed.
- A cache of C < U rows contains a random selection of the last batch's rows, or the more frequent rows. Two successive
  batches have U - M rows in common, so at least C (U - M) / U rows are hit.
- M <= (R - U) (1 - exp(-n_1 / (R - U))), because 1 - exp(-l) is concave, and rows that were not read have the mean
  rate n_1 / (R - U) (Good and Turing: n_1 is the sum of l exp(-l)).
- M <= n_1 - 2 b n_2 + 6 g (n_3 + n_4) for every x > 0. Here b and g are such that p(l) = l - b l^2 + g (l^3 + l^4 / 4)
  is tangent to 1 - exp(-l) at l = 0 and l = x. As p has the larger fourth derivative, p(l) >= 1 - exp(-l) everywhere.
  Rows that are read 2 to 4 times show how many of the rows that are read once are frequent.

Sets. FBGEMM's caches hash rows to sets of 32 rows. A row is evicted after 32 other rows of its set were read; the
number of rows read per set is Poisson. So the expected misses are a mean over fully associative caches whose size is C
times a gamma variable with shape 32 and mean 1; even a cache for all rows misses some. The model ignores that the
frequency of rows changes over time.

Hot rows. A row is hot if a batch reads it more than once. Hashed indices scatter hot rows. Indices in the order of
frequency, or of first use, make them contiguous, so that they share pages and cache lines of a CPU. Traffic shows which
case applies: ``Table.row_shares`` has the share of lookups of each of many equal row ranges, called runs.

Legend: T tables, F load factors, K = 17 bins, X touching points, R runs of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from evenshard.tables.reuse import DLRM_2021_REUSE, FloatArray, rows_and_counts, tilt_to_feasible
from evenshard.tables.table import LOAD_FACTORS, Table

COUNTED, BOUND, ASSUMED = "counted in traffic", "a bound from reuse_bins", "a bound from the assumed reuse"
MAX_KNOWN_CURVES = 100_000  # entries of a cache; enough for the most tables at one batch size
ROWS_PER_SET = 32  # rows of a set
# Expected distinct rows of a batch below which the curve is a straight line, because lookups are negligible.
FEWEST_ROWS = 1e-9
# Runs in a generated table's ``row_shares``; enough to detect contiguous hot rows, and few enough to store.
MOST_RUNS = 32
# Difference of lookup shares below which contiguous and scattered hot rows cannot be distinguished.
LEAST_DIFFERENCE = 0.1

# Load factors that ascend from 0 to 1, and the miss ratios there; linear in between.
Curve = tuple[tuple[float, ...], tuple[float, ...]]


def table_rows_and_counts(tables: Sequence[Table], lookups_T: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return distinct rows, and lookups per row, by reuse bin, [T, K] each; a missing histogram is the default."""
    rows_T = np.array([table.num_rows for table in tables], dtype=np.float64)
    unknown = [at for at, table in enumerate(tables) if not table.reuse_bins]
    bins_TK = np.array([table.reuse_bins or DLRM_2021_REUSE for table in tables])
    if unknown:  # all at once, because each needs a bisection for feasibility
        bins_TK[unknown] = tilt_to_feasible(bins_TK[unknown], rows_T[unknown], lookups_T[unknown])
    return rows_and_counts(bins_TK, rows_T, lookups_T)


def miss_ratio(table: Table, batch_size: int, load_factor: float) -> float:
    """Return the miss ratio of a cache with a share ``load_factor`` of the rows, for the global ``batch_size``.

    It is 1 without a cache and 0 if the cache has all rows.
    """
    return float(np.interp(load_factor, *miss_curve(table, batch_size)))


def set_miss_ratio(table: Table, batch_size: int, load_factor: float) -> float:
    """Return ``miss_ratio`` for a cache of sets of 32 rows, like FBGEMM's caches."""
    return float(np.interp(load_factor * _SIZES_OF_SETS, *miss_curve(table, batch_size)).mean())


def miss_source(table: Table) -> str:
    """Return the origin of a table's miss ratios: ``COUNTED``, ``BOUND`` or ``ASSUMED``."""
    if table.miss_ratios is not None:
        return COUNTED
    return ASSUMED if table.reuse_bins is None else BOUND


@lru_cache(maxsize=MAX_KNOWN_CURVES)
def distinct_rows(table: Table, batch_size: int) -> float:
    """Return the expected distinct rows of a batch of lookups of a table, at most all of its rows."""
    return float(_rows_by_bin(table, batch_size).sum())


@lru_cache(maxsize=MAX_KNOWN_CURVES)
def miss_curve(table: Table, batch_size: int) -> Curve:
    """Return the miss ratio of a table as a function of the share of its rows that a cache holds."""
    if table.miss_ratios is not None:
        return (0.0, *LOAD_FACTORS), (1.0, *table.miss_ratios)
    rows_K = _rows_by_bin(table, batch_size)
    distinct = float(rows_K.sum())
    if distinct < FEWEST_ROWS:
        return (0.0, 1.0), (1.0, 0.0)
    new = max_new_rows(rows_K, table.num_rows)
    return (0.0, min(distinct / table.num_rows, 1.0), 1.0), (1.0, min(new / distinct, 1.0), 0.0)


def mean_miss_ratio(table: Table, batch_size: int) -> float:
    """Return the mean miss ratio over all cache sizes: 0 if a minimal cache suffices, 1 if no cache helps."""
    load_factors, ratios = map(np.array, miss_curve(table, batch_size))
    return float(np.diff(load_factors) @ (ratios[1:] + ratios[:-1]) / 2)


def max_new_rows(rows_K: FloatArray, num_rows: int) -> float:
    """Return the bound on M, the distinct rows of a batch that the previous batch did not read.

    ``rows_K`` are the expected distinct rows of a batch in each reuse bin, [K].
    """
    once, twice, thrice = rows_K[:3].tolist()  # the third bin: three or four times
    unseen = max(num_rows - float(rows_K.sum()), 0.0)
    if unseen == 0:
        return 0.0
    by_once = -unseen * np.expm1(-once / unseen)
    by_more = (once - 2 * _SQUARES_X * twice + 6 * _CUBES_X * thrice).min()
    return float(max(min(by_once, by_more), 0.0))


def _rows_by_bin(table: Table, batch_size: int) -> FloatArray:
    rows_1K, _ = table_rows_and_counts([table], np.array([table.pooling_factor * batch_size]))
    return np.asarray(rows_1K[0])


def _tangent_bound() -> tuple[FloatArray, FloatArray]:
    """Return the coefficients b and g, [X] each, of the bound by tangent polynomials (see the module's docstring)."""
    points = np.geomspace(0.25, 8, 21)  # tangent points x; the bound is the least over all of them
    values, slopes = 1 - np.exp(-points), np.exp(-points)
    # p(x) = value and p'(x) = slope are two linear equations for b and g.
    cubes, cube_slopes = points**3 + points**4 / 4, 3 * points**2 + points**3
    cubes_X = (2 * (values - points) - points * (slopes - 1)) / (2 * cubes - points * cube_slopes)
    squares_X = (points - values + cubes_X * cubes) / points**2
    return squares_X, cubes_X


_SQUARES_X, _CUBES_X = _tangent_bound()


def _sizes_of_sets(count: int = 16) -> FloatArray:
    """Return ``count`` equally likely sizes of a cache's sets, gamma with mean 1 (Wilson and Hilferty, 1931)."""
    normal = np.array([NormalDist().inv_cdf((number + 0.5) / count) for number in range(count)])
    sizes = (1 - 1 / (9 * ROWS_PER_SET) + normal / (3 * ROWS_PER_SET**0.5)) ** 3
    return np.asarray(sizes / sizes.mean())


_SIZES_OF_SETS = _sizes_of_sets()


@dataclass(frozen=True)
class _HotRows:
    """Cumulative numbers of hot rows (read more than once), hottest bins first, and their shares of the lookups."""

    num_rows: int
    rows_K: FloatArray
    shares_K: FloatArray

    @staticmethod
    def of(table: Table, batch_size: int) -> _HotRows:
        lookups = table.pooling_factor * batch_size
        rows_1K, counts_1K = table_rows_and_counts([table], np.array([lookups]))
        hot_K, each_K = rows_1K[0, :0:-1], counts_1K[0, :0:-1]
        shares_K = np.cumsum(hot_K * each_K) / max(lookups, 1e-300)
        return _HotRows(table.num_rows, np.append(0.0, np.cumsum(hot_K)), np.append(0.0, shares_K))

    def share(self, hottest: FloatArray | float) -> FloatArray:
        beyond = np.maximum(np.asarray(hottest) - self.rows_K[-1], 0.0) / max(self.num_rows - self.rows_K[-1], 1e-9)
        return np.asarray(np.interp(hottest, self.rows_K, self.shares_K) + (1 - self.shares_K[-1]) * beyond)


@lru_cache(maxsize=8_192)  # a search evaluates the same tables repeatedly
def contiguous_share(table: Table, batch_size: int) -> float | None:
    """Estimate the share of a table's hot rows that are contiguous; None without counted traffic.

    A batch reads a hot row more than once. If hot rows are contiguous, the busiest row ranges get more lookups than
    if they are scattered; if these two cases hardly differ, the share is 0. ``reuse_bins`` must be for the batch size.
    """
    if table.row_shares is None:
        return None
    hot, runs = _HotRows.of(table, batch_size), len(table.row_shares)
    run_rows = table.num_rows / runs
    busiest = min(int(np.ceil(hot.rows_K[-1] / run_rows)) + 1, runs)  # hot rows may begin anywhere in a run
    found = float(np.sort(table.row_shares)[-busiest:].sum())
    together = float(hot.share(busiest * run_rows))
    hottest = float(hot.share(busiest))  # one hot row in each of these runs
    scattered = hottest + (1 - hottest) * busiest / runs
    if together - scattered < LEAST_DIFFERENCE:
        return 0.0
    return round(float(np.clip((found - scattered) / (together - scattered), 0.0, 1.0)), 3)


def arrange_hot_rows(table: Table, batch_size: int, together: bool) -> Table:
    """Return the table with its hot rows contiguous at the beginning (``together``), or scattered over all rows."""
    runs = min(table.num_rows, MOST_RUNS)
    if not together:
        return replace(table, row_shares=(1 / runs,) * runs)
    ends_R = _HotRows.of(table, batch_size).share(np.linspace(0, table.num_rows, runs + 1))
    return replace(table, row_shares=tuple(np.round(np.diff(ends_R), 7).tolist()))
