"""Tables of made-up recommenders, over wide ranges: what an estimator is fitted on.

Rows and lookups are log-uniform, because their order of magnitude is not known in advance; one lookup for each sample
comes more often. None of the public sets of the catalogue is among them: they stay an honest test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from evenshard.tables.table import Table

ROW_RANGES, ROW_SHARES = ((1, 1e3), (1e3, 1e6), (1e6, 2e7), (2e7, 5e8)), (0.25, 0.35, 0.25, 0.15)
DIMS = (4, 8, 16, 32, 64, 128, 256, 512)
DIM_STEP = 4
POOLING = (0.01, 300.0)
ONE_HOT_SHARE = 0.4
LARGEST_TABLE_SHARE = 0.6
"""Of a device's memory: a larger table gets fewer dims, then fewer rows."""
LEAST_TABLES, MOST_TABLES = 8, 60


def made_up_tables(name: str, memory_bytes: int, rng: np.random.Generator) -> Iterator[Table]:
    """The tables of one recommender.

    Args:
        name: begins their names.
        memory_bytes: memory of a device; no table is larger.
        rng: draws everything.
    """
    count = int(_log_uniform(rng, LEAST_TABLES, MOST_TABLES + 1))
    most_bytes = LARGEST_TABLE_SHARE * memory_bytes
    for number, (dim, bits) in enumerate(zip(_dims(count, rng), _weight_bits(count, rng), strict=True)):
        rows = int(_log_uniform(rng, *ROW_RANGES[rng.choice(len(ROW_RANGES), p=ROW_SHARES)]))
        pooling = 1.0 if rng.random() < ONE_HOT_SHARE else _log_uniform(rng, *POOLING)
        pooling = min(pooling, float(rows))  # a sample does not look up three rows a hundred times
        table = Table(f"{name}-{number:03d}", rows, dim, pooling, weight_bits=bits)
        while table.size_bytes > most_bytes and table.embedding_dim > DIM_STEP:
            table = replace(table, embedding_dim=max(DIM_STEP, table.embedding_dim // 2 // DIM_STEP * DIM_STEP))
        if table.size_bytes > most_bytes:
            table = replace(table, num_rows=int(table.num_rows * most_bytes / table.size_bytes))
        yield table


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _dims(count: int, rng: np.random.Generator) -> list[int]:
    """One dim for all, or a few powers of two, or anything that is a multiple of four."""
    habit = rng.random()
    if habit < 0.35:
        return [int(rng.choice(DIMS))] * count
    if habit < 0.75:
        first = int(rng.integers(len(DIMS) - 1))
        return [int(dim) for dim in rng.choice(DIMS[first : first + int(rng.integers(2, 6))], size=count)]
    return [DIM_STEP * int(_log_uniform(rng, 1, DIMS[-1] / DIM_STEP + 1)) for _ in range(count)]


def _weight_bits(count: int, rng: np.random.Generator) -> list[int]:
    habit = rng.random()
    if habit < 0.1:
        return [int(bits) for bits in rng.choice((8, 16, 32), size=count)]
    return [32 if habit < 0.55 else 16 if habit < 0.92 else 8] * count
