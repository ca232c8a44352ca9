"""Tables from a sample of traffic: fills in pooling factors, reuse, shares of rows, miss ratios, or makes the tables.

A column of the sample is a feature. A table has the columns of its ``feature_names``, or the one of its own name.

The histogram belongs to a batch size (docs/decisions/0002), so the sample is cut into windows of that many successive
samples, from file to file. All tables' lookups of one window may be too many to hold at once; then the tables are read
in groups, one after the other, and each group reads its own part of the files only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from evenshard.tables.assumptions import Assumption, assumed_weight_bits
from evenshard.tables.reuse import feasible_reuse_bins
from evenshard.tables.table import WEIGHT_BITS, Table, duplicate_name
from evenshard.tables.traffic.counts import TableCounts, WindowedCounts
from evenshard.tables.traffic.features import features_of
from evenshard.tables.traffic.reuse_intervals import remembered_rows
from evenshard.tables.traffic.sample import Sample, Survey
from evenshard.tables.traffic.sources import opened_sample
from evenshard.utils.console import progress
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import brief
from evenshard.utils.params import check_ranges

GROUP_LOOKUPS = 1 << 24
"""Expected lookups of one window in the tables that are read together: 128 MiB."""
BLOCK_LOOKUPS = 1 << 21
"""Expected lookups and samples that are read at a time."""


@dataclass(frozen=True)
class TrafficTables:
    """Tables as a sample of traffic shows them.

    Attributes:
        tables: the tables, in the order of the given ones, or of the sample.
        assumptions: values that the sample lacks, in the order of the tables.
        num_samples: samples in the whole sample of traffic.
        num_windows: full batches among them.
        notes: columns of the sample that are not read, a sentence or two each.
        missed: columns that the user maps, and that the sample does not have.
    """

    tables: tuple[Table, ...]
    assumptions: tuple[Assumption, ...]
    num_samples: int
    num_windows: int
    notes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


def tables_from_traffic(
    source: str | PathLike[str],
    batch_size: int,
    tables: Sequence[Table] | None = None,
    embedding_dim: int | Mapping[str, int] | None = None,
    weight_bits: int | None = None,
    ignore_unmatched: bool = False,
    columns: Mapping[str, str] | None = None,
) -> TrafficTables:
    """Counts a sample of traffic.

    Pooling factors are lookups per sample of the whole sample, of each feature its own; shares of rows are of the whole
    sample too. Histograms are those of windows of ``batch_size`` samples; an incomplete last window counts only for
    tables that no full one reads. Miss ratios of caches need two full windows (``reuse_intervals``). A table that is
    never looked up has pooling factor 0 and no histogram.

    Args:
        source: a folder of Parquet files or of ``.pt`` files, read in the order of their names, or one such file.
        batch_size: samples of the task that the tables are for.
        tables: the tables whose pooling factors, histograms, shares of rows and miss ratios are to be replaced, as
            ``load_tables`` reads them. None makes tables of all that the sample holds, with as many rows as the
            largest index tells.
        embedding_dim: without ``tables``: one for all, or one for each.
        weight_bits: without ``tables``: 4, 8, 16 or 32; 32 is assumed where left out.
        ignore_unmatched: tables without traffic stay as they are, traffic without a table is not read.
        columns: features by their columns, where these are called otherwise; empty to leave a column out. A column that
            is named here is a feature whatever it looks like.

    Raises:
        BadConfig: settings that contradict each other or make no sense.
        BadFile: the sample cannot be read, contradicts itself or the tables, or holds no sample.
    """
    source = Path(source)
    _check_settings(batch_size, tables, embedding_dim, weight_bits)
    with opened_sample(source) as files:
        sample = features_of(source, files, columns or {}, _features(tables, embedding_dim))
        counts = _wanted(source, sample, tables, embedding_dim, ignore_unmatched)
        survey = sample.survey(list(dict.fromkeys(column for one in counts.values() for column in one.columns)))
        if survey.num_samples == 0:
            raise BadFile(source, "holds no sample", "Give at least one batch.")
        _count(sample, survey, counts, batch_size)
    if tables is None:
        assert embedding_dim is not None
        dims = embedding_dim if isinstance(embedding_dim, Mapping) else dict.fromkeys(counts, embedding_dim)
        tables = [
            Table(name, one.largest_row + 1 or 1, dims[name], 0.0, None, weight_bits or 32)
            for name, one in counts.items()
        ]
        assumptions = _assumed_sizes(tables, counts, weight_bits)
    else:
        assumptions = []
    filled: list[Table] = []
    for table in tables:
        filled.append(_filled(table, counts.get(table.name), survey.num_samples, batch_size, assumptions))
    position = {table.name: number for number, table in enumerate(filled)}
    assumptions.sort(key=lambda assumption: position[assumption.table])
    notes = (*sample.notes(source), *_not_read(source, sample, counts.values()))
    num_windows = survey.num_samples // batch_size
    return TrafficTables(tuple(filled), tuple(assumptions), survey.num_samples, num_windows, notes, sample.missed)


def _features(tables: Sequence[Table] | None, embedding_dim: int | Mapping[str, int] | None) -> frozenset[str] | None:
    """The features that tables are known to have; None where each column makes a table."""
    if tables is None:
        return frozenset(embedding_dim) if isinstance(embedding_dim, Mapping) else None
    return frozenset(name for table in tables for name in (table.name, *table.feature_names))


def _not_read(source: Path, sample: Sample, counts: Iterable[TableCounts]) -> Iterator[str]:
    """Says which features no table has."""
    read = {column for one in counts for column in one.columns}
    if unread := [name for name in sample.names if name not in read]:
        yield f"{source}: no table has {_some('feature', unread)}: not read."


def _check_settings(
    batch_size: int,
    tables: Sequence[Table] | None,
    embedding_dim: int | Mapping[str, int] | None,
    weight_bits: int | None,
) -> None:
    check_ranges(batch_size=batch_size)
    if tables is not None:
        if embedding_dim is not None or weight_bits is not None:
            raise BadConfig("embedding_dim and weight_bits come with the tables. Leave them out.")
        name = duplicate_name(tables)
        if name is not None:
            raise BadConfig(f"Several tables are called {brief(name)}. Give each its own name.")
        return
    if embedding_dim is None:
        raise BadConfig("A sample of traffic does not state the dims. Give a table file or embedding_dim.")
    for dim in embedding_dim.values() if isinstance(embedding_dim, Mapping) else [embedding_dim]:
        check_ranges(embedding_dim=dim)
    if weight_bits is not None and weight_bits not in WEIGHT_BITS:
        raise BadConfig(f"weight_bits is {weight_bits}. Choose one of {WEIGHT_BITS}.")


def _wanted(
    source: Path,
    sample: Sample,
    tables: Sequence[Table] | None,
    embedding_dim: int | Mapping[str, int] | None,
    ignore_unmatched: bool,
) -> dict[str, TableCounts]:
    """The tables to count, by name. Raises BadFile if some table and some traffic do not find each other."""
    if tables is None:
        known = sample.names if embedding_dim is None or isinstance(embedding_dim, int) else tuple(embedding_dim)
        features: dict[str, tuple[str, ...]] = {name: (name,) for name in known}
    else:
        features = {table.name: table.feature_names or (table.name,) for table in tables}
    columns = {column for own in features.values() for column in own}
    in_sample = set(sample.names)
    for name, own in features.items():
        # Features that the sample does not tell apart stand in a column of their table.
        if not in_sample & set(own) and name in in_sample and name not in columns:
            features[name] = (name,)
    columns = {column for own in features.values() for column in own}
    what = "table" if columns == set(features) else "feature"
    without_table = [name for name in sample.names if name not in columns]
    without_traffic = sorted(columns - in_sample)
    if without_table and not ignore_unmatched:
        problem = f"holds traffic of {_some(what, without_table)}"
        raise BadFile(source, problem, "Add the table, or ignore what does not match.")
    if without_traffic and not ignore_unmatched:
        problem = f"holds no traffic of {_some(what, without_traffic)}; it holds {_some(what, sample.names)}"
        raise BadFile(source, problem, f"Use the sample's names for the {what}s, or ignore what does not match.")
    num_rows = {table.name: table.num_rows for table in tables or ()}
    found = {name: [column for column in own if column in in_sample] for name, own in features.items()}
    if not any(found.values()):
        problem = f"holds {_some(what, sample.names)}, none of the tables"
        raise BadFile(source, problem, f"Use the sample's names for the {what}s.")
    order = {column: position for position, column in enumerate(sample.names)}
    names = sorted((name for name, own in found.items() if own), key=lambda name: order[found[name][0]])
    remembered = remembered_rows(len(names))
    return {name: TableCounts(name, num_rows.get(name), found[name], remembered) for name in names}


def _some(what: str, names: Sequence[str]) -> str:
    first = ", ".join(map(brief, names[:3]))
    return (
        f"{what} {first}" if len(names) == 1 else f"{what}s {first}" + f" and {len(names) - 3} more" * (len(names) > 3)
    )


def _count(sample: Sample, survey: Survey, counts: Mapping[str, TableCounts], batch_size: int) -> None:
    steps = [(tables, part) for tables in _groups(survey, counts.values(), batch_size) for part in survey.parts]
    for tables, part in progress(steps, "counting lookups"):
        columns = list(dict.fromkeys(column for table in tables for column in table.columns))
        if part is survey.parts[0]:
            windows = WindowedCounts(tables, batch_size)
            per_sample = sum(1 + survey.num_lookups[column] / survey.num_samples for column in columns)
        for block in sample.blocks(part, columns, max(1, int(BLOCK_LOOKUPS / per_sample))):
            windows.add(block, part.path)
        if part is survey.parts[-1]:
            windows.finish()


def _groups(survey: Survey, tables: Iterable[TableCounts], batch_size: int) -> list[list[TableCounts]]:
    """Tables to read together: each group's lookups of a mean window fit into ``GROUP_LOOKUPS``, if more than one."""
    window_samples = min(batch_size, survey.num_samples)
    groups: list[list[TableCounts]] = []
    room = 0.0
    for table in tables:
        size = sum(survey.num_lookups[column] for column in table.columns) / survey.num_samples * window_samples
        if not groups or size > room:
            groups.append([])
            room = GROUP_LOOKUPS
        groups[-1].append(table)
        room -= size
    return groups


