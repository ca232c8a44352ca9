"""Placements of whole tables, and the ONLY check that a placement is legal: it fits in memory and follows all rules.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.messages import brief, cut, printable
from evenshard.base.units import gb_text
from evenshard.placement.parts import ON_DEVICE, TablePart, whole_part
from evenshard.placement.sharding import ROWS_ALONE, matching_types, sharding_problem, sharding_type
from evenshard.placement.task import (
    ShardingTask,
    impossible_types,
    restrict_to_row_wise,
    used_bytes,
    used_host_bytes,
    used_ssd_bytes,
    width_problem,
)
from evenshard.tables.table import MEAN, Table


@dataclass(frozen=True)
class Placement:
    """Placement of whole tables, as sharders return it. Other code should use only its ``parts``."""

    device_of_table: tuple[int, ...]  # device of each table, in the order of ``task.tables``
    num_devices: int  # devices of the task; some may be empty

    @staticmethod
    def of(task: ShardingTask, parts: Sequence[TablePart]) -> Placement:
        """Return the placement of parts that are whole tables, in the order of the task."""
        assert [part.table for part in parts] == [table.name for table in task.tables], "not whole tables, in order"
        return Placement(tuple(part.device for part in parts), task.num_devices)

    def shards(self) -> tuple[tuple[int, ...], ...]:
        """Return the positions of each device's tables in ``task.tables``, by device id."""
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
                f"Give the tables of its task, in the same order."
            )
        return tuple(whole_part(table, (device,)) for table, device in zip(tables, self.device_of_table, strict=True))


def place_on_one_device(task: ShardingTask) -> Placement:
    """Return the placement of all tables on the first device."""
    return Placement((0,) * len(task.tables), task.num_devices)


# Legality -------------------------------------------------------------------------------------------------------------


def parts_by_table(task: ShardingTask, parts: Sequence[TablePart]) -> dict[str, tuple[TablePart, ...]]:
    """Group parts by table, in the order of the task, each sorted by columns, then rows.

    Raises:
        BadConfig: if a part's table or device is not in the task, or a table's parts match no sharding type.
    """
    found = group_parts(task.tables, task.num_devices, parts)
    for table in task.tables:
        if problem := sharding_problem(found[table.name], table, task.machine):
            raise BadConfig(f"table {brief(table.name)} {problem}")
    return found


