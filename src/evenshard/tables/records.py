"""Records of table files: the mapping of their columns to fields of ``Table``, and parsing and checks of values.

A written record has columns beyond ``PLAIN_COLUMNS`` only if their values are not the default. Strings are parsed to
numbers, booleans and lists (JSON), because all values in CSV are strings.

A record may also be a configuration of TorchRec: the ``dataclasses.asdict`` of an ``EmbeddingBagConfig`` or an
``EmbeddingConfig``, or its JSON, with strings such as "DataType.FP16" and "PoolingType.MEAN".
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from evenshard.base.documents import load_json
from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut, names_text
from evenshard.tables.assumptions import Assumption
from evenshard.tables.reuse import NUM_REUSE_BINS
from evenshard.tables.table import DATA_TYPES, LOAD_FACTORS, MAX_ROW_SHARES, SEQUENCE, Table

RawTable = dict[Any, Any]

REQUIRED_COLUMNS = ("name", "num_rows", "embedding_dim", "pooling_factor")
PLAIN_COLUMNS = (*REQUIRED_COLUMNS, "reuse_bins", "weight_bits")
COLUMN_TYPES = {column.name: str(column.type).removesuffix(" | None") for column in fields(Table)}
TABLE_COLUMNS = tuple(COLUMN_TYPES)
REUSE_COLUMNS = tuple(f"reuse_bin_{number}" for number in range(NUM_REUSE_BINS))
KNOWN_COLUMNS = (*TABLE_COLUMNS, *REUSE_COLUMNS)
WRITE_AGAIN = "Create the file again, with the columns " + ", ".join(TABLE_COLUMNS) + "."
# An integer with separators of thousands, such as 1,000,000.
_WITH_COMMAS = re.compile(r"\s*\d{1,3}(,\d{3})+\s*")
MAX_NAMED = 12  # columns or records that a message lists
_REMEDY = "Correct the value."
DATA_TYPE_OF = {"UINT8": "int8", "NFP8": "fp8"}  # evenshard's names of TorchRec's data types if they differ
# Aliases of columns. ``pooling`` also means ``pooling_factor`` if it is a number, and not sum, mean or none.
COLUMN_ALIASES = {
    "hash_size": "num_rows",
    "num_embeddings": "num_rows",
    "rows": "num_rows",
    "dim": "embedding_dim",
    "avg_pooling": "pooling_factor",
    "table_name": "name",
    "table": "name",
}
_NO_TIME = "weight initialization does not affect the step time"
# Fields that never affect a placement, and the reasons.
UNUSED_FIELDS = {
    "weight_init_max": _NO_TIME,
    "weight_init_min": _NO_TIME,
    "init_fn": _NO_TIME,
    "num_embeddings_post_pruning": "all rows are placed, as in training",
    "need_pos": "position weights are not timed",
    "input_dim": "num_rows and pooling_factor are used instead",
    "total_num_buckets": "row-wise shards are equal blocks of rows; buckets are ignored",
    "use_virtual_table": "all rows count as device memory",
    "virtual_table_eviction_policy": "rows are never evicted",
    "enable_embedding_update": "external updates are not timed",
    "stash_weights": "weights count as device memory during the whole step",
}


class BadRecord(Exception):
    """Error in one record, raised where its file and row are not known; ``problems`` lists all invalid values."""

    def __init__(self, problem: str, remedy: str = _REMEDY, others: Collection[tuple[str, str]] = ()) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy
        self.problems = ((problem, remedy), *others)


def table_record(table: Table) -> RawTable:
    """Return a table as a record that ``table_of`` reads."""
    values = {column.name: getattr(table, column.name) for column in fields(table)}
    later = {column.name: column.default for column in fields(table)[len(PLAIN_COLUMNS) :]}
    record = {name: value for name, value in values.items() if name not in later or value != later[name]}
    record = {name: list(value) if isinstance(value, tuple) else value for name, value in record.items()}
    bins = record["reuse_bins"]
    record |= {"pooling_factor": float(table.pooling_factor), "reuse_bins": bins and [float(share) for share in bins]}
    return record


def table_of(record: RawTable, default_pooling_factor: float | None = None, extra: Collection[str] = ()) -> Table:
    """Convert a record to a table.

    ``data_type`` and ``weight_bits`` are derived from each other, as are ``pooling_factor`` and
    ``feature_pooling_factors``; the latter are equal if only ``feature_names`` are given.

    Args:
        record: values by field of ``Table``; ``ColumnNames`` translates other names.
        default_pooling_factor: lookups per sample of each feature if the record has none; None makes that an error.
        extra: unused columns, among which errors look for a missing column under another name.

    Raises:
        BadRecord: for all values that are missing or invalid.
    """
    found: dict[tuple[str, str], None] = {}
    values: dict[str, Any] = {}
    for column, kind in COLUMN_TYPES.items():
        value = record.get(column)
        try:
            if column == "reuse_bins" and any(not is_blank(record.get(name)) for name in REUSE_COLUMNS):
                values[column] = _bins_by_column(record)
            elif not is_blank(value) and (column in REQUIRED_COLUMNS or not _is_nan(value)):
                values[column] = (_READERS.get(column) or _READERS[kind])(value, column)
        except BadRecord as error:
            found.update(dict.fromkeys(error.problems))
    names, own = values.get("feature_names", ()), values.get("feature_pooling_factors", ())
    may_lack = {"pooling_factor"} if own or default_pooling_factor is not None else set()
    found.update(dict.fromkeys(_list_missing(record, may_lack, extra)))
    # Valid values replace unreadable values, so that the other values are still checked.
    usual_bits = DATA_TYPES.get(values.get("data_type", ""), Table.weight_bits)
    pooling = sum(own) if own else (default_pooling_factor or 0.0) * max(len(names), 1)
    instead = {"name": "?", "num_rows": MAX_ROW_SHARES, "embedding_dim": 1, "weight_bits": usual_bits}
    values = {**instead, "pooling_factor": pooling, **values}
    if not own and len(names) > 1:
        values["feature_pooling_factors"] = (values["pooling_factor"] / len(names),) * len(names)
    table = Table(**values)
    found.update(dict.fromkeys((problem, _REMEDY) for problem in table.problems()))
    if found:
        (problem, remedy), *others = found
        raise BadRecord(problem, remedy, others)
    return table


def is_blank(value: Any) -> bool:
    """Return True for an empty value."""
    return value is None or value == ""


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


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
        return f"If {brief(name)} is this column, give --columns {cut(name)}={column}."
    if not extra:
        return "Add it."
    others = names_text(extra, MAX_NAMED, brief)
    return f"Add it, or map a column of the file to it (--columns THEIRS={column}). Unused columns: {others}."


def _name(value: Any, column: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):  # an unquoted 12 in YAML
        return str(value)
    return _text(value, column, "Put the name in quotes.")


def _text(value: Any, column: str, remedy: str = "Put it in quotes.") -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{column} is {brief(value)}, not a string", remedy)
    return value


def _word(value: Any, column: str) -> str:
    """Convert one of TorchRec's enum values, such as SUM or PoolingType.SUM, to lower case."""
    text = _text(value.value if isinstance(value, Enum) else value, column)
    return text.rpartition("Type.")[2].lower()


