"""The ways in which a search may shard each table: what one piece of it takes, and on how many devices.

A piece is what the search places as one: columns on a device, rows on all devices of a node or on all devices, a
replica on each. Tables that stay together are one unit, with one piece. Where device memory is short, large tables may
also be kept outside of it: each way again for every cache that they may have, and for none.

Legend: U units, P pieces, K kinds of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import latencies_ms, part_volume
from evenshard.measure.kernel_calls import KernelCall, Lookup, kernel_call, part_lookups, replica_lookups
from evenshard.measure.price.loads import CellChanges, LookupColumns
from evenshard.measure.price.step import PartCosts
from evenshard.placement.items import allowed_together, joined_groups
from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, lookup_share, row_spans, whole_part, whole_tables
from evenshard.placement.sharding import (
    COLUMN_WISE,
    COLUMNS_ALONE,
    ROW_WISE,
    ROWS_ALONE,
    TABLE_COLUMN_WISE,
    TABLE_WISE,
    TYPES,
    ShardingType,
    freest_by_columns,
    types_on_all,
)
from evenshard.placement.storage import CACHED_KERNELS, FUSED, ON_DEVICE, Storage
from evenshard.placement.task import ShardingTask, common_kernels, memory_of_part
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

MAX_CUTS = 128
SMALL = 2**16
"""Tables times devices up to which everything is tried; of larger tasks, less."""
CACHE_LOAD_FACTORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
"""Caches that are tried."""
FULL_SHARE = 0.97
"""Part of the devices' memory that is filled before ways with less memory are preferred."""
SHORT_SHARE = 0.85
"""Part of the devices' memory that tables fill, whole, before others ways than in device memory are looked for."""
LEAST_OFFLOADED = 1e-3
"""Of a device's room: smaller tables stay in device memory."""


@dataclass(frozen=True, eq=False)
class Piece:
    """What one piece takes of each device that it lives on.

    Attributes:
        number: among all pieces of the options.
        columns: its number of columns.
        span: devices, one after the other, that each have as much of it.
        cells: (kernel call, row of the matrix of columns) of what is looked up; each call once.
        volume_4: what it adds to the volumes of each of its devices (``PartVolume``).
        size_bytes: device memory.
        host_bytes: memory of its host.
        ssd_bytes: of its host's SSDs.
        offload_K: how much longer it takes as it is not in device memory, on each kind of device, ms.
        values: weights of a replica.
    """

    number: int
    columns: int
    span: int
    cells: tuple[tuple[int, int], ...]
    volume_4: FloatArray
    size_bytes: int
    host_bytes: int = 0
    ssd_bytes: int = 0
    offload_K: tuple[float, ...] = ()
    values: float = 0.0


