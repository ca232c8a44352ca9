"""What is packed: tables, or tables that stay together, and the ways that their bytes can be spread over devices.

An item lives whole on one device, or is cut into equal blocks of which some devices hold some: a table of 64 columns is
sixteen blocks of four, or as many blocks as it has rows. What a device holds of one item is one part.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenshard.placement.items import joined_groups
from evenshard.placement.machine import Machine
from evenshard.placement.optimizer_state import NUMBERS, STATE_BYTES
from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, lookup_share
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    ShardingTask,
    TableLimits,
    may_be_cut_by_columns,
    memory_of_part,
    whole_nodes,
)
from evenshard.placement.storage import ON_DEVICE, Storage
from evenshard.tables.table import Table

Devices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """Blocks of a table, and where they may live.

    Attributes:
        fills: devices that rows are on, all of them unless equal blocks end before the last ones; 0 for columns.
        blocks: how many the table has.
        block_bytes: memory of each.
        part_bytes: memory of each part beside its blocks, such as an optimizer's state of each row; of rows, the inputs
            of an even share.
        least_blocks: blocks of the smallest part.
        scopes: sets of devices, in one of which all parts live.
    """

    fills: int
    blocks: int
    block_bytes: int
    part_bytes: int
    least_blocks: int
    scopes: tuple[Devices, ...]

    @property
    def in_rows(self) -> bool:
        """Whether blocks are rows; else four columns."""
        return self.fills > 0

    @property
    def even_rows(self) -> int:
        """Rows of an even share, rounded up."""
        return -(-self.blocks // self.fills)

    @property
    def even_holders(self) -> int:
        """Devices with rows where each has an even share, as long as there are any."""
        return -(-self.blocks // self.even_rows)

    def parts(self, table: Table, blocks: Mapping[int, int]) -> list[TablePart]:
        """The table where each device holds so many blocks."""
        rows, columns = Span(0, table.num_rows), Span(0, table.embedding_dim)
        found, stop = [], 0
        for device, count in blocks.items():
            start, stop = stop, stop + count
            if self.in_rows:
                rows = Span(start, stop)
            else:
                columns = Span(COLUMN_STEP * start, COLUMN_STEP * stop)
            found.append(TablePart(table.name, rows, columns, (device,)))
        return found


@dataclass(frozen=True)
class Grid:
    """Columns of a table over nodes, the rows of each part over the devices of one.

    Attributes:
        nodes: devices of each.
        blocks: fours of columns that the table has.
        least_blocks: of the narrowest part.
        num_rows: of the table.
        block_bytes: memory of four columns of a row.
        row_bytes: memory of a row beside its columns.
        part_bytes: memory of each part beside its rows and columns.
        outputs_bytes: memory of each part for each of its blocks, however many rows it has.
    """

    nodes: tuple[Devices, ...]
    blocks: int
    least_blocks: int
    num_rows: int
    block_bytes: int
    row_bytes: int
    part_bytes: int = 0
    outputs_bytes: int = 0

    def rows_cut(self, blocks: int, node: Devices) -> Cut:
        """The way to cut the rows of so many blocks."""
        part_bytes = self.part_bytes + blocks * self.outputs_bytes
        return Cut(len(node), self.num_rows, blocks * self.block_bytes + self.row_bytes, part_bytes, 1, (node,))

    def most_blocks(self, left_D: npt.NDArray[np.int64]) -> int:
        """The widest part that a node has room for, with so much left on its devices."""
        low, high = 0, self.blocks + 1
        while high - low > 1:
            middle = (low + high) // 2
            room_D = (left_D - self.part_bytes - middle * self.outputs_bytes).clip(min=0)
            rows_D = room_D // (middle * self.block_bytes + self.row_bytes)
            fits = rows_D.sum() >= self.num_rows and np.count_nonzero(rows_D) >= min(self.num_rows, len(left_D))
            low, high = (middle, high) if fits else (low, middle)
        return low if low >= self.least_blocks else 0


@dataclass(frozen=True)
class PackedItem:
    """Tables that live on one device, or a table that may be cut.

    Attributes:
        positions: of its tables in the task.
        tables: one, or those that stay together.
        table_bytes: memory of each where it is whole.
        least_bytes: memory of all its parts together, however it is cut.
        allowed_D: devices that it may live on.
        apart: numbers of the groups of which a device holds one table at most.
        may_be_whole: it may live on one device.
        cuts: the ways to cut it, columns first.
        grid: the way to cut its columns and the rows of each part; None if that is not allowed.
    """

    positions: tuple[int, ...]
    tables: tuple[Table, ...]
    table_bytes: tuple[int, ...]
    least_bytes: int
    allowed_D: npt.NDArray[np.bool_]
    apart: tuple[int, ...]
    may_be_whole: bool
    cuts: tuple[Cut, ...] = ()
    grid: Grid | None = None

    @property
    def size_bytes(self) -> int:
        """Memory where it is whole."""
        return sum(self.table_bytes)

    @property
    def least_parts(self) -> int:
        """Devices that it takes at least."""
        return 1 if self.may_be_whole else 2

    def whole(self, device: int) -> list[TablePart]:
        """Its tables on a device."""
        return [
            TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), (device,))
            for table in self.tables
        ]


@dataclass(frozen=True)
class PackedItems:
    """All that is packed.

    Attributes:
        items: in the order of their first tables.
        replicas: tables that may only be replicated, and so live on every device.
        room_D: what each device has left for the items, below 0 where the replicas alone do not fit.
    """

    items: tuple[PackedItem, ...]
    replicas: tuple[Table, ...]
    room_D: npt.NDArray[np.int64]

    @staticmethod
    def of(task: ShardingTask, storages: Mapping[int, Storage] | None = None) -> PackedItems:
        """The items of a task whose every table may be sharded somehow (``task.types``).

        Args:
            storages: how tables are kept that are not in device memory, by position.
        """
        kept = storages or {}
        positions_of = joined_groups(len(task.tables), task.together)
        only_replicated = {at for at, types in enumerate(task.types) if types == {DATA_PARALLEL}}
        if task.num_devices == 1:
            only_replicated = set()
        apart_of: dict[int, list[int]] = {}
        for number, group in enumerate(task.apart):
            for position in group:
                apart_of.setdefault(position, []).append(number)
        replicas = tuple(task.tables[position] for position in sorted(only_replicated))
        everywhere = tuple(range(task.num_devices))
        taken = sum(_bytes(task, table, devices=everywhere) for table in replicas)
        return PackedItems(
            tuple(
                _item(task, positions, apart_of, kept)
                for positions in positions_of
                if positions[0] not in only_replicated
            ),
            replicas,
            np.array(task.room_bytes, dtype=np.int64) - taken,
        )

    def replica_parts(self) -> list[TablePart]:
        """The replicated tables."""
        everywhere = tuple(range(len(self.room_D)))
        return [
            TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), everywhere)
            for table in self.replicas
        ]


def _item(
    task: ShardingTask,
    positions: Sequence[int],
    apart_of: Mapping[int, Sequence[int]],
    kept: Mapping[int, Storage],
) -> PackedItem:
    tables = tuple(task.tables[position] for position in positions)
    storages = [kept.get(position, ON_DEVICE) for position in positions]
    types = task.types[positions[0]]
    table_bytes = tuple(_bytes(task, table, storage=one) for table, one in zip(tables, storages, strict=True))
    size = sum(table_bytes)
    allowed_D = _mask(task.num_devices, task.limits_of(positions[0]).devices)
    for position in positions[1:]:
        allowed_D = allowed_D & _mask(task.num_devices, task.limits_of(position).devices)
    apart = tuple(sorted({number for position in positions for number in apart_of.get(position, ())}))
    if task.num_devices == 1 or len(positions) > 1:
        return PackedItem(tuple(positions), tables, table_bytes, size, allowed_D, apart, may_be_whole=True)
    cuts = _cuts(task, positions[0], storages[0])
    grid = _grid(task, positions[0], storages[0]) if GRID_SHARD in types else None
    bits_of_row = tables[0].embedding_dim * tables[0].weight_bits
    in_rows = grid is not None or any(cut.in_rows for cut in cuts)
    least = size - (tables[0].num_rows if in_rows and bits_of_row % 8 else 0)  # each part's bytes are rounded down
    whole = bool(types & {TABLE_WISE, TABLE_COLUMN_WISE})
    return PackedItem(tuple(positions), tables, table_bytes, least, allowed_D, apart, whole, cuts, grid)


def _cuts(task: ShardingTask, position: int, storage: Storage) -> tuple[Cut, ...]:
    table, limits, types = task.tables[position], task.limits_of(position), task.types[position]
    anywhere, of_nodes = _scopes(task.machine, limits.devices)
    found = []
    if types & {COLUMN_WISE, TABLE_COLUMN_WISE} and may_be_cut_by_columns(table, limits):
        scopes = anywhere if COLUMN_WISE in types else of_nodes
        found.append(_by_columns(task, table, limits, storage, scopes))
    for way, fills, scopes in (
        (TABLE_ROW_WISE, task.machine.devices_per_node, of_nodes),
        (ROW_WISE, task.num_devices, anywhere),
    ):
        if way in types:
            row_bytes, part_bytes = _by_rows(task, table, storage, fills)
            found.append(Cut(fills, table.num_rows, row_bytes, part_bytes, 1, scopes))
    return tuple(found)


def _grid(task: ShardingTask, position: int, storage: Storage) -> Grid:
    table, limits = task.tables[position], task.limits_of(position)
    nodes = tuple(np.array(task.machine.devices_of_node(node)) for node in whole_nodes(task.machine, limits.devices))
    columns = _by_columns(task, table, limits, storage, nodes)
    row_bytes = NUMBERS[task.optimizer_of(table.name)][0] * STATE_BYTES
    narrow, wide = (
        _by_rows(task, replace(table, embedding_dim=columns_), storage, task.machine.devices_per_node)
        for columns_ in (COLUMN_STEP, 2 * COLUMN_STEP)
    )
    outputs_bytes = wide[1] - narrow[1]
    return Grid(
        nodes,
        columns.blocks,
        columns.least_blocks,
        table.num_rows,
        wide[0] - narrow[0],
        row_bytes if storage == ON_DEVICE else max(narrow[0] - (wide[0] - narrow[0]), 0),
        narrow[1] - outputs_bytes,
        outputs_bytes,
    )


def _by_columns(
    task: ShardingTask, table: Table, limits: TableLimits, storage: Storage, scopes: tuple[Devices, ...]
) -> Cut:
    """Four columns more take as much again, whatever the storage: memory is linear in columns."""
    narrow, wide = (
        _bytes(task, table, columns=Span(0, columns), storage=storage) for columns in (COLUMN_STEP, 2 * COLUMN_STEP)
    )
    block_bytes, blocks = wide - narrow, table.embedding_dim // COLUMN_STEP
    least_blocks = max(-(-limits.min_columns // COLUMN_STEP), 1)
    return Cut(0, blocks, block_bytes, narrow - block_bytes, least_blocks, scopes)


def _by_rows(task: ShardingTask, table: Table, storage: Storage, devices: int) -> tuple[int, int]:
    """Memory of a row, and of a part of rows beside them, whose inputs are those of the busiest even share."""
    block = -(-table.num_rows // devices)
    spans = (Span(start, min(start + block, table.num_rows)) for start in range(0, table.num_rows, block))
    busiest = max(spans, key=lambda rows: lookup_share(table, rows))
    memory = memory_of_part(task, table, _part(table, rows=busiest, storage=storage))
    of_rows = memory.weights + memory.optimizer_state + memory.cache_state
    return -(-of_rows // busiest.size), memory.device_bytes - of_rows


def _bytes(
    task: ShardingTask,
    table: Table,
    columns: Span | None = None,
    storage: Storage = ON_DEVICE,
    devices: tuple[int, ...] = (),
) -> int:
    """Device memory of a part with all rows."""
    return memory_of_part(task, table, _part(table, columns=columns, storage=storage, devices=devices)).device_bytes


def _part(
    table: Table,
    rows: Span | None = None,
    columns: Span | None = None,
    storage: Storage = ON_DEVICE,
    devices: tuple[int, ...] = (),
) -> TablePart:
    every_row, every_column = Span(0, table.num_rows), Span(0, table.embedding_dim)
    return TablePart(table.name, rows or every_row, columns or every_column, devices, storage)


@lru_cache(maxsize=4096)
def _mask(num_devices: int, devices: frozenset[int] | None) -> npt.NDArray[np.bool_]:
    mask_D = np.ones(num_devices, dtype=bool) if devices is None else np.isin(np.arange(num_devices), list(devices))
    mask_D.flags.writeable = False
    return mask_D


@lru_cache(maxsize=4096)
def _scopes(machine: Machine, devices: frozenset[int] | None) -> tuple[tuple[Devices, ...], tuple[Devices, ...]]:
    """All devices that a table may live on, and those of each node."""
    anywhere = np.flatnonzero(_mask(machine.num_devices, devices))
    nodes = anywhere // machine.devices_per_node
    of_nodes = tuple(anywhere[nodes == node] for node in np.unique(nodes).tolist())
    return (anywhere,), of_nodes
