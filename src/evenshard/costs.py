"""What does a placement cost? The records of one measurement, and the cost dataset they are kept in.

A cost dataset (``costs.parquet``) has one row per device per measured placement. Rows of one placement share a
``measurement_id``. Times are milliseconds of one training step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenshard.atomic import atomic_path
from evenshard.errors import BadFile
from evenshard.placement import Placement
from evenshard.tasks import PlacementTask

SCHEMA_VERSION = "1"
_VERSION_KEY = b"evenshard_cost_schema"


@dataclass(frozen=True)
class DeviceCost:
    """Times of one device in one training step, ms: medians over repeats.

    Attributes:
        fwd_compute_ms: the shard's fused embedding lookup and pooling.
        fwd_all_to_all_ms: exchange of pooled embeddings before the dense part.
        bwd_all_to_all_ms: exchange of their gradients after it.
        bwd_compute_ms: fused gradient and optimizer update.
        fwd_compute_spread_ms: distance between the 25th and 75th percentile, of the repeats of one visit or between
            visits, whichever is larger.
        bwd_compute_spread_ms: likewise, backward.
    """

    fwd_compute_ms: float
    fwd_all_to_all_ms: float
    bwd_all_to_all_ms: float
    bwd_compute_ms: float
    fwd_compute_spread_ms: float = 0.0
    bwd_compute_spread_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """The device's four times together."""
        return self.fwd_compute_ms + self.fwd_all_to_all_ms + self.bwd_all_to_all_ms + self.bwd_compute_ms


@dataclass(frozen=True)
class PlacementCost:
    """The measured cost of a placement.

    Attributes:
        devices: one cost per device, by device id.
        all_to_all: "modelled" where a link model gave the all-to-all times, "measured" where devices really exchanged.
    """

    devices: tuple[DeviceCost, ...]
    all_to_all: str

    @property
    def max_device_ms(self) -> float:
        """What a step waits for: the slowest device's four times (DreamShard, section 2; see docs/decisions)."""
        return max(device.total_ms for device in self.devices)


def interquartile_range(values: Sequence[float]) -> float:
    """Distance between the 25th and 75th percentile."""
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def combine_visits(visits: Sequence[PlacementCost]) -> PlacementCost:
    """The cost of a placement that was measured several times, at different moments: medians over the visits."""

    def over_visits(device: int) -> DeviceCost:
        def median_of(name: str) -> float:
            return float(np.median([getattr(visit.devices[device], name) for visit in visits]))

        def spread(name: str) -> float:
            between = interquartile_range([getattr(visit.devices[device], name) for visit in visits])
            return max(between, median_of(name.replace("_ms", "_spread_ms")))

        return DeviceCost(
            fwd_compute_ms=median_of("fwd_compute_ms"),
            fwd_all_to_all_ms=median_of("fwd_all_to_all_ms"),
            bwd_all_to_all_ms=median_of("bwd_all_to_all_ms"),
            bwd_compute_ms=median_of("bwd_compute_ms"),
            fwd_compute_spread_ms=spread("fwd_compute_ms"),
            bwd_compute_spread_ms=spread("bwd_compute_ms"),
        )

    return PlacementCost(tuple(over_visits(d) for d in range(len(visits[0].devices))), visits[0].all_to_all)


@dataclass(frozen=True)
class Provenance:
    """Where a measurement comes from: the columns every row repeats so that no row can lose its origin.

    Attributes:
        hardware: what ran, such as "cpu: AMD EPYC (1 thread)".
        versions: libraries (and the driver) as "torch 2.13.0, fbgemm_gpu 1.8.0".
        link: link model of the all-to-all times.
        seed: of the lookups.
        repeats: timed repeats behind each median.
    """

    hardware: str
    versions: str
    link: str
    seed: int
    repeats: int


@dataclass(frozen=True)
class MeasuredPlacement:
    """One measured placement of one task.

    Attributes:
        measurement_id: unique within a dataset.
        round: the round of the loop it was measured in; 0 for an evaluation.
        proposed_by: the sharder that made the placement.
    """

    measurement_id: str
    round: int
    proposed_by: str
    task: PlacementTask
    placement: Placement
    cost: PlacementCost
    provenance: Provenance


def _rows(measured: MeasuredPlacement) -> Iterable[dict[str, Any]]:
    task = measured.task
    for device_id, shard in enumerate(measured.placement.shards()):
        yield {
            "measurement_id": measured.measurement_id,
            "round": measured.round,
            "proposed_by": measured.proposed_by,
            "task_id": task.task_id,
            "num_devices": task.num_devices,
            "batch_size": task.batch_size,
            "device_id": device_id,
            "tables": [task.tables[position].name for position in shard],
            **asdict(measured.cost.devices[device_id]),
            "max_device_ms": measured.cost.max_device_ms,
            "all_to_all": measured.cost.all_to_all,
            **asdict(measured.provenance),
        }


