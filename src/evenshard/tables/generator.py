"""Generator of table pools that follow the published statistics of a large recommender, the DLRM 2021 data.

Row counts, pooling factors and index reuse follow the marginals that facebookresearch/dlrm_datasets publishes for its
856 tables. Embedding dims are not published, so they are drawn from the configured dims.

Legend: T tables, K = 17 reuse bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenshard.base.knobs import COUNT, POSITIVE, REQUIRED, SHARE, check_knobs, check_ranges, knob
from evenshard.base.units import gb_to_bytes
from evenshard.tables.locality import arrange_hot_rows
from evenshard.tables.reuse import DLRM_2021_REUSE, NUM_REUSE_BINS, FloatArray, mean_counts, tilt_to_feasible
from evenshard.tables.table import Table, check_dims, check_weight_bits

# Tables in each range of row counts; ranges are log-uniform. The edges have one entry more.
ROW_COUNTS = (143, 15, 36, 31, 29, 58, 98, 341, 66, 5, 34)
ROW_EDGES = (1, 200, 1e3, 1e4, 1e5, 1e6, 3e6, 5.5e6, 6.2e6, 7e6, 1e7, 12.5e6)
# Tables in each range of pooling factors, published as integers; the least, 0.05, is ours. The mean is 15.8, and the
# top 10 % of tables have 51 % of the lookups.
POOLING_COUNTS = (144, 156, 65, 90, 94, 120, 121, 49, 17)
POOLING_EDGES = (0.05, 1, 2, 3, 6, 11, 21, 51, 101, 194)

# Small tables have a mean pooling factor of 2.0, others 17 to 27; rows and pooling then correlate by 0.19.
SMALL_TABLE_ROWS = 1000
COPULA_CORRELATION = 0.09  # of the normal scores of rows and pooling
SMALL_TABLE_SHIFT = 1.4  # of the normal score of a small table's pooling, in standard deviations

RAKING_ROUNDS = 60
RAKING_TOLERANCE = 1e-4  # largest error of a bin's share at which raking stops
RAKING_LIMIT = 0.01  # above this error, raking has failed and the unraked histograms are used


@dataclass(frozen=True)
class GeneratorConfig:
    """Settings of a generated pool; ``evenshard.loop.loop.GenerateTablesConfig`` documents its fields."""

    num_tables: int = knob(REQUIRED, "number of tables in the pool", range=COUNT)
    embedding_dims: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    max_rows: int | None = knob(None, "maximum row count; None for up to 12.5 million, as published", range=COUNT)
    weight_bits: int = 32
    reuse_spread: float = knob(
        0.3,
        "differences in index reuse: standard deviation of histogram tilts; 0 for histograms as equal as possible",
        range=SHARE,
    )
    hot_rows_together: float | None = knob(None, "share of the tables whose hot rows are contiguous", range=SHARE)
    max_table_gb: float | None = knob(None, "maximum GB of a table, which gets fewer rows if necessary", range=POSITIVE)

    def __post_init__(self) -> None:
        check_knobs(self)
        check_dims(self.embedding_dims)
        check_weight_bits(self.weight_bits)


def generate_tables(config: GeneratorConfig, batch_size: int, seed: int) -> tuple[Table, ...]:
    """Generate a pool that follows the DLRM 2021 statistics; the same seed gives the same tables.

    The reuse histograms are for ``batch_size``. Each is tilted at random and feasible for the table (see ``reuse``).
    Their mean over the pool, weighted by numbers of unique indices, is the published histogram, to about 1e-4 per bin.
    If a limit leaves too few rows for that, each histogram is as close to the published one as possible.
    """
    check_ranges(batch_size=batch_size, seed=seed)
    rng = np.random.default_rng(seed)
    rows_T, pooling_T = _rows_and_pooling(config.num_tables, rng)
    if config.max_rows is not None:
        rows_T = np.minimum(rows_T, config.max_rows)
    dims_T = rng.choice(np.array(config.embedding_dims), size=config.num_tables)
    if config.max_table_gb is not None:
        rows_T = np.clip(rows_T, 1, gb_to_bytes(config.max_table_gb) * 8 // (dims_T * config.weight_bits))
    tilts_T = rng.normal(0.0, config.reuse_spread, size=config.num_tables)
    reuse_TK = _rake_reuse(tilts_T, rows_T, pooling_T * batch_size)
    columns = zip(rows_T, dims_T, pooling_T, reuse_TK.tolist(), strict=True)
    tables = tuple(
        Table(f"t{number:03d}", int(rows), int(dim), float(pooling), tuple(bins), config.weight_bits)
        for number, (rows, dim, pooling, bins) in enumerate(columns)
    )
    if config.hot_rows_together is None:
        return tables
    are_together_T = (rng.random(config.num_tables) < config.hot_rows_together).tolist()
    return tuple(arrange_hot_rows(table, batch_size, own) for table, own in zip(tables, are_together_T, strict=True))


def _rows_and_pooling(num_tables: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    score_T = rng.standard_normal(num_tables)
    rows_T = np.floor(_quantile(_spread_quantiles(score_T, rng), ROW_COUNTS, ROW_EDGES))
    noise_T = rng.standard_normal(num_tables)
    pooling_score_T = COPULA_CORRELATION * score_T + np.sqrt(1 - COPULA_CORRELATION**2) * noise_T
    pooling_score_T -= SMALL_TABLE_SHIFT * (rows_T < SMALL_TABLE_ROWS)
    return rows_T, _quantile(_spread_quantiles(pooling_score_T, rng), POOLING_COUNTS, POOLING_EDGES)


def _spread_quantiles(score_T: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw one quantile from each of T equal parts of (0, 1); a higher score gets a higher quantile, [T].

    With independent draws, the mean pooling factor of a pool would vary by 0.9.
    """
    rank_T = np.empty(len(score_T))
    rank_T[np.argsort(score_T)] = np.arange(len(score_T))
    return np.asarray((rank_T + rng.random(len(score_T))) / len(score_T))


