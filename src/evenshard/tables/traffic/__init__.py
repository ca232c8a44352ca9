"""Traffic statistics: pooling factors, reuse histograms and miss ratios, counted in one pass over recorded lookups."""

from evenshard.tables.traffic.tables import tables_from_traffic

__all__ = ["tables_from_traffic"]
