"""The user's own tables: read from and written to YAML, JSON, CSV or Parquet.

One record per table, with the columns ``name, num_rows, embedding_dim, pooling_factor`` and, if known,
``reuse_bins`` (17 shares) and ``weight_bits`` (32 where left out). YAML and JSON hold a list of records, or
``{"tables": [...]}``. In CSV the histogram is a JSON list in one column, or 17 columns ``reuse_bin_0`` to
``reuse_bin_16``. JSON and CSV need nothing beyond the standard library.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from evenshard.atomic import atomic_path
from evenshard.errors import BadFile
from evenshard.reuse import NUM_REUSE_BINS
from evenshard.tables import Table, duplicate_name

REQUIRED_COLUMNS = ("name", "num_rows", "embedding_dim", "pooling_factor")
COLUMNS = (*REQUIRED_COLUMNS, "reuse_bins", "weight_bits")
REUSE_COLUMNS = tuple(f"reuse_bin_{number}" for number in range(NUM_REUSE_BINS))

Record = dict[Any, Any]
_MAX_WHOLE = 2**63 - 1
_MAKE_ANEW = "Write the file anew; its columns are " + ", ".join(COLUMNS) + "."


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
    read, _ = _format_of(path)
    if not path.is_file():
        raise BadFile(path, "is not a file" if path.exists() else "no such file", "Check the path.")
    try:
        records = read(path)
    except OSError as error:
        raise BadFile(path, f"cannot be read: {_one_line(error)}", "Check the file and its permissions.") from error
    if not records:
        raise BadFile(path, "holds no table", f"Add one record per table, with {', '.join(REQUIRED_COLUMNS)}.")

    tables = tuple(_table(path, number, record) for number, record in enumerate(records, start=1))
    name = duplicate_name(tables)
    if name is not None:
        numbers = ", ".join(str(number) for number, table in enumerate(tables, start=1) if table.name == name)
        raise BadFile(path, f"several tables are called {name!r}", "Give each its own name.", f"records {numbers}")
    return tables


def save_tables(tables: Sequence[Table], path: str | PathLike[str]) -> None:
    """Writes a file that ``load_tables`` reads back to equal tables; the suffix chooses the format.

    Raises:
        BadFile: unknown suffix.
    """
    _, write = _format_of(Path(path))
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


def _table(path: Path, number: int, record: Any) -> Table:
    where = f"record {number}"
    if not isinstance(record, dict):
        raise BadFile(path, f"is {_short(record)}, not a record", f"Give it {', '.join(REQUIRED_COLUMNS)}.", where)
    if not _is_blank(record.get("name")):
        where += f" (table {_short(record['name'])})"
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


def _check_columns(record: Record) -> None:
    known = (*COLUMNS, *REUSE_COLUMNS)
    for column in record:
        if column is None or str(column).strip() == "":
            raise _BadRecord("has a column without a name", "Name it or remove it (pandas: to_csv(index=False)).")
        if column not in known:
            closest = difflib.get_close_matches(str(column), known, n=1, cutoff=0.0)[0]
            raise _BadRecord(
                f"unknown column {_short(column)}; the closest known one is {closest!r}", "Rename or remove it."
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
    raise _BadRecord(f"name is {_short(value)}, not a text", "Put the name in quotes.")


def _number(value: Any, column: str) -> float:
    """A float; texts are read as numbers, since CSV has only texts and YAML takes 1e6 for one."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise _BadRecord(f"{column} is {_short(value)}, not a number", "Correct the value.")


def _whole(value: Any, column: str) -> int:
    """An int; pandas hands whole columns over as floats, so 1000.0 will do."""
    if isinstance(value, int) and not isinstance(value, bool):
        whole = value
    elif isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
        whole = int(value)
    else:
        number = _number(value, column)
        if not math.isfinite(number) or number != int(number):
            raise _BadRecord(f"{column} is {_short(value)}, not a whole number", "Correct the value.")
        whole = int(number)
    if abs(whole) > _MAX_WHOLE:
        raise _BadRecord(f"{column} is {_short(value)}, more than 2**63 - 1", "Correct the value.")
    return whole


