"""Records of tables in YAML, JSON, CSV and Parquet, read and written as they are; values are not checked here.

YAML and JSON hold a list of records, or ``{"tables": [...]}``. In CSV a list is a JSON list in one column; the
histogram may also be 17 columns, ``reuse_bin_0`` to ``reuse_bin_16``. JSON and CSV need nothing beyond the standard
library.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from evenshard.tables.records import COLUMN_TYPES, TABLE_COLUMNS, RawTable
from evenshard.utils.errors import BadFile
from evenshard.utils.extras import require_package
from evenshard.utils.json_files import load_json
from evenshard.utils.limits import MAX_DECODED_BYTES, MAX_TABLES, MAX_VALUES, read_text
from evenshard.utils.messages import brief, cut, reason_of
from evenshard.utils.yaml_files import load_yaml

Reader = Callable[[Path], list[Any]]
Writer = Callable[[list[RawTable], Path], None]
# Most columns of a CSV or Parquet file; each that is not known is an error anyway.
MAX_COLUMNS = 1_000
# Most parts of a Parquet file's description of itself; pyarrow recurses for columns that stand in each other.
MAX_PARTS = 10_000
_WRITE_AGAIN = "Write the file again; its columns are " + ", ".join(TABLE_COLUMNS) + "."


def _records_of(path: Path, content: Any) -> list[Any]:
    if isinstance(content, dict) and "tables" in content:
        content = content["tables"]
    if content is None:
        return []
    if not isinstance(content, list):
        raise BadFile(path, "holds neither a list of tables nor 'tables: [...]'", _WRITE_AGAIN)
    return content


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except ValueError as error:
        raise BadFile(path, str(error), "Save it as UTF-8, or as Parquet where it is large.") from None


def _read_json(path: Path) -> list[Any]:
    text = _text(path)
    if not text.strip():
        return []
    try:
        content = load_json(text)
    except ValueError as error:
        raise BadFile(path, str(error), "Correct it there, or write the file again.") from None
    return _records_of(path, content)


def _write_json(records: list[RawTable], path: Path) -> None:
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _read_yaml(path: Path) -> list[Any]:
    text = _text(path)
    try:
        content = load_yaml(text)
    except ValueError as error:
        raise BadFile(path, f"not readable as YAML ({error})", "Correct it there, or write the file again.") from None
    return _records_of(path, content)


def _write_yaml(records: list[RawTable], path: Path) -> None:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(records, Dumper=dumper, sort_keys=False, default_flow_style=None, width=120)
    path.write_text(text, encoding="utf-8")


_NO_COMMAS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def read_csv(path: Path) -> list[Any]:
    """The records of a CSV file, all values texts; at most one more than ``MAX_TABLES``."""
    try:
        reader = csv.DictReader(StringIO(_text(path), newline=""), strict=True)
        header = list(reader.fieldnames or ())
        twice = next((column for column, times in Counter(header).items() if times > 1), None)
        if twice is not None:
            raise BadFile(path, f"column {brief(twice)} appears twice in the header", "Remove one.")
        if len(header) > MAX_COLUMNS:
            raise BadFile(path, f"has {len(header):,} columns, more than {MAX_COLUMNS:,}", _WRITE_AGAIN)
        if len(header) == 1 and (other := next((one for one in _NO_COMMAS if one in header[0]), None)):
            problem = f"its columns are separated by {_NO_COMMAS[other]}, not by commas"
            raise BadFile(path, problem, "Save it with commas, or as Parquet.")
        records = list(islice(reader, MAX_TABLES + 1))
    except csv.Error as error:
        raise BadFile(path, f"is not CSV: {reason_of(error)}", "Correct it there, or write the file again.") from error
    for number, record in enumerate(records, start=1):
        if None in record or None in record.values():
            problem = f"has {'more' if None in record else 'fewer'} fields than the header's {len(header)}"
            raise BadFile(path, problem, "Correct the line; quote a field that holds commas.", f"record {number}")
    return records


def _columns(records: list[RawTable]) -> list[str]:
    """The plain columns, and those in which some record says more."""
    return [column for column in TABLE_COLUMNS if any(column in record for record in records)]


def _write_csv(records: list[RawTable], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _columns(records))
        writer.writeheader()
        for record in records:
            writer.writerow({column: _csv_text(value) for column, value in record.items()})


def _csv_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | bool) else value


def _read_parquet(path: Path) -> list[Any]:
    require_package("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    records: list[Any] = []
    try:
        with pq.ParquetFile(path, pre_buffer=False, thrift_container_size_limit=MAX_PARTS) as file:
            _check_size(path, file.metadata)
            plain = pa.schema([(one.name, _plain_type(path, one)) for one in file.schema_arrow])
            num_bytes = 0
            for coded in file.iter_batches(_rows_at_a_time(file.metadata), use_threads=False):
                batch = coded.cast(plain)
                num_bytes += batch.nbytes
                if num_bytes > MAX_DECODED_BYTES:
                    raise _too_large(path)
                records += batch.to_pylist()
    # Texts that are not UTF-8, and dates that Python does not have, are found when they become Python's.
    except (pa.ArrowException, OSError, ValueError, ArithmeticError) as error:
        raise BadFile(path, f"is not whole Parquet: {reason_of(error)}", "Write the file again.") from error
    return records


def _check_size(path: Path, metadata: Any) -> None:
    """A few bytes of Parquet may stand for billions of values: those that it admits to are counted first."""
    if metadata.num_rows > MAX_TABLES:
        raise BadFile(path, f"holds {metadata.num_rows:,} tables, more than {MAX_TABLES:,}", "Give fewer.")
    if metadata.num_columns > MAX_COLUMNS:
        raise BadFile(path, f"has {metadata.num_columns:,} columns, more than {MAX_COLUMNS:,}", _WRITE_AGAIN)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    num_values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
    if num_values > MAX_VALUES or _num_bytes(metadata) > MAX_DECODED_BYTES:
        raise _too_large(path)


def value_type(kind: Any) -> Any:
    """The type of the values of a column, whether they stand in lists or alone."""
    import pyarrow.types as pt

    return kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind) else kind


def _plain_type(path: Path, field: Any) -> Any:
    """The type of a column without a dictionary, behind which a value may stand any number of times."""
    import pyarrow.types as pt

    kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
    inner = value_type(kind)
    if pt.is_nested(inner) or pt.is_dictionary(inner):
        raise BadFile(path, f"holds {cut(str(field.type))}", _WRITE_AGAIN, f"column {brief(field.name)}")
    return kind


def _rows_at_a_time(metadata: Any) -> int:
    """Few, where the file holds long texts: each row may repeat the longest of them."""
    return max(8, min(4096, 2**28 // max(1, _num_bytes(metadata))))


def _num_bytes(metadata: Any) -> int:
    """Size of the data without compression."""
    return sum(int(metadata.row_group(number).total_byte_size) for number in range(metadata.num_row_groups))


def _too_large(path: Path) -> BadFile:
    problem = f"holds more than {MAX_VALUES:,} values, or {MAX_DECODED_BYTES / 2**20:,.0f} MB of them"
    return BadFile(path, problem, _WRITE_AGAIN)


def _write_parquet(records: list[RawTable], path: Path) -> None:
    require_package("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "str": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "tuple[str, ...]": pa.list_(pa.string()),
        "tuple[float, ...]": pa.list_(pa.float64()),
    }
    type_of = {column: types[kind] for column, kind in COLUMN_TYPES.items()} | {"weight_bits": pa.int32()}
    schema = pa.schema([(column, type_of[column]) for column in _columns(records)])
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)


_FORMATS: dict[str, tuple[Reader, Writer]] = {
    ".yaml": (_read_yaml, _write_yaml),
    ".yml": (_read_yaml, _write_yaml),
    ".json": (_read_json, _write_json),
    ".csv": (read_csv, _write_csv),
    ".parquet": (_read_parquet, _write_parquet),
}
TABLE_SUFFIXES = tuple(_FORMATS)


def format_of(path: Path) -> tuple[Reader, Writer]:
    """How to read and how to write a file of this suffix.

    Raises:
        BadFile: unknown suffix. Reading raises it too, for a file that is not of its format.
    """
    if path.suffix.lower() not in _FORMATS:
        raise BadFile(path, f"unknown suffix {brief(path.suffix)}", f"Use one of {', '.join(_FORMATS)}.")
    return _FORMATS[path.suffix.lower()]
