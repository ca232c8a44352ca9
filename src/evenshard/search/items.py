"""Packing items: tables, or groups of tables that stay together, and how their memory can be divided.

An item is whole on one device, or cut into equal blocks that several devices share: a table of 64 columns has sixteen
blocks of four columns, or as many blocks as rows. Each device holds at most one part of an item.

Legend: I items, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenshard.placement import sharding
from evenshard.placement.memory import CACHE_SLOT_BYTES
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import (
    COLUMN_STEP,
    FUSED,
    FUSED_UVM,
    FUSED_UVM_CACHING,
    HOST,
    KEY_VALUE,
    ON_DEVICE,
    Span,
    Storage,
    TablePart,
    cut_rows,
    row_spans,
    storages_of,
    whole_part,
)
from evenshard.placement.placement import common_device_mask, device_mask, merge_groups, separation_groups
from evenshard.placement.sharding import COLUMN_WISE, GRIDS, TYPES, least_limited_column_type
from evenshard.placement.task import ShardingTask, common_kernels, may_be_cut_by_columns, memory_of_part
from evenshard.search.cuts import Cut, Devices, FixedParts, Grid, Line, MemoryUse
from evenshard.tables.table import Table

# Items by first table and storage: building them takes far longer than packing them.
KnownItems = dict[tuple[int, Storage], "PackedItem"]
NOTHING = MemoryUse(0)
LEAST_CACHE = 0.01  # load factor of the smallest cache that the search also tries
# Kernels that keep tables outside of device memory, those that use the least of it first; the CPU is last.
OUTSIDE = (FUSED_UVM, FUSED_UVM_CACHING, KEY_VALUE, HOST)


@dataclass(frozen=True)
class PackedItem:
    """Unit of packing: tables that share one device, or one table that may be sharded or replicated."""

    positions: tuple[int, ...]  # positions of its tables in the task
    tables: tuple[Table, ...]  # one table, or tables that stay together
    table_bytes: tuple[int, ...]  # device memory of each table if it is whole
    least_bytes: int  # least device memory of all its parts together
    allowed_D: npt.NDArray[np.bool_]
    apart: tuple[int, ...]  # indices of the groups of tables to keep apart
    may_be_whole: bool
    cuts: tuple[Cut, ...] = ()  # possible cuts, columns first
    grid: Grid | None = None  # cut of columns and of each part's rows; None if not allowed
    known: tuple[FixedParts, ...] = ()  # other cuts, whose parts are known
    outside: MemoryUse = NOTHING  # memory on its host if it is whole; nothing of the device
    storage: Storage = ON_DEVICE

    @property
    def size_bytes(self) -> int:
        """Return the device memory of the item if it is whole."""
        return sum(self.table_bytes)

    @property
    def is_free(self) -> bool:
        """Return True if the item may be sharded or replicated."""
        return bool(self.cuts or self.grid or self.known)

    @property
    def least_parts(self) -> int:
        """Return the minimum number of devices that the item needs."""
        return 1 if self.may_be_whole else 2

    def whole(self, device: int) -> list[TablePart]:
        """Return the item's tables as whole parts on a device."""
        return [whole_part(table, (device,)) for table in self.tables]

    def with_storage(self, parts: Iterable[TablePart]) -> list[TablePart]:
        """Return ``parts`` with the item's storage set."""
        return [replace(part, storage=self.storage) for part in parts]


