"""The user's own table file: read from and written to YAML, JSON, CSV or Parquet.

One record per table, with the columns ``name, num_rows, embedding_dim, pooling_factor`` and, if known, any other field
of ``Table``, such as ``reuse_bins`` (17 shares) and ``weight_bits`` (32 where left out). How a value is read: see
``records.py``; how a record stands in each format: ``formats.py``; how large numbers and files may be:
``utils/limits.py``.

The loop trains on what it reads, so ``load_tables`` wants every pooling factor; to place tables, a stated default will
do: ``load_tables_with_assumptions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from evenshard.tables.assumptions import Assumption, assumed_reuse_bins, assumed_weight_bits
from evenshard.tables.formats import format_of
from evenshard.tables.records import (
    REQUIRED_COLUMNS,
    REUSE_COLUMNS,
    TABLE_COLUMNS,
    BadRecord,
    RawTable,
    is_blank,
    table_of,
    table_record,
)
from evenshard.tables.table import Table, duplicate_name
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.limits import MAX_TABLES, RANGES
from evenshard.utils.messages import brief, cut, reason_of


def load_tables(path: str | PathLike[str]) -> tuple[Table, ...]:
    """The tables of a file, in its order, every value checked.

    Raises:
        BadFile: anything that makes the file unusable, with row, problem and remedy in one line.
    """
    path = Path(path)
    return _tables(path, _records(path))


def load_tables_with_assumptions(
    path: str | PathLike[str], default_pooling_factor: float
) -> tuple[tuple[Table, ...], tuple[Assumption, ...]]:
    """As ``load_tables``, but a missing or blank pooling factor takes a default.

    Args:
        path: path of the table file.
        default_pooling_factor: lookups per sample of a table for which the file gives none.

    Returns:
        The tables, and every value of theirs that the file does not give (pooling factor, reuse histogram, weight
        bits), in the order of the tables. A table without a histogram keeps None.

    Raises:
        BadConfig: the default is not a valid pooling factor.
        BadFile: as ``load_tables``.
    """
    if problem := RANGES["default_pooling_factor"].problem(default_pooling_factor):
        raise BadConfig(f"default_pooling_factor {problem}. Correct it.")
    path = Path(path)
    records = _records(path)
    tables = _tables(path, records, float(default_pooling_factor))
    return tables, tuple(chain.from_iterable(map(_assumed, records, tables)))


def load_numbered_tables(path: str | PathLike[str], dims_known: bool) -> tuple[Table, ...]:
    """The tables of a file that may lack names, as statistics of tables do: such a table is called by its number.

    The histogram may also stand in the columns bin_0 to bin_16 of DreamShard's and NeuroShard's data; all zeros, as of
    a table without lookups, are none.

    Args:
        path: path of the table file.
        dims_known: whether the caller knows the dims; the file may lack them then, and they are 1.

    Raises:
        BadFile: as ``load_tables``.
    """
    path = Path(path)
    defaults = {"embedding_dim": 1} if dims_known else {}
    return _tables(path, [_named(number, record, defaults) for number, record in enumerate(_records(path))])


def _named(number: int, record: Any, defaults: RawTable) -> Any:
    if not isinstance(record, dict):
        return record
    known = {_ALIASES.get(column, column): value for column, value in record.items()}
    if all(known.get(column) in _NO_SHARE for column in REUSE_COLUMNS):
        known = {column: value for column, value in known.items() if column not in REUSE_COLUMNS}
    return {"name": str(number)} | defaults | known


_ALIASES = {column.removeprefix("reuse_"): column for column in REUSE_COLUMNS}
_NO_SHARE = (None, "", 0, "0", "0.0")


def save_tables(tables: Sequence[Table], path: str | PathLike[str]) -> None:
    """Writes a file that ``load_tables`` reads back to equal tables; the suffix chooses the format.

    Raises:
        BadFile: unknown suffix.
    """
    _, write = format_of(Path(path))
    with atomic_path(path) as draft:
        write([table_record(table) for table in tables], draft)


# From a record to a table -------------------------------------------------------------------------------------------


def _records(path: Path) -> list[Any]:
    read, _ = format_of(path)
    columns = ", ".join(REQUIRED_COLUMNS)
    return records_in(path, read, "table", f"Add one record per table, with {columns}.", "Give fewer.")


def records_in(path: Path, read: Callable[[Path], list[Any]], what: str, if_none: str, if_many: str) -> list[Any]:
    """The records of a file, at least one.

    Args:
        path: the file.
        read: reads it, as the readers in ``formats`` do.
        what: the thing that a record is, in the singular.
        if_none: what to do where there is none.
        if_many: what to do where there are more than ``MAX_TABLES``.

    Raises:
        BadFile: if it cannot be read, or holds none or too many.
    """
    if not path.is_file():
        raise BadFile(path, "is not a file" if path.exists() else "no such file", "Check the path.")
    try:
        records = read(path)
    except OSError as error:
        raise BadFile(path, f"cannot be read: {reason_of(error)}", "Check the file and its permissions.") from error
    if not records:
        raise BadFile(path, f"holds no {what}", if_none)
    if len(records) > MAX_TABLES:
        raise BadFile(path, f"holds more than {MAX_TABLES:,} {what}s", if_many)
    return records


def _tables(path: Path, records: Sequence[Any], default_pooling_factor: float | None = None) -> tuple[Table, ...]:
    numbered = enumerate(records, start=1)
    tables = tuple(_table(path, number, record, default_pooling_factor) for number, record in numbered)
    name = duplicate_name(tables)
    if name is not None:
        numbers = ", ".join(str(number) for number, table in enumerate(tables, start=1) if table.name == name)
        problem = f"several tables are called {brief(name)}"
        raise BadFile(path, problem, "Give each its own name.", f"records {cut(numbers)}")
    return tables


def _assumed(record: RawTable, table: Table) -> Iterator[Assumption]:
    """What the record does not give."""
    lacks = {column for column in TABLE_COLUMNS if is_blank(record.get(column))}
    several = f" for each of its {table.num_features} features" if table.num_features > 1 else ""
    if {"pooling_factor", "feature_pooling_factors"} <= lacks:
        each = table.pooling_factor / table.num_features
        yield Assumption(table.name, "pooling_factor", f"{each:g}{several}, the default, since the file gives none")
    elif several and "feature_pooling_factors" in lacks:
        text = f"pooling_factor, evenly over its {table.num_features} features"
        yield Assumption(table.name, "feature_pooling_factors", text)
    if table.reuse_bins is None:
        yield assumed_reuse_bins(table.name)
    if {"weight_bits", "data_type"} <= lacks:
        yield assumed_weight_bits(table.name, table.weight_bits)


def _table(path: Path, number: int, record: Any, default_pooling_factor: float | None) -> Table:
    where = f"record {number}"
    if not isinstance(record, dict):
        raise BadFile(path, f"is {brief(record)}, not a record", f"Give it {', '.join(REQUIRED_COLUMNS)}.", where)
    if not is_blank(record.get("name")):
        where += f" (table {brief(record['name'])})"
    try:
        return table_of(record, default_pooling_factor)
    except BadRecord as error:
        raise BadFile(path, error.problem, error.remedy, where) from None
