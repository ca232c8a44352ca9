"""Placements of whole tables, and the ONLY rule of which placements are legal: within a task's memory and its rules.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.messages import brief, cut, printable
from evenshard.base.units import gb_text
from evenshard.placement.parts import ON_DEVICE, TablePart, whole_part
from evenshard.placement.sharding import ROWS_ALONE, sharding_problem, sharding_type, ways_of
from evenshard.placement.task import (
    ShardingTask,
    cut_by_rows,
    ruled_out,
    used_bytes,
    used_host_bytes,
    used_ssd_bytes,
    width_problem,
)
from evenshard.tables.table import MEAN, Table


@dataclass(frozen=True)
class Placement:
    """The answer of a sharder to a task with whole tables; other modules only use its ``parts``."""

    device_of_table: tuple[int, ...]  # device id of each table, in the order of ``task.tables``
    num_devices: int  # number of devices in the task; some may be empty

    @staticmethod
    def of(task: ShardingTask, parts: Sequence[TablePart]) -> Placement:
        """Return the placement given by parts that are the whole tables of a task, in order."""
        assert [part.table for part in parts] == [table.name for table in task.tables], "parts are whole, and in order"
        return Placement(tuple(part.device for part in parts), task.num_devices)

    def shards(self) -> tuple[tuple[int, ...], ...]:
        """Return table positions (indices into ``task.tables``) by device."""
        shards: list[list[int]] = [[] for _ in range(self.num_devices)]
        for position, device in enumerate(self.device_of_table):
            shards[device].append(position)
        return tuple(tuple(shard) for shard in shards)

    def shards_of(self, tables: Sequence[Table]) -> tuple[tuple[Table, ...], ...]:
        """Return the tables of each device, by device id."""
        return tuple(tuple(tables[position] for position in shard) for shard in self.shards())

    def parts(self, tables: Sequence[Table]) -> tuple[TablePart, ...]:
        """Return each table as one part on its device.

        Raises:
            BadConfig: if the placement has a different number of tables.
        """
        if len(self.device_of_table) != len(tables):
            raise BadConfig(
                f"the placement has {len(self.device_of_table)} tables, but {len(tables)} tables are given. "
                f"Give the tables of its task, in their order."
            )
        return tuple(whole_part(table, (device,)) for table, device in zip(tables, self.device_of_table, strict=True))


def alone(task: ShardingTask) -> Placement:
    """Return the placement with all tables on the first device."""
    return Placement((0,) * len(task.tables), task.num_devices)


# Legality -------------------------------------------------------------------------------------------------------------


def parts_by_table(task: ShardingTask, parts: Sequence[TablePart]) -> dict[str, tuple[TablePart, ...]]:
    """Group parts by table, in the order of the task, each by columns, then rows.

    Raises:
        BadConfig: if a part has no table or device in the task, or a table's parts match no sharding type.
    """
    found = grouped_parts(task.tables, task.num_devices, parts)
    for table in task.tables:
        if problem := sharding_problem(found[table.name], table, task.machine):
            raise BadConfig(f"table {brief(table.name)} {problem}")
    return found


def grouped_parts(
    tables: Sequence[Table], num_devices: int, parts: Sequence[TablePart]
) -> dict[str, tuple[TablePart, ...]]:
    """Group parts by table, each by columns, then rows, without a check of the sharding type.

    Raises:
        BadConfig: if a part has no table or device.
    """
    found: dict[str, list[TablePart]] = {table.name: [] for table in tables}
    for part in parts:
        if part.table not in found:
            raise BadConfig(
                f"a part is of the table {brief(part.table)}, which is not among the tables. Correct its name."
            )
        wrong = next((device for device in part.devices if not 0 <= device < num_devices), None)
        if wrong is not None:
            raise BadConfig(
                f"table {brief(part.table)} is on device {wrong}, but the devices are 0 to {num_devices - 1}. "
                f"Place it again."
            )
        found[part.table].append(part)
    return {name: tuple(sorted(own, key=lambda part: (part.columns, part.rows))) for name, own in found.items()}


def check_sharding(task: ShardingTask, parts: Sequence[TablePart]) -> None:
    """Raise InfeasibleTask if the parts break the task's memory or rules; BadConfig if they are ill-formed."""
    by_table = parts_by_table(task, parts)
    if (broken := broken_rule(task, by_table)) is not None:
        raise InfeasibleTask(f"{broken}. Place it again.")
    check_parts_memory(task, parts)


