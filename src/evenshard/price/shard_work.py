"""Work of a shard on a GPU: lookups, bytes and L2 misses, summed over its tables.

Nothing here depends on the fitted constants of a profile, so calibration computes the work once. FBGEMM's kernels run
over the bags table by table (bag t * B + b is sample b of table t), and over the gradients in the order of sorted rows,
which is by table too. A table therefore competes for the L2 only with tables whose bags are in flight at the same time:
all tables of the shard at small batches, almost none at batch 65536.

L2 misses follow Che's approximation on reuse histograms. The rows of a bin are looked up c times at random moments of a
pass. A row is still in an LRU cache if it was looked up within the last fraction x of the pass, which is the same for
all rows (Che, Tung and Wang, 2002). No lookup of a row falls into this window with probability (1 - x)**c, so the cache
is full when

    sum over bins of unique_bytes * (1 - (1 - x)**c) = capacity,

and a lookup after the first misses with probability (1 - x)**c. The first lookup of a row always misses: the cache
is flushed before a pass. Che's exp(-c * x) is the limit of many lookups; (1 - x)**c is also exact at c = 2, and at
x = 1, where everything fits and nothing is missed twice.

Legend: T tables, N shards or streams of lookups, K = 17 reuse bins, C quantities of a table's work, W windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from evenshard.placement.memory import SGD, row_state_bytes
from evenshard.price.gpu_profile import GpuProfile
from evenshard.tables.locality import table_rows_and_counts
from evenshard.tables.reuse import NUM_REUSE_BINS, FloatArray
from evenshard.tables.table import Table

Indices = npt.NDArray[np.int64]
SECTOR_BYTES = 32  # unit of reads from device memory and the L2
REQUEST_VALUES = 128  # one warp instruction fetches 4 values for each of its 32 threads
PLAIN_BYTES = 4  # FP32 outputs and gradients, INT32 indices and offsets
MAX_CACHED_TABLES = 100_000  # then the cache is emptied, to bound its memory
MAX_STEPS, TOLERANCE = 100, 1e-11  # Newton's method
_BINS = NUM_REUSE_BINS


@dataclass(frozen=True)
class ShardWork:
    """Work of shards in one training step, [N] each; an empty shard is all zero.

    Bytes of rows are whole 32-byte sectors; a request is for up to 128 values of a row or gradient.
    """

    num_tables: FloatArray
    size_bytes: FloatArray
    num_rows: FloatArray  # rows of all tables, which determine the bits to sort
    lookups: FloatArray
    bags: FloatArray  # samples times tables
    filled_bags: FloatArray  # bags with a lookup, if lookups are spread evenly
    uniques: FloatArray  # distinct rows
    unique_bytes: FloatArray
    row_bytes: FloatArray
    row_requests: FloatArray
    row_miss_bytes: FloatArray  # bytes of ``row_bytes`` that the L2 misses
    output_bytes: FloatArray  # embeddings of bags, or of lookups that are not pooled, FP32
    grad_bytes: FloatArray  # gradient rows read in the backward pass, one for each lookup
    grad_miss_bytes: FloatArray  # bytes of ``grad_bytes`` that the L2 misses
    unique_values: FloatArray  # values of the distinct rows, for optimizers with states per weight
    unique_requests: FloatArray
    rounded_rows: FloatArray  # distinct rows with weights of fewer than 32 bits, which an update rounds at random
    hottest: FloatArray  # lookups of the row with the most lookups
    longest_bag: FloatArray  # largest mean number of lookups per bag over tables
    widest: FloatArray  # largest dim
    cached: FloatArray  # 1 if rows are looked up in a cache, see ``work_columns``; else 0
    dense: FloatArray  # 1 in a dense call, which does not check bounds; else 0

    def select(self, mask_or_indices: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> ShardWork:
        """Return a subset of the shards."""
        return ShardWork(*(getattr(self, name)[mask_or_indices] for name in _FIELDS))


_FIELDS = tuple(field.name for field in fields(ShardWork))
# Fields of ShardWork, then [K] each: distinct rows, lookups, bytes of the distinct rows, bytes of the lookups.
NUM_WORK_COLUMNS = len(_FIELDS)
# Columns that are maxima over a shard's tables; all others are sums.
MAXIMA = slice(_FIELDS.index("hottest"), len(_FIELDS))
CACHED, DENSE = _FIELDS.index("cached"), _FIELDS.index("dense")
_ROW_MISSES, _ROW_BYTES, _TABLES, _BAGS = (
    _FIELDS.index(name) for name in ("row_miss_bytes", "row_bytes", "num_tables", "bags")
)


class WorkCounter:
    """Counter of the work of shards on one GPU, with a cache of the work of each table."""

    def __init__(self, profile: GpuProfile, optimizer: str = SGD) -> None:
        self._l2_bytes = profile.l2_bytes
        self._resident_warps = profile.num_sms * profile.warps_per_sm
        self._optimizer = optimizer
        self._known: dict[int, dict[Table, FloatArray]] = {}  # by batch size

    def columns(self, tables: Sequence[Table], batch_size: int) -> FloatArray:
        """Return the work of each table alone, [T, C]."""
        known = self._known.setdefault(batch_size, {})
        found = [known.get(table) for table in tables]
        if not any(row is None for row in found):
            return np.array(found)
        if sum(map(len, self._known.values())) + len(tables) > MAX_CACHED_TABLES:
            self._known = {batch_size: (known := {})}
        number_of: dict[Table, int] = {}
        number_T = [number_of.setdefault(table, len(number_of)) for table in tables]
        found_TC = _table_columns(list(number_of), batch_size, self._l2_bytes, self._optimizer)
        known.update(zip(number_of, found_TC, strict=True))
        return found_TC[number_T]

    def narrow_columns(self, tables: Sequence[Table], dims_T: Indices, batch_size: int) -> FloatArray:
        """Return the work of each table with other dims, [T, C], without caching it."""
        distinct = {id(table): table for table in tables}
        number_of = {key: number for number, key in enumerate(distinct)}
        number_T = np.array([number_of[id(table)] for table in tables])
        return _table_columns(list(distinct.values()), batch_size, self._l2_bytes, self._optimizer, number_T, dims_T)

    def work_of(self, shards: Sequence[tuple[Sequence[Table], int]]) -> ShardWork:
        """Return the work of shards, each given by its tables, at least one, and its batch size."""
        columns = [self.columns(tables, batch_size) for tables, batch_size in shards]
        shard_of_T = np.repeat(np.arange(len(shards)), [len(tables) for tables, _ in shards])
        return self.shard_work(np.concatenate(columns), shard_of_T, len(shards))

    def shard_work(self, columns_TC: FloatArray, shard_of_T: npt.NDArray[np.int64], num_shards: int) -> ShardWork:
        """Sum the rows of ``columns_TC`` by shard; a table may occur in several rows."""
        order_T = np.argsort(shard_of_T, kind="stable")
        occupied_N, starts_N = np.unique(shard_of_T[order_T], return_index=True)
        sorted_TC = columns_TC[order_T]
        sums_NC = np.zeros((num_shards, columns_TC.shape[1]))
        sums_NC[occupied_N] = np.add.reduceat(sorted_TC, starts_N, axis=0)
        sums_NC[occupied_N, MAXIMA] = np.maximum.reduceat(sorted_TC[:, MAXIMA], starts_N, axis=0)
        return self.work_of_sums(sums_NC)

    def work_of_sums(self, sums_NC: FloatArray) -> ShardWork:
        """Return the work of shards from the column sums of their tables.

        Args:
            sums_NC: [N, C] each column's sum over the shard, or its maximum in the columns ``MAXIMA``. With only the
                first ``NUM_WORK_COLUMNS``, ``row_miss_bytes`` is slightly too low, because tables then do not compete
                for the L2.
        """
        work_CN = np.ascontiguousarray(sums_NC[:, :NUM_WORK_COLUMNS].T)
        if sums_NC.shape[1] > NUM_WORK_COLUMNS:
            several = np.flatnonzero(sums_NC[:, _TABLES] > 1)
            work_CN[_ROW_MISSES, several] = self._row_misses(sums_NC[several])
        return ShardWork(*work_CN)

    def _row_misses(self, sums_NC: FloatArray) -> FloatArray:
        """Return the row bytes that miss the L2, interpolated from one L2 per table to one shared L2, [N]."""
        alone_N, tables_N = sums_NC[:, _ROW_MISSES], sums_NC[:, _TABLES]
        sharing_N = np.minimum(self.tables_in_flight(sums_NC[:, _BAGS] / tables_N) / (tables_N - 1), 1.0)
        together_N = missed_bytes(*reuse_columns(sums_NC), np.full(len(sums_NC), self._l2_bytes))
        return np.asarray(alone_N + sharing_N * np.maximum(together_N - alone_N, 0.0))

    def tables_in_flight(self, batch_size: FloatArray | float) -> FloatArray | float:
        """Return the number of other tables whose bags are processed at the same time."""
        return self._resident_warps / batch_size


def _table_columns(
    tables: Sequence[Table],
    batch_size: int,
    l2_bytes: float,
    optimizer: str,
    number_T: Indices | None = None,
    dims_T: Indices | None = None,
) -> FloatArray:
    """Return the columns of ``ShardWork`` for tables that have the GPU to themselves, [T, C].

    Args:
        number_T, dims_T: index into ``tables`` and dim of each row; by default, each table with its own dim.
    """
    if number_T is None or dims_T is None:
        number_T = np.arange(len(tables))
        dims_T = np.array([table.embedding_dim for table in tables], dtype=np.int64)
    rows_U = np.array([table.num_rows for table in tables], dtype=np.int64)
    lookups_U = np.array([table.pooling_factor for table in tables]) * batch_size
    outputs_T = np.where([table.is_sequence for table in tables], lookups_U, batch_size)[number_T]
    bits_T = np.array([table.weight_bits for table in tables], dtype=np.int64)[number_T]
    rows_T, lookups_T = rows_U[number_T], lookups_U[number_T]

    uniques_TK, counts_TK = (of_tables_UK[number_T] for of_tables_UK in table_rows_and_counts(tables, lookups_U))
    uniques_T = uniques_TK.sum(axis=1)
    row_bytes_T = sector_bytes(dims_T * bits_T // 8)
    requests_T = -(-dims_T // REQUEST_VALUES)
    unique_bytes_TK = uniques_TK * row_bytes_T[:, None]
    looked_up_bytes_TK = unique_bytes_TK * counts_TK
    capacity_T = np.full(len(dims_T), l2_bytes)
    grad_row_bytes_T = sector_bytes(dims_T * PLAIN_BYTES)
    columns = {
        "num_tables": np.ones(len(dims_T)),
        "size_bytes": rows_T * dims_T * bits_T // 8 + rows_T * row_state_bytes(dims_T, optimizer),
        "num_rows": rows_T,
        "lookups": lookups_T,
        "bags": np.full(len(dims_T), float(batch_size)),
        "filled_bags": np.minimum(lookups_T, batch_size),
        "uniques": uniques_T,
        "unique_bytes": uniques_T * row_bytes_T,
        "row_bytes": lookups_T * row_bytes_T,
        "row_requests": lookups_T * requests_T,
        "row_miss_bytes": missed_bytes(unique_bytes_TK, looked_up_bytes_TK, counts_TK, capacity_T),
        "output_bytes": outputs_T * dims_T * float(PLAIN_BYTES),
        "grad_bytes": lookups_T * grad_row_bytes_T,
        "grad_miss_bytes": _grad_misses(lookups_T, grad_row_bytes_T, outputs_T, l2_bytes),
        "unique_values": uniques_T * dims_T,
        "unique_requests": uniques_T * requests_T,
        "rounded_rows": uniques_T * (bits_T < 8 * PLAIN_BYTES),
        "hottest": _hottest(uniques_TK, counts_TK),
        "longest_bag": lookups_T / batch_size,
        "widest": dims_T.astype(np.float64),
        "cached": np.zeros(len(dims_T)),
        "dense": np.zeros(len(dims_T)),
    }
    plain_TC = np.stack([columns[name] for name in _FIELDS], axis=1)
    return np.concatenate(
        [plain_TC, uniques_TK, uniques_TK * counts_TK, unique_bytes_TK, looked_up_bytes_TK], axis=1, dtype=np.float64
    )


def reuse_columns(columns_TC: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return bytes of distinct rows, bytes of lookups, and lookups per distinct row from work columns, [T, K] each."""
    uniques, lookups, unique_bytes, row_bytes = np.split(columns_TC[:, NUM_WORK_COLUMNS:], 4, axis=1)
    return unique_bytes, row_bytes, np.where(uniques > 0, lookups / np.where(uniques > 0, uniques, 1.0), 1.0)


