"""Builder of arrays with the memory, volumes and price columns of every shard that the search may place.

Shards of a table with the same sharding type and storage differ only in their columns. Their memory and volumes are
linear in the number of columns, so two evaluations determine them.

Legend: L linear functions, P shards, E some of them, C cells, V kinds of volumes, K kinds of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from evenshard.placement.parts import COLUMN_STEP, Span, Storage, TablePart, busiest_rows, lookup_share, whole_part
from evenshard.placement.sharding import DEVICE, NODE, TABLE_WISE, TYPES
from evenshard.placement.task import memory_of_part
from evenshard.price.collectives import VOLUMES, part_volume
from evenshard.price.kernel_calls import KernelCall, Lookup, kernel_call, part_lookups, replica_lookups
from evenshard.price.loads import Indices, LookupColumns, repeat_numbers
from evenshard.price.step import PartCosts
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

_NO_BYTES, _NO_VOLUMES = (0, 0, 0), (0.0,) * len(VOLUMES)
# Ends of the fields of a line: see ``ShardBuilder``.
_ENDS = tuple(accumulate((1, 3, 3, len(VOLUMES), len(VOLUMES), 1)))


class _RowRange(NamedTuple):
    """Row range of a table; ``row_of`` maps a shard's width to the index of its lookups in ``LookupColumns``."""

    rows: Span
    line: int
    lookups: tuple[Lookup, ...]
    row_of: dict[int, int]


@dataclass(frozen=True)
class ShardArrays:
    """All shards of all options as arrays.

    Each shard adds its sizes (bytes of device memory, of the host's memory and of its SSDs), volumes (``PartVolume``)
    and the extra time of offloading (forward and backward, ms) to ``span_P`` consecutive devices. ``values_P`` counts
    the weights of a replica. A shard has a cell for each of its kernel calls: the call, and the row of its lookups in
    ``LookupColumns``.
    """

    columns_P: Indices
    span_P: Indices
    size_P: Indices
    host_P: Indices
    ssd_P: Indices
    values_P: FloatArray
    volume_PV: FloatArray
    offload_PK2: FloatArray
    cells_P: Indices
    first_P: Indices
    call_C: Indices
    row_C: Indices

    def cells_of(self, shard_E: Indices) -> tuple[Indices, Indices]:
        """Return all kernel calls (cells) of these shards: the index into ``shard_E``, and the index of the cell."""
        from_C, offset_C = repeat_numbers(self.cells_P[shard_E])
        return from_C, self.first_P[shard_E[from_C]] + offset_C


