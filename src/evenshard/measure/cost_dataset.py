"""Conversion between measured costs and ``costs.parquet`` (see ``cost_rows``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.messages import brief, cut, reason_of
from evenshard.base.provenance import Lineage
from evenshard.measure.cost_rows import REMEDY, TIMES, is_total, read_rows, save_rows
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart, find_part, part_table, whole_part
from evenshard.placement.placement import parts_by_table, place_on_one_device
from evenshard.placement.sharding import sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.price import costs
from evenshard.price.kernel_calls import KernelCall, kernel_call
from evenshard.tables.table import SEQUENCE, Table


def save_costs(measured: Sequence[costs.MeasuredPlacement], path: Path, lineage: Lineage | None = None) -> None:
    """Write a cost dataset as Parquet (needs pyarrow), with the commit and parameters of ``lineage``."""
    save_rows([row for placement in measured for row in rows_of(placement)], asdict(lineage or Lineage()), path)


def rows_of(measured: costs.MeasuredPlacement) -> Iterable[dict[str, Any]]:
    """Yield the rows of a measured placement, one for each device."""
    task = measured.task
    by_name = {table.name: table for table in task.tables}
    tables_of: list[list[str]] = [[] for _ in range(task.num_devices)]
    for part in measured.parts:
        for device_id in part.devices:
            tables_of[device_id].append(part_table(part, by_name[part.table]).name)
    for device_id, names in enumerate(tables_of):
        device = asdict(measured.cost.devices[device_id])
        times = {name: device[name] if device["status"] == costs.OK else None for name in device if name in TIMES}
        yield {
            "measurement_id": measured.measurement_id,
            "round": measured.round,
            "proposed_by": measured.proposed_by,
            "task_id": task.task_id,
            "num_devices": task.num_devices,
            "devices_per_node": task.machine.devices_per_node,
            "memory_cap_bytes": task.memory_cap_bytes,
            "batch_size": task.batch_size,
            "device_id": device_id,
            "tables": names,
            **times,
            "status": device["status"],
            "max_device_ms": measured.cost.max_device_ms if measured.cost.fits else None,
            "all_to_all": measured.cost.all_to_all,
            **asdict(measured.provenance),
            "measured_at": measured.measured_at,
        }


@blame_file
def load_costs(path: Path, pool: Sequence[Table]) -> tuple[costs.MeasuredPlacement, ...]:
    """Read a cost dataset as measured placements for training a cost model (needs pyarrow).

    A placement with cut tables is split into placements of one device. Devices that do not look up all their parts in
    one fused call are dropped. ``read_placements`` does not split. The tables of a task are in the order of the pool.

    Raises:
        BadFile: see ``read_rows``; or if a row's table is missing from the pool, or the rows of a placement do not form
            one whole placement.
    """
    found: list[costs.MeasuredPlacement] = []
    for placement in read_placements(path, pool):
        found += [placement] if placement.task.is_whole else _split_by_device(placement)
    return tuple(found)


def read_placements(path: Path, pool: Sequence[Table]) -> Iterator[costs.MeasuredPlacement]:
    """Read all placements of a cost dataset, without splitting those with cut tables; see ``load_costs``."""
    by_name = {table.name: table for table in pool}
    return (_read_placement(path, rows, by_name) for rows in _group_rows(path, by_name))


def _split_by_device(measured: costs.MeasuredPlacement) -> Iterator[costs.MeasuredPlacement]:
    """Yield each device as a placement of its own, if it looks up all its parts in one fused call."""
    if not measured.cost.fits:
        return
    by_table = parts_by_table(measured.task, measured.parts)
    held: dict[int, list[tuple[KernelCall, Table]]] = {}
    for table in measured.task.tables:
        parts = by_table[table.name]
        call = kernel_call(table, sharding_type(parts, table, measured.task.machine))
        for part in parts:
            for device in part.devices:
                held.setdefault(device, []).append((call, part_table(part, table)))
    for device, of_device in sorted(held.items()):
        call = of_device[0][0]
        if call.is_dense or call.pooling == SEQUENCE or any(other != call for other, _ in of_device):
            continue
        cost = measured.cost.devices[device]
        name, whole = f"{measured.task.task_id}-device{device}", measured.task
        tables = tuple(table for _, table in of_device)
        task = ShardingTask.whole(name, tables, 1, whole.memory_cap_bytes, whole.batch_size)
        alone = replace(cost, fwd_all_to_all_ms=0.0, bwd_all_to_all_ms=0.0, fwd_wait_ms=0.0, input_dist_ms=0.0)
        yield replace(
            measured,
            measurement_id=f"{measured.measurement_id}-device{device}",
            proposed_by=costs.RANDOM_SHARD,
            task=task,
            parts=place_on_one_device(task).parts(task.tables),
            cost=costs.PlacementCost((alone,), measured.cost.all_to_all),
        )


_NumberedRows = list[tuple[int, dict[str, Any]]]


def _group_rows(path: Path, by_name: Mapping[str, Table]) -> Iterable[_NumberedRows]:
    groups: dict[str, _NumberedRows] = {}
    for number, row in enumerate(read_rows(path), start=1):
        missing = next((name for name in row["tables"] if find_part(name, by_name) is None), None)
        if missing is not None:
            remedy = "Use the table file that the costs were measured with."
            raise BadFile(
                path, f"column 'tables' lists {brief(missing)}, which is not in the table file", remedy, f"row {number}"
            )
        groups.setdefault(row["measurement_id"], []).append((number, row))
    return groups.values()


def _has_parts(rows: Sequence[Mapping[str, Any]], by_name: Mapping[str, Table]) -> bool:
    names = [name for row in rows for name in row["tables"]]
    # A table on every device is a replica, and only placements of parts have a measured input dist.
    on_all = bool(names) and len(rows) > 1 and max(Counter(names).values()) == len(rows)
    return on_all or any(name not in by_name for name in names) or any(row["input_dist_ms"] for row in rows)


# Columns with the same value in all rows of a placement.
_PLACEMENT_COLUMNS = (
    "round", "proposed_by", "task_id", "num_devices", "devices_per_node", "memory_cap_bytes", "batch_size",
    "max_device_ms", "all_to_all",
    *costs.Provenance.__dataclass_fields__, "measured_at",
)  # fmt: skip


def _read_placement(path: Path, numbered: _NumberedRows, by_name: Mapping[str, Table]) -> costs.MeasuredPlacement:
    rows = _check_rows(path, numbered)
    first = rows[0]
    devices_of: dict[TablePart, list[int]] = {}
    for row in rows:
        for name in row["tables"]:
            part = find_part(name, by_name)
            assert part is not None, "names were checked"
            devices_of.setdefault(part, []).append(row["device_id"])
    named = {part.table for part in devices_of}
    tables = tuple(table for table in by_name.values() if table.name in named)
    try:
        if _has_parts(rows, by_name):
            num_devices, link = first["num_devices"], first["link"]
            machine = Nodes(num_devices, first["devices_per_node"], intra=link, inter=link)
            if problem := machine.problem():
                raise BadConfig(problem)
            caps = (first["memory_cap_bytes"],) * num_devices
            of_step = (first["batch_size"], first["optimizer"])
            task = ShardingTask(tables, machine, caps, *of_step, task_id=first["task_id"])
            parts = tuple(replace(part, devices=tuple(devices)) for part, devices in devices_of.items())
            parts_by_table(task, parts)
        else:
            if any(len(devices) > 1 for devices in devices_of.values()):
                raise BadConfig(_INCOMPLETE)
            task = ShardingTask.whole(
                first["task_id"], tables, first["num_devices"], first["memory_cap_bytes"], first["batch_size"]
            )
            parts = tuple(whole_part(table, tuple(devices_of[whole_part(table)])) for table in tables)
    except BadConfig as error:
        raise BadFile(path, reason_of(error), REMEDY, f"measurement {first['measurement_id']}") from None
    of_job = (first["measurement_id"], first["round"], first["proposed_by"], task, parts)
    cost = costs.PlacementCost(tuple(map(_device_cost, rows)), first["all_to_all"])
    provenance = costs.Provenance(**{name: first[name] for name in costs.Provenance.__dataclass_fields__})
    return costs.MeasuredPlacement(*of_job, cost, provenance, first["measured_at"])


def _check_rows(path: Path, numbered: _NumberedRows) -> list[dict[str, Any]]:
    first = numbered[0][1]
    for number, row in numbered:
        differing = next((name for name in _PLACEMENT_COLUMNS if row[name] != first[name]), None)
        if differing is not None:
            problem = (
                f"{differing} is {brief(row[differing])}, but {brief(first[differing])} in another row of "
                f"{cut(row['measurement_id'])}"
            )
            raise BadFile(path, problem, REMEDY, f"row {number}")
    rows = sorted((row for _, row in numbered), key=lambda row: int(row["device_id"]))
    of = f"measurement {first['measurement_id']}"
    each_device_once = len(rows) == first["num_devices"] and [row["device_id"] for row in rows] == [*range(len(rows))]
    if not each_device_once or not any(row["tables"] for row in rows):
        raise BadFile(path, _INCOMPLETE, REMEDY, of)
    if (first["max_device_ms"] is None) == all(row["status"] == costs.OK for row in rows):
        problem = f"max_device_ms is {first['max_device_ms']}, which contradicts the status of its rows"
        raise BadFile(path, problem, REMEDY, of)
    return rows


_INCOMPLETE = "its rows do not cover every device and table exactly once"


def _device_cost(row: Mapping[str, Any]) -> costs.DeviceCost:
    if row["status"] == costs.OUT_OF_MEMORY:
        return costs.DeviceCost.out_of_memory()
    if is_total(row):
        return costs.DeviceCost.of_total(row["max_device_ms"])
    return costs.DeviceCost(**{name: row[name] for name in costs.DeviceCost.__dataclass_fields__ if name in row})