@dataclass(frozen=True)
class Way:
    """A way to shard a unit.

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

    @property
    def is_usual(self) -> bool:
        """Whether it cuts no columns, or into a power of two of parts, or into parts each as wide as a power of two."""
        widths = {piece.columns for piece in self.pieces}
        return len(self.pieces).bit_count() == 1 or (len(widths) == 1 and widths.pop().bit_count() == 1)


@dataclass(frozen=True)
class Unit:
    """Tables that are placed as one: a table, or those that stay together.

    Attributes:
        tables: positions in the task.
        ways: the ways to shard it, the whole one first where it is allowed.
        allowed_D: devices that it may live on; None for all.
    """

    tables: tuple[int, ...]
    ways: tuple[Way, ...]
    allowed_D: npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class FlatWays:
    """All ways of all units, one after the other, as arrays. Legend: W ways, C looked-up rows of their pieces.

    Attributes:
        unit_W, number_W: the unit of each, and its number there.
        copies_W: devices that each piece lives on.
        volume_W4: what all pieces add to the volumes of one copy.
        longest_W4: the volume of the piece that adds most.
        values_W: weights of a replica.
        bytes_W: memory of all devices together.
        host_W: memory of all hosts together; of their SSDs too, which both are short of.
        offload_W, longest_offload_W: time outside of device memory, of one copy: of all pieces, and of the longest.
        way_C, row_C: the way of each looked-up row, and its number in the matrix of columns.
        names: sharding types.
        type_W: the number of each one's type.
    """

    unit_W: npt.NDArray[np.int64]
    number_W: npt.NDArray[np.int64]
    copies_W: FloatArray
    volume_W4: FloatArray
    longest_W4: FloatArray
    values_W: FloatArray
    bytes_W: FloatArray
    host_W: FloatArray
    offload_W: FloatArray
    longest_offload_W: FloatArray
    way_C: npt.NDArray[np.int64]
    row_C: npt.NDArray[np.int64]
    names: tuple[str, ...]
    type_W: npt.NDArray[np.int64]

    @staticmethod
    def of(units: Sequence[Unit]) -> FlatWays:
        """The ways of these units."""
        names: dict[str, int] = {}
        rows: list[tuple[float, ...]] = []
        cells: list[tuple[int, int]] = []
        for unit, one in enumerate(units):
            for number, way in enumerate(one.ways):
                volumes = np.array([piece.volume_4 for piece in way.pieces])
                own = float(way.pieces[0].span)
                rows.append(
                    (
                        unit,
                        number,
                        own,
                        way.pieces[0].values,
                        own * sum(piece.size_bytes for piece in way.pieces),
                        names.setdefault(way.sharding_type, len(names)),
                        *volumes.sum(axis=0),
                        *volumes.max(axis=0),
                        own * sum(piece.host_bytes + piece.ssd_bytes for piece in way.pieces),
                        sum(max(piece.offload_K, default=0.0) for piece in way.pieces),
                        max(max(piece.offload_K, default=0.0) for piece in way.pieces),
                    )
                )
                cells += [(len(rows) - 1, row) for piece in way.pieces for _, row in piece.cells]
        table, of_cells = np.array(rows), np.array(cells, dtype=np.int64)
        unit_W, number_W, type_W = table[:, [0, 1, 5]].astype(np.int64).T
        return FlatWays(
            unit_W,
            number_W,
            table[:, 2],
            table[:, 6:10],
            table[:, 10:14],
            table[:, 3],
            table[:, 4],
            table[:, 14],
            table[:, 15],
            table[:, 16],
            of_cells[:, 0],
            of_cells[:, 1],
            tuple(names),
            type_W,
        )

    def summed(self, values_P: FloatArray) -> FloatArray:
        """[W] sums over the looked-up rows of each way."""
        return np.asarray(
            np.bincount(self.way_C, weights=values_P[self.row_C], minlength=len(self.unit_W)), dtype=np.float64
        )

    def longest(self, values_P: FloatArray) -> FloatArray:
        """[W] the largest of the looked-up rows of each way."""
        found = np.zeros(len(self.unit_W))
        np.maximum.at(found, self.way_C, values_P[self.row_C])
        return found

    def padded(self, values_W: FloatArray) -> FloatArray:
        """[U, ways of a unit] infinite where there is no such way."""
        found = np.full((int(self.unit_W.max()) + 1, int(self.number_W.max()) + 1), np.inf)
        found[self.unit_W, self.number_W] = values_W
        return found


@dataclass(frozen=True)
class PieceChanges:
    """Pieces that changes add or take away, all changes one after the other. Legend: E pieces.

    Attributes:
        change_E: the change that each belongs to.
        piece_E: its number among the options' pieces.
        device_E: the first of its devices, or one of them.
        sign_E: 1 where it comes, -1 where it goes.
    """

    change_E: npt.NDArray[np.int64]
    piece_E: npt.NDArray[np.int64]
    device_E: npt.NDArray[np.int64]
    sign_E: npt.NDArray[np.int64]


@dataclass(frozen=True)
class PieceArrays:
    """All pieces as arrays. Legend: P pieces, K kinds of devices, C kernel calls of a piece.

    Attributes:
        span_P, size_P, host_P, ssd_P, values_P, volume_P4: as ``Piece`` has them.
        offload_PK: likewise; zeros where all pieces are in device memory.
        cells_P: cells of each; ``call_C`` and ``row_C`` have those of all pieces, the first at ``first_P``.
    """

    span_P: npt.NDArray[np.int64]
    size_P: npt.NDArray[np.int64]
    host_P: npt.NDArray[np.int64]
    ssd_P: npt.NDArray[np.int64]
    values_P: FloatArray
    volume_P4: FloatArray
    offload_PK: FloatArray
    cells_P: npt.NDArray[np.int64]
    first_P: npt.NDArray[np.int64]
    call_C: npt.NDArray[np.int64]
    row_C: npt.NDArray[np.int64]

    @staticmethod
    def of(pieces: Sequence[Piece], num_kinds: int) -> PieceArrays:
        """These pieces."""
        whole = [(one.span, one.size_bytes, one.host_bytes, one.ssd_bytes) for one in pieces]
        span_P, size_P, host_P, ssd_P = np.array(whole, dtype=np.int64).T
        cells = np.array([cell for one in pieces for cell in one.cells], dtype=np.int64).reshape(-1, 2)
        cells_P = np.array([len(one.cells) for one in pieces], dtype=np.int64)
        nothing = (0.0,) * num_kinds
        return PieceArrays(
            span_P,
            size_P,
            host_P,
            ssd_P,
            values_P=np.array([one.values for one in pieces]),
            volume_P4=np.array([one.volume_4 for one in pieces]),
            offload_PK=np.array([one.offload_K or nothing for one in pieces]),
            cells_P=cells_P,
            first_P=np.cumsum(cells_P) - cells_P,
            call_C=cells[:, 0],
            row_C=cells[:, 1],
        )

    def on_each_device(self, changes: PieceChanges) -> PieceChanges:
        """The changes of each device by itself."""
        from_F, offset_F = _repeated(self.span_P[changes.piece_E])
        return PieceChanges(
            changes.change_E[from_F],
            changes.piece_E[from_F],
            changes.device_E[from_F] + offset_F,
            changes.sign_E[from_F],
        )

    def cells(self, on_each: PieceChanges) -> CellChanges:
        """What changes of single devices look up."""
        from_C, offset_C = _repeated(self.cells_P[on_each.piece_E])
        cell_C = self.first_P[on_each.piece_E[from_C]] + offset_C
        return CellChanges(
            on_each.change_E[from_C],
            self.call_C[cell_C],
            self.row_C[cell_C],
            on_each.device_E[from_C],
            on_each.sign_E[from_C],
        )

    def users(self, changes: PieceChanges, count: int, num_calls: int) -> FloatArray:
        """[N, C] how many more pieces use each kernel call after each of so many changes."""
        cells = self.cells(changes)
        at_C = cells.change_E * num_calls + cells.call_E
        return np.asarray(
            np.bincount(at_C, cells.sign_E, count * num_calls).reshape(count, num_calls), dtype=np.float64
        )


def _repeated(counts_E: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Each number so many times, and which time it is."""
    from_F = np.repeat(np.arange(len(counts_E)), counts_E)
    starts_E = np.cumsum(counts_E) - counts_E
    return from_F, np.arange(len(from_F)) - starts_E[from_F]


