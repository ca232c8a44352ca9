"""A table as a record: the columns of a table file, each read and checked.

Columns beyond ``PLAIN_COLUMNS`` stand in a record only where they say something. Texts are read as what they stand for,
since CSV has only texts: numbers, true and false, and lists as JSON.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from evenshard.base.documents import load_json
from evenshard.base.messages import brief, cut, names_text
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import DATA_TYPES, LOAD_FACTORS, MAX_ROW_SHARES, Table

RawTable = dict[Any, Any]
Value = TypeVar("Value")

REQUIRED_COLUMNS = ("name", "num_rows", "embedding_dim", "pooling_factor")
PLAIN_COLUMNS = (*REQUIRED_COLUMNS, "reuse_bins", "weight_bits")
COLUMN_TYPES = {one.name: str(one.type).removesuffix(" | None") for one in fields(Table)}
TABLE_COLUMNS = tuple(COLUMN_TYPES)
REUSE_COLUMNS = tuple(f"reuse_bin_{number}" for number in range(NUM_REUSE_BINS))
KNOWN_COLUMNS = (*TABLE_COLUMNS, *REUSE_COLUMNS)
WRITE_AGAIN = "Write the file again; its columns are " + ", ".join(TABLE_COLUMNS) + "."
_WITH_COMMAS = re.compile(r"\s*\d{1,3}(,\d{3})+\s*")
MAX_NAMED = 12
# evenshard's names of TorchRec's data types, where they are others.
DATA_TYPE_OF = {"UINT8": "int8", "NFP8": "fp8"}


class BadRecord(Exception):
    """Problem and remedy of one record, before file and row are known; and those of whatever else is wrong with it."""

    def __init__(
        self, problem: str, remedy: str = "Correct the value.", others: Collection[tuple[str, str]] = ()
    ) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy
        self.problems = ((problem, remedy), *others)


class _Problems:
    """Problems of a record; a value that cannot be read is replaced by a valid one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], None] = {}

    def read(self, value_of: Callable[[], Value], instead: Value) -> Value:
        try:
            return value_of()
        except BadRecord as error:
            self._found.update(dict.fromkeys(error.problems))
            return instead

    def add(self, problem: str, remedy: str = "Correct the value.") -> None:
        self._found[problem, remedy] = None

    def raise_any(self) -> None:
        if self._found:
            (problem, remedy), *others = self._found
            raise BadRecord(problem, remedy, others)


def table_record(table: Table) -> RawTable:
    """A table as a record that ``table_of`` reads."""
    record: RawTable = {
        "name": table.name,
        "num_rows": table.num_rows,
        "embedding_dim": table.embedding_dim,
        "pooling_factor": float(table.pooling_factor),
        "reuse_bins": None if table.reuse_bins is None else [float(share) for share in table.reuse_bins],
        "weight_bits": table.weight_bits,
    }
    for one in fields(table)[len(PLAIN_COLUMNS) :]:
        value = getattr(table, one.name)
        if value != one.default:
            record[one.name] = list(value) if isinstance(value, tuple) else value
    return record


def table_of(record: RawTable, default_pooling_factor: float | None = None, extra: Collection[str] = ()) -> Table:
    """The table of a record.

    Where only some of these are given, the others follow from them: ``data_type`` and ``weight_bits``;
    ``pooling_factor`` and ``feature_pooling_factors``, which are even where only ``feature_names`` are given.

    Args:
        record: values of our columns; ``columns.ColumnNames`` reads others.
        default_pooling_factor: lookups per sample of each feature, where the record gives none; None makes it an error.
        extra: columns beside them, one of which may be what is missing.

    Raises:
        BadRecord: something is missing, unknown or impossible; all of it.
    """
    problems = _Problems()
    read = problems.read
    no_names: tuple[str, ...] = ()
    names = read(lambda: _feature_names(record), no_names)
    own = read(lambda: _feature_lookups(record), None) or ()
    may_lack = {"pooling_factor"} if own or default_pooling_factor is not None else set()
    for problem, remedy in _list_missing(record, may_lack, extra):
        problems.add(problem, remedy)
    if not is_blank(record.get("pooling_factor")):
        pooling = read(lambda: _number(record["pooling_factor"], "pooling_factor"), sum(own))
    else:
        pooling = sum(own) if own else (default_pooling_factor or 0.0) * max(len(names), 1)
    if not own and len(names) > 1:
        own = (pooling / len(names),) * len(names)
    data_type = read(lambda: _read_optional(record, "data_type", _data_type, ""), "")
    usual_bits = DATA_TYPES.get(data_type, Table.weight_bits)
    table = Table(
        name=read(lambda: _name(record["name"]), "?") if not is_blank(record.get("name")) else "?",
        num_rows=read(lambda: _read_required(record, "num_rows", MAX_ROW_SHARES), MAX_ROW_SHARES),
        embedding_dim=read(lambda: _read_required(record, "embedding_dim", 1), 1),
        pooling_factor=pooling,
        reuse_bins=read(lambda: _reuse_bins(record), None),
        weight_bits=read(lambda: _read_optional(record, "weight_bits", _whole, usual_bits), usual_bits),
        data_type=data_type,
        pooling=read(lambda: _read_optional(record, "pooling", _word, Table.pooling), Table.pooling),
        is_weighted=read(lambda: _read_optional(record, "is_weighted", _flag, Table.is_weighted), Table.is_weighted),
        feature_names=names,
        feature_pooling_factors=own,
        is_deduplicated=read(
            lambda: _read_optional(record, "is_deduplicated", _flag, Table.is_deduplicated), Table.is_deduplicated
        ),
        module=read(lambda: _read_optional(record, "module", _text, Table.module), Table.module),
        row_shares=read(lambda: _numbers(record, "row_shares", "a share", "Give shares or leave it out."), None),
        miss_ratios=read(lambda: _miss_ratios(record), None),
    )
    for problem in table.problems():
        problems.add(problem)
    problems.raise_any()
    return table