def sector_bytes(row_bytes_T: npt.NDArray[np.int64], size: int = SECTOR_BYTES) -> FloatArray:
    """Return the bytes of 32-byte sectors, or larger lines, that a row touches, averaged over alignments, [T]."""
    aligned_T = np.gcd(row_bytes_T, size)
    return np.asarray(((row_bytes_T - aligned_T) / size + 1) * size)


def _grad_misses(
    lookups_T: FloatArray, grad_row_bytes_T: FloatArray, outputs_T: FloatArray, l2_bytes: float
) -> FloatArray:
    """Return the bytes of gradient rows that miss the L2 in the backward pass, [T].

    A table's rows are processed in sorted order and their samples are random: a gradient row is read once per lookup
    of its output at random moments, so ``missed_bytes`` has a closed form.
    """
    read_T = np.minimum(lookups_T, outputs_T)  # outputs with at least one lookup
    footprint_T = read_T * grad_row_bytes_T
    forgotten_T = np.maximum(1 - l2_bytes / np.maximum(footprint_T, 1.0), 0.0)
    return np.asarray(footprint_T + (lookups_T - read_T) * grad_row_bytes_T * forgotten_T)


def _hottest(uniques_TK: FloatArray, counts_TK: FloatArray) -> FloatArray:
    """Estimate the lookups of the hottest row, from the highest reuse bin with at least half a row."""
    populated_TK = uniques_TK >= 0.5
    top_T = _BINS - 1 - np.argmax(populated_TK[:, ::-1], axis=1)
    return np.where(populated_TK.any(axis=1), counts_TK[np.arange(len(top_T)), top_T], 0.0)