@dataclass(frozen=True)
class PackedItems:
    """All items of a task, and the memory that devices have for them."""

    items: tuple[PackedItem, ...]  # in the order of their first tables
    replicas: tuple[Table, ...]  # tables that may only be replicated, and so are on every device
    # Memory of each device left for the items, below 0 if the replicas alone do not fit.
    memory_D: npt.NDArray[np.int64]
    machine: Nodes
    # Each item in its other possible storages, for a solver to choose from; may be empty.
    others: tuple[tuple[PackedItem, ...], ...] = ()

    @staticmethod
    def of(
        task: ShardingTask, storages: Mapping[int, Storage] | None = None, known: KnownItems | None = None
    ) -> PackedItems:
        """Build the items of a task; every table must have at least one sharding type (``task.types``).

        Args:
            storages: storages of tables outside of device memory, by position.
        """
        kept = storages or {}
        return _items(task, lambda positions: (kept.get(positions[0], ON_DEVICE),), known)

    @staticmethod
    def with_all_storages(task: ShardingTask, known: KnownItems | None = None) -> PackedItems:
        """Build the items of a task with every storage that each item may use."""

        def storages(positions: Sequence[int]) -> tuple[Storage, ...]:
            on_device = FUSED in common_kernels(task, positions)
            return (*([ON_DEVICE] if on_device else []), *least_outside(task, positions)) or (ON_DEVICE,)

        return _items(task, storages, known)

    @property
    def allowed_ID(self) -> npt.NDArray[np.bool_]:
        """Mark the allowed devices of each item, [I, D]."""
        return np.array([item.allowed_D for item in self.items], dtype=bool).reshape(-1, len(self.memory_D))

    def replica_parts(self) -> list[TablePart]:
        """Return the parts of the replicated tables."""
        everywhere = tuple(range(len(self.memory_D)))
        return [whole_part(table, everywhere) for table in self.replicas]


class FreeMemory:
    """Available memory of each device, and the keep-apart rules that have a table on it."""

    def __init__(self, items: PackedItems) -> None:
        self.left_D = items.memory_D.copy()
        self._taken_D: dict[int, npt.NDArray[np.bool_]] = {}

    def of(self, item: PackedItem) -> npt.NDArray[np.int64]:
        """Return the available memory for an item on each device, [D]; -1 where it is forbidden."""
        free_D = item.allowed_D
        for group in self._taken_D.keys() & item.apart:
            free_D = free_D & ~self._taken_D[group]
        return np.where(free_D, self.left_D, -1)

    def take(self, item: PackedItem, bytes_of: Mapping[int, int]) -> None:
        """Subtract an item's memory from each device."""
        for device, size in bytes_of.items():
            self.left_D[device] -= size
        for group in item.apart:
            self._taken_D.setdefault(group, np.zeros(len(self.left_D), dtype=bool))[list(bytes_of)] = True


def least_outside(task: ShardingTask, positions: Sequence[int]) -> tuple[Storage, ...]:
    """Return, for tables on one device, the offloaded storages that use the least device memory."""
    if not task.only_replicated.isdisjoint(positions):  # replicas never leave it
        return ()
    kernels = common_kernels(task, positions)
    return tuple(storage for one in OUTSIDE if one in kernels for storage in storages_of(one, (LEAST_CACHE,)))


def _items(
    task: ShardingTask,
    storages: Callable[[Sequence[int]], tuple[Storage, ...]],
    known: KnownItems | None = None,
) -> PackedItems:
    known = {} if known is None else known
    replicas = tuple(task.tables[position] for position in sorted(task.only_replicated))
    taken = sum(_replica(task, table).device for table in replicas)
    found: list[list[PackedItem]] = []
    for positions in merge_groups(len(task.tables), task.together):
        if positions[0] in task.only_replicated:
            continue
        found.append([])
        for storage in storages(positions):
            key = positions[0], storage
            if key not in known:
                known[key] = _item(task, positions, storage)
            found[-1].append(known[key])
    return PackedItems(
        tuple(first for first, *_ in found),
        replicas,
        np.array(task.room_bytes, dtype=np.int64) - taken,
        task.machine,
        tuple(tuple(others) for _, *others in found) if any(len(one) > 1 for one in found) else (),
    )


