"""A table's miss ratios as TorchRec's planner takes them: ``CacheParams(load_factor=0.1, stats=TableStatistics(...))``.

Plans with them travel between ranks, so that the class can be pickled: TorchRec is imported with this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchrec.distributed.types import CacheStatistics

from evenshard.tables.locality import distinct_rows, mean_miss_ratio, miss_ratio
from evenshard.tables.table import Table


@dataclass(frozen=True)
class TableStatistics(CacheStatistics):  # type: ignore[misc]  # TorchRec has no types
    """A table behind a cache, as TorchRec's planner asks for it.

    Attributes:
        table: whose curve is counted, bounded or assumed (``evenshard.tables.locality``).
        batch_size: samples of all ranks together.
    """

    table: Table
    batch_size: int

    @property
    def expected_lookups(self) -> float:
        """Distinct rows of a batch."""
        return distinct_rows(self.table, self.batch_size)

    def expected_miss_rate(self, clf: float) -> float:
        """Share of them that a cache of this load factor misses."""
        return miss_ratio(self.table, self.batch_size, clf)

    @property
    def cacheability(self) -> float:
        """The area under the curve: 0 for a table that any cache serves, 1 for one that none does."""
        return mean_miss_ratio(self.table, self.batch_size)