def missed_bytes(
    unique_bytes_NK: FloatArray, looked_up_bytes_NK: FloatArray, counts_NK: FloatArray, capacity_N: FloatArray
) -> FloatArray:
    """Compute the bytes that streams of lookups fetch from memory, [N].

    Args:
        unique_bytes_NK, looked_up_bytes_NK: [N, K] bytes of the distinct rows, and of all lookups.
        counts_NK: [N, K] lookups of one row, at least 1.
        capacity_N: [N] bytes that the cache holds, above 0.
    """
    forgotten_NK = np.exp(-counts_NK * _window(unique_bytes_NK, counts_NK, capacity_N)[:, None])
    again_NK = np.maximum(looked_up_bytes_NK - unique_bytes_NK, 0.0)
    return np.asarray((unique_bytes_NK + again_NK * forgotten_NK).sum(axis=1))


def _window(unique_bytes_NK: FloatArray, counts_NK: FloatArray, capacity_N: FloatArray) -> FloatArray:
    """Solve for the last fraction x of a pass whose rows fill the cache; return -log(1 - x), [N], large if all fit.

    The cached bytes are concave in this logarithm, so Newton's steps from 0 never overshoot. A converged stream is not
    iterated further, so its result does not depend on other streams.
    """
    window_N = np.zeros(len(capacity_N))
    fits_N = unique_bytes_NK.sum(axis=1) <= capacity_N
    active = np.flatnonzero(~fits_N)
    for _ in range(MAX_STEPS):
        if not active.size:
            break
        counts_AK, bytes_AK = counts_NK[active], unique_bytes_NK[active]
        absent_AK = bytes_AK * np.exp(-counts_AK * window_N[active, None])
        cached_A = (bytes_AK - absent_AK).sum(axis=1)
        step_A = (capacity_N[active] - cached_A) / (counts_AK * absent_AK).sum(axis=1)
        window_N[active] += step_A
        active = active[step_A > TOLERANCE * window_N[active]]
    window_N[fits_N] = 700.0  # exp(-700) is 0, and 0 * inf cannot occur
    return window_N


