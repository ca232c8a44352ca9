"""The pieces of all options of a search, built as arrays.

Pieces of a table that share a sharding type and a storage differ only in their columns. Memory and volumes grow in
proportion to the columns, beside a constant, so that each table is asked twice, whatever the number of its pieces.

Legend: L lines, P pieces, C cells (kernel calls of a piece), V kinds of volumes, K kinds of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from evenshard.measure.collectives import VOLUMES, part_volume
from evenshard.measure.kernel_calls import KernelCall, Lookup, kernel_call, part_lookups, replica_lookups
from evenshard.measure.price.loads import LookupColumns
from evenshard.measure.price.step import PartCosts
from evenshard.placement.parts import COLUMN_STEP, Span, Storage, TablePart, busiest_rows, lookup_share, whole_part
from evenshard.placement.sharding import TABLE_WISE, TYPES
from evenshard.placement.task import memory_of_part
from evenshard.sharders.search.arrays import PieceArrays
from evenshard.tables.table import Table

_volumes_of = attrgetter(*VOLUMES)


class _Line(NamedTuple):
    """Numbers of pieces as functions of their columns.

    Attributes:
        bytes_3: device, host and SSD memory of no columns.
        more_bytes_3: for each ``COLUMN_STEP`` columns.
        volume_V, more_volume_V: the same of volumes, for each column.
        values: weights of a replica.
    """

    span: int
    bytes_3: tuple[int, ...]
    more_bytes_3: tuple[int, ...]
    volume_V: tuple[float, ...]
    more_volume_V: tuple[float, ...]
    values: float


class PieceBuilder:
    """Numbers pieces, kernel calls and lookups.

    Attributes:
        calls: kernel calls by number.
        collective_of_call: the module and the type of each kernel call; calls that share them share a collective.
        lookups: all that is looked up by any piece, complete after ``lookups.update()``.
    """

    def __init__(self, costs: PartCosts) -> None:
        self.calls: dict[KernelCall, int] = {}
        self.collective_of_call: list[tuple[str, str]] = []
        self.lookups = LookupColumns(costs.prices)
        self._costs, self._task = costs, costs.task
        self._every_device = tuple(range(costs.task.num_devices))
        self._lines: list[_Line] = []
        self._line_P: list[int] = []
        self._columns_P: list[int] = []
        self._cells_P: list[int] = []
        self._call_C: list[int] = []
        self._row_C: list[int] = []
        self._offload_K2_of: dict[int, tuple[tuple[float, float], ...]] = {}
        self._bytes_3_of: dict[tuple[int, Span, int, Storage, int], tuple[int, ...]] = {}
        self._rows_of: dict[tuple[int, Span, int, bool], tuple[tuple[Lookup, ...], dict[int, int]]] = {}

    def add(self, position: int, name: str, storage: Storage, widths: Sequence[int]) -> int:
        """Add a piece of a table for each of these widths, and return the number of the first.

        Of a table that is cut by rows, the part with the most lookups stands for all.
        """
        table, own = self._task.tables[position], TYPES[name]
        rows = busiest_rows(table, own.span(self._task.machine)) if own.cuts_rows else Span(0, table.num_rows)
        devices = self._every_device if own.is_replicated else (0,)
        part = TablePart(table.name, rows, Span(0, table.embedding_dim), devices, storage)
        is_cut = list(widths) != [table.embedding_dim]
        first, call = len(self._columns_P), self._call(table, name)
        self._lines.append(self._line(position, part, name, is_cut))
        self._add_pieces(widths)
        self._cells_P += [1] * len(widths)
        self._call_C += [call] * len(widths)
        self._row_C += self._rows(position, part, widths)
        if not storage.is_on_device:
            for number, width in enumerate(widths, first):
                narrow = TablePart(table.name, rows, Span(0, width), devices, storage)
                self._offload_K2_of[number] = self._costs.offload_K2(narrow, table)
        return first

    def add_together(self, members: Sequence[int], storage: Storage) -> int:
        """Add the piece of whole tables that stay together, and return its number."""
        number, of_call = len(self._columns_P), dict[int, tuple[Lookup, ...]]()
        parts = [(at, self._task.tables[at], whole_part(self._task.tables[at], (0,), storage)) for at in members]
        lines = [self._line(at, part, TABLE_WISE, is_cut=False) for at, _, part in parts]
        for _, table, part in parts:
            call = self._call(table, TABLE_WISE)
            of_call[call] = (*of_call.get(call, ()), *part_lookups(part, table, self._task))
        bytes_3 = tuple(map(sum, zip(*(line.bytes_3 for line in lines), strict=True)))
        volume_V = tuple(map(sum, zip(*(line.volume_V for line in lines), strict=True)))
        self._lines.append(lines[0]._replace(bytes_3=bytes_3, volume_V=volume_V))
        self._add_pieces([sum(table.embedding_dim for _, table, _ in parts)])
        self._cells_P.append(len(of_call))
        self._call_C += of_call
        self._row_C += map(self.lookups.row, of_call.values())
        if not storage.is_on_device:
            each = np.array([self._costs.offload_K2(part, table) for _, table, part in parts])
            self._offload_K2_of[number] = tuple(map(tuple, each.sum(axis=0).tolist()))
        return number

    def arrays(self) -> PieceArrays:
        """All pieces."""
        line_P, columns_P = np.array(self._line_P, dtype=np.int64), np.array(self._columns_P, dtype=np.int64)
        span_L, *of_lines, values_L = (np.array(one) for one in zip(*self._lines, strict=True))
        bytes_P3, more_P3, volume_PV, more_PV = (one_L[line_P] for one_L in of_lines)
        size_P, host_P, ssd_P = (bytes_P3 + more_P3 * (columns_P // COLUMN_STEP)[:, None]).T
        offload_PK2 = np.zeros((len(line_P), len(self._costs.kinds), 2))
        for number, offload_K2 in self._offload_K2_of.items():
            offload_PK2[number] = offload_K2
        cells_P = np.array(self._cells_P, dtype=np.int64)
        return PieceArrays(
            columns_P,
            span_L[line_P],
            size_P,
            host_P,
            ssd_P,
            values_L[line_P],
            volume_PV + more_PV * columns_P[:, None],
            offload_PK2,
            cells_P,
            np.cumsum(cells_P) - cells_P,
            np.array(self._call_C, dtype=np.int64),
            np.array(self._row_C, dtype=np.int64),
        )

    def _add_pieces(self, widths: Sequence[int]) -> None:
        self._line_P += [len(self._lines) - 1] * len(widths)
        self._columns_P += widths

    def _line(self, position: int, part: TablePart, name: str, is_cut: bool) -> _Line:
        table, task, own = self._task.tables[position], self._task, TYPES[name]
        span, columns, nothing = own.span(task.machine), table.embedding_dim, (0.0,) * len(VOLUMES)
        bytes_3 = self._bytes_3(position, part, columns)
        more_3: tuple[int, ...] = (0, 0, 0)
        if is_cut:
            least_3, steps = self._bytes_3(position, part, COLUMN_STEP), columns // COLUMN_STEP
            more_3 = tuple((whole - least) // (steps - 1) for whole, least in zip(bytes_3, least_3, strict=True))
            bytes_3 = tuple(least - more for least, more in zip(least_3, more_3, strict=True))
        if own.is_replicated:
            return _Line(span, bytes_3, more_3, nothing, nothing, float(table.num_rows * columns))
        share = lookup_share(table, part.rows)
        if not is_cut:
            volume_V = _volumes_of(part_volume(table, name, columns, share, task.num_devices))
            return _Line(span, bytes_3, more_3, volume_V, nothing, 0.0)
        none_V, one_V = (_volumes_of(part_volume(table, name, at, share, task.num_devices)) for at in (0, 1))
        more_V = tuple(one - none for one, none in zip(one_V, none_V, strict=True))
        return _Line(span, bytes_3, more_3, none_V, more_V, 0.0)

    def _bytes_3(self, position: int, part: TablePart, columns: int) -> tuple[int, ...]:
        key = (position, part.rows, len(part.devices), part.storage, columns)
        if key not in self._bytes_3_of:
            own = TablePart(part.table, part.rows, Span(0, columns), part.devices, part.storage)
            memory = memory_of_part(self._task, self._task.tables[position], own)
            self._bytes_3_of[key] = memory.device_bytes, memory.host_bytes, memory.ssd_weights
        return self._bytes_3_of[key]

    def _rows(self, position: int, part: TablePart, widths: Sequence[int]) -> list[int]:
        """Return the rows of lookups of a part's widths: they differ only in the dim of their tables."""
        key = (position, part.rows, len(part.devices), part.storage.is_cached)
        if key not in self._rows_of:
            table, is_replica = self._task.tables[position], len(part.devices) > 1
            found = replica_lookups(table, self._task) if is_replica else part_lookups(part, table, self._task)
            self._rows_of[key] = found, {}
        lookups, row_of = self._rows_of[key]
        for width in widths:
            if width not in row_of:
                row_of[width] = self.lookups.row(lookups, width)
        return [row_of[width] for width in widths]

    def _call(self, table: Table, name: str) -> int:
        call = kernel_call(table, name, self._task.optimizer_of(table.name))
        if call not in self.calls:
            self.calls[call] = len(self.calls)
            self.collective_of_call.append((call.module, call.sharding_type))
        return self.calls[call]
