"""An embedding table, as far as its placement is concerned.

A *pool* is a tuple of tables with distinct names. Pools come from ``files.py`` (the user's own file), ``catalog/``
(public table sets), ``generator.py`` (the DLRM 2021 statistics), ``dlrm_batch.py`` (a recorded batch of lookups) and
``traffic/`` (a sample of many batches).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.utils.limits import MAX_TABLE_BYTES, RANGES
from evenshard.utils.messages import brief

WEIGHT_BITS = (8, 16, 32)


@dataclass(frozen=True)
class Table:
    """One embedding table and how a training batch reads it.

    Attributes:
        name: unique within a pool.
        num_rows: number of embeddings (TorchRec: ``num_embeddings``).
        embedding_dim: length of one embedding.
        pooling_factor: mean lookups per sample, a float (0.3 and 12.7 are common in real traffic).
        reuse_bins: 17 shares, adding up to 1, of the UNIQUE indices of a batch that are looked up
            (0,1], (1,2], (2,4], ... (16384,32768], >32768 times; None if not counted.
            They hold for the batch size of the task the table is used in.
        weight_bits: 8, 16 or 32 bits per weight.
    """

    name: str
    num_rows: int
    embedding_dim: int
    pooling_factor: float
    reuse_bins: tuple[float, ...] | None = None
    weight_bits: int = 32

    @property
    def size_bytes(self) -> int:
        """Memory of the weights."""
        return self.num_rows * self.embedding_dim * self.weight_bits // 8

    def problem(self) -> str | None:
        """Says in one clause what makes this table impossible, or None. Called where data enters."""
        if not isinstance(self.name, str) or not self.name:
            return "name is empty"
        if any("\ud800" <= character <= "\udfff" for character in self.name):
            return "name holds half of a character (a lone surrogate)"
        for column in ("num_rows", "embedding_dim", "pooling_factor"):
            if problem := RANGES[column].problem(getattr(self, column)):
                return f"{column} {problem}"
        if self.weight_bits not in WEIGHT_BITS:
            return f"weight_bits is {brief(self.weight_bits)}, not one of {WEIGHT_BITS}"
        if self.size_bytes > MAX_TABLE_BYTES:
            return f"num_rows x embedding_dim is {self.size_bytes:,} bytes, more than {MAX_TABLE_BYTES:,}"
        if self.reuse_bins is not None:
            if len(self.reuse_bins) != NUM_REUSE_BINS:
                return f"reuse_bins has {len(self.reuse_bins)} values, not {NUM_REUSE_BINS}"
            if not all(math.isfinite(share) and share >= 0 for share in self.reuse_bins):
                return "reuse_bins holds a negative or non-finite share"
            if abs(sum(self.reuse_bins) - 1) > 1e-3:
                return f"reuse_bins add up to {sum(self.reuse_bins):.4f}, not 1"
        return None


def duplicate_name(tables: Sequence[Table]) -> str | None:
    """The first name that two tables of a pool share, or None."""
    counts = Counter(table.name for table in tables)
    return next((name for name, count in counts.items() if count > 1), None)
