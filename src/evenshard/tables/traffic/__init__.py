"""Pooling factors, reuse histograms and miss ratios, counted in a sample of real lookups.

``tables_from_traffic`` reads a directory of Parquet files or of ``.pt`` batches, or one such file, in one pass and with
bounded memory::

    sample.py           blocks of samples; what every kind of file must offer
    parquet.py          one row per sample, one column per table
    torch_batches.py    .pt files: (indices, offsets, lengths), or keys, values and lengths
    features.py         columns -> features: renamed, without dense, label and time columns
    sources.py          a path -> the kind of files it holds
    counts.py           lookups -> histograms, window by window
    reuse_intervals.py  ... -> miss ratios of caches, from window to window
    tables.py           puts the figures into tables and says what was assumed
"""

from evenshard.tables.traffic.tables import tables_from_traffic

__all__ = ["tables_from_traffic"]
