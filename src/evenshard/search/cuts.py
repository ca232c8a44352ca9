"""The cuts of a table, as far as memory tells: equal blocks of columns or rows, grids of them, and known parts.

What a device holds of one table is one part.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, cut_rows, lay_out, row_starts, whole_part
from evenshard.tables.table import Table

Devices = npt.NDArray[np.int64]


class Taken(NamedTuple):
    """Bytes of a device, of its host's memory and of its host's SSDs."""

    device: int
    host: int = 0
    ssd: int = 0

    def less(self, other: Taken) -> Taken:
        """The difference of each."""
        return Taken(*(own - their for own, their in zip(self, other, strict=True)))


class Line(NamedTuple):
    """Bytes of a part: a constant, and an amount for each of its blocks."""

    part: Taken
    block: Taken


@dataclass(frozen=True)
class Cut:
    """Blocks of a table, and where they may live."""

    fills: int  # devices that rows are on, all of them unless equal blocks end before the last ones; 0 for columns
    blocks: int  # of the table
    line: Line  # what each part takes; of rows whose lookups are counted, with the inputs of the busiest even share
    least_blocks: int  # blocks of the smallest part
    scopes: tuple[Devices, ...]  # sets of devices, in one of which all parts live
    widest: int  # blocks of the largest part

    @property
    def block_bytes(self) -> int:
        """Device memory of a block."""
        return self.line.block.device

    @property
    def part_bytes(self) -> int:
        """Device memory of a part beside its blocks, such as an optimizer's state of each row."""
        return self.line.part.device

    @property
    def in_rows(self) -> bool:
        """True if blocks are rows; else they are four columns."""
        return self.fills > 0

    @property
    def even_rows(self) -> range:
        """First rows of even shares, of as many devices as get any."""
        return row_starts(self.blocks, self.fills)

    def most_blocks(self, left_D: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Blocks that there is room for on each device; -1 left is no room for any part."""
        left_D = np.where(left_D < 0, -1, left_D - self.part_bytes)
        most_D = left_D // self.block_bytes if self.block_bytes else np.where(left_D < 0, 0, self.widest)
        most_D = np.asarray(np.where(left_D < 0, 0, most_D.clip(0, self.widest)))
        return np.where(most_D < self.least_blocks, 0, most_D)

    def parts(self, table: Table, blocks: Mapping[int, int]) -> list[TablePart]:
        """The table where each device holds so many blocks."""
        held = [whole_part(table, (device,)) for device in blocks]
        if self.in_rows:
            return [replace(part, rows=rows) for part, rows in zip(held, lay_out(blocks.values()), strict=True)]
        spans = lay_out(COLUMN_STEP * count for count in blocks.values())
        return [replace(part, columns=columns) for part, columns in zip(held, spans, strict=True)]


@dataclass(frozen=True)
class Grid:
    """Columns of a table over nodes, the rows of each part over the devices of one."""

    nodes: tuple[Devices, ...]  # devices of each
    blocks: int  # fours of columns that the table has
    least_blocks: int  # of the narrowest part
    num_rows: int  # of the table
    block_bytes: int  # device memory of four columns of a row
    # Rows cut evenly over the devices of a node, and what each of these takes: a line of fours of columns.
    even: tuple[tuple[Span, Line], ...]
    widest: int  # blocks of the widest part

    def even_parts(self, table: Table, fours: Sequence[int]) -> list[TablePart]:
        """The table where each node holds so many fours of columns, cut by rows evenly over its devices."""
        cut = zip(self.nodes, lay_out(COLUMN_STEP * count for count in fours), strict=False)
        return [part for node, columns in cut if columns.size for part in cut_rows(table, node.tolist(), columns)]

    def most_blocks(self, left_D: npt.NDArray[np.int64]) -> int:
        """Return the blocks of the widest part that fits in memory on a node's devices; 0 for none."""
        most = [
            (left - line.part.device) // max(line.block.device, 1)
            for left, (_, line) in zip(left_D.tolist(), self.even, strict=False)
        ]
        widest = min(*most, self.widest)
        return widest if widest >= self.least_blocks else 0


@dataclass(frozen=True)
class KnownParts:
    """Parts that are known beforehand, with what each device has of them: replicas, and even rows of uneven lookups."""

    parts: tuple[TablePart, ...]
    taken: Mapping[int, Taken]

    @property
    def device_bytes(self) -> int:
        """Memory that the parts take of all devices together."""
        return sum(one.device for one in self.taken.values())

    def fit(self, left_D: npt.NDArray[np.int64]) -> bool:
        """Return True if devices have so much left."""
        return all(left_D[device] >= one.device for device, one in self.taken.items())