def is_legal_sharding(task: ShardingTask, parts: Sequence[TablePart]) -> bool:
    """Return True if the parts fit, keep the task's rules, and match a sharding type."""
    try:
        check_sharding(task, parts)
    except (BadConfig, InfeasibleTask):
        return False
    return True


def check_placement(task: ShardingTask, placement: Placement) -> None:
    """Raise InfeasibleTask, with the task's name, if a placement of whole tables breaks its memory limits or rules."""
    try:
        check_sharding(task, placement.parts(task.tables))
    except InfeasibleTask as error:
        raise InfeasibleTask(f"{cut(task.task_id)}: {error.problem}", error.remedy) from None


def check_parts_memory(task: ShardingTask, parts: Sequence[TablePart]) -> None:
    """Raise InfeasibleTask if a device or a host exceeds its available memory; rules are not checked."""
    for device, (used, room) in enumerate(zip(used_bytes(task, parts), task.room_bytes, strict=True)):
        if used > room:
            raise InfeasibleTask(
                f"device {device} would hold {gb_text(used)}, but has {gb_text(room)}. Raise "
                f"memory_cap_gb or num_devices."
            )
    if all(part.storage == ON_DEVICE for part in parts):
        return
    machine = task.machine
    for what, knob, all_used, rooms in (
        ("memory", "host_memory_gb", used_host_bytes(task, parts), machine.host_bytes),
        ("SSDs", "ssd_gb", used_ssd_bytes(task, parts), machine.ssd_bytes),
    ):
        for node, used in enumerate(all_used):
            if used > (room := rooms[node] if rooms else 0):
                raise InfeasibleTask(
                    f"host {node} would hold {gb_text(used)} in its {what}, but has "
                    f"{gb_text(room)}. Raise {knob} or num_devices."
                )


