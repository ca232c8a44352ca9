"""Table files of users, in YAML, JSON, CSV or Parquet.

The file has one record per table, with the columns ``name, num_rows, embedding_dim, pooling_factor`` and optionally any
other field of ``Table``, such as ``reuse_bins`` (17 shares) and ``weight_bits`` (default 32). ``records.py`` parses
values and renames columns, ``formats.py`` reads the formats, ``base/knobs.py`` has the ranges of numbers.

``load_tables`` requires every pooling factor, because the loop trains cost models on the tables. To place tables,
``load_tables_with_assumptions`` replaces missing pooling factors by a default.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig, BadFile, bad_records, blame_file
from evenshard.base.knobs import MAX_TABLES, check_ranges
from evenshard.base.messages import brief, names_text, reason_of
from evenshard.base.outputs import atomic_path
from evenshard.tables.assumptions import (
    Assumption,
    TableSet,
    assume_even_lookups,
    assume_reuse_bins,
    assume_weight_bits,
)
from evenshard.tables.formats import format_of
from evenshard.tables.records import (
    COLUMN_ALIASES,
    MAX_NAMED,
    REQUIRED_COLUMNS,
    REUSE_COLUMNS,
    TABLE_COLUMNS,
    BadRecord,
    ColumnNames,
    RawTable,
    is_blank,
    list_unused_fields,
    table_of,
    table_record,
)
from evenshard.tables.table import MEAN, Table

log = logging.getLogger(__name__)


@blame_file
def load_tables(path: str | PathLike[str], columns: Mapping[str, str] | None = None) -> tuple[Table, ...]:
    """Read the tables of a file, in its order, and check every value; the log lists unused columns.

    Args:
        columns: column name in the file -> evenshard's name.

    Raises:
        BadConfig: if the file lacks one of ``columns``.
        BadFile: if a value is missing or invalid; ``BadRecords`` if several are.
    """
    path, names = Path(path), ColumnNames(columns or {})
    return _check_columns(path, names, _tables(path, _records(path), names))


def _check_columns(path: Path, names: ColumnNames, tables: tuple[Table, ...]) -> tuple[Table, ...]:
    if missed := names.absent_columns():
        raise missing_columns_error(str(path), missed)
    if note := names.note(str(path)):
        log.warning(note)
    return tables


def missing_columns_error(where: str, missed: Sequence[str]) -> BadConfig:
    """Return the error for mapped columns that the file lacks."""
    return BadConfig(
        f"the setting columns renames {', '.join(map(brief, missed))}, which is not a column of {where}. Correct it."
    )


def load_tables_with_assumptions(
    path: str | PathLike[str], default_pooling_factor: float, columns: Mapping[str, str] | None = None
) -> TableSet:
    """Read a table file like ``load_tables``, but with a default for a missing or blank pooling factor."""
    return tables_of_records(_records(Path(path)), default_pooling_factor, columns, path)


def tables_of_records(
    records: Sequence[Any],
    default_pooling_factor: float,
    columns: Mapping[str, str] | None = None,
    path: str | PathLike[str] = "tables",
) -> TableSet:
    """Convert dicts, one per table, as ``load_tables_with_assumptions`` does; ``path`` names them in errors."""
    check_ranges(default_pooling_factor=default_pooling_factor)
    path, names = Path(path), ColumnNames(columns or {})
    tables = _tables(path, records, names, float(default_pooling_factor))
    pairs = zip(records, tables, strict=True)
    assumptions = tuple(chain.from_iterable(_list_assumptions(record, names, table) for record, table in pairs))
    return TableSet(tables, assumptions, tuple(filter(None, [names.note(str(path))])), names.absent_columns())


def load_numbered_tables(
    path: str | PathLike[str], dims_known: bool, columns: Mapping[str, str] | None = None
) -> tuple[Table, ...]:
    """Read a table file that may lack names, such as table statistics; its tables are then named by record number.

    The histogram may also be in the columns bin_0 to bin_16 of DreamShard's and NeuroShard's data. All zeros mean no
    histogram, for a table without lookups.

    Args:
        dims_known: True if the caller replaces the dims; the file may then lack dims, which are read as 1.

    Raises:
        BadConfig, BadFile: see ``load_tables``.
    """
    path, names = Path(path), ColumnNames(columns or {})
    defaults = {"embedding_dim": 1} if dims_known else {}
    records = [_add_defaults(number, record, defaults, names.given) for number, record in enumerate(_records(path))]
    return _check_columns(path, names, _tables(path, records, names))


def _add_defaults(number: int, record: Any, defaults: RawTable, given: Mapping[str, str]) -> Any:
    if not isinstance(record, dict):
        return record
    plain = {column.removeprefix("reuse_"): column for column in REUSE_COLUMNS}
    known = {plain.get(column, column): value for column, value in record.items()}
    if all(known.get(column) in _NO_SHARE for column in REUSE_COLUMNS):
        known = {column: value for column, value in known.items() if column not in REUSE_COLUMNS}
    targets = (given.get(str(column), str(column)) for column in known)
    ours = {COLUMN_ALIASES.get(target, target) for target in targets}
    missing = {"name": str(number)} | defaults
    return {column: value for column, value in missing.items() if column not in ours} | known


_NO_SHARE = (None, "", 0, "0", "0.0")  # values of an empty histogram bin, as numbers or as texts of CSV


def save_tables(tables: Sequence[Table], path: str | PathLike[str]) -> None:
    """Write a file that ``load_tables`` reads back to equal tables; raise BadFile for an unknown suffix."""
    _, write = format_of(Path(path))
    with atomic_path(path) as draft:
        write([table_record(table) for table in tables], draft)


def _records(path: Path) -> list[Any]:
    read, _ = format_of(path)
    columns = ", ".join(REQUIRED_COLUMNS)
    return records_in(path, read, "table", f"Add one record per table, with {columns}.", "Give fewer.")


def records_in(path: Path, read: Callable[[Path], list[Any]], what: str, if_none: str, if_many: str) -> list[Any]:
    """Return the records of a file, at least one.

    Args:
        read: a reader of ``formats``.
        what: noun for a record in errors, in the singular.
        if_none, if_many: remedies if there is no record, or more than ``MAX_TABLES``.

    Raises:
        BadFile: if the file cannot be read, or has no record or too many records.
    """
    if not path.is_file():
        raise BadFile(path, "is not a file" if path.exists() else "no such file", "Check the path.")
    try:
        records = read(path)
    except OSError as error:
        raise BadFile(path, f"cannot be read: {reason_of(error)}", "Check the file and its permissions.") from error
    if not records:
        raise BadFile(path, f"contains no {what}", if_none)
    if len(records) > MAX_TABLES:
        raise BadFile(path, f"contains more than {MAX_TABLES:,} {what}s", if_many)
    return records


def _tables(
    path: Path, records: Sequence[Any], names: ColumnNames, default_pooling_factor: float | None = None
) -> tuple[Table, ...]:
    tables: list[Table] = []
    wrong: dict[tuple[str, str], list[int]] = {}
    for number, record in enumerate(records, start=1):
        try:
            tables.append(_table(record, names, default_pooling_factor))
        except BadRecord as error:
            for problem in error.problems:
                wrong.setdefault(problem, []).append(number)
    for name, numbers in _shared_names(records, names).items():
        wrong[f"several tables are named {brief(name)}", "Give each a different name."] = numbers
    found = [(_where(records, numbers, names), *problem) for problem, numbers in wrong.items()]
    if any("is missing" in problem for problem, _ in wrong):
        found += [
            ("columns", f"no record has a column {brief(name)}", "Correct it.") for name in names.absent_columns()
        ]
    if found:
        raise bad_records(path, found)
    return tuple(tables)


def _shared_names(records: Sequence[Any], names: ColumnNames) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for number, record in enumerate(records, start=1):
        name = _name_in(record, names)
        if not is_blank(name):
            numbers.setdefault(str(name), []).append(number)
    return {name: found for name, found in numbers.items() if len(found) > 1}


def _name_in(record: Any, names: ColumnNames) -> Any:
    if not isinstance(record, dict):
        return None
    called = [theirs for theirs, ours in (*names.given.items(), *COLUMN_ALIASES.items()) if ours == "name"]
    return next((record[column] for column in ("name", *called) if column in record), None)


def _where(records: Sequence[Any], numbers: Sequence[int], names: ColumnNames) -> str:
    if len(numbers) == len(records) > MAX_NAMED:
        return f"all {len(records):,} records"
    if len(numbers) > 1:
        return f"records {names_text(numbers, MAX_NAMED, str)}"
    name = _name_in(records[numbers[0] - 1], names)
    return f"record {numbers[0]}" + ("" if is_blank(name) else f" (table {brief(name)})")


def _list_assumptions(record: RawTable, names: ColumnNames, table: Table) -> Iterator[Assumption]:
    ours = names.translate(record)
    lacks = {column for column in TABLE_COLUMNS if is_blank(ours.get(column))}
    several = f" for each of its {table.num_features} features" if table.num_features > 1 else ""
    if {"pooling_factor", "feature_pooling_factors"} <= lacks:
        each = table.pooling_factor / table.num_features
        yield Assumption(table.name, "pooling_factor", f"{each:g}{several}, the default, since the file gives none")
    elif several and "feature_pooling_factors" in lacks:
        yield assume_even_lookups(table.name, table.num_features)
    if table.reuse_bins is None:
        yield assume_reuse_bins(table.name)
    if {"weight_bits", "data_type"} <= lacks:
        yield assume_weight_bits(table.name, table.weight_bits)
    if table.pooling == MEAN and not table.module:
        yield Assumption(table.name, "collection", "in one collection with all tables without a module")
    yield from list_unused_fields(table.name, record)


def _table(record: Any, names: ColumnNames, default_pooling_factor: float | None) -> Table:
    if not isinstance(record, dict):
        raise BadRecord(f"is {brief(record)}, not a record", f"Write a record with {', '.join(REQUIRED_COLUMNS)}.")
    return table_of(names.translate(record), default_pooling_factor, [name for name in names.extra if name])
