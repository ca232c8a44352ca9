"""Cache miss ratios of a table for TorchRec's planner: ``CacheParams(load_factor=0.1, stats=TableStatistics(...))``.

Ranks broadcast plans that contain this class, so it must be picklable: this module imports TorchRec at the top.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchrec.distributed.types import CacheStatistics

from evenshard.tables.locality import distinct_rows, mean_miss_ratio, miss_ratio
from evenshard.tables.table import Table


@dataclass(frozen=True)
class TableStatistics(CacheStatistics):  # type: ignore[misc]  # TorchRec has no types
    """Cache statistics of one table, in the interface of TorchRec's planner."""

    table: Table  # its miss-ratio curve is counted, bounded or assumed (``evenshard.tables.locality``)
    batch_size: int  # samples over all ranks

    @property
    def expected_lookups(self) -> float:
        """Return the number of distinct rows in a batch."""
        return distinct_rows(self.table, self.batch_size)

    def expected_miss_rate(self, clf: float) -> float:
        """Return the fraction of distinct rows that a cache of load factor ``clf`` misses."""
        return miss_ratio(self.table, self.batch_size, clf)

    @property
    def cacheability(self) -> float:
        """Return the area under the miss-ratio curve: 0 if every cache size hits, 1 if every cache size misses."""
        return mean_miss_ratio(self.table, self.batch_size)
