"""Defaults for values that a table lacks: each is stated and reported, never filled in silently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenshard.tables.table import MEAN, Table

# Data types whose kernels are measured; all others are timed by their bits.
TIMED_TYPES = ("fp32", "fp16")


@dataclass(frozen=True)
class Assumption:
    """A value that the user's input does not tell.

    Attributes:
        table: its name.
        column: name of the table's column, such as ``num_rows``.
        text: the value used instead, and why.
    """

    table: str
    column: str
    text: str


@dataclass(frozen=True)
class TableSet:
    """Tables from a file, a data frame, a sample of traffic or a public set, and what is to be said about them.

    Attributes:
        tables: the tables, with distinct names.
        assumptions: values of theirs that are not given, in the order of the tables. A table without a histogram keeps
            None.
        notes: what of the source is not used, a sentence or two each.
        missed: columns that the user maps, and that are not there.
    """

    tables: tuple[Table, ...]
    assumptions: tuple[Assumption, ...] = ()
    notes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    @staticmethod
    def of(tables: Sequence[Table]) -> TableSet:
        """Tables made in Python: only a histogram can be missing."""
        return TableSet(tuple(tables), tuple(assumed_reuse_bins(one.name) for one in tables if one.reuse_bins is None))


def assumed_reuse_bins(table_name: str) -> Assumption:
    """The histogram of a table without a count: see ``reuse.feasible_reuse_bins``."""
    return Assumption(table_name, "reuse_bins", "the DLRM 2021 histogram, moved to what rows and lookups allow")


def assumed_even_lookups(table_name: str, num_features: int) -> Assumption:
    """The lookups of each feature of a table, where only those of all of them together are known."""
    return Assumption(table_name, "feature_pooling_factors", f"pooling_factor, evenly over its {num_features} features")


def assumed_weight_bits(table_name: str, weight_bits: int) -> Assumption:
    """The precision of a table whose source states none."""
    return Assumption(table_name, "weight_bits", f"{weight_bits}, the default")


def assumed_miss_ratios(table_name: str, source: str) -> Assumption:
    """What the cache of a table misses, where that was not counted in traffic: see ``cache.miss_source``."""
    return Assumption(table_name, "miss_ratios", f"{source}: a cache of recent rows is expected to miss no more")


def approximations(table: Table) -> Iterator[Assumption]:
    """Yield the properties of a table whose times are those of a similar table."""
    if table.dtype not in TIMED_TYPES:
        what = table.data_type.upper() or f"{table.weight_bits}-bit data"
        yield Assumption(table.name, "data_type", f"{what} is timed by its bits alone")
    if table.pooling == MEAN:
        yield Assumption(table.name, "pooling", "MEAN is timed as SUM is")
    if table.is_weighted:
        text = "weights of lookups are exchanged with them; the kernel is timed without"
        yield Assumption(table.name, "is_weighted", text)
