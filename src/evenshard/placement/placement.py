"""Which device holds which table, and the ONLY rule of what is legal: a device's tables fit its memory.

Parts of a table tile it (``by_table``), each on a device that there is. Rules of the task add to it; what they make of
a task is in ``items.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evenshard.placement.parts import COLUMN_STEP, Span, TablePart
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table, duplicate_name
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief, cut
from evenshard.utils.units import gb_text

_MAX_NAMES = 3  # of tables in a message

_Part = TypeVar("_Part", bound=TablePart)


@dataclass(frozen=True)
class Placement:
    """The answer to a task whose tables stay whole.

    Attributes:
        device_of_table: device id of each table, in the order of ``task.tables``.
        num_devices: devices of the task; some may hold no table.
    """

    device_of_table: tuple[int, ...]
    num_devices: int

    def shards(self) -> tuple[tuple[int, ...], ...]:
        """Table positions (indices into ``task.tables``) of each device, by device id."""
        shards: list[list[int]] = [[] for _ in range(self.num_devices)]
        for position, device in enumerate(self.device_of_table):
            shards[device].append(position)
        return tuple(tuple(shard) for shard in shards)

    def parts(self, tables: Sequence[Table]) -> tuple[TablePart, ...]:
        """Each table as one part on its device.

        Raises:
            BadConfig: if the placement is of another number of tables.
        """
        if len(self.device_of_table) != len(tables):
            raise BadConfig(
                f"the placement has {len(self.device_of_table)} tables, but {len(tables)} tables are given. "
                f"Give the tables of its task, in their order."
            )
        return tuple(
            TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), (device,))
            for table, device in zip(tables, self.device_of_table, strict=True)
        )


def placement_of_whole(task: ShardingTask, parts: Sequence[TablePart]) -> Placement:
    """The devices of parts that are the whole tables of a task, in their order."""
    assert [part.table for part in parts] == [table.name for table in task.tables], "parts are whole, and in order"
    return Placement(tuple(part.device for part in parts), task.num_devices)


def legal_mask(used_bytes: Any, table_bytes: Any, memory_cap_bytes: Any) -> Any:
    """True where a table may still go. Works elementwise on numbers, numpy arrays and torch tensors that broadcast.

    Args:
        used_bytes: bytes of weights already on each device.
        table_bytes: size of the table to place.
        memory_cap_bytes: memory of a device.
    """
    return used_bytes + table_bytes <= memory_cap_bytes


def alone(task: ShardingTask) -> Placement:
    """All tables on the first device."""
    return Placement((0,) * len(task.tables), task.num_devices)


def by_table(parts: Sequence[_Part], tables: Sequence[Table], num_devices: int) -> dict[str, tuple[_Part, ...]]:
    """The parts of each table in the order of their columns, table after table in the order of ``tables``.

    Raises:
        BadConfig: if the parts of a table do not tile it, are cut in a way that cannot be placed, or live on a device
            that does not exist; or if a part is of no table.
    """
    if (twice := duplicate_name(tables)) is not None:
        raise BadConfig(f"two tables are called {brief(twice)}. Give each its own name.")
    found: dict[str, list[_Part]] = {table.name: [] for table in tables}
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
    for table in tables:
        found[table.name].sort(key=lambda part: (part.columns, part.rows))
        _check_parts(table, found[table.name])
    return {name: tuple(of_table) for name, of_table in found.items()}


def _check_parts(table: Table, parts: Sequence[TablePart]) -> None:
    """Raises BadConfig unless the parts, in the order of their columns, are the whole table."""
    rows_of: dict[Span, list[Span]] = {}
    for part in parts:
        rows_of.setdefault(part.columns, []).append(part.rows)
    _check_tiles(table, "columns", list(rows_of), table.embedding_dim)
    for rows in rows_of.values():
        _check_tiles(table, "rows", rows, table.num_rows)
    if len(parts) > len(rows_of):
        raise BadConfig(f"table {brief(table.name)} is cut by rows. Cut it by columns, or leave it whole.")
    shared = next((part for part in parts if len(part.devices) != 1), None)
    if shared is not None:
        raise BadConfig(
            f"table {brief(table.name)} is on the devices {brief(shared.devices)}. Place each part on one device."
        )
    if len(parts) > 1 and any(part.columns.size % COLUMN_STEP for part in parts):
        widths = ", ".join(str(part.columns.size) for part in parts)
        raise BadConfig(
            f"table {brief(table.name)} is split into parts of {cut(widths)} columns. "
            f"Make all multiples of {COLUMN_STEP}."
        )


def _check_tiles(table: Table, what: str, spans: Sequence[Span], size: int) -> None:
    """Raises BadConfig unless the spans, in their order, leave nothing out and share nothing."""
    starts, stops = [0, *(span.stop for span in spans)], [*(span.start for span in spans), size]
    if starts != stops or any(span.size < 1 for span in spans):
        held = ", ".join(map(str, spans)) or "none"
        raise BadConfig(
            f"the parts of table {brief(table.name)} hold the {what} {cut(held)}; each of its {size} {what} must be in "
            f"exactly one. Correct the parts, or give the tables that they are of."
        )


def check_placement(task: ShardingTask, placement: Placement) -> None:
    """Raises InfeasibleTask if a device holds more than its room, or what may not be there; ill-formed is a bug."""
    assert len(placement.device_of_table) == len(task.tables), "a placement names one device per table"
    assert placement.num_devices == task.num_devices
    assert all(0 <= device < task.num_devices for device in placement.device_of_table), "unknown device"
    check_memory(task, placement)
    broken = next(broken_constraints(task, placement), None)
    if broken is not None:
        raise InfeasibleTask(f"{cut(task.task_id)}: {broken}. Place it again.")


def check_memory(task: ShardingTask, placement: Placement) -> None:
    """Raises InfeasibleTask if a device holds more than its memory; other constraints are left aside."""
    used = [0] * task.num_devices
    for position, device in enumerate(placement.device_of_table):
        size, cap = task.table_bytes[position], task.room_bytes[device]
        if not legal_mask(used[device], size, cap):
            raise InfeasibleTask(
                f"{cut(task.task_id)}: table {cut(task.tables[position].name)} needs {gb_text(size)}, device {device} "
                f"has {gb_text(cap - used[device])} left ({caps_text(task.room_bytes)}). "
                f"Raise memory_cap_gb or num_devices."
            )
        used[device] += size


def broken_constraints(task: ShardingTask, placement: Placement) -> Iterator[str]:
    """What a placement does that the task's constraints forbid, memory left aside, in words."""
    device_of_table = placement.device_of_table
    for position, (table, device) in enumerate(zip(task.tables, device_of_table, strict=True)):
        devices = task.limits_of(position).devices
        if devices is not None and device not in devices:
            yield f"table {cut(table.name)} is on device {device}, allowed are {brief(sorted(devices))}"
    for group in task.together:
        if len({device_of_table[position] for position in group}) > 1:
            yield f"tables {tables_text(task.tables, group)} are not together"
    for group in task.apart:
        if len({device_of_table[position] for position in group}) < len(group):
            yield f"tables {tables_text(task.tables, group)} are not apart"


def tables_text(tables: Sequence[Table], positions: Sequence[int]) -> str:
    """Names of tables by position, the first three of many."""
    names = [cut(tables[position].name) for position in positions[:_MAX_NAMES]]
    more = len(positions) - len(names)
    return f"{', '.join(names)} and {more} more" if more else ", ".join(names)


def caps_text(room_bytes: Sequence[int]) -> str:
    """What the devices may hold."""
    least, most = min(room_bytes), max(room_bytes)
    return f"cap {gb_text(most)} each" if least == most else f"caps {gb_text(least)} to {gb_text(most)}"
