"""The choices of a search: groups of tables, the sharding options of each, and the pieces of each option.

A piece is what the search places as one: columns on a device, rows on all devices of a node or on all devices, a
replica on each. Tables that stay together are one group, with one piece.

Legend: D devices, V kinds of volumes, K kinds of devices, A parts of all cuts, O cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.machine import Machine
from evenshard.placement.parts import ON_DEVICE, Storage
from evenshard.placement.sharding import TYPES
from evenshard.tables.reuse import FloatArray


@dataclass(frozen=True, eq=False)
class Piece:
    """The resources that one piece takes of each device that it lives on.

    Attributes:
        number: among all pieces of the space.
        columns: its number of columns.
        span: devices, one after the other, that each have as much of it.
        cells: (kernel call, row of the matrix of columns) of what is looked up; each call once.
        volume_V: what it adds to the volumes of each of its devices (``PartVolume``).
        size_bytes: device memory.
        host_bytes: memory of its host.
        ssd_bytes: of its host's SSDs.
        offload_K2: added time of forward and backward outside of device memory, on each kind of device, ms; empty in
            device memory.
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


@dataclass(frozen=True, eq=False)
class Cuts:
    """Cuts of a table by columns, each an option.

    Attributes:
        widths: the different widths of all cuts, as they first appear.
        slots: of each cut, the number of each part's width.
    """

    widths: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(cuts: Iterable[Sequence[int]]) -> Cuts:
        """Number the widths of cuts."""
        numbers: dict[int, int] = {}
        slots = tuple(tuple(numbers.setdefault(width, len(numbers)) for width in widths) for widths in cuts)
        return Cuts(tuple(numbers), slots)

    @cached_property
    def of_options(self) -> tuple[tuple[int, ...], ...]:
        """The widths of each cut."""
        return tuple(tuple(self.widths[slot] for slot in slots) for slots in self.slots)

    @cached_property
    def slot_A(self) -> npt.NDArray[np.int64]:
        """[A] the slots of all cuts, one after the other."""
        return np.array([slot for slots in self.slots for slot in slots], dtype=np.int64)

    @cached_property
    def count_O(self) -> npt.NDArray[np.int64]:
        """[O] parts of each cut."""
        return np.array([len(slots) for slots in self.slots], dtype=np.int64)


class OptionRun(NamedTuple):
    """Options of a group of one type and storage; ``first_piece`` is the number of the piece of ``cuts.widths[0]``."""

    sharding_type: str
    storage: Storage
    cuts: Cuts
    first_piece: int


class GroupOptions:
    """The options of a group, each made when it is asked for.

    Args:
        runs: all options, in order.
        machine: devices.
        piece: makes the piece with a number.
    """

    def __init__(self, runs: Iterable[OptionRun], machine: Machine, piece: Callable[[int], Piece]) -> None:
        self.runs = list(runs)
        self._machine, self._piece = machine, piece
        self._known: dict[int, ShardingOption] = {}

    def __len__(self) -> int:
        return sum(len(run.cuts.slots) for run in self.runs)

    def __iter__(self) -> Iterator[ShardingOption]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> ShardingOption:
        at = range(len(self))[number]
        if at not in self._known:
            self._known[at] = self._make(at)
        return self._known[at]

    def number_of(self, name: str, widths: tuple[int, ...] | None, storage: Storage) -> int | None:
        """The number of the option of this type, storage and widths, in this order; None where there is none.

        Args:
            widths: None for any.
        """
        first = 0
        for run in self.runs:
            if (run.sharding_type, run.storage) == (name, storage):
                for number, of_option in enumerate(run.cuts.of_options, first):
                    if widths in (None, of_option):
                        return number
            first += len(run.cuts.slots)
        return None

    def _make(self, number: int) -> ShardingOption:
        for run in self.runs:
            if number < len(run.cuts.slots):
                break
            number -= len(run.cuts.slots)
        own, pieces = TYPES[run.sharding_type], [self._piece(run.first_piece + slot) for slot in run.cuts.slots[number]]
        spans = own.span(self._machine), own.home_span(self._machine)
        return ShardingOption(run.sharding_type, *spans, tuple(pieces), run.storage)


@dataclass(frozen=True)
class TableGroup:
    """Tables that are placed as one: a table, or those that stay together.

    Attributes:
        tables: positions in the task.
        options: how it may be sharded, whole first where it is allowed; each is made when it is asked for.
        allowed_D: devices that it may live on; None for all.
        apart: numbers of the groups of tables that stay apart of which it has one.
    """

    tables: tuple[int, ...]
    options: GroupOptions
    allowed_D: npt.NDArray[np.bool_] | None
    apart: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """The sharding of a group: the number of its option, and the place of each piece.

    A place is the number of a set of ``ShardingOption.span`` devices: of the device, of the node, or 0 for all devices.
    """

    option: int
    places: tuple[int, ...] = (0,)