def _item(task: ShardingTask, positions: Sequence[int], storage: Storage) -> PackedItem:
    tables = tuple(task.tables[position] for position in positions)
    wholes = [MemoryUse(task.table_bytes[position]) for position in positions]
    if storage != ON_DEVICE:
        wholes = [_memory_use(task, table, whole_part(table, storage=storage)) for table in tables]
    allowed_D = common_device_mask(task, positions)
    whole = PackedItem(
        tuple(positions),
        tables,
        tuple(one.device for one in wholes),
        sum(one.device for one in wholes),
        device_mask(task.num_devices, None) if allowed_D is None else allowed_D,
        separation_groups(task, positions),
        may_be_whole=True,
        outside=MemoryUse(0, sum(one.host for one in wholes), sum(one.ssd for one in wholes)),
        storage=storage,
    )
    if task.num_devices == 1 or len(positions) > 1 or task.types[positions[0]] == {sharding.TABLE_WISE}:
        return whole
    types = task.types[positions[0]]
    cuts = _cuts(task, positions[0], storage)
    grid = next((_grid(task, positions[0], TYPES[one].span(task.machine), storage) for one in types & {*GRIDS}), None)
    known = tuple(_fixed_parts(task, positions[0], storage))
    in_rows = grid is not None or any(cut.in_rows for cut in cuts)
    least = whole.size_bytes - (_rounded_bytes(task, tables[0], task.num_devices) if in_rows else 0)
    return replace(
        whole,
        least_bytes=min(least, *(one.device_bytes for one in known)) if known else least,
        may_be_whole=bool(types - {*sharding.NEVER_WHOLE}) and task.fewest_column_parts(tables[0]) == 1,
        cuts=cuts,
        grid=grid,
        known=known,
    )


