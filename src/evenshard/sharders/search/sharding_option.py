"""What a search chooses among: groups of tables, the sharding options of each, and the pieces of each option.

A piece is what the search places as one: columns on a device, rows on all devices of a node or on all devices, a
replica on each. Tables that stay together are one group, with one piece.

Legend: D devices, V kinds of volumes, K kinds of devices, P pieces of an option.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import COLUMN_STEP, ON_DEVICE, Storage
from evenshard.tables.reuse import FloatArray


@dataclass(frozen=True, eq=False)
class Piece:
    """What one piece takes of each device that it lives on.

    Attributes:
        number: among all pieces of the space.
        columns: its number of columns.
        span: devices, one after the other, that each have as much of it.
        cells: (kernel call, row of the matrix of columns) of what is looked up; each call once.
        volume_V: what it adds to the volumes of each of its devices (``PartVolume``).
        size_bytes: device memory.
        host_bytes: memory of its host.
        ssd_bytes: of its host's SSDs.
        offload_K2: how much longer forward and backward take as it is not in device memory, on each kind of device,
            ms; empty where it is there.
        values: weights of a replica.
    """

    number: int
    columns: int
    span: int
    cells: tuple[tuple[int, int], ...]
    volume_V: FloatArray
    size_bytes: int
    host_bytes: int = 0
    ssd_bytes: int = 0
    offload_K2: tuple[tuple[float, float], ...] = ()
    values: float = 0.0

    def offload_ms(self, kind: int | None = None) -> float:
        """How much longer it takes as it is kept, forward and backward together.

        Args:
            kind: of the device; None for the slowest kind.
        """
        found = [sum(of_kind) for of_kind in self.offload_K2]
        return (max(found) if kind is None else found[kind]) if found else 0.0


@dataclass(frozen=True)
class ShardingOption:
    """One way to shard a group of tables: TorchRec's sharding option.

    Attributes:
        sharding_type: the type.
        span: devices, one after the other, that each piece lives on: its place is the number of such a set.
        home_span: devices, one after the other, that all pieces are among.
        pieces: in the order of their columns.
        storage: where its weights are kept.
    """

    sharding_type: str
    span: int
    home_span: int
    pieces: tuple[Piece, ...]
    storage: Storage = ON_DEVICE

    @cached_property
    def calls(self) -> frozenset[int]:
        """The kernel calls of its pieces."""
        return frozenset(call for piece in self.pieces for call, _ in piece.cells)

    @cached_property
    def piece_numbers(self) -> tuple[int, ...]:
        """The number of each piece among all pieces of the space."""
        return tuple(piece.number for piece in self.pieces)

    @property
    def piece_widths(self) -> tuple[int, ...]:
        """Columns of each piece."""
        return tuple(piece.columns for piece in self.pieces)

    @cached_property
    def bytes_P(self) -> npt.NDArray[np.int64]:
        """[P] device memory of each piece."""
        return np.array([piece.size_bytes for piece in self.pieces], dtype=np.int64)

    @cached_property
    def largest_bytes(self) -> int:
        """Device memory of the largest piece."""
        return max(piece.size_bytes for piece in self.pieces)

    @property
    def is_usual(self) -> bool:
        """Whether it cuts no columns, or evenly into a power of two of parts or parts as wide as a power of two."""
        widths = [piece.columns for piece in self.pieces]
        if max(widths) - min(widths) > COLUMN_STEP:
            return False
        return len(widths).bit_count() == 1 or (min(widths) == max(widths) and widths[0].bit_count() == 1)


@dataclass(frozen=True)
class TableGroup:
    """Tables that are placed as one: a table, or those that stay together.

    Attributes:
        tables: positions in the task.
        options: how it may be sharded, whole first where it is allowed.
        allowed_D: devices that it may live on; None for all.
        apart: numbers of the groups of tables that stay apart of which it has one.
    """

    tables: tuple[int, ...]
    options: tuple[ShardingOption, ...]
    allowed_D: npt.NDArray[np.bool_] | None
    apart: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """The sharding of a group: the number of its option, and the place of each piece.

    A place is the number of a set of ``ShardingOption.span`` devices: of the device, of the node, or 0 for all devices.
    """

    option: int
    places: tuple[int, ...] = (0,)
