"""The user's own table file: read from and written to YAML, JSON, CSV or Parquet.

One record per table, with the columns ``name, num_rows, embedding_dim, pooling_factor`` and, if known,
``reuse_bins`` (17 shares) and ``weight_bits`` (32 where left out). How a record stands in each format: see
``formats.py``; how large numbers and files may be: ``utils/limits.py``.

The loop trains on what it reads, so ``load_tables`` wants every pooling factor; to place tables, a stated default will
do: ``load_tables_with_assumptions``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from evenshard.tables.assumptions import Assumption, assumed_reuse_bins, assumed_weight_bits
from evenshard.tables.formats import REQUIRED_COLUMNS, REUSE_COLUMNS, TABLE_COLUMNS, RawTable, format_of
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import Table, duplicate_name
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.json_files import load_json
from evenshard.utils.limits import MAX_TABLES, RANGES
from evenshard.utils.messages import brief, cut, reason_of


class _BadRecord(Exception):
    """Problem and remedy of one record, before file and row are known."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


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
    default = {"pooling_factor": float(default_pooling_factor)}
    filled = [record | default if _lacks(record, "pooling_factor") else record for record in records]
    tables = _tables(path, filled)
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
    records = [
        {
            "name": table.name,
            "num_rows": table.num_rows,
            "embedding_dim": table.embedding_dim,
            "pooling_factor": float(table.pooling_factor),
            "reuse_bins": None if table.reuse_bins is None else [float(share) for share in table.reuse_bins],
            "weight_bits": table.weight_bits,
        }
        for table in tables
    ]
    with atomic_path(path) as draft:
        write(records, draft)


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


def _tables(path: Path, records: Sequence[Any]) -> tuple[Table, ...]:
    tables = tuple(_table(path, number, record) for number, record in enumerate(records, start=1))
    name = duplicate_name(tables)
    if name is not None:
        numbers = ", ".join(str(number) for number, table in enumerate(tables, start=1) if table.name == name)
        problem = f"several tables are called {brief(name)}"
        raise BadFile(path, problem, "Give each its own name.", f"records {cut(numbers)}")
    return tables


def _lacks(record: Any, column: str) -> bool:
    return isinstance(record, dict) and _is_blank(record.get(column))


def _assumed(record: RawTable, table: Table) -> Iterator[Assumption]:
    """What the record does not give."""
    if _lacks(record, "pooling_factor"):
        text = f"{table.pooling_factor:g}, the default, since the file gives none"
        yield Assumption(table.name, "pooling_factor", text)
    if table.reuse_bins is None:
        yield assumed_reuse_bins(table.name)
    if _lacks(record, "weight_bits"):
        yield assumed_weight_bits(table.name, table.weight_bits)


def _table(path: Path, number: int, record: Any) -> Table:
    where = f"record {number}"
    if not isinstance(record, dict):
        raise BadFile(path, f"is {brief(record)}, not a record", f"Give it {', '.join(REQUIRED_COLUMNS)}.", where)
    if not _is_blank(record.get("name")):
        where += f" (table {brief(record['name'])})"
    try:
        _check_columns(record)
        table = Table(
            name=_name(record["name"]),
            num_rows=_whole(record["num_rows"], "num_rows"),
            embedding_dim=_whole(record["embedding_dim"], "embedding_dim"),
            pooling_factor=_number(record["pooling_factor"], "pooling_factor"),
            reuse_bins=_reuse_bins(record),
            weight_bits=32 if _is_blank(record.get("weight_bits")) else _whole(record["weight_bits"], "weight_bits"),
        )
    except _BadRecord as error:
        raise BadFile(path, error.problem, error.remedy, where) from None
    problem = table.problem()
    if problem is not None:
        raise BadFile(path, problem, "Correct the value.", where)
    return table


def _check_columns(record: RawTable) -> None:
    known = (*TABLE_COLUMNS, *REUSE_COLUMNS)
    for column in record:
        if column is None or str(column).strip() == "":
            raise _BadRecord("has a column without a name", "Name it or remove it (pandas: to_csv(index=False)).")
        if column not in known:
            closest = difflib.get_close_matches(cut(str(column)), known, n=1, cutoff=0.0)[0]
            raise _BadRecord(
                f"unknown column {brief(column)}; the closest known one is {closest!r}", "Rename or remove it."
            )
    for column in REQUIRED_COLUMNS:
        if column not in record:
            raise _BadRecord(f"column {column!r} is missing", "Add it.")
        if _is_blank(record[column]):
            raise _BadRecord(f"{column} is empty", "Fill it in.")


def _is_blank(value: Any) -> bool:
    return value is None or value == ""


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):  # an unquoted 12 in YAML
        return str(value)
    raise _BadRecord(f"name is {brief(value)}, not a string", "Put the name in quotes.")


def _number(value: Any, column: str) -> float:
    """A float; texts are read as numbers, since CSV has only texts and YAML takes 1e6 for one."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise _BadRecord(f"{column} is {brief(value)}, not a number", "Correct the value.")


def _whole(value: Any, column: str) -> int:
    """An int; pandas hands whole columns over as floats, so 1000.0 will do."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value, column)
    if not number.is_integer():
        raise _BadRecord(f"{column} is {brief(value)}, not a whole number", "Correct the value.")
    return int(number)


def _reuse_bins(record: RawTable) -> tuple[float, ...] | None:
    columns = [column for column in REUSE_COLUMNS if not _is_blank(record.get(column))]
    value = record.get("reuse_bins")
    if _is_blank(value) or (isinstance(value, float) and math.isnan(value)):
        if not columns:
            return None
        missing = next((column for column in REUSE_COLUMNS if column not in columns), None)
        if missing is not None:
            raise _BadRecord(f"{missing} is empty while other reuse columns are not", "Fill in all 17 or none.")
        return tuple(_number(record[column], column) for column in REUSE_COLUMNS)
    if columns:
        raise _BadRecord(f"has both reuse_bins and {columns[0]}", "Keep one form.")
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            raise _BadRecord(f"reuse_bins is {brief(value)}, not a JSON list", "Write [0.5, 0.5, ...].") from None
    if not isinstance(value, list | tuple):
        raise _BadRecord(f"reuse_bins is {brief(value)}, not a list", f"Give {NUM_REUSE_BINS} shares or leave it out.")
    return tuple(_number(share, "a share of reuse_bins") for share in value)
