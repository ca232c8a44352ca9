"""Readers and writers of table records in YAML, JSON, CSV and Parquet; they do not check values.

A YAML or JSON file is a list of records, or ``{"tables": [...]}``. In CSV, a list is a JSON list in one column; the
histogram may also be 17 columns, ``reuse_bin_0`` to ``reuse_bin_16``. JSON and CSV need only the standard library.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from evenshard.base.documents import load_json, load_yaml, read_text
from evenshard.base.errors import BadFile
from evenshard.base.installation import require_package
from evenshard.base.knobs import MAX_TABLES, MAX_VALUES
from evenshard.base.messages import brief, reason_of
from evenshard.tables.records import COLUMN_TYPES, WRITE_AGAIN, RawTable, columns_of

Reader = Callable[[Path], list[Any]]
Writer = Callable[[list[RawTable], Path], None]
# Problem and remedy of a file that neither this module nor ``tools`` can read.
NO_TABLES = (
    "is neither a list of tables nor 'tables: [...]', TorchEasyRec config (feature_configs), HugeCTR model (layers), "
    "Merlin schema (feature) or list of sizes",
    "Write one record per table with name, num_rows and embedding_dim, as .yaml, .json, .csv or .parquet.",
)


def _read_document(path: Path, load: Callable[[str], Any], problem: str) -> list[Any]:
    text = _text(path)
    try:
        content = load(text) if text.strip() else None
    except ValueError as error:
        raise BadFile(path, problem.format(error), "Correct it, or write the file again.") from None
    if isinstance(content, dict) and "tables" in content:
        content = content["tables"]
    if content is None:
        return []
    if not isinstance(content, list):
        raise BadFile(path, *NO_TABLES)
    return content


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except ValueError as error:
        raise BadFile(path, str(error), "Save it as UTF-8, or as Parquet if it is large.") from None


def _write_json(records: list[RawTable], path: Path) -> None:
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _write_yaml(records: list[RawTable], path: Path) -> None:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(records, Dumper=dumper, sort_keys=False, default_flow_style=None, width=120)
    path.write_text(text, encoding="utf-8")


_SEPARATORS = ",;\t|"  # of CSV columns, by priority
_NOT_YAML = "not readable as YAML ({})"


def read_csv(path: Path) -> list[Any]:
    """Return the records of a CSV file with text values, at most ``MAX_TABLES + 1`` of them.

    The separator is the first of comma, semicolon, tab and bar that the header contains.
    """
    try:
        text = _text(path)
        first = text.lstrip().partition("\n")[0]
        separator = next((char for char in _SEPARATORS if char in first), ",")
        reader = csv.DictReader(StringIO(text, newline=""), strict=True, delimiter=separator)
        header = list(reader.fieldnames or ())
        twice = next((column for column, times in Counter(header).items() if times > 1), None)
        if twice is not None:
            raise BadFile(path, f"column {brief(twice)} appears twice in the header", "Remove one.")
        records = list(islice(reader, MAX_TABLES + 1))
    except csv.Error as error:
        raise BadFile(path, f"is not CSV: {reason_of(error)}", "Correct it, or write the file again.") from error
    for number, record in enumerate(records, start=1):
        if None in record or None in record.values():
            problem = f"has {'more' if None in record else 'fewer'} fields than the header's {len(header)}"
            raise BadFile(
                path, problem, f"Correct the line; quote a field that contains {separator!r}.", f"record {number}"
            )
    return records


def _write_csv(records: list[RawTable], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns_of(records))
        writer.writeheader()
        for record in records:
            as_json = {column: json.dumps(value) for column, value in record.items() if isinstance(value, list | bool)}
            writer.writerow(record | as_json)


def _read_parquet(path: Path) -> list[Any]:
    require_package("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_TABLES:
                problem = f"contains {file.metadata.num_rows:,} tables, more than {MAX_TABLES:,}"
                raise BadFile(path, problem, "Give fewer.")
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            if sum(group.column(at).num_values for group in groups for at in range(group.num_columns)) > MAX_VALUES:
                raise BadFile(path, f"contains more than {MAX_VALUES:,} values", WRITE_AGAIN)
            records: list[Any] = file.read().to_pylist()
    # Texts that are not UTF-8, and dates that Python lacks, raise only on conversion to Python.
    except (pa.ArrowException, OSError, ValueError, ArithmeticError) as error:
        raise BadFile(path, f"is not valid Parquet: {reason_of(error)}", "Write the file again.") from error
    return records


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
    schema = pa.schema([(column, type_of[column]) for column in columns_of(records)])
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)


_FORMATS: dict[str, tuple[Reader, Writer]] = {
    **dict.fromkeys((".yaml", ".yml"), (partial(_read_document, load=load_yaml, problem=_NOT_YAML), _write_yaml)),
    ".json": (partial(_read_document, load=load_json, problem="{}"), _write_json),
    ".csv": (read_csv, _write_csv),
    ".parquet": (_read_parquet, _write_parquet),
}
TABLE_SUFFIXES = tuple(_FORMATS)


def format_of(path: Path) -> tuple[Reader, Writer]:
    """Return the reader and the writer for a file's suffix; raise BadFile for an unknown suffix."""
    if path.suffix.lower() not in _FORMATS:
        raise BadFile(path, f"unknown suffix {brief(path.suffix)}", f"Use one of {', '.join(_FORMATS)}.")
    return _FORMATS[path.suffix.lower()]
