"""Lookups of a training batch, drawn to match a table's pooling factor and reuse histogram, or recorded.

Letters in array names: L lookups of a table in a batch, U different rows among them, B samples.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.tables.dlrm_batch import DlrmBatch
from evenshard.tables.locality import contiguous_share
from evenshard.tables.reuse import BIN_MEAN_COUNTS, MAX_COUNT_OF_BIN, MIN_COUNT_OF_BIN, feasible_reuse_bins
from evenshard.tables.table import Table


@dataclass(frozen=True)
class Lookups:
    """Lookups of one batch in one table: [L] int64 row numbers, sample after sample, and [B] int64 lengths."""

    indices: torch.Tensor
    lengths: torch.Tensor


def draw_lookups(table: Table, batch_size: int, seed: int, batch_number: int = 0, device: str = "cpu") -> Lookups:
    """Draw the lookups of one batch.

    The number of lookups is exactly ``round(pooling_factor * batch_size)``; each sample has the floor or the ceiling of
    the pooling factor. Hot rows (looked up more than once in a batch) are the same in all batches with the same seed,
    as in real traffic; rows that are looked up once are new in each batch. The share ``contiguous_share`` of the hot
    rows is adjacent; all other rows are scattered over the table. Every table has its own random stream.
    """
    num_lookups = round(table.pooling_factor * batch_size)
    name_seed = zlib.crc32(table.name.encode())
    rng = np.random.default_rng([seed, name_seed, batch_number])
    torch_rng = torch.Generator(device).manual_seed(int(rng.integers(2**62)))  # within torch's 64-bit seeds

    lengths = torch.full((batch_size,), num_lookups // batch_size, dtype=torch.int64, device=device)
    longer = torch.randperm(batch_size, generator=torch_rng, device=device)[: num_lookups % batch_size]
    lengths[longer] += 1

    bins = table.reuse_bins or feasible_reuse_bins(table.num_rows, num_lookups)
    counts_U = _draw_counts(np.asarray(bins), num_lookups, table.num_rows, device)
    together = contiguous_share(table, batch_size) or 0.0
    rows_U = _draw_rows(counts_U, table, together, np.random.default_rng([seed, name_seed]), batch_number)
    indices = torch.repeat_interleave(rows_U, counts_U, output_size=num_lookups)
    return Lookups(indices[torch.randperm(num_lookups, generator=torch_rng, device=device)], lengths)


def _draw_counts(bins: np.ndarray, num_lookups: int, num_rows: int, device: str) -> torch.Tensor:
    """Return how often each distinct row is looked up, at least once, hot rows first; the sum is ``num_lookups``."""
    if num_lookups == 0:
        return torch.zeros(0, dtype=torch.int64, device=device)
    mean_count = float(bins @ BIN_MEAN_COUNTS)
    num_unique = int(np.clip(round(num_lookups / mean_count), 1, min(num_rows, num_lookups)))
    rows_of_bin = _round_shares(bins, num_unique)[::-1].copy()
    low_of_bin = np.array(MIN_COUNT_OF_BIN, dtype=np.float64)[::-1].copy()
    high_of_bin = np.array([*MAX_COUNT_OF_BIN, 2 * MAX_COUNT_OF_BIN[-1]], dtype=np.float64)[::-1].copy()

    def repeat_per_row(per_bin: np.ndarray) -> torch.Tensor:
        repeats = torch.from_numpy(rows_of_bin).to(device)
        return torch.repeat_interleave(torch.from_numpy(per_bin).to(device), repeats, output_size=num_unique)

    low, high = repeat_per_row(low_of_bin), repeat_per_row(high_of_bin)
    first = repeat_per_row((np.cumsum(rows_of_bin) - rows_of_bin).astype(np.float64))
    rank = torch.arange(num_unique, dtype=torch.float64, device=device) - first
    # Spread the counts of a bin evenly over its range, then shift all counts within their ranges to the right sum.
    counts = high - (high - low) * (rank + 0.5) / repeat_per_row(rows_of_bin.astype(np.float64))
    total_low, total_high = float(rows_of_bin @ low_of_bin), float(rows_of_bin @ high_of_bin)
    total = float(rows_of_bin @ (low_of_bin + high_of_bin)) / 2
    if num_lookups < total_low:  # the bins require more lookups than there are
        counts = 1 + (low - 1) * (num_lookups - num_unique) / (total_low - num_unique)
    elif num_lookups <= total:
        counts = low + (counts - low) * ((num_lookups - total_low) / max(total - total_low, 1.0))
    elif num_lookups <= total_high:
        counts = counts + (high - counts) * ((num_lookups - total) / (total_high - total))
    else:  # the open-ended bin and the hottest rows absorb the excess over the ranges
        hottest = max(1, num_unique // 100)  # the first 1 % of the rows
        counts = high.clone()
        counts[:hottest] *= 1 + (num_lookups - total_high) / float(high[:hottest].sum())
    # Rounding the running sum keeps each count within 1 of its value and the sum exact.
    ends = torch.floor(torch.cumsum(counts, 0) + 0.5).to(torch.int64)
    ends[-1] = num_lookups
    counts_U = torch.diff(ends, prepend=ends.new_zeros(1))
    # Outside the ranges, rounding may put a row with one lookup before rows with more: sort them, hot rows first.
    in_ranges = total_low <= num_lookups <= total_high
    return counts_U if in_ranges else counts_U.sort(descending=True).values


def _round_shares(shares: np.ndarray, total: int) -> np.ndarray:
    """Round shares to whole numbers that add up to ``total``."""
    exact = shares / shares.sum() * total
    whole: np.ndarray = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return whole


def _draw_rows(
    counts_U: torch.Tensor, table: Table, together: float, rng: np.random.Generator, batch_number: int
) -> torch.Tensor:
    """Draw distinct rows: the share ``together`` of the hot rows as one block, all other rows scattered."""
    num_hot = int((counts_U > 1).sum())
    ranks = torch.arange(len(counts_U), dtype=torch.int64, device=counts_U.device)
    in_block_U = (((ranks + 1) * together).floor() > (ranks * together).floor()) & (ranks < num_hot)
    size = int(in_block_U.sum())
    rows_U = torch.empty_like(ranks)
    shares = table.row_shares or (1.0,)
    busiest = int(np.argmax(shares)) * table.num_rows // len(shares)
    first = min(busiest, table.num_rows - size) if size else 0
    rows_U[in_block_U] = first + torch.arange(size, device=ranks.device)
    scattered = _scatter_rows(len(ranks) - size, num_hot - size, table.num_rows - size, rng, batch_number, ranks.device)
    rows_U[~in_block_U] = scattered + size * (scattered >= first)
    return rows_U


def _scatter_rows(
    num_unique: int, num_hot: int, num_rows: int, rng: np.random.Generator, batch_number: int, device: torch.device
) -> torch.Tensor:
    """Return distinct row numbers, hot rows first, by a fixed stride that visits every row once."""
    ranks = torch.arange(num_unique, dtype=torch.int64, device=device)
    num_cold_rows = num_rows - num_hot
    if num_cold_rows > 0:
        cold = ranks[num_hot:] - num_hot
        ranks[num_hot:] = num_hot + (cold + batch_number * (num_unique - num_hot)) % num_cold_rows
    if not num_rows:
        return ranks
    # A stride that is coprime to the number of rows visits every row once; a large stride separates hot rows.
    stride = int(rng.integers(num_rows // 3 + 1, num_rows)) if num_rows > 2 else 1
    while math.gcd(stride, num_rows) != 1:
        stride += 1
    return (ranks * stride + int(rng.integers(num_rows))) % num_rows


class RecordedLookups:
    """Recorded lookups: the samples of a DLRM batch file, split into successive training batches."""

    def __init__(self, recorded: DlrmBatch, path: Path) -> None:
        """Hold a batch that ``read_dlrm_batch`` has read from ``path``."""
        self._recorded, self._begins = recorded, recorded.table_starts(path)
        self._index_of = {name: index for index, name in enumerate(recorded.names)}

    def __call__(self, table: Table, batch_size: int, batch_number: int) -> Lookups:
        """Return the table's lookups of batch ``batch_number``, modulo the number of recorded batches.

        Raises:
            BadConfig: if the file does not hold the table or has too few samples.
        """
        if table.name not in self._index_of:
            raise BadConfig(
                f"measure.recorded_batch has no table {brief(table.name)}. Generate the tables from the same file."
            )
        num_batches = self._recorded.batch_size // batch_size
        if num_batches == 0:
            raise BadConfig(
                f"batch_size is {batch_size}, but measure.recorded_batch has only {self._recorded.batch_size} samples. "
                f"Lower batch_size."
            )
        index = self._index_of[table.name]
        indices = self._recorded.indices[self._begins[index] : self._begins[index + 1]]
        lengths = self._recorded.lengths[index]
        if indices.numel() and int(indices.max()) >= table.num_rows:
            raise BadConfig(
                f"measure.recorded_batch reads row {int(indices.max())} of table {brief(table.name)}, which has "
                f"{table.num_rows} rows. Generate the tables from the same file."
            )
        first = (batch_number % num_batches) * batch_size
        own = lengths[first : first + batch_size]
        skip = int(lengths[:first].sum())
        return Lookups(indices[skip : skip + int(own.sum())], own)
