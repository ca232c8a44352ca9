"""Row format of ``costs.parquet``, the measured costs: one row per device per measured placement.

Rows of one placement share a ``measurement_id``. Column ``tables`` lists the parts on the device, with the names of
``part_table``; a replica is listed on every device. The parts determine the sharding type. The metadata of the file
contain the unit of each column, and hardware, driver, libraries, commit and parameters. Rows are validated when they
are written and when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from evenshard.base.documents import load_json
from evenshard.base.errors import BadFile, MeasurementFailed, blame_file
from evenshard.base.installation import require_package
from evenshard.base.messages import brief, cut, reason_of
from evenshard.base.outputs import atomic_path
from evenshard.base.typed import record_of
from evenshard.placement.memory import optimizer_problem
from evenshard.price.costs import OK, OUT_OF_MEMORY, moment_problem, time_problem
from evenshard.price.evidence import DeviceError
from evenshard.price.hardware import provenance_problem

SCHEMA_VERSION = "2"  # changes with the columns; files of other versions are rejected
MAX_ROWS = 5_000_000  # limits memory: a tiny compressed file can contain billions of equal rows
_VERSION_KEY = b"evenshard_cost_schema"
_LINEAGE_KEY = b"evenshard_lineage"
REMEDY = "Measure it again with `evenshard benchmark`."

_ORIGINS = ("hardware", "driver", "versions")  # columns whose distinct values the lineage lists

TIMES = (
    *("fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms"),
    *("fwd_compute_spread_ms", "bwd_compute_spread_ms", "fwd_wait_ms", "input_dist_ms", "max_device_ms"),
)
# (type, unit) by name. A shard that does not fit has no times; a shard measured alone may have only max_device_ms.
_TEXT, _WHOLE, _NUMBER, _TEXTS = "string", "int64", "float64", "list of string"
COLUMNS: Mapping[str, tuple[str, str]] = {
    "measurement_id": (_TEXT, ""),
    "round": (_WHOLE, ""),
    "proposed_by": (_TEXT, ""),
    "task_id": (_TEXT, ""),
    "num_devices": (_WHOLE, "devices"),
    "devices_per_node": (_WHOLE, "devices"),
    "memory_cap_bytes": (_WHOLE, "bytes"),
    "batch_size": (_WHOLE, "samples"),
    "device_id": (_WHOLE, ""),
    "tables": (_TEXTS, ""),
    "status": (_TEXT, ""),
    **dict.fromkeys(TIMES, (_NUMBER, "ms")),
    **dict.fromkeys(("all_to_all", *_ORIGINS, "link"), (_TEXT, "")),
    "seed": (_WHOLE, ""),
    "repeats": (_WHOLE, ""),
    "measured_at": (_NUMBER, "seconds since 1970-01-01 UTC"),
    "device_error_percent": (_NUMBER, "%"),
    "device_error_points": (_WHOLE, ""),
    "optimizer": (_TEXT, ""),
}
_TYPES: Mapping[str, Any] = {_TEXT: str, _WHOLE: int, _NUMBER: float, _TEXTS: tuple[str, ...]}
_COMPUTE_TIMES = ("fwd_compute_ms", "bwd_compute_ms")
_Row = make_dataclass(
    "_Row", [(name, _TYPES[kind] | None if name in TIMES else _TYPES[kind]) for name, (kind, _) in COLUMNS.items()]
)


def save_rows(rows: Sequence[dict[str, Any]], lineage: Mapping[str, Any], path: Path) -> None:
    """Write the rows of a cost dataset (see ``COLUMNS``) and its ``Lineage`` as Parquet (needs pyarrow).

    Raises:
        MeasurementFailed: if a row holds an impossible value; an existing file is kept.
    """
    require_package("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    for row in rows:
        try:
            record_of(_Row, row)
            problem = _row_problem(row)
        except ValueError as error:  # a value whose type does not match its column
            problem = str(error)
        if problem:
            where = f"{brief(row['measurement_id'])}, device {row['device_id']}"
            raise MeasurementFailed(f"{path} was not written: in {where}, {problem}. Measure again.")
    origin = {**lineage, **{name: sorted({row[name] for row in rows}) for name in _ORIGINS}}
    schema = _schema().with_metadata({_VERSION_KEY: SCHEMA_VERSION, _LINEAGE_KEY: json.dumps(origin)})
    with atomic_path(path) as draft:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), draft)


def _schema() -> Any:
    import pyarrow as pa

    kinds = {_TEXT: pa.string(), _WHOLE: pa.int64(), _NUMBER: pa.float64(), _TEXTS: pa.list_(pa.string())}
    return pa.schema(
        [
            pa.field(name, kinds[kind], nullable=name in TIMES, metadata={"unit": unit} if unit else None)
            for name, (kind, unit) in COLUMNS.items()
        ]
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read and check a cost dataset (needs pyarrow): a dict of ``COLUMNS`` for each device of each placement.

    Raises:
        BadFile: if the file is missing, truncated or of another schema, or holds an impossible value. The message names
            the row (from 1) and the column.
    """
    with _open(path) as file:
        _check_schema(path, file.schema_arrow, file.metadata.num_rows)
        _parse_lineage(path, file.schema_arrow)  # validated with the rows
        table = file.read()
        table.validate(full=True)
        rows: list[dict[str, Any]] = table.to_pylist()
    seen: set[tuple[str, int]] = set()
    for number, row in enumerate(rows, start=1):
        problem = _row_problem(row)
        key = (row["measurement_id"], row["device_id"])
        if problem is None and key in seen:
            problem = f"measurement_id {brief(key[0])} with device_id {key[1]} occurs twice"
        if problem:
            raise BadFile(path, problem, REMEDY, f"row {number}")
        seen.add(key)
    return rows