def group_parts(
    tables: Sequence[Table], num_devices: int, parts: Sequence[TablePart]
) -> dict[str, tuple[TablePart, ...]]:
    """Group parts like ``parts_by_table``, but without checking that they match a sharding type.

    Raises:
        BadConfig: if the table or device of a part does not exist.
    """
    found: dict[str, list[TablePart]] = {table.name: [] for table in tables}
    for part in parts:
        if part.table not in found:
            raise BadConfig(
                f"a shard belongs to table {brief(part.table)}, which is not among the tables. Correct its name."
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
    """Raise InfeasibleTask if the parts exceed memory or break a rule; BadConfig as in ``parts_by_table``."""
    by_table = parts_by_table(task, parts)
    for broken in list_broken_rules(task, by_table):
        raise InfeasibleTask(f"{broken}. Place it again.")
    check_parts_memory(task, parts)


def is_legal_sharding(task: ShardingTask, parts: Sequence[TablePart]) -> bool:
    """Return True if the parts fit into memory, satisfy the task's rules, and match a sharding type."""
    try:
        check_sharding(task, parts)
    except (BadConfig, InfeasibleTask):
        return False
    return True


def check_placement(task: ShardingTask, placement: Placement) -> None:
    """Raise InfeasibleTask, with the task's id, if a placement exceeds memory or breaks a rule."""
    try:
        check_sharding(task, placement.parts(task.tables))
    except InfeasibleTask as error:
        raise InfeasibleTask(f"{cut(task.task_id)}: {error.problem}", error.remedy) from None


def check_parts_memory(task: ShardingTask, parts: Sequence[TablePart]) -> None:
    """Raise InfeasibleTask if the parts exceed the available memory of a device or host; rules are not checked."""
    for problem in list_memory_problems(task, parts):
        raise InfeasibleTask(problem)


def list_memory_problems(task: ShardingTask, parts: Sequence[TablePart]) -> Iterator[str]:
    """Yield each device or host whose available memory the parts exceed, as a sentence with a remedy."""
    for device, (used, room) in enumerate(zip(used_bytes(task, parts), task.room_bytes, strict=True)):
        if used > room:
            yield f"device {device} needs {gb_text(used)}, but has {gb_text(room)}. Raise memory_cap_gb or num_devices."
    if all(part.storage == ON_DEVICE for part in parts):
        return
    machine = task.machine
    for what, knob, all_used, rooms in (
        ("host memory", "host_memory_gb", used_host_bytes(task, parts), machine.host_bytes),
        ("SSD space", "ssd_gb", used_ssd_bytes(task, parts), machine.ssd_bytes),
    ):
        for node, used in enumerate(all_used):
            if used > (room := rooms[node] if rooms else 0):
                yield (
                    f"host {node} needs {gb_text(used)} of {what}, but has {gb_text(room)}. Raise {knob} or "
                    f"num_devices."
                )


def row_wise_means(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> set[tuple[str, bool, bool]]:
    """Return the collections that have MEAN tables, and of which the placement cuts every table by rows."""
    collections = {table.collection for table in task.tables if table.pooling == MEAN and task.num_devices > 1}
    for at, table in enumerate(task.tables):
        if table.collection in collections:
            types = matching_types(by_table[table.name], table, task.machine)
            if not types & task.limits_of(at).types & {*ROWS_ALONE}:
                collections.discard(table.collection)
    return collections


def require_row_wise_means(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> ShardingTask:
    """Restrict a task so that all tables in the collections of ``row_wise_means`` must be cut by rows."""
    return restrict_to_row_wise(task, row_wise_means(task, by_table))


def list_broken_rules(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> Iterator[str]:
    """Describe each table and each group of tables that breaks a rule of the task, by its first broken rule."""
    task = require_row_wise_means(task, by_table)
    devices_of = [{device for part in by_table[table.name] for device in part.devices} for table in task.tables]
    for position, table in enumerate(task.tables):
        if (broken := find_broken_limit(task, position, by_table[table.name])) is not None:
            yield broken
    for group in task.together:
        if len({tuple(sorted(devices_of[position])) for position in group}) > 1:
            yield f"tables {_names(task, group)} are not on the same device"
    for group in task.apart:
        if len(set().union(*(devices_of[position] for position in group))) < sum(len(devices_of[p]) for p in group):
            yield f"tables {_names(task, group)} share a device"


def find_broken_limit(task: ShardingTask, position: int, parts: Sequence[TablePart]) -> str | None:
    """Describe the first rule of one table that its parts break; None if they follow all its rules."""
    table, limits = task.tables[position], task.limits_of(position)
    if problem := width_problem(task, max(part.columns.size for part in parts)):
        whole = "" if problem == width_problem(task, table.embedding_dim) else "a shard of "
        return f"{whole}table {brief(table.name)} cannot be trained: {problem}"
    types = matching_types(parts, table, task.machine)
    if not types & limits.types:
        name = sharding_type(parts, table, task.machine)
        return f"table {brief(table.name)} is sharded {name}, but only {' or '.join(sorted(limits.types))} is allowed"
    if not types & task.types[position]:
        name = min(types & limits.types)
        return f"table {brief(table.name)} is sharded {name}, but {impossible_types(task, position)[name]}"
    kernel = parts[0].storage.kernel
    if kernel not in task.kernels_of(position):
        return f"table {brief(table.name)} has kernel {kernel}, but must have {' or '.join(task.kernels_of(position))}"
    allowed = range(task.num_devices) if limits.devices is None else limits.devices
    if wrong := [device for part in parts for device in part.devices if device not in allowed]:
        listed = brief(sorted(allowed)) if allowed else "none"
        return f"table {brief(table.name)} is on device {min(wrong)}, but its allowed devices are {listed}"
    narrowest = min(part.columns.size for part in parts)
    if narrowest < min(limits.min_columns, table.embedding_dim):
        return f"table {brief(table.name)} has a shard of {narrowest} columns, but min_columns is {limits.min_columns}"
    return None


def _names(task: ShardingTask, group: Sequence[int]) -> str:
    return cut(printable(", ".join(task.tables[position].name for position in group)))


# Groups of tables and devices -----------------------------------------------------------------------------------------


def legal_mask(used_bytes: Any, table_bytes: Any, memory_cap_bytes: Any) -> Any:
    """Return True where a table still fits, for numbers, NumPy arrays or torch tensors, elementwise."""
    return used_bytes + table_bytes <= memory_cap_bytes


def caps_text(room_bytes: Sequence[int]) -> str:
    """Format the available memory of the devices for a message."""
    least, most = min(room_bytes), max(room_bytes)
    return f"cap {gb_text(most)} each" if least == most else f"caps {gb_text(least)} to {gb_text(most)}"


def canonical_devices(devices: Sequence[int], kinds: Sequence[int]) -> list[int]:
    """Renumber devices of the same kind (``moves.device_kinds``) in the order in which tables first use them."""
    left = {kind: iter([device for device, own in enumerate(kinds) if own == kind]) for kind in set(kinds)}
    names: dict[int, int] = {}
    for device in devices:
        if device not in names:
            names[device] = next(left[kinds[device]])
    return [names[device] for device in devices]


@lru_cache(maxsize=4096)
def device_mask(num_devices: int, devices: frozenset[int] | None) -> npt.NDArray[np.bool_]:
    """Return a set of devices as a read-only mask, [D]; None means all devices."""
    mask_D = np.ones(num_devices, dtype=bool) if devices is None else np.isin(np.arange(num_devices), list(devices))
    mask_D.flags.writeable = False
    return mask_D


def common_device_mask(task: ShardingTask, positions: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the devices that all of these tables may use, [D]; None if they may use any device."""
    sets = {devices for at in positions if (devices := task.limits_of(at).devices) is not None}
    if not sets:
        return None
    return np.asarray(np.logical_and.reduce([device_mask(task.num_devices, devices) for devices in sets]))


def separation_groups(task: ShardingTask, positions: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the groups in ``task.apart`` that contain any of these tables, in ascending order."""
    return tuple(number for number, group in enumerate(task.apart) if not set(group).isdisjoint(positions))


def merge_groups(count: int, groups: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Partition the numbers 0 to count - 1 into groups; groups that share a number are merged."""
    home = list(range(count))
    for group in groups:
        homes = {home[position] for position in group}
        if len(homes) > 1:
            first = min(homes)
            home = [first if number in homes else number for number in home]
    members: dict[int, list[int]] = {}
    for position, first in enumerate(home):
        members.setdefault(first, []).append(position)
    return tuple(map(tuple, members.values()))
