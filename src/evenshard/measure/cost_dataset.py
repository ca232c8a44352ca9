"""The file of measured costs, ``costs.parquet``: one row per device per measured placement.

Rows of one placement share a ``measurement_id``. Every column has its unit in its field metadata, and the file says
which hardware, driver, libraries, commit and parameters made it. A file is checked as a whole when it is read, and by
the same rules before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenshard.measure.costs import (
    OK,
    OUT_OF_MEMORY,
    DeviceCost,
    MeasuredPlacement,
    PlacementCost,
    Provenance,
    moment_problem,
    time_problem,
)
from evenshard.measure.evidence import DeviceError
from evenshard.measure.hardware import provenance_problem
from evenshard.placement.optimizer_state import SGD, optimizer_problem
from evenshard.placement.placement import Placement
from evenshard.placement.task import PlacementTask
from evenshard.tables.table import Table
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile, MeasurementFailed
from evenshard.utils.extras import require_package
from evenshard.utils.json_files import load_json
from evenshard.utils.messages import brief, cut, reason_of
from evenshard.utils.provenance import Lineage
from evenshard.utils.records import as_type

SCHEMA_VERSION = "2"
MAX_ROWS = 5_000_000  # a file of a few bytes may say that a row comes a billion times
_VERSION_KEY = b"evenshard_cost_schema"
_LINEAGE_KEY = b"evenshard_lineage"
_REMEDY = "Measure it again with `evenshard benchmark`."

_ORIGINS = ("hardware", "driver", "versions")
"""Lists in the lineage; everything else there is a text."""

# name: (type, unit). A shard that ran out of memory has no times. Of one alone on a device, perhaps only the sum of
# forward and backward is known: then that is its max_device_ms, and the two parts are empty.
_TEXT, _WHOLE, _NUMBER, _TEXTS = "string", "int64", "float64", "list of string"
COLUMNS: Mapping[str, tuple[str, str]] = {
    "measurement_id": (_TEXT, ""),
    "round": (_WHOLE, ""),
    "proposed_by": (_TEXT, ""),
    "task_id": (_TEXT, ""),
    "num_devices": (_WHOLE, "devices"),
    "memory_cap_bytes": (_WHOLE, "bytes"),
    "batch_size": (_WHOLE, "samples"),
    "device_id": (_WHOLE, ""),
    "tables": (_TEXTS, ""),
    "status": (_TEXT, ""),
    "fwd_compute_ms": (_NUMBER, "ms"),
    "fwd_all_to_all_ms": (_NUMBER, "ms"),
    "bwd_all_to_all_ms": (_NUMBER, "ms"),
    "bwd_compute_ms": (_NUMBER, "ms"),
    "fwd_compute_spread_ms": (_NUMBER, "ms"),
    "bwd_compute_spread_ms": (_NUMBER, "ms"),
    "fwd_wait_ms": (_NUMBER, "ms"),
    "max_device_ms": (_NUMBER, "ms"),
    "all_to_all": (_TEXT, ""),
    "hardware": (_TEXT, ""),
    "driver": (_TEXT, ""),
    "versions": (_TEXT, ""),
    "link": (_TEXT, ""),
    "seed": (_WHOLE, ""),
    "repeats": (_WHOLE, ""),
    "measured_at": (_NUMBER, "seconds since 1970-01-01 UTC"),
    "device_error_percent": (_NUMBER, "%"),
    "device_error_points": (_WHOLE, ""),
    "optimizer": (_TEXT, ""),
}
_LATER: Mapping[str, Any] = {"device_error_percent": 0.0, "device_error_points": 0, "optimizer": SGD}
"""Columns that the first files do not have, and what stands for them."""
_TYPES: Mapping[str, Any] = {_TEXT: str, _WHOLE: int, _NUMBER: float, _TEXTS: tuple[str, ...]}
TIMES = tuple(name for name in COLUMNS if name.endswith("_ms"))
_PARTS = ("fwd_compute_ms", "bwd_compute_ms")


def save_costs(measured: Sequence[MeasuredPlacement], path: Path, lineage: Lineage | None = None) -> None:
    """Writes a cost dataset as Parquet (needs pyarrow).

    Args:
        lineage: the code and the parameters behind it, for the file's metadata.
    """
    save_rows([row for one in measured for row in _rows(one)], asdict(lineage or Lineage()), path)


def save_rows(rows: Sequence[dict[str, Any]], lineage: Mapping[str, Any], path: Path) -> None:
    """Writes the rows of a cost dataset (see ``COLUMNS``) as Parquet (needs pyarrow).

    Args:
        lineage: the fields of a ``Lineage``; hardware, driver and versions come from the rows.

    Raises:
        MeasurementFailed: if a row holds an impossible value; an older file stays as it was.
    """
    require_package("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    for row in rows:
        if problem := _type_problem(row) or _row_problem(row):
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


def _rows(measured: MeasuredPlacement) -> Iterable[dict[str, Any]]:
    task, cost = measured.task, measured.cost
    for device_id, shard in enumerate(measured.placement.shards()):
        device = asdict(cost.devices[device_id])
        times = {name: device[name] if device["status"] == OK else None for name in device if name in TIMES}
        yield {
            "measurement_id": measured.measurement_id,
            "round": measured.round,
            "proposed_by": measured.proposed_by,
            "task_id": task.task_id,
            "num_devices": task.num_devices,
            "memory_cap_bytes": task.memory_cap_bytes,
            "batch_size": task.batch_size,
            "device_id": device_id,
            "tables": [task.tables[position].name for position in shard],
            **times,
            "status": device["status"],
            "max_device_ms": cost.max_device_ms if cost.fits else None,
            "all_to_all": cost.all_to_all,
            **asdict(measured.provenance),
            "measured_at": measured.measured_at,
        }


@dataclass(frozen=True)
class CostRows:
    """The checked content of a cost dataset, as it stands in the file.

    Attributes:
        rows: one dict per device per measured placement; the keys are those of ``COLUMNS``.
        lineage: git_commit, params_hash, evenshard_version; lists of hardware, driver and versions.
    """

    rows: list[dict[str, Any]]
    lineage: dict[str, Any]


def read_rows(path: Path) -> CostRows:
    """Reads and checks a cost dataset (needs pyarrow).

    Raises:
        BadFile: if the file is missing, torn, of another schema, or a row holds an impossible value; the message names
            row (from 1) and column.
    """
    with _reading(path), _opened(path) as file:
        schema = file.schema_arrow
        _check_schema(path, schema, file.metadata.num_rows)
        table = file.read()
        table.validate(full=True)
        rows = table.to_pylist()
    seen: set[tuple[str, int]] = set()
    for number, row in enumerate(rows, start=1):
        row.update({name: value for name, value in _LATER.items() if name not in row})
        problem = _row_problem(row)
        key = (row["measurement_id"], row["device_id"])
        if problem is None and key in seen:
            problem = f"measurement_id {brief(key[0])} with device_id {key[1]} is there twice"
        if problem:
            raise BadFile(path, problem, _REMEDY, f"row {number}")
        seen.add(key)
    return CostRows(rows, _lineage(path, schema))


def read_lineage(path: Path) -> dict[str, Any]:
    """What the file says about its origin (``CostRows.lineage``), without reading its rows (needs pyarrow).

    Raises:
        BadFile: if the file is missing or torn.
    """
    with _reading(path), _opened(path) as file:
        return _lineage(path, file.schema_arrow)


def _opened(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    require_package("pyarrow")
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise BadFile(path, "no such file", _REMEDY) from None
    except (pa.ArrowException, OSError, ValueError) as error:  # text that is not UTF-8 is a ValueError
        raise BadFile(path, f"not readable as Parquet ({reason_of(error)})", _REMEDY) from None


def _check_schema(path: Path, schema: Any, num_rows: int) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY, b"none").decode(errors="replace")
    if version != SCHEMA_VERSION:
        raise BadFile(path, f"cost schema version is {cut(version)}, this evenshard reads {SCHEMA_VERSION}", _REMEDY)
    for field in _schema():
        if field.name in _LATER and field.name not in schema.names:
            continue
        if schema.names.count(field.name) != 1:
            raise BadFile(path, f"column {field.name} is missing or duplicated", _REMEDY)
        found = schema.field(field.name).type
        if found != field.type:
            raise BadFile(path, f"column {field.name} is {cut(str(found))}, not {field.type}", _REMEDY)
    unknown = next((name for name in schema.names if name not in COLUMNS), None)
    if unknown is not None:
        raise BadFile(path, f"column {cut(unknown)} is unknown", _REMEDY)
    if num_rows > MAX_ROWS:
        raise BadFile(path, f"has {num_rows:,} rows, more than {MAX_ROWS:,}", _REMEDY)


def _lineage(path: Path, schema: Any) -> dict[str, Any]:
    try:
        lineage: dict[str, Any] = as_type(
            load_json((schema.metadata or {}).get(_LINEAGE_KEY, b"{}")), dict[str, Any], "it"
        )
        for name, value in lineage.items():
            as_type(value, tuple[str, ...] if name in _ORIGINS else str, name)
    except ValueError as error:
        raise BadFile(path, f"its lineage is not readable ({reason_of(error)})", _REMEDY) from None
    return lineage


def _type_problem(row: Mapping[str, Any]) -> str | None:
    """Says in one clause which value Parquet's column would not take, or None."""
    for column, value in row.items():
        try:
            if value is not None or column not in TIMES:
                as_type(value, _TYPES[COLUMNS[column][0]], column)
        except ValueError as error:
            return str(error)
        if isinstance(value, int) and value.bit_length() > 63:
            return f"{column} is {brief(value)}, which is too large"
    return None