def _reuse_bins(record: Record) -> tuple[float, ...] | None:
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
            value = json.loads(value)
        except ValueError:
            raise _BadRecord(f"reuse_bins is {_short(value)}, not a JSON list", "Write [0.5, 0.5, ...].") from None
    if not isinstance(value, list | tuple):
        raise _BadRecord(f"reuse_bins is {_short(value)}, not a list", f"Give {NUM_REUSE_BINS} shares or leave it out.")
    return tuple(_number(share, "a share of reuse_bins") for share in value)


def _short(value: Any) -> str:
    """One line of at most 60 characters for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


# Formats ------------------------------------------------------------------------------------------------------------


def _records_of(path: Path, content: Any) -> list[Any]:
    if isinstance(content, dict) and "tables" in content:
        content = content["tables"]
    if content is None:
        return []
    if not isinstance(content, list):
        raise BadFile(path, "holds neither a list of tables nor 'tables: [...]'", _MAKE_ANEW)
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not UTF-8 text: {_one_line(error)}", "Save it as UTF-8.") from error


def _read_json(path: Path) -> list[Any]:
    text = _text(path)
    if not text.strip():
        return []
    try:
        return _records_of(path, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"is not JSON: {_one_line(error)}", "Correct it there, or write the file anew.") from error


def _write_json(records: list[Record], path: Path) -> None:
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _read_yaml(path: Path) -> list[Any]:
    import yaml

    text = _text(path)
    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # The loader lets its own slips through, on a date such as 2024-13-45 or on "!!bool perhaps".
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise BadFile(path, f"is not YAML: {_one_line(error)}", "Correct it there, or write the file anew.") from error
    return _records_of(path, content)


def _write_yaml(records: list[Record], path: Path) -> None:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(records, Dumper=dumper, sort_keys=False, default_flow_style=None, width=120)
    path.write_text(text, encoding="utf-8")


def _read_csv(path: Path) -> list[Any]:
    lines = _text_lines(path)
    try:
        reader = csv.DictReader(lines, strict=True)
        header = list(reader.fieldnames or ())
        records = list(reader)
    except csv.Error as error:
        raise BadFile(path, f"is not CSV: {_one_line(error)}", "Correct it there, or write the file anew.") from error
    twice = next((column for column in header if header.count(column) > 1), None)
    if twice is not None:
        raise BadFile(path, f"column {twice!r} stands in the header twice", "Remove one.")
    for number, record in enumerate(records, start=1):
        if None in record or None in record.values():
            problem = f"has {'more' if None in record else 'fewer'} fields than the header's {len(header)}"
            raise BadFile(path, problem, "Correct the line; quote a field that holds commas.", f"record {number}")
    return records


def _text_lines(path: Path) -> list[str]:
    """Lines as the csv module wants them: a line break inside quotes stays as it is."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(file)
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not UTF-8 text: {_one_line(error)}", "Save it as UTF-8.") from error


def _write_csv(records: list[Record], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for record in records:
            bins = record["reuse_bins"]
            writer.writerow({**record, "reuse_bins": "" if bins is None else json.dumps(bins)})


def _read_parquet(path: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        records: list[Any] = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise BadFile(path, f"is not whole Parquet: {_one_line(error)}", "Write the file anew.") from error
    return records


def _write_parquet(records: list[Record], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = (pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.list_(pa.float64()), pa.int32())
    schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)


_FORMATS: dict[str, tuple[Callable[[Path], list[Any]], Callable[[list[Record], Path], None]]] = {
    ".yaml": (_read_yaml, _write_yaml),
    ".yml": (_read_yaml, _write_yaml),
    ".json": (_read_json, _write_json),
    ".csv": (_read_csv, _write_csv),
    ".parquet": (_read_parquet, _write_parquet),
}


def _format_of(path: Path) -> tuple[Callable[[Path], list[Any]], Callable[[list[Record], Path], None]]:
    if path.suffix.lower() not in _FORMATS:
        raise BadFile(path, f"unknown suffix {path.suffix!r}", f"Use one of {', '.join(_FORMATS)}.")
    return _FORMATS[path.suffix.lower()]
