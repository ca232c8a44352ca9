"""Which device holds which table, where all are whole, and whether a device has memory left for one more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenshard.placement.parts import TablePart, whole_part
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.units import gb_text


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
        return tuple(whole_part(table, (device,)) for table, device in zip(tables, self.device_of_table, strict=True))


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


def caps_text(room_bytes: Sequence[int]) -> str:
    """What the devices may hold."""
    least, most = min(room_bytes), max(room_bytes)
    return f"cap {gb_text(most)} each" if least == most else f"caps {gb_text(least)} to {gb_text(most)}"