def _row_problem(row: Mapping[str, Any]) -> str | None:
    """Says in one clause what makes a row impossible, or None."""
    ran = row["status"] == OK
    if not ran and row["status"] != OUT_OF_MEMORY:
        return f"status is {brief(row['status'])}, not {OK} or {OUT_OF_MEMORY}"
    may_be_empty = {"max_device_ms", *(_PARTS if _is_total(row) else ())} if ran else TIMES
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


def _is_total(row: Mapping[str, Any]) -> bool:
    """Whether the row is of a shard that was alone on a device and was timed as a whole."""
    other_times = (value for column, value in row.items() if column in TIMES and column != "max_device_ms")
    alone = row["num_devices"] == 1 and row["max_device_ms"] is not None
    return alone and all(row[part] is None for part in _PARTS) and not any(other_times)


def load_costs(path: Path, pool: Sequence[Table]) -> tuple[MeasuredPlacement, ...]:
    """Reads a cost dataset back into records (needs pyarrow).

    Args:
        path: the Parquet file.
        pool: the tables its rows name. A task's tables come back in the order of the pool.

    Raises:
        BadFile: see ``read_rows``; or if a row names a table that the pool does not hold, or the rows of a placement do
            not make up one whole placement.
    """
    position_of = {table.name: position for position, table in enumerate(pool)}
    groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, row in enumerate(read_rows(path).rows, start=1):
        missing = next((name for name in row["tables"] if name not in position_of), None)
        if missing is not None:
            remedy = "Use the tables it was measured with."
            raise BadFile(
                path, f"tables names {brief(missing)}, which is not in the table file", remedy, f"row {number}"
            )
        groups.setdefault(row["measurement_id"], []).append((number, row))
    return tuple(_measured(path, rows, pool, position_of) for rows in groups.values())


