"""A table as a record: the columns of a table file, each read and checked.

Columns beyond ``PLAIN_COLUMNS`` stand in a record only where they say something. Texts are read as what they stand for,
since CSV has only texts: numbers, true and false, and lists as JSON.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

from evenshard.tables.cache import LOAD_FACTORS
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import DATA_TYPES, Table
from evenshard.utils.json_files import load_json
from evenshard.utils.messages import brief, cut

RawTable = dict[Any, Any]
Value = TypeVar("Value")

REQUIRED_COLUMNS = ("name", "num_rows", "embedding_dim", "pooling_factor")
PLAIN_COLUMNS = (*REQUIRED_COLUMNS, "reuse_bins", "weight_bits")
TABLE_COLUMNS = tuple(one.name for one in fields(Table))
REUSE_COLUMNS = tuple(f"reuse_bin_{number}" for number in range(NUM_REUSE_BINS))


class BadRecord(Exception):
    """Problem and remedy of one record, before file and row are known."""

    def __init__(self, problem: str, remedy: str = "Correct the value.") -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


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


def table_of(record: RawTable, default_pooling_factor: float | None = None) -> Table:
    """The table of a record.

    Where only some of these are given, the others follow from them: ``data_type`` and ``weight_bits``;
    ``pooling_factor`` and ``feature_pooling_factors``, which are even where only ``feature_names`` are given.

    Args:
        record: columns and values.
        default_pooling_factor: lookups per sample of each feature, where the record gives none; None makes it an error.

    Raises:
        BadRecord: something is missing, unknown or impossible.
    """
    names = _feature_names(record)
    own = _numbers(record, "feature_pooling_factors", "a number", "Give one for each feature or leave it out.") or ()
    _check_columns(record, {"pooling_factor"} if own or default_pooling_factor is not None else set())
    if not is_blank(record.get("pooling_factor")):
        pooling = _number(record["pooling_factor"], "pooling_factor")
    else:
        pooling = sum(own) if own else (default_pooling_factor or 0.0) * max(len(names), 1)
    if not own and len(names) > 1:
        own = (pooling / len(names),) * len(names)
    data_type = _given(record, "data_type", _word, "")
    table = Table(
        name=_name(record["name"]),
        num_rows=_whole(record["num_rows"], "num_rows"),
        embedding_dim=_whole(record["embedding_dim"], "embedding_dim"),
        pooling_factor=pooling,
        reuse_bins=_reuse_bins(record),
        weight_bits=_given(record, "weight_bits", _whole, DATA_TYPES.get(data_type, Table.weight_bits)),
        data_type=data_type,
        pooling=_given(record, "pooling", _word, Table.pooling),
        is_weighted=_given(record, "is_weighted", _flag, Table.is_weighted),
        feature_names=names,
        feature_pooling_factors=own,
        is_deduplicated=_given(record, "is_deduplicated", _flag, Table.is_deduplicated),
        module=_given(record, "module", _text, Table.module),
        row_shares=_numbers(record, "row_shares", "a share", "Give shares or leave it out."),
        miss_ratios=_numbers(record, "miss_ratios", "a ratio", f"Give {len(LOAD_FACTORS)} ratios or leave it out."),
    )
    if problem := table.problem():
        raise BadRecord(problem)
    return table


def is_blank(value: Any) -> bool:
    """Whether a cell is empty."""
    return value is None or value == ""


def _says_nothing(value: Any) -> bool:
    """Whether a cell is empty, or NaN, which pandas writes there."""
    return is_blank(value) or (isinstance(value, float) and math.isnan(value))


def _check_columns(record: RawTable, optional: Collection[str]) -> None:
    known = (*TABLE_COLUMNS, *REUSE_COLUMNS)
    for column in record:
        if column is None or str(column).strip() == "":
            raise BadRecord("has a column without a name", "Name it or remove it (pandas: to_csv(index=False)).")
        if column not in known:
            closest = difflib.get_close_matches(cut(str(column)), known, n=1, cutoff=0.0)[0]
            raise BadRecord(
                f"unknown column {brief(column)}; the closest known one is {closest!r}", "Rename or remove it."
            )
    for column in REQUIRED_COLUMNS:
        if column in optional:
            continue
        if column not in record:
            raise BadRecord(f"column {column!r} is missing", "Add it.")
        if is_blank(record[column]):
            raise BadRecord(f"{column} is empty", "Fill it in.")


# Values --------------------------------------------------------------------------------------------------------------


def _given(record: RawTable, column: str, read: Callable[[Any, str], Value], default: Value) -> Value:
    """The value of a column that may be left out."""
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
    """In small letters: TorchRec's words are in capitals."""
    return _text(value, column).lower()


def _flag(value: Any, column: str) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool):
        raise BadRecord(f"{column} is {brief(value)}, not true or false")
    return value


def _number(value: Any, column: str) -> float:
    """A float; texts are read as numbers, since CSV has only texts and YAML takes 1e6 for one."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise BadRecord(f"{column} is {brief(value)}, not a number")


def _whole(value: Any, column: str) -> int:
    """An int; pandas hands whole columns over as floats, so 1000.0 will do."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value, column)
    if not number.is_integer():
        raise BadRecord(f"{column} is {brief(value)}, not a whole number")
    return int(number)


def _list(record: RawTable, column: str, example: str, remedy: str) -> list[Any] | None:
    """The values of a column that may be left out; None where it is."""
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
