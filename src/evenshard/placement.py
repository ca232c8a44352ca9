"""Which device holds which table, and the ONLY rule of what is legal: the weights of a device fit its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenshard.errors import InfeasibleTask
from evenshard.tasks import PlacementTask
from evenshard.units import bytes_to_gb


@dataclass(frozen=True)
class Placement:
    """The answer to a task.

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


def legal_mask(used_bytes: Any, table_bytes: Any, memory_cap_bytes: Any) -> Any:
    """True where a table may still go. Works elementwise on numbers, numpy arrays and torch tensors that broadcast.

    Args:
        used_bytes: bytes of weights already on each device.
        table_bytes: size of the table to place.
        memory_cap_bytes: what a device may hold.
    """
    return used_bytes + table_bytes <= memory_cap_bytes


def alone(task: PlacementTask) -> Placement:
    """All tables on the first device."""
    return Placement((0,) * len(task.tables), task.num_devices)


def require_room(task: PlacementTask) -> None:
    """Raises InfeasibleTask if no placement of the task can exist for a plain reason: one table or all are too big."""
    largest = max(task.tables, key=lambda table: table.size_bytes)
    if not legal_mask(0, largest.size_bytes, task.memory_cap_bytes):
        raise InfeasibleTask(
            f"{task.task_id}: table {largest.name} needs {_gb(largest.size_bytes)}, more than a whole device "
            f"(cap {_gb(task.memory_cap_bytes)}). Raise memory_cap_gb."
        )
    total = sum(table.size_bytes for table in task.tables)
    if not legal_mask(0, total, task.memory_cap_bytes * task.num_devices):
        raise InfeasibleTask(
            f"{task.task_id}: the tables need {_gb(total)}, the {task.num_devices} devices have "
            f"{_gb(task.memory_cap_bytes * task.num_devices)} (cap {_gb(task.memory_cap_bytes)} each). "
            f"Raise memory_cap_gb or num_devices."
        )


def no_room(task: PlacementTask, position: int, used_bytes: Sequence[int]) -> InfeasibleTask:
    """The error of a sharder that finds no legal device for ``task.tables[position]``."""
    table = task.tables[position]
    left = task.memory_cap_bytes - min(used_bytes)
    return InfeasibleTask(
        f"{task.task_id}: table {table.name} needs {_gb(table.size_bytes)}; the freest device has {_gb(left)} left "
        f"(cap {_gb(task.memory_cap_bytes)}). Raise memory_cap_gb or num_devices."
    )


def no_placement_found(task: PlacementTask, why: str) -> InfeasibleTask:
    """The error of a sharder that knows no placement at all, with what the task needs and has."""
    total, cap = sum(table.size_bytes for table in task.tables), task.memory_cap_bytes
    largest = max(task.tables, key=lambda table: table.size_bytes)
    return InfeasibleTask(
        f"{task.task_id}: {why}: the tables need {_gb(total)} of the {task.num_devices} devices' "
        f"{_gb(cap * task.num_devices)} (cap {_gb(cap)} each), the largest ({largest.name}) {_gb(largest.size_bytes)}. "
        f"Raise memory_cap_gb or num_devices."
    )


def check_placement(task: PlacementTask, placement: Placement) -> None:
    """Raises InfeasibleTask if a device holds more than its memory; an ill-formed placement is a bug."""
    assert len(placement.device_of_table) == len(task.tables), "a placement names one device per table"
    assert placement.num_devices == task.num_devices
    assert all(0 <= device < task.num_devices for device in placement.device_of_table), "unknown device"
    used = [0] * task.num_devices
    for position, device in enumerate(placement.device_of_table):
        if not legal_mask(used[device], task.tables[position].size_bytes, task.memory_cap_bytes):
            raise no_room(task, position, [used[device]])
        used[device] += task.tables[position].size_bytes


def _gb(num_bytes: int) -> str:
    return f"{bytes_to_gb(num_bytes):.2f} GB"