def _cuts(task: ShardingTask, position: int, storage: Storage) -> tuple[Cut, ...]:
    table, limits, types = task.tables[position], task.limits_of(position), task.types[position]
    machine, found = task.machine, []
    # Blocks and their devices are more general than a search's even widths: part sizes may be any that fit.
    if (by_columns := types & {*sharding.COLUMNS_ALONE}) and may_be_cut_by_columns(table, limits):
        homes = TYPES[least_limited_column_type(by_columns, machine, COLUMN_WISE)].home_span(machine)
        scopes = _allowed_of(machine, homes, limits.devices)
        line, blocks = _columns(task, table, storage), table.embedding_dim // COLUMN_STEP
        widest = min(blocks, task.max_columns // COLUMN_STEP)
        found.append(Cut(0, blocks, line, limits.min_column_steps, scopes, widest))
    for span in _row_cuts(task, position):
        scopes = _allowed_of(machine, span, limits.devices)
        found.append(Cut(span, table.num_rows, _rows(task, table, storage), 1, scopes, table.num_rows))
    return tuple(found)


def _row_cuts(task: ShardingTask, position: int) -> list[int]:
    return sorted(TYPES[one].span(task.machine) for one in sharding.ROWS_ALONE if one in task.types[position])


def _grid(task: ShardingTask, position: int, span: int, storage: Storage) -> Grid:
    table, limits = task.tables[position], task.limits_of(position)
    narrow, wide = (
        _rows(task, replace(table, embedding_dim=columns), storage) for columns in (COLUMN_STEP, 2 * COLUMN_STEP)
    )
    known: dict[int, Line] = {}

    def lines(rows: Span) -> Line:
        if table.row_shares is not None:
            return _columns(task, table, storage, rows)
        if rows.size not in known:  # without counted row shares, parts of equal row count are equal
            known[rows.size] = _columns(task, table, storage, rows)
        return known[rows.size]

    return Grid(
        tuple(map(np.array, sharding.allowed_sets(task.machine, span, limits.devices))),
        table.embedding_dim // COLUMN_STEP,
        limits.min_column_steps,
        table.num_rows,
        wide.block.device - narrow.block.device,
        tuple((rows, lines(rows)) for rows in row_spans(table, span)),
        min(table.embedding_dim, task.max_columns) // COLUMN_STEP,
    )


def _fixed_parts(task: ShardingTask, position: int, storage: Storage) -> Iterator[FixedParts]:
    """Yield parts of a table with fixed sizes: replicas, and equal row shards if their memory is not linear in rows."""
    table, allowed = task.tables[position], task.limits_of(position).devices
    if task.types[position] & {*sharding.REPLICATED} and storage == ON_DEVICE:
        everywhere = tuple(range(task.num_devices))
        yield FixedParts((whole_part(table, everywhere),), dict.fromkeys(everywhere, _replica(task, table)))
    if _has_even_lookups(task, table) and not table.embedding_dim * table.weight_bits % 8:
        return
    for span in reversed(_row_cuts(task, position)):
        for devices in sharding.allowed_sets(task.machine, span, allowed):
            parts = cut_rows(table, devices, storage=storage)
            yield FixedParts(tuple(parts), {part.device: _memory_use(task, table, part) for part in parts})


def _replica(task: ShardingTask, table: Table) -> MemoryUse:
    return _memory_use(task, table, whole_part(table, tuple(range(task.num_devices))))


def _columns(task: ShardingTask, table: Table, storage: Storage, rows: Span | None = None) -> Line:
    """Return the memory of column parts, which is exactly linear in their columns."""
    whole = whole_part(table, storage=storage)
    narrow, wide = (
        _memory_use(task, table, replace(whole, rows=rows or whole.rows, columns=Span(0, columns)))
        for columns in (COLUMN_STEP, 2 * COLUMN_STEP)
    )
    block = wide.minus(narrow)
    return Line(narrow.minus(block), block)


def _rows(task: ShardingTask, table: Table, storage: Storage) -> Line:
    """Return a linear upper bound of a row part's memory; with uneven lookups, it includes the inputs of all rows."""
    whole = whole_part(table, storage=storage)
    if _has_even_lookups(task, table):
        few, many = 1, max(table.num_rows - 1, 1)  # a part with every row is sent whole
        first, last = (_memory_use(task, table, replace(whole, rows=Span(0, rows))) for rows in (few, many))
        block = MemoryUse(*(-(-more // max(many - few, 1)) for more in last.minus(first)))
        rounded = _rounded_bytes(task, table, 1) if task.pipeline else 0
        if storage.is_cached:  # a cache holds whole rows
            rounded += -(-table.embedding_dim * table.weight_bits // 8) + CACHE_SLOT_BYTES
        return Line(MemoryUse(*first.minus(block))._replace(device=first.device - block.device + rounded), block)
    memory = memory_of_part(task, table, whole)
    of_rows = memory.weights + memory.optimizer_state + memory.cache_state
    sent = 0 if table.is_sequence else memory.sent
    block = MemoryUse(*(-(-one // table.num_rows) for one in (of_rows, memory.host_bytes, memory.ssd_weights)))
    return Line(MemoryUse(memory.device_bytes - of_rows - sent), block)


def _has_even_lookups(task: ShardingTask, table: Table) -> bool:
    return not task.pipeline or (table.row_shares is None and not table.is_deduplicated)


def _rounded_bytes(task: ShardingTask, table: Table, parts: int) -> int:
    """Bound how far rounding can push a row part's memory below its proportional share, bytes."""
    of_rows = table.num_rows if table.embedding_dim * table.weight_bits % 8 else 0
    return of_rows + parts * (2 + 2 * table.embedding_dim) if task.pipeline else of_rows


def _memory_use(task: ShardingTask, table: Table, part: TablePart) -> MemoryUse:
    memory = memory_of_part(task, table, part)
    return MemoryUse(memory.device_bytes, memory.host_bytes, memory.ssd_weights)


@lru_cache(maxsize=4096)
def _allowed_of(machine: Nodes, size: int, devices: frozenset[int] | None) -> tuple[Devices, ...]:
    by_set = device_mask(machine.num_devices, devices).reshape(-1, size)
    return tuple(number * size + np.flatnonzero(own) for number, own in enumerate(by_set) if own.any())