def _schema() -> Any:
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    columns = {
        "measurement_id": text,
        "round": whole,
        "proposed_by": text,
        "task_id": text,
        "num_devices": whole,
        "batch_size": whole,
        "device_id": whole,
        "tables": pa.list_(text),
        "fwd_compute_ms": number,
        "fwd_all_to_all_ms": number,
        "bwd_all_to_all_ms": number,
        "bwd_compute_ms": number,
        "fwd_compute_spread_ms": number,
        "bwd_compute_spread_ms": number,
        "max_device_ms": number,
        "all_to_all": text,
        "hardware": text,
        "versions": text,
        "link": text,
        "seed": whole,
        "repeats": whole,
    }
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields, metadata={_VERSION_KEY: SCHEMA_VERSION.encode()})


def save_costs(measured: Sequence[MeasuredPlacement], path: Path) -> None:
    """Writes a cost dataset as Parquet (needs pyarrow)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([row for one in measured for row in _rows(one)], schema=_schema())
    with atomic_path(path) as draft:
        pq.write_table(table, draft)


def load_costs(path: Path, tasks: Sequence[PlacementTask]) -> tuple[MeasuredPlacement, ...]:
    """Reads a cost dataset back into records (needs pyarrow).

    Args:
        path: the Parquet file.
        tasks: the tasks its rows name.

    Raises:
        BadFile: if the file is missing, torn, of another schema, or a row holds an impossible value.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy = "Measure it again with `evenshard benchmark`."
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise BadFile(path, "no such file", remedy) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise BadFile(path, f"not readable as Parquet ({str(error).splitlines()[0]})", remedy) from None
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"none").decode()
    if version != SCHEMA_VERSION:
        raise BadFile(path, f"cost schema version is {version}, this evenshard reads {SCHEMA_VERSION}", remedy)
    missing = next((name for name in _schema().names if name not in table.column_names), None)
    if missing is not None:
        raise BadFile(path, f"column {missing} is missing", remedy)
    by_id = {task.task_id: task for task in tasks}
    groups: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(table.to_pylist(), start=1):
        problem = _row_problem(row, by_id)
        if problem:
            raise BadFile(path, problem, remedy, f"row {number}")
        groups.setdefault(row["measurement_id"], []).append(row)
    return tuple(_measured(path, rows, by_id[rows[0]["task_id"]]) for rows in groups.values())


def _row_problem(row: dict[str, Any], by_id: dict[str, PlacementTask]) -> str | None:
    for column, value in row.items():
        if value is None:
            return f"{column} is empty"
        if column.endswith("_ms") and not 0 <= value < float("inf"):
            return f"{column} is {value}, not a time"
    if row["task_id"] not in by_id:
        return f"task {row['task_id']!r} is not in the task file"
    task = by_id[row["task_id"]]
    for column in ("num_devices", "batch_size"):
        if row[column] != getattr(task, column):
            return f"{column} is {row[column]}, but {getattr(task, column)} in task {task.task_id}"
    return None


def _measured(path: Path, rows: list[dict[str, Any]], task: PlacementTask) -> MeasuredPlacement:
    first = rows[0]
    rows = sorted(rows, key=lambda row: int(row["device_id"]))
    placed = [(name, row["device_id"]) for row in rows for name in row["tables"]]
    device_of, names = dict(placed), [table.name for table in task.tables]
    each_table_once = sorted(name for name, _ in placed) == sorted(names)
    if [row["device_id"] for row in rows] != list(range(task.num_devices)) or not each_table_once:
        raise BadFile(
            path,
            f"its rows do not cover every device and table of task {task.task_id} exactly once",
            "Measure it again with `evenshard benchmark`.",
            f"measurement {first['measurement_id']}",
        )
    costs = tuple(DeviceCost(**{name: row[name] for name in DeviceCost.__dataclass_fields__}) for row in rows)
    return MeasuredPlacement(
        measurement_id=first["measurement_id"],
        round=first["round"],
        proposed_by=first["proposed_by"],
        task=task,
        placement=Placement(tuple(device_of[name] for name in names), task.num_devices),
        cost=PlacementCost(costs, first["all_to_all"]),
        provenance=Provenance(**{name: first[name] for name in Provenance.__dataclass_fields__}),
    )
