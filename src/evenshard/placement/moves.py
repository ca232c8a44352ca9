"""Bytes that move between two placements, and the renumbering of devices that minimizes them.

The overlap of an old and a new part is the rows and columns that both have. Its weights and optimizer state move to
each device of the new part that does not have them yet. Weights in host memory or on SSDs are available to all devices
of the host. Removing a replica moves nothing.

The renumbering permutes devices within a node, nodes within a domain, and domains, so that devices keep their
neighbors. Only devices with the same hardware, memory and rules are swapped.

Legend: O devices of the old placement, N devices of the new placement; the smaller number is padded to the larger.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from evenshard.base.installation import require_package
from evenshard.placement.memory import SGD, state_bytes
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table

# Fields that must be equal for a table to reuse the weights of the old table with the same name.
SHAPE = ("num_rows", "embedding_dim", "weight_bits")


@dataclass(frozen=True)
class PartOverlap:
    """Rows and columns that an old and a new part of a table have in common, and the devices of both parts."""

    table: str
    rows: Span
    columns: Span
    old_devices: tuple[int, ...]
    new_devices: tuple[int, ...]
    # Devices with access to the old weights: the old devices, or all devices of their hosts if host or SSD store them.
    reach: tuple[int, ...]
    weight_bytes: int
    state_bytes: int
    num_kept: int  # number of new devices that already have the weights

    @property
    def num_bytes(self) -> int:
        """Return the bytes of weights and optimizer state."""
        return self.weight_bytes + self.state_bytes

    @property
    def moved_bytes(self) -> int:
        """Return the bytes to copy to those new devices that cannot already read the old weights."""
        return self.num_bytes * sum(device not in self.reach for device in self.new_devices)


def shape_changes(old: Table, new: Table) -> str:
    """Describe the changes of shape that prevent the reuse of old weights; "" if there are none."""
    values = [(name, getattr(old, name), getattr(new, name)) for name in SHAPE]
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in values if before != after)


def _list_overlaps(
    table: Table, before: Sequence[TablePart], after: Sequence[TablePart], machine: Nodes, optimizer: str
) -> Iterator[PartOverlap]:
    was, now = before[0].storage, after[0].storage
    by_host = not (was.is_on_device and now.is_on_device)
    stays = was.is_on_device == now.is_on_device
    found = []
    for old in before:
        for new in after:
            rows, columns = old.rows.common(new.rows), old.columns.common(new.columns)
            if rows.size > 0 and columns.size > 0:
                found.append((columns, rows, old.devices, new.devices))
    for columns, rows, old_devices, new_devices in sorted(found):
        overlap = replace(table, num_rows=rows.size, embedding_dim=columns.size)
        nodes = {machine.node_of(device) for device in old_devices}
        on_hosts = tuple(device for node in sorted(nodes) for device in machine.devices_of_node(node))
        reach = on_hosts if by_host else old_devices
        yield PartOverlap(
            table=table.name,
            rows=rows,
            columns=columns,
            old_devices=old_devices,
            new_devices=new_devices,
            reach=reach,
            weight_bytes=overlap.size_bytes,
            state_bytes=state_bytes(overlap, optimizer),
            num_kept=len(set(reach) & set(new_devices)) if stays else 0,
        )


@dataclass(frozen=True)
class EarlierPlacement:
    """The placement before a change, whose trained weights are reused."""

    parts_of_table: Mapping[str, tuple[TablePart, ...]]  # of the tables whose weights can be reused
    machine: Nodes
    optimizer_of: Mapping[str, str] = field(default_factory=dict)  # by table; empty if optimizer state is not moved

    def list_overlaps(
        self, tables: Iterable[Table], after: Mapping[str, Sequence[TablePart]], machine: Nodes
    ) -> Iterator[PartOverlap]:
        """Yield the overlaps of this placement with new parts on a machine, sorted by columns, then rows."""
        larger = larger_machine(self.machine, machine)
        for table in tables:
            was, now = (parts.get(table.name) for parts in (self.parts_of_table, after))
            if was and now:
                yield from _list_overlaps(table, was, now, larger, self.optimizer_of.get(table.name, SGD))


def larger_machine(old: Nodes, new: Nodes) -> Nodes:
    """Return the machine with more devices; the new one if they have the same number."""
    return new if new.num_devices >= old.num_devices else old


Worth = npt.NDArray[np.float64]
DeviceMap = npt.NDArray[np.int64]


def device_kinds(task: ShardingTask) -> list[int]:
    """Return a number for each device; devices with the same number (kind) can be swapped without breaking a rule."""
    limits = [task.limits_of(position).devices for position in range(len(task.tables))]
    machine = task.machine
    hosts = [sizes or (0,) * machine.num_nodes for sizes in (machine.host_bytes, machine.ssd_bytes)]
    signs = [
        (
            room,
            machine.hardware_of(device),
            *(sizes[machine.node_of(device)] for sizes in hosts),
            *(devices is None or device in devices for devices in limits),
        )
        for device, room in enumerate(task.room_bytes)
    ]
    kinds: dict[Hashable, int] = {}
    return [kinds.setdefault(sign, len(kinds)) for sign in signs]


def match_devices(overlaps: Iterable[PartOverlap], kinds: Sequence[int], machine: Nodes) -> DeviceMap:
    """Map each new device to an old device so that the fewest bytes move, [N].

    Among solutions that move equally many bytes, the most devices keep their ids.

    Args:
        overlaps: overlaps of both placements.
        kinds: kinds of the new placement's devices (``device_kinds``). A new device can replace an old
            device that was removed only if all devices are of one kind.
        machine: machine of the placement with more devices.
    """
    most = machine.num_devices
    held_NO = np.zeros((most, most), dtype=np.int64)
    for overlap in overlaps:
        old = [device for device in overlap.reach if device < most]
        held_NO[np.ix_(overlap.new_devices, old)] += overlap.num_bytes
    all_kinds = np.array([*kinds, *[kinds[0] if len(set(kinds)) == 1 else -1] * (most - len(kinds))])
    # A byte that stays is worth more than all kept ids together. A pair of different kinds is worth less than anything.
    worth_NO = held_NO.astype(np.float64) * (most + 1) + np.eye(most)
    worth_NO[all_kinds[:, None] != all_kinds] = -1.0 - worth_NO.sum()
    _, old_of_new = _assign_devices(worth_NO, (machine.domain_size, machine.devices_per_node, 1))
    return old_of_new


def _assign_devices(worth_NO: Worth, sizes: Sequence[int]) -> tuple[float, DeviceMap]:
    """Return the highest total worth of an assignment of devices, and the assignment, by the Hungarian algorithm."""
    require_package("scipy")
    from scipy.optimize import linear_sum_assignment

    size, *smaller = sizes
    blocks = len(worth_NO) // size
    if blocks == 1 and smaller:
        return _assign_devices(worth_NO, smaller)
    if not smaller:
        new, old = linear_sum_assignment(worth_NO, maximize=True)
        return float(worth_NO[new, old].sum()), np.asarray(old)
    inside = {
        (new, old): _assign_devices(worth_NO[new * size : (new + 1) * size, old * size : (old + 1) * size], smaller)
        for new in range(blocks)
        for old in range(blocks)
    }
    worth_of_blocks = np.array([[inside[new, old][0] for old in range(blocks)] for new in range(blocks)])
    chosen: list[int] = linear_sum_assignment(worth_of_blocks, maximize=True)[1].tolist()
    return (
        float(worth_of_blocks[np.arange(blocks), chosen].sum()),
        np.concatenate([old * size + inside[new, old][1] for new, old in enumerate(chosen)]),
    )