# From counts to tables ------------------------------------------------------------------------------------------------


def _assumed_sizes(
    tables: Sequence[Table], counts: Mapping[str, TableCounts], weight_bits: int | None
) -> list[Assumption]:
    assumptions = []
    for table in tables:
        seen = counts[table.name].largest_row >= 0
        text = f"{table.num_rows}, the largest index seen + 1" if seen else "1, since no row was looked up"
        assumptions.append(Assumption(table.name, "num_rows", text))
        if weight_bits is None:
            assumptions.append(assumed_weight_bits(table.name, table.weight_bits))
    return assumptions


def _filled(
    table: Table, counts: TableCounts | None, num_samples: int, batch_size: int, assumptions: list[Assumption]
) -> Table:
    """The table with the figures of the sample; what they do not tell is added to ``assumptions``."""
    if counts is None:
        text = "as given, since the sample does not hold the table"
        assumptions += [Assumption(table.name, column, text) for column in ("pooling_factor", "reuse_bins")]
        return table
    own = _feature_lookups(table, counts, num_samples, assumptions)
    table = replace(
        table, pooling_factor=sum(own), feature_pooling_factors=own if table.feature_pooling_factors else ()
    )
    if not any(counts.num_lookups.values()):
        assumptions.append(Assumption(table.name, "reuse_bins", "none, since no row was looked up"))
        return replace(table, reuse_bins=None, row_shares=None, miss_ratios=None)
    ratios = counts.intervals.miss_ratios(table.num_rows)
    table = replace(table, row_shares=counts.row_runs.shares(table.num_rows), miss_ratios=ratios)
    total = int(counts.unique_K.sum())
    if total:
        return replace(table, reuse_bins=tuple((counts.unique_K / total).tolist()))
    # Fewer samples than a batch come back to fewer rows. The histogram is moved only as far as a whole batch's lookups
    # need to fit into the rows at all.
    rest_K = tuple((counts.rest_K / np.sum(counts.rest_K)).tolist())
    reuse_bins = feasible_reuse_bins(table.num_rows, table.pooling_factor * batch_size, base=rest_K)
    text = f"those of {num_samples % batch_size} samples; a batch of {batch_size} comes back to rows more often"
    assumptions.append(Assumption(table.name, "reuse_bins", text))
    return replace(table, reuse_bins=reuse_bins)


def _feature_lookups(
    table: Table, counts: TableCounts, num_samples: int, assumptions: list[Assumption]
) -> tuple[float, ...]:
    """Lookups per sample of each feature: counted, or as given where the sample does not hold it."""
    counted = {column: number / num_samples for column, number in counts.num_lookups.items()}
    if not set(counted) & set(table.feature_names):  # one column for all features
        (together,) = counted.values()
        given = sum(table.feature_lookups)
        return tuple(together * (one / given if given else 1 / table.num_features) for one in table.feature_lookups)
    if missing := [name for name in table.feature_names if name not in counted]:
        text = f"as given for {_some('feature', missing)}, since the sample does not hold it"
        assumptions.append(Assumption(table.name, "feature_pooling_factors", text))
    return tuple(
        counted.get(name, given) for name, given in zip(table.feature_names, table.feature_lookups, strict=True)
    )
