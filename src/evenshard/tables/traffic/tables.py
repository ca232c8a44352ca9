"""Statistics of tables (pooling factors, reuse, row shares, miss ratios) from a sample of traffic.

A column of the sample is a feature. A table has the columns of its ``feature_names``, or the column of its own name.

A histogram is for one batch size (docs/decisions/0002), so the sample is split into windows of that many successive
samples, across files. If the lookups of all tables in one window exceed memory, groups of tables are counted one after
the other, and each group reads only its columns of the files.
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
from evenshard.base.messages import brief, count_text, names_text
from evenshard.tables.assumptions import Assumption, TableSet, assume_weight_bits
from evenshard.tables.reuse import feasible_reuse_bins
from evenshard.tables.table import Table, duplicate_name
from evenshard.tables.traffic.counts import TableCounts, WindowedCounts, rows_to_remember
from evenshard.tables.traffic.features import Features, pick_features
from evenshard.tables.traffic.sample import Sample, Survey, TorchSample

GROUP_LOOKUPS = 1 << 24  # expected lookups of one window for a group of tables: 128 MiB
# Expected sum of lookups and samples per block: 16 MiB of row numbers.
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
    """Compute the statistics of a sample of traffic, and add them to tables or create tables from them.

    Pooling factors (per feature) and shares of rows are those of the whole sample. Histograms are those of windows of
    ``batch_size`` samples; the incomplete last window is used only for tables without lookups in a full window. Miss
    ratios need two full windows (``counts``). A table that is never looked up has pooling factor 0 and no histogram.

    Args:
        source: a folder of Parquet files or of ``.pt`` files, sorted by name, or a single file.
        tables: tables to complete; tables without traffic stay unchanged, traffic without a table is ignored. None
            creates a table for each feature, with rows up to its largest index, 32 bits and ``embedding_dim``.
        columns: column name -> feature; "" ignores a column. A column in this mapping is always a feature.

    Raises:
        BadConfig: if settings are invalid or contradict each other.
        BadFile: if the sample cannot be read, is empty, contradicts itself or the tables, or has none of the tables.
    """
    source = Path(source)
    check_ranges(batch_size=batch_size)
    if tables is None:
        check_ranges(embedding_dim=embedding_dim)
    elif (name := duplicate_name(tables)) is not None:
        raise BadConfig(f"Several tables are named {brief(name)}. Give each a different name.")
    with _open_sample(source) as files:
        wanted = None if tables is None else {name for each in tables for name in (each.name, *each.feature_names)}
        sample = pick_features(source, files, columns or {}, wanted)
        counts = _tables_to_count(source, sample, tables)
        survey = sample.survey(list(dict.fromkeys(column for each in counts.values() for column in each.columns)))
        if survey.num_samples == 0:
            raise BadFile(source, "contains no sample", "Give at least one batch.")
        _count(sample, survey, counts, batch_size)
    assumptions: list[Assumption] = []
    if tables is None:
        assert embedding_dim is not None
        tables = [Table(name, count.largest_row + 1 or 1, embedding_dim, 0.0) for name, count in counts.items()]
        for table in tables:
            seen = counts[table.name].largest_row >= 0
            text = f"{table.num_rows}, the largest index seen + 1" if seen else "1, since no row was looked up"
            assumptions += [Assumption(table.name, "num_rows", text), assume_weight_bits(table.name, table.weight_bits)]
    filled = [
        _fill_figures(table, counts.get(table.name), survey.num_samples, batch_size, assumptions) for table in tables
    ]
    position = {table.name: number for number, table in enumerate(filled)}
    assumptions.sort(key=lambda assumption: position[assumption.table])
    notes = [*sample.notes(source)]
    read = {column for count in counts.values() for column in count.columns}
    if unread := [name for name in sample.names if name not in read]:
        notes.append(f"{source}: ignored {_some('feature', unread)}, which no table has.")
    return TableSet(tuple(filled), tuple(assumptions), tuple(notes), sample.missed)


@contextmanager
def _open_sample(source: Path) -> Iterator[Sample]:
    """Open a sample: the files of a folder, sorted by name, or a single file.

    Names that start with a dot or an underscore (Spark's ``_SUCCESS``) are ignored. A gzipped file is unpacked into the
    temporary folder, and the copy is removed at the end.
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
        raise BadFile(source, "contains no file", _KINDS)
    odd = next((path for path in paths if path.suffix not in (".parquet", ".pt") or not path.is_file()), None)
    if odd is not None:
        raise BadFile(odd, "is neither a .parquet nor a .pt file", _KINDS)
    other = next((path for path in paths if path.suffix != paths[0].suffix), None)
    if other is not None:
        raise BadFile(source, f"mixes .parquet and .pt files ({paths[0].name}, {other.name})", _KINDS)
    yield _parquet_sample(paths) if paths[0].suffix == ".parquet" else TorchSample(paths)


def _parquet_sample(paths: Sequence[Path]) -> Sample:
    require_package("pyarrow")
    from evenshard.tables.traffic.parquet import ParquetSample

    return ParquetSample(paths)


def _tables_to_count(source: Path, sample: Features, tables: Sequence[Table] | None) -> dict[str, TableCounts]:
    if tables is None:
        features: dict[str, tuple[str, ...]] = {name: (name,) for name in sample.names}
    else:
        features = {table.name: table.feature_names or (table.name,) for table in tables}
    columns = {column for own in features.values() for column in own}
    in_sample = set(sample.names)
    for name, own in features.items():
        # If the sample has one column for all features of a table, it has the table's name.
        if not in_sample & set(own) and name in in_sample and name not in columns:
            features[name] = (name,)
    num_rows = {table.name: table.num_rows for table in tables or ()}
    found = {name: [column for column in own if column in in_sample] for name, own in features.items()}
    if not any(found.values()):
        what = "feature" if any(own != (name,) for name, own in features.items()) else "table"
        problem = f"has {_some(what, sample.names)}, but none of the given tables"
        raise BadFile(source, problem, f"Use the sample's names for the {what}s.")
    order = {column: position for position, column in enumerate(sample.names)}
    names = sorted((name for name, own in found.items() if own), key=lambda name: order[found[name][0]])
    remembered = rows_to_remember(len(names))
    return {name: TableCounts(name, num_rows.get(name), found[name], remembered) for name in names}


def _some(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' * (len(names) != 1)} {names_text(names, write=brief)}"


def _count(sample: Features, survey: Survey, counts: Mapping[str, TableCounts], batch_size: int) -> None:
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
    window_samples = min(batch_size, survey.num_samples)
    groups: list[list[TableCounts]] = []
    available = 0.0
    for table in tables:
        size = sum(survey.num_lookups[column] for column in table.columns) / survey.num_samples * window_samples
        if not groups or size > available:
            groups.append([])
            available = GROUP_LOOKUPS
        groups[-1].append(table)
        available -= size
    return groups


def _fill_figures(
    table: Table, counts: TableCounts | None, num_samples: int, batch_size: int, assumptions: list[Assumption]
) -> Table:
    if counts is None:
        text = "as given, since the sample lacks the table"
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
    # Fewer samples than a batch repeat rows less. The histogram is tilted only as far as necessary for the lookups of a
    # whole batch to fit into the rows.
    rest_K = tuple((counts.rest_K / np.sum(counts.rest_K)).tolist())
    reuse_bins = feasible_reuse_bins(table.num_rows, table.pooling_factor * batch_size, base=rest_K)
    text = f"counted over {count_text(num_samples % batch_size, 'sample')}; larger batches repeat rows more often"
    assumptions.append(Assumption(table.name, "reuse_bins", text))
    return replace(table, reuse_bins=reuse_bins)


def _feature_lookups(
    table: Table, counts: TableCounts, num_samples: int, assumptions: list[Assumption]
) -> tuple[float, ...]:
    counted = {column: number / num_samples for column, number in counts.num_lookups.items()}
    if not set(counted) & set(table.feature_names):  # a single column for all features
        (together,) = counted.values()
        given = sum(table.feature_lookups)
        return tuple(together * (own / given if given else 1 / table.num_features) for own in table.feature_lookups)
    if missing := [name for name in table.feature_names if name not in counted]:
        text = f"as given for {_some('feature', missing)}, which the sample lacks"
        assumptions.append(Assumption(table.name, "feature_pooling_factors", text))
    return tuple(
        counted.get(name, given) for name, given in zip(table.feature_names, table.feature_lookups, strict=True)
    )