class WindowGrid:
    """Approximation of the cache misses of combined tables, from additive columns on a grid of reuse windows.

    Between two windows of the grid, misses are linear in the cached bytes. If streams with different counts share a
    bin, ``missed_bytes`` uses the mean count, while this class counts each separately.
    """

    edges_W = np.concatenate([[0.0], np.geomspace(1e-6, 32.0, 26)])

    @staticmethod
    def of_tables(columns_TC: FloatArray) -> FloatArray:
        """Return each table's bytes cached at each reuse window of the grid, then its bytes fetched, [T, 2 W]."""
        rows_TK = np.ascontiguousarray(columns_TC[:, NUM_WORK_COLUMNS : NUM_WORK_COLUMNS + 2 * _BINS])
        as_bytes_T = rows_TK.view(np.dtype((np.void, rows_TK.itemsize * rows_TK.shape[1])))[:, 0]
        _, first_U, number_T = np.unique(as_bytes_T, return_index=True, return_inverse=True)
        found_UW = WindowGrid.columns(*reuse_columns(columns_TC[first_U]))
        bytes_T = columns_TC[:, _ROW_BYTES]
        # Tables that differ only in dims have proportional columns.
        ratio_T = bytes_T / np.maximum(bytes_T[first_U], 1e-300)[number_T]
        return np.asarray(found_UW[number_T] * ratio_T[:, None])

    @staticmethod
    def columns(unique_bytes_NK: FloatArray, looked_up_bytes_NK: FloatArray, counts_NK: FloatArray) -> FloatArray:
        """Return the bytes cached at each reuse window, then the bytes fetched, [N, 2 W]; see ``missed_bytes``."""
        again_NK = np.maximum(looked_up_bytes_NK - unique_bytes_NK, 0.0)
        cached, fetched = [], []
        for edge in WindowGrid.edges_W.tolist():
            forgotten_NK = np.exp(-counts_NK * edge)
            cached.append((unique_bytes_NK * (1 - forgotten_NK)).sum(axis=1))
            fetched.append((unique_bytes_NK + again_NK * forgotten_NK).sum(axis=1))
        return np.stack([*cached, *fetched], axis=1)

    @staticmethod
    def missed_bytes(sums_WN: FloatArray, capacity: float) -> FloatArray:
        """Return the bytes fetched from memory by combined streams, [N], from their column sums.

        Args:
            sums_WN: sums of ``columns``, [2 W, N].
            capacity: bytes that the cache holds.
        """
        count = len(WindowGrid.edges_W)
        after_N = (sums_WN[:count] < capacity).sum(axis=0)
        after_N = np.minimum(np.maximum(after_N, 1), count - 1)
        at_4N = after_N + np.array([[-1], [0], [count - 1], [count]])
        low_N, high_N, from_N, to_N = np.take_along_axis(sums_WN, at_4N, axis=0)
        share_N = np.minimum((capacity - low_N) / np.maximum(high_N - low_N, 1e-9), 1.0)
        return np.asarray(from_N + share_N * (to_N - from_N))