def _quantile(quantile_T: FloatArray, counts: tuple[int, ...], edges: tuple[float, ...]) -> FloatArray:
    """Invert the distribution function of a mixture of log-uniform ranges with these counts."""
    cumulative = np.cumsum((0, *counts)) / sum(counts)
    return np.asarray(np.exp(np.interp(quantile_T, cumulative, np.log(edges))))


def _rake_reuse(tilts_T: FloatArray, rows_T: FloatArray, lookups_T: FloatArray) -> FloatArray:
    """Fit tilted histograms to the published mean of the pool by raking, [T, K]; unchanged if that fails."""
    goal_K = np.array(DLRM_2021_REUSE)
    own_TK = np.exp(tilts_T[:, None] * np.arange(NUM_REUSE_BINS))
    unraked_TK = reuse_TK = tilt_to_feasible(goal_K * own_TK, rows_T, lookups_T)
    base_K = goal_K
    for _ in range(RAKING_ROUNDS):
        pool_K = pool_reuse(reuse_TK, lookups_T)
        if np.abs(pool_K - goal_K).max() < RAKING_TOLERANCE:
            return reuse_TK
        # A pool of few lookups cannot fill the last bins; the limits 0.1 and 10 keep their factors finite.
        base_K = base_K * np.clip(goal_K / np.maximum(pool_K, 1e-12), 0.1, 10.0)
        base_K = base_K / base_K.sum()
        reuse_TK = tilt_to_feasible(base_K * own_TK, rows_T, lookups_T)
    residual = np.abs(pool_reuse(reuse_TK, lookups_T) - goal_K).max()
    return reuse_TK if residual < RAKING_LIMIT else unraked_TK


def pool_reuse(reuse_TK: FloatArray, lookups_T: FloatArray) -> FloatArray:
    """Return each bin's share of all unique indices of the pool, [K], as the published histogram counts them."""
    uniques_T = lookups_T / mean_counts(reuse_TK, lookups_T)
    return np.asarray(uniques_T @ reuse_TK / uniques_T.sum())
