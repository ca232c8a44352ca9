"""Bytes that move between two placements, and the device order that minimizes them.

Tables are compared in pieces that neither placement cuts, so splits and merges move exactly the bytes that a device
lacks. A piece includes its optimizer state. Weights in host memory or on SSDs are there for all devices of the host;
only the cache belongs to one device. A replica is copied to every device that lacks it; removing one moves nothing.

Device ids are permuted within a node, nodes within a domain, and domains, so that devices stay close to the same
neighbors. Only devices with the same hardware, memory and rules can be exchanged.

Legend: D devices, O devices of the old answer, N devices of the new one; both padded to the same number.
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

# Two tables with the same name must agree in these, or no weights can be reused.
SHAPE = ("num_rows", "embedding_dim", "weight_bits")


@dataclass(frozen=True)
class SharedPiece:
    """Rows and columns of a table that neither placement cuts, and the devices that have them."""

    table: str
    rows: Span
    columns: Span
    old_devices: tuple[int, ...]
    new_devices: tuple[int, ...]
    # Old devices that hold the weights; if they are kept on a host before or after, all devices of these hosts.
    reach: tuple[int, ...]
    weight_bytes: int
    state_bytes: int
    num_kept: int  # new devices that keep their weights

    @property
    def num_bytes(self) -> int:
        """Return the bytes of weights and optimizer state."""
        return self.weight_bytes + self.state_bytes

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that go to devices that lack them."""
        return self.num_bytes * sum(device not in self.reach for device in self.new_devices)


def shape_changes(old: Table, new: Table) -> str:
    """Describe changes of shape that make old weights unusable for the new table; empty if there are none."""
    values = [(name, getattr(old, name), getattr(new, name)) for name in SHAPE]
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in values if before != after)


def _shared_pieces(
    table: Table, before: Sequence[TablePart], after: Sequence[TablePart], machine: Nodes, optimizer: str
) -> Iterator[SharedPiece]:
    was, now = before[0].storage, after[0].storage
    by_host = not (was.is_on_device and now.is_on_device)
    stays = was.is_on_device == now.is_on_device
    found = []
    for one in before:
        for other in after:
            rows, columns = one.rows.common(other.rows), one.columns.common(other.columns)
            if rows.size > 0 and columns.size > 0:
                found.append((columns, rows, one.devices, other.devices))
    for columns, rows, old_devices, new_devices in sorted(found):
        piece = replace(table, num_rows=rows.size, embedding_dim=columns.size)
        nodes = {machine.node_of(device) for device in old_devices}
        on_hosts = tuple(device for node in sorted(nodes) for device in machine.devices_of_node(node))
        reach = on_hosts if by_host else old_devices
        yield SharedPiece(
            table=table.name,
            rows=rows,
            columns=columns,
            old_devices=old_devices,
            new_devices=new_devices,
            reach=reach,
            weight_bytes=piece.size_bytes,
            state_bytes=state_bytes(piece, optimizer),
            num_kept=len(set(reach) & set(new_devices)) if stays else 0,
        )


@dataclass(frozen=True)
class EarlierPlacement:
    """A placement in use, with weights to keep."""

    parts_of_table: Mapping[str, tuple[TablePart, ...]]  # of the tables whose weights can be reused
    machine: Nodes
    optimizer_of: Mapping[str, str] = field(default_factory=dict)  # by table, if its state moves too

    def shared_pieces(
        self, tables: Iterable[Table], after: Mapping[str, Sequence[TablePart]], machine: Nodes
    ) -> Iterator[SharedPiece]:
        """Yield the pieces that this placement and new parts on a machine share, by columns, then rows."""
        larger = larger_machine(self.machine, machine)
        for table in tables:
            was, now = (parts.get(table.name) for parts in (self.parts_of_table, after))
            if was and now:
                yield from _shared_pieces(table, was, now, larger, self.optimizer_of.get(table.name, SGD))


def larger_machine(old: Nodes, new: Nodes) -> Nodes:
    """Return the machine with more devices; the new one if they have the same number."""
    return new if new.num_devices >= old.num_devices else old


Worth = npt.NDArray[np.float64]
Names = npt.NDArray[np.int64]


def device_kinds(task: ShardingTask) -> list[int]:
    """Return a kind for each device; devices of the same kind can be exchanged without breaking a rule."""
    limits = [task.limits_of(position).devices for position in range(len(task.tables))]
    machine = task.machine
    hosts = [sizes or (0,) * machine.num_nodes for sizes in (machine.host_bytes, machine.ssd_bytes)]
    signs = [
        (
            room,
            machine.hardware_of(device),
            *(sizes[machine.node_of(device)] for sizes in hosts),
            *(one is None or device in one for one in limits),
        )
        for device, room in enumerate(task.room_bytes)
    ]
    kinds: dict[Hashable, int] = {}
    return [kinds.setdefault(sign, len(kinds)) for sign in signs]


def best_names(pieces: Iterable[SharedPiece], kinds: Sequence[int], machine: Nodes) -> Names:
    """Map each new device to an old device so that the fewest bytes move, [N].

    Ties are broken by the most devices that keep their ids.

    Args:
        pieces: of both placements; old devices beyond the machine are ignored.
        kinds: of the new placement's devices. Removed devices are exchangeable if all devices are of the same kind.
        machine: of the placement with more devices.
    """
    most = machine.num_devices
    held_NO = np.zeros((most, most), dtype=np.int64)
    for piece in pieces:
        old = [device for device in piece.reach if device < most]
        held_NO[np.ix_(piece.new_devices, old)] += piece.num_bytes
    all_kinds = np.array([*kinds, *[kinds[0] if len(set(kinds)) == 1 else -1] * (most - len(kinds))])
    worth_NO = held_NO.astype(np.float64) * (most + 1) + np.eye(most)
    worth_NO[all_kinds[:, None] != all_kinds] = -1.0 - worth_NO.sum()
    _, names = _assign_names(worth_NO, (machine.domain_size, machine.devices_per_node, 1))
    return names


def _assign_names(worth_NO: Worth, sizes: Sequence[int]) -> tuple[float, Names]:
    """Return the best assignment and its worth, by the Hungarian algorithm on domains, then nodes, then devices."""
    require_package("scipy")
    from scipy.optimize import linear_sum_assignment

    size, *smaller = sizes
    blocks = len(worth_NO) // size
    if blocks == 1 and smaller:
        return _assign_names(worth_NO, smaller)
    if not smaller:
        new, old = linear_sum_assignment(worth_NO, maximize=True)
        return float(worth_NO[new, old].sum()), np.asarray(old)
    inside = {
        (new, old): _assign_names(worth_NO[new * size : (new + 1) * size, old * size : (old + 1) * size], smaller)
        for new in range(blocks)
        for old in range(blocks)
    }
    worth_of_blocks = np.array([[inside[new, old][0] for old in range(blocks)] for new in range(blocks)])
    chosen: list[int] = linear_sum_assignment(worth_of_blocks, maximize=True)[1].tolist()
    return (
        float(worth_of_blocks[np.arange(blocks), chosen].sum()),
        np.concatenate([old * size + inside[new, old][1] for new, old in enumerate(chosen)]),
    )
