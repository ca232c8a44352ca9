"""Statistics of recorded lookups: pooling factors, reuse histograms and miss ratios, counted in one pass."""

from evenshard.tables.traffic.tables import tables_from_traffic

__all__ = ["tables_from_traffic"]
