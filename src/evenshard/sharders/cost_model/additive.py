"""Additive quantities of a table's work: what a device does is the sum over its tables.

They come from a table's shape and reuse histogram, hold for any hardware and carry the learned cost model to numbers of
tables and devices it has never seen.

Legend: T tables, A = 8 quantities, K = 17 reuse bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenshard.sharders.features import raw_features_TF
from evenshard.tables.reuse import NUM_REUSE_BINS, FloatArray, mean_counts
from evenshard.tables.table import Table

QUANTITIES = ("tables", "dims", "lookups", "values", "row_bytes", "grad_bytes", "unique_rows", "unique_bytes")
LEAST_READ_BYTES = 32  # the least that memory is read in: a row of 8 bytes costs no less than one of 32
GRAD_BYTES_PER_VALUE = 4  # gradients are FP32


def additive_work_TA(tables: Sequence[Table], batch_size: int) -> FloatArray:
    """[T, A] the quantities of each table in one training step, all at least 0.

    Tables (1 each), embedding dims, lookups, values to add up (lookups times dim), bytes of the rows looked up, bytes
    of their gradients, distinct rows, and bytes of those. Bytes of rows come in whole sectors.
    """
    rows_T = np.array([table.num_rows for table in tables], dtype=np.float64)
    dims_T = np.array([table.embedding_dim for table in tables], dtype=np.float64)
    bits_T = np.array([table.weight_bits for table in tables], dtype=np.float64)
    lookups_T = np.array([table.pooling_factor for table in tables], dtype=np.float64) * batch_size
    bins_TK = raw_features_TF(tables, batch_size)[:, -NUM_REUSE_BINS:]
    # a histogram from elsewhere may add up to 0.999
    bins_TK = bins_TK / bins_TK.sum(axis=1, keepdims=True)
    uniques_T = np.minimum(lookups_T / mean_counts(bins_TK, lookups_T), rows_T)
    row_bytes_T = _whole_sectors(dims_T * bits_T / 8)
    columns = {
        "tables": np.ones_like(rows_T),
        "dims": dims_T,
        "lookups": lookups_T,
        "values": lookups_T * dims_T,
        "row_bytes": lookups_T * row_bytes_T,
        "grad_bytes": lookups_T * _whole_sectors(dims_T * GRAD_BYTES_PER_VALUE),
        "unique_rows": uniques_T,
        "unique_bytes": uniques_T * row_bytes_T,
    }
    return np.stack([columns[name] for name in QUANTITIES], axis=1)


def _whole_sectors(num_bytes_T: FloatArray) -> FloatArray:
    return np.asarray(np.ceil(num_bytes_T / LEAST_READ_BYTES) * LEAST_READ_BYTES)