def is_blank(value: Any) -> bool:
    """Whether a cell is empty."""
    return value is None or value == ""


def _says_nothing(value: Any) -> bool:
    """Return whether a cell is empty, or NaN, which pandas writes there."""
    return is_blank(value) or (isinstance(value, float) and math.isnan(value))


def _list_missing(record: RawTable, optional: Collection[str], extra: Collection[str]) -> Iterator[tuple[str, str]]:
    for column in REQUIRED_COLUMNS:
        if column in optional:
            continue
        if column not in record:
            yield f"column {column!r} is missing", _hint(column, [name for name in extra if name])
        elif is_blank(record[column]):
            yield f"{column} is empty", "Fill it in."


def _hint(column: str, extra: Sequence[str]) -> str:
    plain = {name.lower(): name for name in reversed(extra)}
    close = difflib.get_close_matches(column, plain, n=1, cutoff=0.6)
    if close:
        name = plain[close[0]]
        return f"If it is {brief(name)}, give --columns {cut(name)}={column}."
    if not extra:
        return "Add it."
    others = names_text(extra, MAX_NAMED, brief)
    return f"Add it, or say which column it is (--columns THEIRS={column}). Not used: {others}."


def _read_optional(record: RawTable, column: str, read: Callable[[Any, str], Value], default: Value) -> Value:
    value = record.get(column)
    return default if _says_nothing(value) else read(value, column)


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):  # an unquoted 12 in YAML
        return str(value)
    raise BadRecord(f"name is {brief(value)}, not a string", "Put the name in quotes.")


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{column} is {brief(value)}, not a string", "Put it in quotes.")
    return value


def _word(value: Any, column: str) -> str:
    """Lower the case: TorchRec's words are in capitals, and its JSON may say PoolingType.SUM."""
    text = _text(value.value if isinstance(value, Enum) else value, column)
    return text.rpartition("Type.")[2].lower()


def _data_type(value: Any, column: str) -> str:
    word = _word(value, column)
    return DATA_TYPE_OF.get(word.upper(), word)


def _flag(value: Any, column: str) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool):
        raise BadRecord(f"{column} is {brief(value)}, not true or false")
    return value


def _read_required(record: RawTable, column: str, instead: int) -> int:
    """Return ``instead`` for a missing value, which ``_list_missing`` reports."""
    return instead if is_blank(record.get(column)) else _whole(record[column], column)


def _number(value: Any, column: str) -> float:
    """Read texts as numbers, since CSV has only texts and YAML takes 1e6 for one."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise BadRecord(f"{column} is {brief(value)}, not a number")


def _whole(value: Any, column: str) -> int:
    """Accept 1000.0, as pandas writes whole columns, and 1,000,000, as spreadsheets do."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value.replace(",", "") if _WITH_COMMAS.fullmatch(value) else value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value, column)
    if not number.is_integer():
        raise BadRecord(f"{column} is {brief(value)}, not a whole number")
    return int(number)


def _list(record: RawTable, column: str, example: str, remedy: str) -> list[Any] | None:
    value = record.get(column)
    if _says_nothing(value):
        return None
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            raise BadRecord(f"{column} is {brief(value)}, not a JSON list", f"Write {example}.") from None
    if not isinstance(value, list | tuple):
        raise BadRecord(f"{column} is {brief(value)}, not a list", remedy)
    return list(value)


def _numbers(record: RawTable, column: str, what: str, remedy: str) -> tuple[float, ...] | None:
    values = _list(record, column, "[0.5, 0.5, ...]", remedy)
    return None if values is None else tuple(_number(one, f"{what} of {column}") for one in values)


def _feature_lookups(record: RawTable) -> tuple[float, ...] | None:
    return _numbers(record, "feature_pooling_factors", "a number", "Give one for each feature or leave it out.")


def _miss_ratios(record: RawTable) -> tuple[float, ...] | None:
    return _numbers(record, "miss_ratios", "a ratio", f"Give {len(LOAD_FACTORS)} ratios or leave it out.")


def _feature_names(record: RawTable) -> tuple[str, ...]:
    values = _list(record, "feature_names", '["clicks", "views"]', "Give the names or leave it out.")
    return tuple(_text(one, "a name of feature_names") for one in values or ())


def _reuse_bins(record: RawTable) -> tuple[float, ...] | None:
    columns = [column for column in REUSE_COLUMNS if not is_blank(record.get(column))]
    bins = _numbers(record, "reuse_bins", "a share", f"Give {NUM_REUSE_BINS} shares or leave it out.")
    if not columns:
        return bins
    if bins is not None:
        raise BadRecord(f"has both reuse_bins and {columns[0]}", "Keep one form.")
    missing = next((column for column in REUSE_COLUMNS if column not in columns), None)
    if missing is not None:
        raise BadRecord(f"{missing} is empty while other reuse columns are not", "Fill in all 17 or none.")
    return tuple(_number(record[column], column) for column in REUSE_COLUMNS)


def columns_of(records: list[RawTable]) -> list[str]:
    """The plain columns, and those in which some record says more."""
    return [column for column in TABLE_COLUMNS if any(column in record for record in records)]
