"""Tables from a sample of traffic: fills in their figures (pooling, reuse, row shares, miss ratios), or makes them.

A column of the sample is a feature. A table has the columns of its ``feature_names``, or the column of its own name.

A histogram holds for one batch size (docs/decisions/0002), so the sample is cut into windows of that many successive
samples, across files. If the lookups of all tables in one window exceed memory, the tables are read in groups in turn,
and each group reads only its part of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from evenshard.base.console import progress
from evenshard.base.documents import unpack_file
from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.installation import require_package
from evenshard.base.knobs import check_ranges
from evenshard.base.messages import brief, names_text
from evenshard.tables.assumptions import Assumption, TableSet, assumed_weight_bits
from evenshard.tables.reuse import feasible_reuse_bins
from evenshard.tables.table import Table, duplicate_name
from evenshard.tables.traffic.counts import TableCounts, WindowedCounts, remembered_rows
from evenshard.tables.traffic.features import features_of
from evenshard.tables.traffic.sample import Sample, Survey, TorchSample

# Expected lookups of one window in a group of tables: 128 MiB.
GROUP_LOOKUPS = 1 << 24
# Expected lookups and samples per block.
BLOCK_LOOKUPS = 1 << 21
_KINDS = "Give a folder of .parquet files or of .pt files, or one .parquet, .pt or .pt.gz file."


@blame_file
def tables_from_traffic(
    source: str | PathLike[str],
    batch_size: int,
    tables: Sequence[Table] | None = None,
    embedding_dim: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> TableSet:
    """Count a sample of traffic, and fill its figures into tables.

    Pooling factors are lookups per sample of the whole sample, per feature; shares of rows are also of the whole
    sample. Histograms are those of windows of ``batch_size`` samples; an incomplete last window counts only for tables
    that no full window reads. Miss ratios of caches need two full windows (``counts``). A table that is never looked up
    has pooling factor 0 and no histogram.

    Args:
        source: a folder of Parquet files or of ``.pt`` files, sorted by name, or a single file.
        tables: tables to fill; those without traffic stay unchanged, traffic without a table is not read. None makes a
            table of each feature, with rows up to its largest index, 32 bits and ``embedding_dim``.
        columns: feature of each renamed column; empty to leave a column out. A column that is named here is always a
            feature.

    Raises:
        BadConfig: settings that are invalid or contradict each other.
        BadFile: the sample cannot be read, contradicts itself or the tables, or has no sample or none of the tables.
    """
    source = Path(source)
    check_ranges(batch_size=batch_size)
    if tables is None:
        check_ranges(embedding_dim=embedding_dim)
    elif (name := duplicate_name(tables)) is not None:
        raise BadConfig(f"Several tables are called {brief(name)}. Give each its own name.")
    with _opened_sample(source) as files:
        sample = features_of(source, files, columns or {}, _features(tables))
        counts = _tables_to_count(source, sample, tables)
        survey = sample.survey(list(dict.fromkeys(column for one in counts.values() for column in one.columns)))
        if survey.num_samples == 0:
            raise BadFile(source, "holds no sample", "Give at least one batch.")
        _count(sample, survey, counts, batch_size)
    assumptions: list[Assumption] = []
    if tables is None:
        assert embedding_dim is not None
        tables = [Table(name, one.largest_row + 1 or 1, embedding_dim, 0.0) for name, one in counts.items()]
        for table in tables:
            seen = counts[table.name].largest_row >= 0
            text = f"{table.num_rows}, the largest index seen + 1" if seen else "1, since no row was looked up"
            assumptions += [
                Assumption(table.name, "num_rows", text),
                assumed_weight_bits(table.name, table.weight_bits),
            ]
    filled = [_fill_figures(one, counts.get(one.name), survey.num_samples, batch_size, assumptions) for one in tables]
    position = {table.name: number for number, table in enumerate(filled)}
    assumptions.sort(key=lambda assumption: position[assumption.table])
    notes = (*sample.notes(source), *_not_read(source, sample, counts.values()))
    return TableSet(tuple(filled), tuple(assumptions), notes, sample.missed)


@contextmanager
def _opened_sample(source: Path) -> Iterator[Sample]:
    """Yield the files of a folder, sorted by name, or a single file.

    Names that start with a dot or an underscore (Spark's ``_SUCCESS``) are ignored. A gzipped file is unpacked into the
    temporary folder and removed at the end.
    """
    if source.is_file() and source.name.endswith(".pt.gz"):
        with unpack_file(source) as file:
            yield TorchSample([source], file)
        return
    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.iterdir() if not path.name.startswith((".", "_")))
    else:
        raise BadFile(source, "no such file or folder", "Check the path.")
    if not paths:
        raise BadFile(source, "holds no file", _KINDS)
    odd = next((path for path in paths if path.suffix not in (".parquet", ".pt") or not path.is_file()), None)
    if odd is not None:
        raise BadFile(odd, "is neither a .parquet nor a .pt file", _KINDS)
    other = next((path for path in paths if path.suffix != paths[0].suffix), None)
    if other is not None:
        raise BadFile(source, f"holds both {paths[0].name} and {other.name}", _KINDS)
    yield _parquet_sample(paths) if paths[0].suffix == ".parquet" else TorchSample(paths)


def _parquet_sample(paths: Sequence[Path]) -> Sample:
    require_package("pyarrow")
    from evenshard.tables.traffic.parquet import ParquetSample

    return ParquetSample(paths)


def _features(tables: Sequence[Table] | None) -> frozenset[str] | None:
    """Return the features of tables; None if each column makes a table."""
    if tables is None:
        return None
    return frozenset(name for table in tables for name in (table.name, *table.feature_names))


def _not_read(source: Path, sample: Sample, counts: Iterable[TableCounts]) -> Iterator[str]:
    read = {column for one in counts for column in one.columns}
    if unread := [name for name in sample.names if name not in read]:
        yield f"{source}: no table has {_some('feature', unread)}: not read."


def _tables_to_count(source: Path, sample: Sample, tables: Sequence[Table] | None) -> dict[str, TableCounts]:
    if tables is None:
        features: dict[str, tuple[str, ...]] = {name: (name,) for name in sample.names}
    else:
        features = {table.name: table.feature_names or (table.name,) for table in tables}
    columns = {column for own in features.values() for column in own}
    in_sample = set(sample.names)
    for name, own in features.items():
        # Features that the sample does not separate are in a column with the table's name.
        if not in_sample & set(own) and name in in_sample and name not in columns:
            features[name] = (name,)
    num_rows = {table.name: table.num_rows for table in tables or ()}
    found = {name: [column for column in own if column in in_sample] for name, own in features.items()}
    if not any(found.values()):
        what = "feature" if any(own != (name,) for name, own in features.items()) else "table"
        problem = f"holds {_some(what, sample.names)}, none of the tables"
        raise BadFile(source, problem, f"Use the sample's names for the {what}s.")
    order = {column: position for position, column in enumerate(sample.names)}
    names = sorted((name for name, own in found.items() if own), key=lambda name: order[found[name][0]])
    remembered = remembered_rows(len(names))
    return {name: TableCounts(name, num_rows.get(name), found[name], remembered) for name in names}


def _some(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' * (len(names) != 1)} {names_text(names, write=brief)}"


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
    """Group tables whose lookups of a mean window fit into ``GROUP_LOOKUPS``."""
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


def _fill_figures(
    table: Table, counts: TableCounts | None, num_samples: int, batch_size: int, assumptions: list[Assumption]
) -> Table:
    """Fill in the sample's figures, and add the missing ones to ``assumptions``."""
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
    # Fewer samples than a batch repeat rows less. The histogram is tilted only as far as a whole batch's lookups need
    # to fit into the rows.
    rest_K = tuple((counts.rest_K / np.sum(counts.rest_K)).tolist())
    reuse_bins = feasible_reuse_bins(table.num_rows, table.pooling_factor * batch_size, base=rest_K)
    text = f"those of {num_samples % batch_size} samples; a batch of {batch_size} comes back to rows more often"
    assumptions.append(Assumption(table.name, "reuse_bins", text))
    return replace(table, reuse_bins=reuse_bins)


def _feature_lookups(
    table: Table, counts: TableCounts, num_samples: int, assumptions: list[Assumption]
) -> tuple[float, ...]:
    """Count lookups per sample, or keep the given ones if the sample lacks the feature."""
    counted = {column: number / num_samples for column, number in counts.num_lookups.items()}
    if not set(counted) & set(table.feature_names):  # a single column for all features
        (together,) = counted.values()
        given = sum(table.feature_lookups)
        return tuple(together * (one / given if given else 1 / table.num_features) for one in table.feature_lookups)
    if missing := [name for name in table.feature_names if name not in counted]:
        text = f"as given for {_some('feature', missing)}, since the sample does not hold it"
        assumptions.append(Assumption(table.name, "feature_pooling_factors", text))
    return tuple(
        counted.get(name, given) for name, given in zip(table.feature_names, table.feature_lookups, strict=True)
    )