def means_in_rows(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> set[tuple[str, bool, bool]]:
    """Return the collections with MEAN tables whose tables a placement all cuts by rows."""
    collections = {table.collection for table in task.tables if table.pooling == MEAN and task.num_devices > 1}
    for at, table in enumerate(task.tables):
        if table.collection in collections:
            ways = ways_of(by_table[table.name], table, task.machine)
            if not ways & task.limits_of(at).types & {*ROWS_ALONE}:
                collections.discard(table.collection)
    return collections


def as_cut(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> ShardingTask:
    """Return the task in which collections with MEAN tables that a placement cuts by rows must stay cut by rows.

    The placement is legal in this task, where such tables may not have any other type.
    """
    return cut_by_rows(task, means_in_rows(task, by_table))


def broken_rule(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> str | None:
    """Return the first rule that parts break as a clause, memory not checked; None if they break no rule."""
    task = as_cut(task, by_table)
    devices_of = [{device for part in by_table[table.name] for device in part.devices} for table in task.tables]
    for position, table in enumerate(task.tables):
        if (broken := broken_limit(task, position, by_table[table.name])) is not None:
            return broken
    for group in task.together:
        if len({tuple(sorted(devices_of[position])) for position in group}) > 1:
            return f"tables {_names(task, group)} are not together"
    for group in task.apart:
        if len(set().union(*(devices_of[position] for position in group))) < sum(len(devices_of[p]) for p in group):
            return f"tables {_names(task, group)} are not apart"
    return None


def broken_limit(task: ShardingTask, position: int, parts: Sequence[TablePart]) -> str | None:
    """Return the first limit that a table's parts break as a clause; None if they break no limit."""
    table, limits = task.tables[position], task.limits_of(position)
    if problem := width_problem(task, max(part.columns.size for part in parts)):
        whole = "" if problem == width_problem(task, table.embedding_dim) else "a part of "
        return f"{whole}table {brief(table.name)} cannot be trained: {problem}"
    ways = ways_of(parts, table, task.machine)
    if not ways & limits.types:
        way = sharding_type(parts, table, task.machine)
        return f"table {brief(table.name)} is sharded {way}, allowed are {', '.join(sorted(limits.types))}"
    if not ways & task.types[position]:
        way = min(ways & limits.types)
        return f"table {brief(table.name)} is sharded {way}, but {ruled_out(task, position)[way]}"
    kernel = parts[0].storage.kernel
    if kernel not in task.kernels_of(position):
        return f"table {brief(table.name)} is kept as {kernel}, allowed are {', '.join(task.kernels_of(position))}"
    allowed = range(task.num_devices) if limits.devices is None else limits.devices
    if wrong := [device for part in parts for device in part.devices if device not in allowed]:
        listed = brief(sorted(allowed)) if allowed else "none"
        return f"table {brief(table.name)} is on device {min(wrong)}, allowed are {listed}"
    narrowest = min(part.columns.size for part in parts)
    if narrowest < min(limits.min_columns, table.embedding_dim):
        asked = f"where at least {limits.min_columns} are asked"
        return f"table {brief(table.name)} has a part of {narrowest} columns, {asked}"
    return None


def _names(task: ShardingTask, group: Sequence[int]) -> str:
    return cut(printable(", ".join(task.tables[position].name for position in group)))


# Tables that are moved together ---------------------------------------------------------------------------------------


def legal_mask(used_bytes: Any, table_bytes: Any, memory_cap_bytes: Any) -> Any:
    """Return True where a table still fits; elementwise on numbers, NumPy arrays or torch tensors that broadcast."""
    return used_bytes + table_bytes <= memory_cap_bytes


def caps_text(room_bytes: Sequence[int]) -> str:
    """Return the available memory of the devices as a clause."""
    least, most = min(room_bytes), max(room_bytes)
    return f"cap {gb_text(most)} each" if least == most else f"caps {gb_text(least)} to {gb_text(most)}"


def canonical_devices(devices: Sequence[int], kinds: Sequence[int]) -> list[int]:
    """Renumber devices of the same kind (``moves.device_kinds``) in the order of their first table."""
    left = {kind: iter([device for device, one in enumerate(kinds) if one == kind]) for kind in set(kinds)}
    names: dict[int, int] = {}
    for device in devices:
        if device not in names:
            names[device] = next(left[kinds[device]])
    return [names[device] for device in devices]


@lru_cache(maxsize=4096)
def device_mask(num_devices: int, devices: frozenset[int] | None) -> npt.NDArray[np.bool_]:
    """Return the devices of the set as a read-only mask, [D]; None means all devices."""
    mask_D = np.ones(num_devices, dtype=bool) if devices is None else np.isin(np.arange(num_devices), list(devices))
    mask_D.flags.writeable = False
    return mask_D


def allowed_together(task: ShardingTask, positions: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Return the devices that all of these tables may use as a mask, [D]; None if all devices are allowed."""
    sets = {devices for at in positions if (devices := task.limits_of(at).devices) is not None}
    if not sets:
        return None
    return np.asarray(np.logical_and.reduce([device_mask(task.num_devices, devices) for devices in sets]))


def apart_groups(task: ShardingTask, positions: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the groups of tables to keep apart that contain any of these tables, ascending."""
    return tuple(number for number, group in enumerate(task.apart) if not set(group).isdisjoint(positions))


def joined_groups(count: int, groups: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Partition positions 0 to count - 1 into tuples by group; groups that share a position are merged."""
    home = list(range(count))
    for group in groups:
        homes = {home[position] for position in group}
        if len(homes) > 1:
            first = min(homes)
            home = [first if one in homes else one for one in home]
    members: dict[int, list[int]] = {}
    for position, first in enumerate(home):
        members.setdefault(first, []).append(position)
    return tuple(tuple(item) for item in members.values())