class Options:
    """All units of a task with their ways, and the columns of all their pieces.

    Attributes:
        units: the units.
        calls: kernel calls by number.
        collective_of_call: the module and the type of each kernel call; calls that share them share a collective.
        pieces: all pieces of all ways.
        lookups: all that is looked up by any way.
        is_small: everything may be tried.
        offloads: tables may be kept outside of device memory.

    Args:
        costs: what placements cost.
        offloads: whether to look for ways outside of device memory, as far as the task allows them; where left out,
            where that memory is short or the rules ask for it.
    """

    def __init__(self, costs: PartCosts, offloads: bool | None = None) -> None:
        self.costs, self.task = costs, costs.task
        self.offloads = is_short_of_memory(costs.task) if offloads is None else offloads
        self.is_small = len(self.task.tables) * self.task.num_devices <= SMALL
        self.calls: dict[KernelCall, int] = {}
        self.collective_of_call: list[tuple[str, str]] = []
        self.pieces: list[Piece] = []
        self.lookups = LookupColumns(costs.prices)
        self._arrays: PieceArrays | None = None
        self.units = tuple(self._units())
        self.lookups.update()

    @cached_property
    def flat(self) -> FlatWays:
        """The ways that the options began with."""
        return FlatWays.of(self.units)

    @property
    def span_of_call(self) -> list[int]:
        """Devices, one after the other, that look up the same in each kernel call."""
        return [TYPES[call.sharding_type].span(self.task.machine) for call in self.calls]

    @cached_property
    def room_D(self) -> npt.NDArray[np.int64]:
        """Memory of the devices."""
        return np.array(self.task.room_bytes, dtype=np.int64)

    @property
    def piece_arrays(self) -> PieceArrays:
        """All pieces as arrays."""
        if self._arrays is None or len(self._arrays.span_P) < len(self.pieces):
            self._arrays = PieceArrays.of(self.pieces, len(self.costs.kinds))
        return self._arrays

    def latency_ms(self, is_used_NC: npt.NDArray[np.bool_]) -> FloatArray:
        """[N] latencies of the collectives of the kernel calls that are used; calls that share one count once."""
        names = list(dict.fromkeys(self.collective_of_call))
        machine, links = self.task.machine, self.costs.links
        of_call_CL = np.array([[own == name for name in names] for own in self.collective_of_call])
        latency_L = np.array([latencies_ms(machine, {name}, links).total_ms for name in names])
        return np.asarray((is_used_NC @ of_call_CL) @ latency_L)

    def add_ways(self, unit: int, ways: Sequence[Way]) -> None:
        """More ways for a unit, which ``way_of`` made."""
        old = self.units[unit]
        units = list(self.units)
        units[unit] = Unit(old.tables, (*old.ways, *ways), old.allowed_D)
        self.units = tuple(units)
        self.lookups.update()

    def _units(self) -> Iterator[Unit]:
        task = self.task
        number_of = {position: number for number, group in enumerate(task.together) for position in group}
        groups = joined_groups(len(task.tables), task.together)
        # Single tables come first, then the groups in the order of the rules.
        for members in sorted(groups, key=lambda group: max(number_of.get(position, -1) for position in group)):
            yield Unit(members, self._ways(members), allowed_together(task, members))

    def _ways(self, members: Sequence[int]) -> tuple[Way, ...]:
        if len(members) > 1:
            return tuple(self._together(members, storage) for storage in self._storages(members))
        (position,) = members
        inside, *outside = self._storages(members)
        return (
            *(self._way(position, *shape, inside) for shape in self._shapes(position, on_device=inside == ON_DEVICE)),
            *(self._way(position, *shape, one) for shape in self._shapes(position, on_device=False) for one in outside),
        )

    def _together(self, members: Sequence[int], storage: Storage) -> Way:
        """Tables on one device, whole."""
        wholes = [(at, replace(whole_part(self.task.tables[at], (0,)), storage=storage)) for at in members]
        return self._way_in(TABLE_WISE, (self._piece(wholes, TABLE_WISE),), storage)

    def _storages(self, members: Sequence[int]) -> list[Storage]:
        """Where the weights of a unit may be kept, in device memory first."""
        kernels = common_kernels(self.task, members)
        is_large = any(self._is_large(position) for position in members)
        elsewhere = [one for one in kernels if one != FUSED and ((self.offloads and is_large) or FUSED not in kernels)]
        return [*([ON_DEVICE] if FUSED in kernels else []), *(one for kernel in elsewhere for one in _tried(kernel))]

    def _shapes(self, position: int, on_device: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Types of a table with the widths of its parts; outside of device memory no replicas, and fewer cuts."""
        limits, machine = self.task.limits_of(position), self.task.machine
        allowed = machine.num_devices if limits.devices is None else len(limits.devices)
        whole_columns = self.task.tables[position].embedding_dim
        for own in self._types(position):
            if own.is_replicated and not on_device:
                continue
            if not own.cuts_columns:
                yield own.name, (whole_columns,)
                continue
            most = own.home_span(machine) // own.span(machine)
            most = most if own.cuts_rows else min(most, allowed)
            for widths in self._cuts(whole_columns, most, limits.min_columns, few=not on_device):
                yield own.name, widths

    def by_columns(self, position: int) -> str:
        """The type of a table that is cut by columns: it may leave its node only where that is allowed."""
        return freest_by_columns(self.task.types[position], self.task.machine, TABLE_COLUMN_WISE)

    def usual_name(self, position: int, name: str) -> str:
        """What a type that a table's parts are of is called among its options."""
        return self.by_columns(position) if name == COLUMN_WISE else name

    def _is_large(self, position: int) -> bool:
        """Whether it is worth while to keep a table outside of device memory."""
        return self.task.tables[position].size_bytes > LEAST_OFFLOADED * max(self.task.room_bytes)

    def _cuts(self, columns: int, most: int, least_width: int, few: bool) -> Iterator[tuple[int, ...]]:
        """Even cuts; of large tasks, into powers of two alone."""
        cuts, all_of_them = column_cuts(columns, most, least_width), self.is_small and not few
        return (widths for widths in cuts if all_of_them or len(widths).bit_count() == 1)

    def _types(self, position: int) -> list[ShardingType]:
        """The types that are looked for, those of the fewest pieces first, each of which no other one has all parts of.

        Whole tables are table_column_wise too, and rows of the one node are row_wise.
        """
        machine, types = self.task.machine, set(self.task.types[position])
        if machine.num_devices == 1:
            return [TYPES[TABLE_WISE]]
        if any(TYPES[one].may_be_whole for one in types):
            types.add(TABLE_WISE)
        if rows_of_all := types & {*ROWS_ALONE} & {*types_on_all(machine)}:
            types = types - rows_of_all | {ROW_WISE}
        types -= {*COLUMNS_ALONE} - {self.by_columns(position)}
        if position in self.task.kept_apart:
            fewer = {one for one in types if TYPES[one].span(machine) == 1}
        else:
            # A search's sums take every device for one with rows: cuts that leave some without are a last resort.
            fewer = {one for one in types if not TYPES[one].cuts_rows or self._has_rows_for(position, TYPES[one])}
        found = (TYPES[one] for one in TYPES if one in (fewer or types))
        return sorted(found, key=lambda one: (one.is_replicated, one.cuts_rows))

    def _has_rows_for(self, position: int, way: ShardingType) -> bool:
        """Whether every device that the rows of a table are cut over gets some."""
        devices = way.span(self.task.machine)
        return len(row_spans(self.task.tables[position], devices)) == devices

    def way_of(self, unit: int, name: str, widths: Sequence[int], storage: Storage = ON_DEVICE) -> Way:
        """A table sharded in a type, in parts of these widths, and kept so."""
        (position,) = self.units[unit].tables
        return self._way(position, name, tuple(widths), storage)

    def _way(self, position: int, name: str, widths: tuple[int, ...], storage: Storage) -> Way:
        """A table in parts of these widths; of its rows, the part with the most lookups stands for all of them."""
        table, own, machine = self.task.tables[position], TYPES[name], self.task.machine
        rows = self._busiest_rows(table, own.span(machine) if own.cuts_rows else 1)
        devices = tuple(range(machine.num_devices if own.is_replicated else 1))
        part_of = {width: TablePart(table.name, rows, Span(0, width), devices, storage) for width in widths}
        by_width = {width: self._piece([(position, part)], name) for width, part in part_of.items()}
        return self._way_in(name, tuple(by_width[width] for width in widths), storage)

    def _way_in(self, name: str, pieces: tuple[Piece, ...], storage: Storage) -> Way:
        machine = self.task.machine
        return Way(name, TYPES[name].span(machine), TYPES[name].home_span(machine), pieces, storage)

    def _piece(self, parts: Sequence[tuple[int, TablePart]], way: str) -> Piece:
        """A piece of these parts, each with the position of its table."""
        devices, is_replica = self.task.num_devices, TYPES[way].is_replicated
        of_call: dict[int, tuple[Lookup, ...]] = {}
        volumes, memory, offloads, values = [], [], [], 0.0
        for position, part in parts:
            table = self.task.tables[position]
            call = self._call(table, way)
            own = replica_lookups(table, self.task) if is_replica else part_lookups(part, table, self.task)
            of_call[call] = (*of_call.get(call, ()), *own)
            memory.append(memory_of_part(self.task, table, part))
            if is_replica:
                values += table.num_rows * table.embedding_dim
                continue
            volumes.append(
                part_volume(table, way, part.columns.size, lookup_share(table, part.rows), devices).numbers_4
            )
            offloads.append(self.costs.offload_K(part, table))
        piece = Piece(
            number=len(self.pieces),
            columns=sum(part.columns.size for _, part in parts),
            span=TYPES[way].span(self.task.machine),
            cells=tuple((call, self.lookups.row(lookups)) for call, lookups in of_call.items()),
            volume_4=np.sum(volumes, axis=0) if volumes else np.zeros(4),
            size_bytes=sum(one.device_bytes for one in memory),
            host_bytes=sum(one.host_bytes for one in memory),
            ssd_bytes=sum(one.ssd_weights for one in memory),
            offload_K=tuple(np.sum(offloads, axis=0).tolist()) if any(offloads) else (),
            values=values,
        )
        self.pieces.append(piece)
        return piece

    def _call(self, table: Table, way: str) -> int:
        """The number of the kernel call that looks up parts of a table."""
        call = kernel_call(table, way, self.task.optimizer_of(table.name))
        if call not in self.calls:
            self.calls[call] = len(self.calls)
            self.collective_of_call.append((call.module, call.sharding_type))
        return self.calls[call]

    def _busiest_rows(self, table: Table, rows_of: int) -> Span:
        spans = row_spans(table, rows_of)
        if table.row_shares is None:
            return spans[0]
        return max(spans, key=lambda span: lookup_share(table, span))


def is_short_of_memory(task: ShardingTask) -> bool:
    """Whether tables may leave device memory, and fill it as far as it is filled gladly, or one must leave it."""
    if not task.may_offload:
        return False
    taken = sum(
        memory_of_part(task, table, part).device_bytes
        for table, part in zip(task.tables, whole_tables(task.tables), strict=True)
    )
    return taken > SHORT_SHARE * sum(task.room_bytes) or any(
        FUSED not in task.kernels_of(position) for position in range(len(task.tables))
    )


def _tried(kernel: str) -> tuple[Storage, ...]:
    """The storages that are tried of a kernel."""
    if kernel in CACHED_KERNELS:
        return tuple(Storage(kernel, load_factor) for load_factor in CACHE_LOAD_FACTORS)
    return (Storage(kernel),)


def column_cuts(columns: int, most: int, least_width: int) -> Iterator[tuple[int, ...]]:
    """Even cuts of a table's columns into 2, 3, 4, 6, 8, ... parts of multiples of four columns.

    Args:
        columns: of the table.
        most: parts.
        least_width: columns of the narrowest.
    """
    steps, rest = divmod(columns, COLUMN_STEP)
    if rest:
        return
    for parts in _COUNTS:
        if parts > min(most, steps):
            return
        each, more = divmod(steps, parts)
        if each * COLUMN_STEP < least_width:
            return
        yield (COLUMN_STEP * (each + 1),) * more + (COLUMN_STEP * each,) * (parts - more)


_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, MAX_CUTS)
