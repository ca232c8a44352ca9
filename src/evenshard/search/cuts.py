"""Memory of sharded tables, for packing: equal blocks of columns or rows, grids, and fixed parts.

A block is four columns of a table, or a row. The blocks of a table on one device form one part.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, cut_rows, row_starts, spans_of_sizes, whole_part
from evenshard.tables.table import Table

Devices = npt.NDArray[np.int64]


class MemoryUse(NamedTuple):
    """Memory that a part uses on a device, on its host and on the host's SSDs, bytes."""

    device: int
    host: int = 0
    ssd: int = 0

    def minus(self, other: MemoryUse) -> MemoryUse:
        """Return this memory use minus ``other``."""
        return MemoryUse(*(own - their for own, their in zip(self, other, strict=True)))


class Line(NamedTuple):
    """Memory of a part as a linear function of its number of blocks."""

    part: MemoryUse
    block: MemoryUse


@dataclass(frozen=True)
class Cut:
    """A table divided into equal blocks, with the device sets that may hold the blocks."""

    fills: int  # number of devices for rows, all unless equal blocks end before the last devices; 0 for columns
    blocks: int  # blocks of the table
    line: Line  # bytes of a part; if row lookups are counted, with the inputs of the busiest even share
    least_blocks: int  # blocks of the smallest part
    scopes: tuple[Devices, ...]  # sets of devices, one of which has all parts
    widest: int  # blocks of the largest part

    @property
    def block_bytes(self) -> int:
        """Return the device memory of a block."""
        return self.line.block.device

    @property
    def part_bytes(self) -> int:
        """Return the device memory of a part that does not depend on its blocks, such as per-row optimizer state."""
        return self.line.part.device

    @property
    def in_rows(self) -> bool:
        """Return True if blocks are rows, False if a block is four columns."""
        return self.fills > 0

    @property
    def even_rows(self) -> range:
        """Return the first row of each device's part when rows are divided evenly."""
        return row_starts(self.blocks, self.fills)

    def most_blocks(self, left_D: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the most blocks that each device can hold; ``left_D`` is its free memory, or -1 if forbidden."""
        left_D = np.where(left_D < 0, -1, left_D - self.part_bytes)
        most_D = left_D // self.block_bytes if self.block_bytes else np.where(left_D < 0, 0, self.widest)
        most_D = np.asarray(np.where(left_D < 0, 0, most_D.clip(0, self.widest)))
        return np.where(most_D < self.least_blocks, 0, most_D)

    def parts(self, table: Table, blocks: Mapping[int, int]) -> list[TablePart]:
        """Return the table's parts, given the blocks of each device."""
        held = [whole_part(table, (device,)) for device in blocks]
        if self.in_rows:
            return [replace(part, rows=rows) for part, rows in zip(held, spans_of_sizes(blocks.values()), strict=True)]
        spans = spans_of_sizes(COLUMN_STEP * count for count in blocks.values())
        return [replace(part, columns=columns) for part, columns in zip(held, spans, strict=True)]


@dataclass(frozen=True)
class Grid:
    """Grid sharding: columns divided over nodes, and each node's rows divided over its devices."""

    nodes: tuple[Devices, ...]  # devices of each node
    blocks: int  # blocks of four columns in the table
    least_blocks: int  # blocks of the narrowest part
    num_rows: int  # rows of the table
    block_bytes: int  # device memory of four columns of a row
    # Bytes of each device's even share of rows, as a line over blocks of four columns.
    even: tuple[tuple[Span, Line], ...]
    widest: int  # blocks of the widest part

    def even_parts(self, table: Table, fours: Sequence[int]) -> list[TablePart]:
        """Return the table's parts, given the number of four-column blocks on each node."""
        cut = zip(self.nodes, spans_of_sizes(COLUMN_STEP * count for count in fours), strict=False)
        return [part for node, columns in cut if columns.size for part in cut_rows(table, node.tolist(), columns)]

    def most_blocks(self, left_D: npt.NDArray[np.int64]) -> int:
        """Return the maximum number of column blocks that fit on a node's devices; 0 if none fits."""
        most = [
            (left - line.part.device) // max(line.block.device, 1)
            for left, (_, line) in zip(left_D.tolist(), self.even, strict=False)
        ]
        widest = min(*most, self.widest)
        return widest if widest >= self.least_blocks else 0


@dataclass(frozen=True)
class FixedParts:
    """Parts with fixed sizes: replicas, and equal row shards whose lookups differ."""

    parts: tuple[TablePart, ...]
    taken: Mapping[int, MemoryUse]

    @property
    def device_bytes(self) -> int:
        """Return the device memory that the parts take on all devices together."""
        return sum(one.device for one in self.taken.values())

    def fit(self, left_D: npt.NDArray[np.int64]) -> bool:
        """Return True if the parts fit the memory left on devices."""
        return all(left_D[device] >= one.device for device, one in self.taken.items())