def _flag(value: Any, column: str) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool):
        raise BadRecord(f"{column} is {brief(value)}, not true or false")
    return value


def _number(value: Any, column: str) -> float:
    """Parse a number, also from a string, because CSV has only strings and YAML reads 1e6 as a string."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise BadRecord(f"{column} is {brief(value)}, not a number")


def _whole(value: Any, column: str) -> int:
    """Parse an integer, also from 1000.0, as pandas writes it, and from 1,000,000, as spreadsheets do."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value.replace(",", "") if _WITH_COMMAS.fullmatch(value) else value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value, column)
    if not number.is_integer():
        raise BadRecord(f"{column} is {brief(value)}, not a whole number")
    return int(number)


# Nouns in errors for one element and for all elements of the columns with lists.
_ELEMENTS = {
    "feature_names": ("a name", "the names"),
    "feature_pooling_factors": ("a number", "one number per feature"),
    "reuse_bins": ("a share", f"{NUM_REUSE_BINS} shares"),
    "row_shares": ("a share", "shares"),
    "miss_ratios": ("a ratio", f"{len(LOAD_FACTORS)} ratios"),
}


def _list(value: Any, column: str, example: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError:
            raise BadRecord(f"{column} is {brief(value)}, not a JSON list", f"Write {example}.") from None
    element, what = _ELEMENTS[column]
    if not isinstance(value, list | tuple):
        raise BadRecord(f"{column} is {brief(value)}, not a list", f"Give {what} or leave it out.")
    return tuple(read(each, f"{element} of {column}") for each in value)


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "str": _text,
    "bool": _flag,
    "int": _whole,
    "float": _number,
    "tuple[str, ...]": lambda value, column: _list(value, column, '["clicks", "views"]', _text),
    "tuple[float, ...]": lambda value, column: _list(value, column, "[0.5, 0.5, ...]", _number),
    "name": _name,
    "pooling": _word,
    "data_type": lambda value, column: DATA_TYPE_OF.get((word := _word(value, column)).upper(), word),
}


def _bins_by_column(record: RawTable) -> tuple[float, ...]:
    columns = [column for column in REUSE_COLUMNS if not is_blank(record.get(column))]
    if not is_blank(record.get("reuse_bins")) and not _is_nan(record["reuse_bins"]):
        raise BadRecord(f"has both reuse_bins and {columns[0]}", "Keep only one of them.")
    missing = next((column for column in REUSE_COLUMNS if column not in columns), None)
    if missing is not None:
        raise BadRecord(f"{missing} is empty, but other reuse columns are not", "Fill in all 17 or none.")
    return tuple(_number(record[column], column) for column in REUSE_COLUMNS)


def columns_of(records: list[RawTable]) -> list[str]:
    """Return the columns that at least one record has, in the order of ``TABLE_COLUMNS``."""
    return [column for column in TABLE_COLUMNS if any(column in record for record in records)]


