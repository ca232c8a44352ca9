"""How do records of tables stand in YAML, JSON, CSV and Parquet? Read and written as they are, values unchecked.

YAML and JSON hold a list of records, or ``{"tables": [...]}``. In CSV the histogram is a JSON list in one column, or 17
columns ``reuse_bin_0`` to ``reuse_bin_16``. JSON and CSV need nothing beyond the standard library.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenshard.errors import BadFile
from evenshard.messages import reason_of
from evenshard.plain_yaml import load_yaml
from evenshard.reuse import NUM_REUSE_BINS

REQUIRED_COLUMNS = ("name", "num_rows", "embedding_dim", "pooling_factor")
COLUMNS = (*REQUIRED_COLUMNS, "reuse_bins", "weight_bits")
REUSE_COLUMNS = tuple(f"reuse_bin_{number}" for number in range(NUM_REUSE_BINS))

Record = dict[Any, Any]
Reader = Callable[[Path], list[Any]]
Writer = Callable[[list[Record], Path], None]
_MAKE_ANEW = "Write the file anew; its columns are " + ", ".join(COLUMNS) + "."


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
        raise BadFile(path, f"is not UTF-8 text: {reason_of(error)}", "Save it as UTF-8.") from error


def _read_json(path: Path) -> list[Any]:
    text = _text(path)
    if not text.strip():
        return []
    try:
        return _records_of(path, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"is not JSON: {reason_of(error)}", "Correct it there, or write the file anew.") from error


def _write_json(records: list[Record], path: Path) -> None:
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _read_yaml(path: Path) -> list[Any]:
    text = _text(path)
    try:
        content = load_yaml(text)
    except ValueError as error:
        raise BadFile(path, f"is not YAML: {reason_of(error)}", "Correct it there, or write the file anew.") from error
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
        raise BadFile(path, f"is not CSV: {reason_of(error)}", "Correct it there, or write the file anew.") from error
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
        raise BadFile(path, f"is not UTF-8 text: {reason_of(error)}", "Save it as UTF-8.") from error


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
        raise BadFile(path, f"is not whole Parquet: {reason_of(error)}", "Write the file anew.") from error
    return records


def _write_parquet(records: list[Record], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = (pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.list_(pa.float64()), pa.int32())
    schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
    pq.write_table(pa.Table.from_pylist(records, schema=schema), path)


_FORMATS: dict[str, tuple[Reader, Writer]] = {
    ".yaml": (_read_yaml, _write_yaml),
    ".yml": (_read_yaml, _write_yaml),
    ".json": (_read_json, _write_json),
    ".csv": (_read_csv, _write_csv),
    ".parquet": (_read_parquet, _write_parquet),
}
TABLE_SUFFIXES = tuple(_FORMATS)


def format_of(path: Path) -> tuple[Reader, Writer]:
    """How to read and how to write a file of this suffix.

    Raises:
        BadFile: unknown suffix. Reading raises it too, for a file that is not of its format.
    """
    if path.suffix.lower() not in _FORMATS:
        raise BadFile(path, f"unknown suffix {path.suffix!r}", f"Use one of {', '.join(_FORMATS)}.")
    return _FORMATS[path.suffix.lower()]