@blame_file
def read_lineage(path: Path) -> dict[str, Any]:
    """Read the lineage of a cost dataset, such as its commit and hardware, without its rows (needs pyarrow).

    Keys: git_commit, params_hash, evenshard_version, and the lists hardware, driver and versions.

    Raises:
        BadFile: if the file is missing or truncated.
    """
    with _open(path) as file:
        return _parse_lineage(path, file.schema_arrow)


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    require_package("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except FileNotFoundError:
        raise BadFile(path, "no such file", REMEDY) from None
    except (pa.ArrowException, OSError, ValueError) as error:  # text that is not UTF-8 is a ValueError
        raise BadFile(path, f"not readable as Parquet ({reason_of(error)})", REMEDY) from None


def _check_schema(path: Path, schema: Any, num_rows: int) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY, b"none").decode(errors="replace")
    if version != SCHEMA_VERSION:
        raise BadFile(path, f"cost schema version is {cut(version)}, but this evenshard reads {SCHEMA_VERSION}", REMEDY)
    for field in _schema():
        if schema.names.count(field.name) != 1:
            raise BadFile(path, f"column {field.name} is missing or duplicated", REMEDY)
        found = schema.field(field.name).type
        if found != field.type:
            raise BadFile(path, f"column {field.name} is {cut(str(found))}, not {field.type}", REMEDY)
    unknown = next((name for name in schema.names if name not in COLUMNS), None)
    if unknown is not None:
        raise BadFile(path, f"column {cut(unknown)} is unknown", REMEDY)
    if num_rows > MAX_ROWS:
        raise BadFile(path, f"has {num_rows:,} rows, more than {MAX_ROWS:,}", REMEDY)


def _parse_lineage(path: Path, schema: Any) -> dict[str, Any]:
    try:
        lineage = record_of(dict[str, Any], load_json((schema.metadata or {}).get(_LINEAGE_KEY, b"{}")))
        origins = {name: lineage.pop(name) for name in _ORIGINS if name in lineage}
        return {**record_of(dict[str, str], lineage), **record_of(dict[str, list[str]], origins)}
    except ValueError as error:
        raise BadFile(path, f"its lineage is not readable ({reason_of(error)})", REMEDY) from None


def _row_problem(row: Mapping[str, Any]) -> str | None:
    ran = row["status"] == OK
    if not ran and row["status"] != OUT_OF_MEMORY:
        return f"status is {brief(row['status'])}, not {OK} or {OUT_OF_MEMORY}"
    may_be_empty = {"max_device_ms", *(_COMPUTE_TIMES if is_total(row) else ())} if ran else TIMES
    for column, value in row.items():
        if value is None:
            if column not in may_be_empty:
                return f"{column} is empty"
        elif column in TIMES:
            if problem := time_problem(column, value):
                return problem
            if not ran:
                return f"{column} is {value}, but status is {row['status']}"
    if problem := provenance_problem(row["hardware"]) or optimizer_problem(row["optimizer"]):
        return problem
    if problem := DeviceError(row["device_error_percent"], row["device_error_points"]).problem():
        return f"device_error_{problem}"
    for column in ("num_devices", "batch_size", "memory_cap_bytes"):
        if row[column] < 1:
            return f"{column} is {row[column]}, below 1"
    return moment_problem("measured_at", row["measured_at"])


def is_total(row: Mapping[str, Any]) -> bool:
    """Return True if the row is a shard measured alone, with only its total time."""
    other_times = (value for column, value in row.items() if column in TIMES and column != "max_device_ms")
    alone = row["num_devices"] == 1 and row["max_device_ms"] is not None
    return alone and all(row[part] is None for part in _COMPUTE_TIMES) and not any(other_times)
