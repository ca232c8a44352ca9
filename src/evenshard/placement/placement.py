"""Placements of whole tables, and the rules of tables that a placement moves as one.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadConfig
from evenshard.base.units import gb_text
from evenshard.placement.parts import TablePart, whole_part
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table


@dataclass(frozen=True)
class Placement:
    """The answer of a sharder to a task whose tables stay whole; ``parts`` is all that other modules see of it."""

    device_of_table: tuple[int, ...]  # device id of each table, in the order of ``task.tables``
    num_devices: int  # of the task; some may hold no table

    @staticmethod
    def of(task: ShardingTask, parts: Sequence[TablePart]) -> Placement:
        """Return the devices of parts that are the whole tables of a task, in their order."""
        assert [part.table for part in parts] == [table.name for table in task.tables], "parts are whole, and in order"
        return Placement(tuple(part.device for part in parts), task.num_devices)

    def shards(self) -> tuple[tuple[int, ...], ...]:
        """Table positions (indices into ``task.tables``) of each device, by device id."""
        shards: list[list[int]] = [[] for _ in range(self.num_devices)]
        for position, device in enumerate(self.device_of_table):
            shards[device].append(position)
        return tuple(tuple(shard) for shard in shards)

    def parts(self, tables: Sequence[Table]) -> tuple[TablePart, ...]:
        """Return each table as one part on its device.

        Raises:
            BadConfig: if the placement is of another number of tables.
        """
        if len(self.device_of_table) != len(tables):
            raise BadConfig(
                f"the placement has {len(self.device_of_table)} tables, but {len(tables)} tables are given. "
                f"Give the tables of its task, in their order."
            )
        return tuple(whole_part(table, (device,)) for table, device in zip(tables, self.device_of_table, strict=True))


def legal_mask(used_bytes: Any, table_bytes: Any, memory_cap_bytes: Any) -> Any:
    """True where a table may still go; elementwise on bytes: numbers, NumPy arrays or torch tensors that broadcast."""
    return used_bytes + table_bytes <= memory_cap_bytes


def alone(task: ShardingTask) -> Placement:
    """All tables on the first device."""
    return Placement((0,) * len(task.tables), task.num_devices)


def caps_text(room_bytes: Sequence[int]) -> str:
    """What the devices may hold."""
    least, most = min(room_bytes), max(room_bytes)
    return f"cap {gb_text(most)} each" if least == most else f"caps {gb_text(least)} to {gb_text(most)}"


def canonical_devices(devices: Sequence[int], kinds: Sequence[int]) -> list[int]:
    """Rename devices, those of one kind (``moves.device_kinds``) in the order of their appearance."""
    left = {kind: iter([device for device, one in enumerate(kinds) if one == kind]) for kind in set(kinds)}
    names: dict[int, int] = {}
    for device in devices:
        if device not in names:
            names[device] = next(left[kinds[device]])
    return [names[device] for device in devices]


@lru_cache(maxsize=4096)
def device_mask(num_devices: int, devices: frozenset[int] | None) -> npt.NDArray[np.bool_]:
    """[D] True where a table may live that may live on these devices, None for any; not to be written to."""
    mask_D = np.ones(num_devices, dtype=bool) if devices is None else np.isin(np.arange(num_devices), list(devices))
    mask_D.flags.writeable = False
    return mask_D


def allowed_together(task: ShardingTask, positions: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """[D] where tables may live that are placed as one; None where that is everywhere."""
    sets = {devices for at in positions if (devices := task.limits_of(at).devices) is not None}
    if not sets:
        return None
    return np.asarray(np.logical_and.reduce([device_mask(task.num_devices, devices) for devices in sets]))


def apart_groups(task: ShardingTask, positions: Sequence[int]) -> tuple[int, ...]:
    """Numbers of the groups of tables that stay apart of which these tables have one, ascending."""
    return tuple(number for number, group in enumerate(task.apart) if not set(group).isdisjoint(positions))


def joined_groups(count: int, groups: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Positions 0 to count - 1, those of a group in one tuple, and those of groups that share one too."""
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
