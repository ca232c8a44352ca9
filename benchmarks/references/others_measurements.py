"""Published measurements of RTX 2080 Ti GPUs, and the real tables that were measured, from CSV files.

The files belong to their owners and are no part of this repository. Their folder is ``shared/truth`` beside the
checkout, or the one that EVENSHARD_TRUTH names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.references.rows import read_rows
from evenshard.tables.reuse import NUM_REUSE_BINS, FloatArray
from evenshard.tables.table import Table

# Batch size and devices of all of these measurements.
BATCH_SIZE = 65536
NUM_DEVICES = 4
TABLES, SHARDS, EXCHANGES = "dlrm_2021_tables.csv", "rtx_2080_ti_shards.csv", "rtx_2080_ti_all_to_all.csv"


@dataclass(frozen=True)
class Measurements:
    """Published measurements, read from CSV files.

    Attributes:
        tables: all tables of DLRM-2021, of dim 16, FP32, called after their numbers.
        shards: tables with their own dims of each measured shard.
        shard_ms: forward and backward of each shard together.
        dims_ND, start_ms_ND: sum of dims of each device in each measured all-to-all, and its start after that of the
            first device.
        fwd_ms_ND, bwd_ms_ND: forward all-to-all of each device, which includes its waiting, and backward all-to-all.
    """

    tables: tuple[Table, ...]
    shards: tuple[tuple[Table, ...], ...]
    shard_ms: FloatArray
    dims_ND: FloatArray
    start_ms_ND: FloatArray
    fwd_ms_ND: FloatArray
    bwd_ms_ND: FloatArray


def default_folder() -> Path:
    """Return the folder beside the checkout, unless EVENSHARD_TRUTH names another."""
    return Path(os.environ.get("EVENSHARD_TRUTH", Path(__file__).resolve().parents[3] / "shared" / "truth"))


def read(folder: Path) -> Measurements:
    """Read the measurements in a folder."""
    table_rows, shard_rows, exchange_rows = (read_rows(folder / name) for name in (TABLES, SHARDS, EXCHANGES))
    tables = tuple(
        Table(
            name=str(number),
            num_rows=int(row["num_rows"]),
            embedding_dim=16,
            pooling_factor=float(row["pooling_factor"]),
            reuse_bins=_reuse_bins(row),
        )
        for number, row in enumerate(table_rows)
    )

    def of_devices(name: str) -> FloatArray:
        return np.array([[float(row[f"{name}_{device}"]) for device in range(NUM_DEVICES)] for row in exchange_rows])

    return Measurements(
        tables=tables,
        shards=tuple(
            tuple(
                replace(tables[int(number)], embedding_dim=int(dim))
                for number, dim in zip(row["tables"].split(), row["dims"].split(), strict=True)
            )
            for row in shard_rows
        ),
        shard_ms=np.array([float(row["fwd_bwd_ms"]) for row in shard_rows]),
        dims_ND=of_devices("dims"),
        start_ms_ND=of_devices("start_ms"),
        fwd_ms_ND=of_devices("fwd_ms"),
        bwd_ms_ND=of_devices("bwd_ms"),
    )


def _reuse_bins(row: dict[str, str]) -> tuple[float, ...] | None:
    """Return the reuse histogram of a table; None for a table without lookups, whose shares are all zero."""
    shares = tuple(float(row[f"bin_{k}"]) for k in range(NUM_REUSE_BINS))
    return shares if any(shares) else None