_OF_THE_PLACEMENT = (
    "round", "proposed_by", "task_id", "num_devices", "memory_cap_bytes", "batch_size", "max_device_ms", "all_to_all",
    *Provenance.__dataclass_fields__, "measured_at",
)  # fmt: skip


def _measured(
    path: Path, numbered: list[tuple[int, dict[str, Any]]], pool: Sequence[Table], position_of: Mapping[str, int]
) -> MeasuredPlacement:
    first = numbered[0][1]
    for number, row in numbered:
        differing = next((name for name in _OF_THE_PLACEMENT if row[name] != first[name]), None)
        if differing is not None:
            problem = (
                f"{differing} is {brief(row[differing])}, but {brief(first[differing])} elsewhere in "
                f"{cut(row['measurement_id'])}"
            )
            raise BadFile(path, problem, _REMEDY, f"row {number}")
    rows = sorted((row for _, row in numbered), key=lambda row: int(row["device_id"]))
    device_of = {position_of[name]: row["device_id"] for row in rows for name in row["tables"]}
    each_table_once = len(device_of) == sum(len(row["tables"]) for row in rows)
    each_device_once = len(rows) == first["num_devices"] and [row["device_id"] for row in rows] == [*range(len(rows))]
    if not device_of or not each_table_once or not each_device_once:
        raise BadFile(
            path,
            "its rows do not cover every device and table exactly once",
            _REMEDY,
            f"measurement {first['measurement_id']}",
        )
    if (first["max_device_ms"] is None) == all(row["status"] == OK for row in rows):
        problem = f"max_device_ms is {first['max_device_ms']}, which its rows' status does not allow"
        raise BadFile(path, problem, _REMEDY, f"measurement {first['measurement_id']}")
    positions = sorted(device_of)
    try:
        task = PlacementTask(
            task_id=first["task_id"],
            tables=tuple(pool[position] for position in positions),
            num_devices=first["num_devices"],
            memory_cap_bytes=first["memory_cap_bytes"],
            batch_size=first["batch_size"],
        )
    except BadConfig as error:
        raise BadFile(path, reason_of(error), _REMEDY, f"measurement {first['measurement_id']}") from None
    return MeasuredPlacement(
        measurement_id=first["measurement_id"],
        round=first["round"],
        proposed_by=first["proposed_by"],
        task=task,
        placement=Placement(tuple(device_of[position] for position in positions), task.num_devices),
        cost=PlacementCost(tuple(_device_cost(row) for row in rows), first["all_to_all"]),
        provenance=Provenance(**{name: first[name] for name in Provenance.__dataclass_fields__}),
        measured_at=first["measured_at"],
    )


def _device_cost(row: Mapping[str, Any]) -> DeviceCost:
    if row["status"] == OUT_OF_MEMORY:
        return DeviceCost.out_of_memory()
    if _is_total(row):
        return DeviceCost.of_total(row["max_device_ms"])
    return DeviceCost(**{name: row[name] for name in DeviceCost.__dataclass_fields__ if name in row})
