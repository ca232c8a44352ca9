"""The choices of a search: groups of tables, and the sharding options of each.

A piece is what the search places as one: columns on a device, rows on all devices of a node or on all devices, a
replica on each. Tables that stay together are one group, with one piece.

Legend: D devices, A parts of all cuts, O cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import Storage


@dataclass(frozen=True)
class ShardingOption:
    """One way to shard a group of tables: TorchRec's sharding option.

    Attributes:
        sharding_type: the type.
        storage: where its weights are kept.
        span: devices, one after the other, that each piece lives on: its place is the number of such a set.
        home_span: devices, one after the other, that all pieces are among.
        pieces: the number of each piece among all of the space, in the order of their columns.
        widths: columns of each piece.
    """

    sharding_type: str
    storage: Storage
    span: int
    home_span: int
    pieces: tuple[int, ...]
    widths: tuple[int, ...]


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


@dataclass(frozen=True)
class TableGroup:
    """Tables that are placed as one: a table, or those that stay together.

    Attributes:
        tables: positions in the task.
        runs: its options, whole first where it is allowed.
        allowed_D: devices that it may live on; None for all.
        apart: numbers of the groups of tables that stay apart of which it has one.
    """

    tables: tuple[int, ...]
    runs: list[OptionRun]
    allowed_D: npt.NDArray[np.bool_] | None
    apart: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """The sharding of a group: the number of its option, and the place of each piece.

    A place is the number of a set of ``ShardingOption.span`` devices: of the device, of the node, or 0 for all devices.
    """

    option: int
    places: tuple[int, ...] = (0,)