class ShardBuilder:
    """Builder of ``ShardArrays``; it numbers shards, kernel calls and lookups.

    ``collective_of_call`` has the module and the type of each kernel call: calls with the same values share a
    collective. ``lookups`` are complete after ``lookups.update()``.
    """

    def __init__(self, costs: PartCosts) -> None:
        self.calls: dict[KernelCall, int] = {}
        self.collective_of_call: list[tuple[str, str]] = []
        self.lookups = LookupColumns(costs.prices)
        self._costs, self._task = costs, costs.task
        self._every_device = tuple(range(costs.task.num_devices))
        # Keys: table, scope of its rows, and storage.
        self._row_ranges: dict[tuple[int, str, Storage], _RowRange] = {}
        # Each line: the span, three sizes in bytes, their growth per ``COLUMN_STEP`` columns, volumes, their growth per
        # column, and the weights of a replica. A flat list of numbers is the fastest to build.
        self._numbers: list[float] = []
        self._line_P: list[int] = []
        self._columns_P: list[int] = []
        self._cells_P: list[int] = []
        self._call_C: list[int] = []
        self._row_C: list[int] = []
        self._offload_K2_of: dict[int, tuple[tuple[float, float], ...]] = {}

    def add(self, position: int, name: str, storage: Storage, widths: Sequence[int]) -> int:
        """Add a shard of a table for each of these widths, and return the index of the first.

        If a table is cut by rows, the part with the most lookups represents all parts.
        """
        table, first, count = self._task.tables[position], len(self._columns_P), len(widths)
        key = position, TYPES[name].scope, storage
        if (row_range := self._row_ranges.get(key)) is None:
            row_range = self._row_ranges[key] = self._row_range(position, name, storage)
        row_of = row_range.row_of
        for width in widths:
            if width not in row_of:
                row_of[width] = self.lookups.row(row_range.lookups, width)
        self._columns_P += widths
        self._line_P += [row_range.line] * count
        self._cells_P += [1] * count
        self._call_C += [self._call(table, name)] * count
        self._row_C += [row_of[width] for width in widths]
        if not storage.is_on_device:
            for number, width in enumerate(widths, first):
                part = TablePart(table.name, row_range.rows, Span(0, width), (0,), storage)
                self._offload_K2_of[number] = self._costs.offload_K2(part, table)
        return first

    def add_together(self, members: Sequence[int], storage: Storage) -> int:
        """Add one shard for a group of unsharded tables that stay together, and return its index."""
        number, of_call = len(self._columns_P), dict[int, tuple[Lookup, ...]]()
        parts = [(self._task.tables[at], whole_part(self._task.tables[at], (0,), storage)) for at in members]
        lines = [self._line(table, part, TABLE_WISE) for table, part in parts]
        for table, part in parts:
            call = self._call(table, TABLE_WISE)
            of_call[call] = (*of_call.get(call, ()), *part_lookups(part, table, self._task))
        self._columns_P.append(sum(table.embedding_dim for table, _ in parts))
        self._line_P.append(self._add_line((lines[0][0], *np.sum(lines, axis=0)[1:].tolist())))
        self._cells_P.append(len(of_call))
        self._call_C += of_call
        self._row_C += map(self.lookups.row, of_call.values())
        if not storage.is_on_device:
            each = np.array([self._costs.offload_K2(part, table) for table, part in parts])
            self._offload_K2_of[number] = tuple(map(tuple, each.sum(axis=0).tolist()))
        return number

    def arrays(self) -> ShardArrays:
        """Return all shards."""
        columns_P = np.array(self._columns_P, dtype=np.int64)
        numbers_P = np.array(self._numbers, dtype=np.float64).reshape(-1, _ENDS[-1])[self._line_P]
        span_P1, bytes_P3, more_P3, volume_PV, more_PV, values_P1 = np.split(numbers_P, _ENDS[:-1], axis=1)
        bytes_P3 = bytes_P3 + more_P3 * (columns_P // COLUMN_STEP)[:, None]
        size_P, host_P, ssd_P = bytes_P3.T.astype(np.int64)
        offload_PK2 = np.zeros((len(columns_P), len(self._costs.kinds), 2))
        for number, offload_K2 in self._offload_K2_of.items():
            offload_PK2[number] = offload_K2
        cells_P = np.array(self._cells_P, dtype=np.int64)
        return ShardArrays(
            columns_P,
            span_P1[:, 0].astype(np.int64),
            size_P,
            host_P,
            ssd_P,
            values_P1[:, 0],
            volume_PV + more_PV * columns_P[:, None],
            offload_PK2,
            cells_P,
            np.cumsum(cells_P) - cells_P,
            np.array(self._call_C, dtype=np.int64),
            np.array(self._row_C, dtype=np.int64),
        )

    def _row_range(self, position: int, name: str, storage: Storage) -> _RowRange:
        table, own = self._task.tables[position], TYPES[name]
        rows = busiest_rows(table, own.span(self._task.machine)) if own.cuts_rows else Span(0, table.num_rows)
        devices = self._every_device if own.is_replicated else (0,)
        part = TablePart(table.name, rows, Span(0, table.embedding_dim), devices, storage)
        may_be_cut = own.scope in (DEVICE, NODE) and table.embedding_dim % COLUMN_STEP == 0
        line = self._add_line(self._line(table, part, name, may_be_cut and table.embedding_dim > COLUMN_STEP))
        lookups = replica_lookups(table, self._task) if own.is_replicated else part_lookups(part, table, self._task)
        return _RowRange(rows, line, lookups, {})

    def _line(self, table: Table, part: TablePart, name: str, may_be_cut: bool = False) -> tuple[float, ...]:
        """Return a part's memory and communication as linear functions of its columns, constant if it stays whole."""
        span, columns = TYPES[name].span(self._task.machine), table.embedding_dim
        whole_3 = self._bytes_3(table, part)
        if TYPES[name].is_replicated:
            return (span, *whole_3, *_NO_BYTES, *_NO_VOLUMES, *_NO_VOLUMES, float(table.num_rows * columns))
        share, devices = lookup_share(table, part.rows), self._task.num_devices
        if not may_be_cut:
            volume_V = part_volume(table, name, columns, share, devices)
            return (span, *whole_3, *_NO_BYTES, *volume_V, *_NO_VOLUMES, 0.0)
        narrow = TablePart(part.table, part.rows, Span(0, COLUMN_STEP), part.devices, part.storage)
        # Two evaluations determine a linear function: of the narrowest part, and of the whole table.
        steps, least_3 = columns // COLUMN_STEP, self._bytes_3(table, narrow)
        more_3 = [(whole - least) // (steps - 1) for whole, least in zip(whole_3, least_3, strict=True)]
        bytes_3 = [least - more for least, more in zip(least_3, more_3, strict=True)]
        none_V, one_V = (part_volume(table, name, at, share, devices) for at in (0, 1))
        more_V = [one - none for one, none in zip(one_V, none_V, strict=True)]
        return (span, *bytes_3, *more_3, *none_V, *more_V, 0.0)

    def _add_line(self, line: tuple[float, ...]) -> int:
        self._numbers += line
        return len(self._numbers) // _ENDS[-1] - 1

    def _bytes_3(self, table: Table, part: TablePart) -> tuple[int, ...]:
        memory = memory_of_part(self._task, table, part)
        return memory.device_bytes, memory.host_bytes, memory.ssd_weights

    def _call(self, table: Table, name: str) -> int:
        call = kernel_call(table, name, self._task.optimizer_of(table.name))
        if call not in self.calls:
            self.calls[call] = len(self.calls)
            self.collective_of_call.append((call.module, call.sharding_type))
        return self.calls[call]
