"""Defaults for missing values of tables, each reported to the user as an assumption.

Pooling factors that the user gives, by table or by feature, override the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.base.typed import check_arguments
from evenshard.tables.table import MEAN, Table

# Data types with measured kernels; the times of all others depend on their number of bits alone.
TIMED_TYPES = ("fp32", "fp16")
_LOOKUPS = ("pooling_factor", "feature_pooling_factors")
# Pooling factors by name: a single number, or a list with one number per feature.
Numbers = Mapping[str, float | tuple[float, ...]]


@dataclass(frozen=True)
class Assumption:
    """An assumed value: the missing column, such as ``num_rows``, and the default with its reason."""

    table: str
    column: str
    text: str


@dataclass(frozen=True)
class TableSet:
    """Tables from a file, a data frame, a sample of traffic or a public set, with distinct names."""

    tables: tuple[Table, ...]
    # defaults of missing values, in the order of the tables; a missing histogram stays None
    assumptions: tuple[Assumption, ...] = ()
    notes: tuple[str, ...] = ()  # unused parts of the source, one or two sentences each
    missed: tuple[str, ...] = ()  # columns that the user maps but the source lacks
    dense: Mapping[str, Any] | None = None  # dense layers of a public set, as the key ``dense`` of a request

    @staticmethod
    def of(tables: Sequence[Table]) -> TableSet:
        """Return the set of these tables, with an assumption for each missing reuse histogram."""
        return TableSet(tuple(tables), tuple(assume_reuse_bins(one.name) for one in tables if one.reuse_bins is None))


def assume_reuse_bins(table_name: str) -> Assumption:
    """Return the assumption for a missing reuse histogram; see ``reuse.feasible_reuse_bins``."""
    return Assumption(table_name, "reuse_bins", "DLRM 2021 index reuse, rescaled per table")


def assume_even_lookups(table_name: str, features: int) -> Assumption:
    """Return the assumption for a table with a known pooling factor, but unknown lookups per feature."""
    return Assumption(table_name, "feature_pooling_factors", f"pooling_factor, split evenly over {features} features")


def assume_weight_bits(table_name: str, weight_bits: int) -> Assumption:
    """Return the assumption for the precision of a table whose source does not state it."""
    return Assumption(table_name, "weight_bits", f"{weight_bits}, the default")


def assume_miss_ratios(table_name: str, source: str) -> Assumption:
    """Return the assumption for the cache misses of a table without traffic; see ``locality.miss_source``."""
    return Assumption(table_name, "miss_ratios", f"{source}: an LRU cache is expected to miss at most this often")


def list_approximations(table: Table) -> Iterator[Assumption]:
    """Yield the properties of a table that the measured kernels only approximate."""
    if table.dtype not in TIMED_TYPES:
        what = table.data_type.upper() or f"{table.weight_bits}-bit data"
        yield Assumption(table.name, "data_type", f"{what} is timed like another type with the same number of bits")
    if table.pooling == MEAN:
        yield Assumption(table.name, "pooling", "MEAN is timed like SUM")
    if table.is_weighted:
        text = "the input dist includes the lookup weights; the kernel is timed without them"
        yield Assumption(table.name, "is_weighted", text)


@check_arguments()
def apply_pooling_factors(known: TableSet, pooling_factors: Mapping[str, float | Sequence[float]] | None) -> TableSet:
    """Override the pooling factors of tables, including those counted in traffic.

    Args:
        known: the tables and their assumptions.
        pooling_factors: mean lookups per sample, by table or by feature. For a table, a number is the total of its
            features, divided evenly, and a list (TorchRec's form) has one number per feature, in order. Any other name
            is a feature. A name that a table shares with one of its features means the feature if other features of
            the table are given.

    Raises:
        BadConfig: if a name is unknown, or a value is neither a number nor a list with one number per feature.
    """
    if pooling_factors is None:
        return known
    numbers = {
        name: tuple(map(float, value)) if isinstance(value, Sequence) else float(value)
        for name, value in pooling_factors.items()
    }
    names = {table.name for table in known.tables}
    features = {feature for table in known.tables for feature in _features(table)}
    unknown = next((name for name in numbers if name not in names and name not in features), None)
    if unknown is not None:
        raise BadConfig(
            f"pooling_factors is given for {brief(unknown)}, which is neither a table nor a feature. Correct the name."
        )
    named = {table.name: _find_numbers(table, numbers, names) for table in known.tables}
    tables = tuple(_with_lookups(table, named[table.name]) for table in known.tables)
    even = {table.name for table in known.tables if table.num_features > 1 and isinstance(named[table.name], float)}
    partly = {name for name, own in named.items() if own is None or (isinstance(own, tuple) and None in own)}
    assumptions = [
        old
        for old in known.assumptions
        if old.column not in _LOOKUPS or old.table in partly or (old.column == _LOOKUPS[1] and old.table in even)
    ]
    stated = {kept.table for kept in assumptions if kept.column == "feature_pooling_factors"}
    more = (table for table in tables if table.name in even - stated)
    assumptions += [assume_even_lookups(table.name, table.num_features) for table in more]
    return replace(known, tables=tables, assumptions=tuple(assumptions))


# Given pooling factors of a table: the total, or a number or None per feature; None if nothing is given.
Named = float | tuple[float | None, ...] | None


def _features(table: Table) -> tuple[str, ...]:
    return table.feature_names or ((table.name,) if table.num_features == 1 else ())


def _find_numbers(table: Table, numbers: Numbers, tables: set[str]) -> Named:
    features = _features(table)
    if table.name in numbers and not (table.name in features and (set(features) - {table.name}) & numbers.keys()):
        own = numbers[table.name]
        if isinstance(own, tuple):
            _check_count(table.name, own, table.num_features)
        return own
    others = tables - {table.name}
    meant_for_others = next((name for name in features if name in numbers and name in others), None)
    if meant_for_others is not None:
        raise BadConfig(
            f"pooling_factors is given for {brief(meant_for_others)}, which is both a table and a feature of table "
            f"{brief(table.name)}. Give numbers for table {brief(table.name)} too."
        )
    found: list[float | None] = []
    for name in features:
        value = numbers.get(name)
        if isinstance(value, tuple):
            _check_count(name, value, 1)
        found.append(value[0] if isinstance(value, tuple) else value)
    return None if all(number is None for number in found) else tuple(found)


def _check_count(name: str, values: Sequence[float], num_features: int) -> None:
    if len(values) != num_features:
        raise BadConfig(
            f"pooling_factors of {brief(name)} has {len(values)} number{'s' * (len(values) != 1)} for {num_features} "
            f"feature{'s' * (num_features != 1)}. Give one per feature."
        )


def _with_lookups(table: Table, named: Named) -> Table:
    if named is None:
        return table
    if isinstance(named, float):
        lookups: tuple[float, ...] = (named / table.num_features,) * table.num_features
        total = named
    else:
        lookups = tuple(old if new is None else new for new, old in zip(named, table.feature_lookups, strict=True))
        total = sum(lookups)
    several = lookups if len(lookups) > 1 else ()
    changed = replace(table, pooling_factor=total, feature_pooling_factors=several)
    if problem := changed.problem():
        raise BadConfig(f"table {brief(table.name)}: {problem}. Correct its pooling factor.")
    return changed