# Names of columns -----------------------------------------------------------------------------------------------------


@dataclass
class ColumnNames:
    """Mapping from the columns of one file to fields of ``Table``, completed while its records are read.

    Raises:
        BadConfig: if a column of the file is mapped to an unknown field.
    """

    # the user's mapping: column of the file -> field; "" ignores the column
    given: Mapping[str, str] = field(default_factory=dict)
    extra: dict[str, None] = field(default_factory=dict)  # unused columns, in order
    found: set[str] = field(default_factory=set)  # mapped columns that at least one record has

    def translate(self, record: RawTable) -> RawTable:
        """Rename a record's columns to fields of ``Table``; raise BadRecord if two give one field different values."""
        known: RawTable = {}
        came_from: dict[str, str] = {}
        config = is_config(record)
        for column, value in record.items():
            name = "" if column is None else str(column).strip()
            if (target := self._target(name, value)) is None:
                if name not in self.given and not (config and name in UNUSED_FIELDS):
                    self.extra[name] = None
            elif target not in known or is_blank(known[target]) or name in self.given:
                if target in came_from and came_from[target] not in self.given and name in self.given:
                    self.extra[came_from[target]] = None
                known[target], came_from[target] = value, name
            elif came_from[target] in self.given:
                self.extra[name] = None
            elif not is_blank(value) and value != known[target]:
                raise BadRecord(
                    f"has both {came_from[target]} and {name}, which both mean {target}",
                    f"Remove one of them, or ignore it (--columns {name}=).",
                )
        if (pooling := implicit_pooling(record)) is not None:
            known.setdefault("pooling", pooling)
        return known

    def _target(self, name: str, value: Any) -> str | None:
        if name in self.given:
            self.found.add(name)
            return _resolve_target(name, self.given[name])
        if name == "pooling" and _is_number(value):
            return "pooling_factor"
        name = COLUMN_ALIASES.get(name, name)
        return name if name in KNOWN_COLUMNS else None

    def absent_columns(self) -> tuple[str, ...]:
        """Return the mapped columns that no record has."""
        return tuple(name for name in self.given if name not in self.found)

    def note(self, where: str) -> str | None:
        """Return a note that lists the unused columns of a file; None if there are none."""
        if not self.extra:
            return None
        names = [brief(name) if name else "an unnamed column" for name in self.extra]
        columns = f"{len(names):,} columns are" if len(names) > 1 else "1 column is"
        text = f"{where}: {columns} not used: {names_text(names, MAX_NAMED)}."
        meant = [(name, close) for name in self.extra if (close := close_column(name, KNOWN_COLUMNS)) is not None]
        hints = ", ".join(f"--columns {cut(name)}={close}" for name, close in meant[:MAX_NAMED])
        return f"{text} To use: {hints}." if hints else text


def close_column(name: str, known: Collection[str]) -> str | None:
    """Return the known column that a misspelled name probably means, or None."""
    plain = {column.replace("_", ""): column for column in known}
    found = difflib.get_close_matches(cut(name.lower().replace("_", "")), plain, n=1, cutoff=0.8)
    return plain[found[0]] if found else None


def _resolve_target(name: str, target: str) -> str | None:
    if not target:
        return None
    target = COLUMN_ALIASES.get(target, target)
    if target not in KNOWN_COLUMNS:
        closest: Sequence[str] = difflib.get_close_matches(cut(target), KNOWN_COLUMNS, n=1, cutoff=0.0)
        raise BadConfig(
            f"the setting columns renames {brief(name)} to {brief(target)}, which is not a column of a table; "
            f"the closest is {closest[0]!r}. Correct it, or ignore the column ({cut(name)}=)."
        )
    return target


def _is_number(value: Any) -> bool:
    with suppress(BadRecord):
        return _number(value, "") is not None
    return False


def is_config(record: Mapping[Any, Any]) -> bool:
    """Return True if a record has fields that only TorchRec's configurations have."""
    return "num_embeddings" in record and any(name in record for name in UNUSED_FIELDS)


def implicit_pooling(record: Mapping[Any, Any]) -> str | None:
    """Return "none" for an ``EmbeddingConfig``, whose lookups are not pooled; None for any other record."""
    return SEQUENCE if is_config(record) and "pooling" not in record else None


def list_unused_fields(table: str, record: Mapping[Any, Any]) -> Iterator[Assumption]:
    """Yield a note for each field of a TorchRec configuration that is set but does not affect a placement."""
    if implicit_pooling(record) is not None:
        yield Assumption(table, "pooling", f"{SEQUENCE}, because the record has TorchRec's fields and no pooling")
    for name, why in UNUSED_FIELDS.items():
        # ``init_fn`` is set in every configuration, so it is not worth a note.
        if name != "init_fn" and record.get(name) not in (None, "", False, "False"):
            yield note_unused_field(table, name, why)


def note_unused_field(table: str, name: str, why: str) -> Assumption:
    """Return the note for a field that is set but has no effect."""
    return Assumption(table, name, f"ignored: {why}")
