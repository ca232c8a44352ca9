"""A placement under search: the way and the places of every unit, and the sums that its cost is made of.

Changes are tried out many at a time, all from the same state: their sums and times are counted as arrays, and the state
stays as it is until one of them is made.

Legend: U units, D devices, V kinds of volumes, C kernel calls, L collectives, N changes that are tried out, E additions
and removals of pieces of them all, F the same on each device.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import VOLUMES, Volumes, exchanged_ms
from evenshard.measure.price.loads import Loads
from evenshard.measure.price.step import PartCosts, dense_ms
from evenshard.placement.parts import Span, TablePart, row_spans, whole_part
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import TYPES, sharding_type, spans
from evenshard.placement.storage import ON_DEVICE, Storage
from evenshard.placement.task import ShardingTask
from evenshard.sharders.search.arrays import PieceChanges
from evenshard.sharders.search.sharding_option import Way
from evenshard.sharders.search.space import Options
from evenshard.tables.reuse import FloatArray

if TYPE_CHECKING:
    from evenshard.sharders.search.moves import Moves

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """How a unit is sharded: the number of its way, and the place of each piece, the first where there is but one.

    A place is the number of a set of ``Way.span`` devices: of the device, of the node, or 0 for all devices.
    """

    way: int
    places: tuple[int, ...] = (0,)


Change = Sequence[tuple[int, Choice]]
"""Units, each once, with what they choose instead."""


class State:
    """A complete placement with all its sums; cheap to copy and to change by a unit.

    Args:
        options: units and ways.
        choices: of all units.
        moves: what is moved from an earlier placement, where that has a bound and a price.
    """

    def __init__(self, options: Options, choices: Sequence[Choice], moves: Moves | None = None) -> None:
        self.options, self.moves = options, moves
        self.moved_bytes = 0
        self._costs: PartCosts = options.costs
        task = options.task
        self.task: ShardingTask = task
        devices, calls = task.num_devices, len(options.calls)
        self.choices = list(choices)
        self.loads = Loads(options.lookups, self._costs.prices, self._costs.kind_of_D, options.span_of_call)
        self.volumes_VD = np.zeros((len(VOLUMES), devices))
        self.used_3D = np.zeros((3, devices), dtype=np.int64)
        self.offload_D = np.zeros(devices)
        self.users_C = np.zeros(calls, dtype=np.int64)
        self.replicated_values = 0.0
        self.units_at: dict[int, list[set[int]]] = {
            span: [set() for _ in range(devices // span)] for span in spans(task.machine)
        }
        self._fill()
        self.loads.refresh(np.arange(devices), range(calls))
        self.device_ms_D = self._device_ms()

    def copy(self) -> State:
        """A copy that may change by itself."""
        found = copy(self)
        found.choices, found.loads = list(self.choices), self.loads.copy()
        found.volumes_VD, found.used_3D = self.volumes_VD.copy(), self.used_3D.copy()
        found.offload_D, found.users_C = self.offload_D.copy(), self.users_C.copy()
        found.units_at = {span: list(map(set, of_places)) for span, of_places in self.units_at.items()}
        return found

    def become(self, other: State) -> None:
        """What another state of the same options is; that one may not change any more."""
        vars(self).update(vars(other))

    # Changes ----------------------------------------------------------------------------------------------------------

    @property
    def on_device(self) -> list[set[int]]:
        """By device, the units with a piece on it alone."""
        return self.units_at[1]

    def way(self, unit: int) -> Way:
        """How a unit is sharded now."""
        return self.options.units[unit].ways[self.choices[unit].way]

    def replace_all(self, change: Change) -> None:
        """Shards units another way, or elsewhere."""
        touched: set[int] = set()
        calls: set[int] = set()
        for unit, choice in change:
            for sign in (-1, 1):
                if sign > 0:
                    self.choices[unit] = choice
                self._add(unit, self.choices[unit], sign)
                touched.update(self.devices_of(self.way(unit), self.choices[unit]))
                calls.update(self.way(unit).calls)
        self.loads.refresh(np.array(sorted(touched), dtype=np.int64), calls)
        self.device_ms_D = self._device_ms()

    def replace(self, unit: int, choice: Choice) -> None:
        """Shards a unit another way, or elsewhere."""
        self.replace_all([(unit, choice)])

    def devices_of(self, way: Way, choice: Choice) -> Sequence[int]:
        """Devices that hold some of a unit that is sharded so."""
        if way.span == 1:
            return choice.places
        return [device for first in firsts_of(way, choice) for device in range(first, first + way.span)]

    def _fill(self) -> None:
        """The sums of all choices at once; the same as ``_add`` makes of one after the other."""
        rows = [
            (unit, piece.number, first, 1)
            for unit, choice in enumerate(self.choices)
            for way in (self.options.units[unit].ways[choice.way],)
            for piece, first in zip(way.pieces, firsts_of(way, choice), strict=True)
        ]
        arrays = self.options.piece_arrays
        pieces = PieceChanges(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)
        on_each = arrays.on_each_device(pieces)
        piece_F, device_F = on_each.piece_E, on_each.device_E
        self.loads.fill(arrays.cells(on_each))
        self.users_C += np.bincount(arrays.cells(pieces).call_E, minlength=len(self.users_C))
        np.add.at(self.volumes_VD.T, device_F, arrays.volume_PV[piece_F])
        for at, sizes_P in enumerate((arrays.size_P, arrays.host_P, arrays.ssd_P)):
            np.add.at(self.used_3D[at], device_F, sizes_P[piece_F])
        np.add.at(self.offload_D, device_F, arrays.offload_PK[piece_F, self._costs.kind_of_D[device_F]])
        self.replicated_values = float(arrays.values_P[pieces.piece_E].sum())
        for unit, choice in enumerate(self.choices):
            self._index(unit, self.way(unit), choice, 1)
            if self.moves is not None:
                self.moved_bytes += self.moves.bytes_of(unit, choice)

    def _add(self, unit: int, choice: Choice, sign: int) -> None:
        way = self.options.units[unit].ways[choice.way]
        if self.moves is not None:
            self.moved_bytes += sign * self.moves.bytes_of(unit, choice)
        self._index(unit, way, choice, sign)
        for piece, first in zip(way.pieces, firsts_of(way, choice), strict=True):
            where = slice(first, first + piece.span)
            for cell in piece.cells:
                self.loads.add(cell, first, sign)
                self.users_C[cell[0]] += sign
            self.volumes_VD[:, where] += sign * piece.volume_V[:, None]
            self.used_3D[0, where] += sign * piece.size_bytes
            if piece.offload_K:
                self.used_3D[1, where] += sign * piece.host_bytes
                self.used_3D[2, where] += sign * piece.ssd_bytes
                self.offload_D[where] += sign * np.array(piece.offload_K)[self._costs.kind_of_D[where]]
            self.replicated_values += sign * piece.values

    def _index(self, unit: int, way: Way, choice: Choice, sign: int) -> None:
        """Remembers where a unit lives, or forgets it."""
        units_at = self.units_at[way.span]
        for place in choice.places:
            if sign > 0:
                units_at[place].add(unit)
            else:
                units_at[place].discard(unit)

    # Costs ------------------------------------------------------------------------------------------------------------

    def _device_ms(self) -> FloatArray:
        compute_ND, volumes_VND = self.loads.compute_ms_D[None], self.volumes_VD[:, None]
        values_N, users_NC = np.array([self.replicated_values]), self.users_C[None]
        return np.asarray(self._total_ms(compute_ND, volumes_VND, values_N, users_NC)[0] + self.offload_D)

    def _total_ms(
        self, compute_ND: FloatArray, volumes_VND: FloatArray, values_N: FloatArray, users_NC: npt.NDArray[Any]
    ) -> FloatArray:
        """[N, D] times of devices, offloading left aside."""
        volumes = Volumes.of(np.maximum(volumes_VND, 0.0), values_N)
        total_ND = compute_ND + exchanged_ms(self.task, volumes, self._costs.links)
        if self.task.num_devices > 1:
            total_ND += self.options.latency_ms(users_NC > 0)[:, None]
        if values_N.any():
            kinds = [kind.bytes_per_ns for kind in self._costs.kinds]
            per_kind = np.stack([dense_ms(values_N, one, self.task.optimizer) for one in kinds])
            total_ND += per_kind[self._costs.kind_of_D].T
        return total_ND

    @property
    def cost_ms(self) -> float:
        """Of the slowest device."""
        return float(self.device_ms_D.max())

    @property
    def score(self) -> float:
        """What a search descends: the cost, a little of how slow the other slow devices are, and the price of moves."""
        moved_ms = 0.0 if self.moves is None else self.moves.price_ms(self.moved_bytes)
        return float(scores_of(self.device_ms_D)) + moved_ms

    def fits(self) -> bool:
        """Whether the memory suffices."""
        return bool(self._fits(self.used_3D[:, None])[0])

    def _fits(self, used_3ND: Indices) -> npt.NDArray[np.bool_]:
        """[N] whether the memory of devices, of their hosts and of the SSDs suffices."""
        machine = self.task.machine
        fits_N = (used_3ND[0] <= self.options.room_D).all(axis=-1)
        if used_3ND[1:].any():
            for used_ND, rooms in zip(used_3ND[1:], (machine.host_bytes, machine.ssd_bytes), strict=True):
                by_host = used_ND.reshape(len(used_ND), machine.num_nodes, -1).sum(axis=-1)
                fits_N &= (by_host <= np.array(rooms or (0,) * machine.num_nodes)).all(axis=-1)
        return np.asarray(fits_N)

    # Changes that are tried out ---------------------------------------------------------------------------------------

    def piece_changes(self, changes: Sequence[Change]) -> PieceChanges:
        """What changes add and take away."""
        rows: list[tuple[int, int, int, int]] = []
        for number, change in enumerate(changes):
            for unit, choice in change:
                for one, sign in ((self.choices[unit], -1), (choice, 1)):
                    way = self.options.units[unit].ways[one.way]
                    for piece, first in zip(way.pieces, firsts_of(way, one), strict=True):
                        rows.append((number, piece.number, first, sign))
        return PieceChanges(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)

    def after(self, pieces: PieceChanges, count: int) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """[N, D] times of devices after each of so many changes, by itself, and [N] whether the memory suffices."""
        arrays, devices = self.options.piece_arrays, self.task.num_devices
        on_each = arrays.on_each_device(pieces)
        piece_F, at_F = on_each.piece_E, on_each.change_E * devices + on_each.device_E

        def summed(values_F: npt.NDArray[Any]) -> FloatArray:
            weights = on_each.sign_E * values_F
            return np.asarray(np.bincount(at_F, weights, count * devices), dtype=np.float64).reshape(count, devices)

        volumes_VND = np.repeat(self.volumes_VD[:, None], count, axis=1)
        for at in np.flatnonzero(arrays.volume_PV.any(axis=0)).tolist():
            volumes_VND[at] += summed(arrays.volume_PV[piece_F, at])
        used_3ND = np.repeat(self.used_3D[:, None], count, axis=1)
        used_3ND[0] += summed(arrays.size_P[piece_F]).astype(np.int64)
        values_N = np.full(count, self.replicated_values)
        if arrays.values_P.any():
            values_N += np.bincount(pieces.change_E, pieces.sign_E * arrays.values_P[pieces.piece_E], count)
        compute_ND = self.loads.changed_ms(arrays.cells(on_each), count)
        more_NC = arrays.users(pieces, count, len(self.users_C))
        total_ND = self._total_ms(compute_ND, volumes_VND, values_N, self.users_C + more_NC) + self.offload_D
        if arrays.offload_PK.any():
            total_ND += summed(arrays.offload_PK[piece_F, self._costs.kind_of_D[on_each.device_E]])
            for at, sizes_P in enumerate((arrays.host_P, arrays.ssd_P), 1):
                used_3ND[at] += summed(sizes_P[piece_F]).astype(np.int64)
        return total_ND, self._fits(used_3ND)

    # Out --------------------------------------------------------------------------------------------------------------

    def parts(self) -> tuple[TablePart, ...]:
        """The placement, table after table."""
        return parts_of(self.options, self.choices)


def scores_of(device_ms: FloatArray) -> FloatArray:
    """[...] the cost of the slowest of [..., D] devices, and a little of how slow the other slow ones are."""
    slowest = device_ms.max(axis=-1)
    ratios = device_ms / np.maximum(slowest, 1e-12)[..., None]
    for _ in range(4):
        ratios = ratios * ratios
    return np.asarray(slowest * (1 + 0.02 * ratios.mean(axis=-1)))


def firsts_of(way: Way, choice: Choice) -> Sequence[int]:
    """The first device of each piece."""
    return choice.places if way.span == 1 else [place * way.span for place in choice.places]


def parts_of(options: Options, choices: Sequence[Choice]) -> tuple[TablePart, ...]:
    """The parts that choices stand for, in the order of the task's tables."""
    found: dict[int, Sequence[TablePart]] = {}
    for number, choice in enumerate(choices):
        found.update(parts_of_unit(options, number, choice))
    return tuple(part for position in range(len(options.task.tables)) for part in found[position])


def parts_of_unit(options: Options, number: int, choice: Choice) -> dict[int, list[TablePart]]:
    """The parts of each table of a unit, by the table's position, in the order of columns, then rows."""
    task, unit = options.task, options.units[number]
    way = unit.ways[choice.way]
    found: dict[int, list[TablePart]] = {}
    for position in unit.tables:
        table = task.tables[position]
        rows = Span(0, table.num_rows)
        own = found.setdefault(position, [])
        if TYPES[way.sharding_type].is_replicated:
            own.append(whole_part(table, tuple(range(task.num_devices))))
            continue
        widths = [piece.columns for piece in way.pieces] if len(unit.tables) == 1 else [table.embedding_dim]
        stop = 0
        for first, width in zip(firsts_of(way, choice), widths, strict=True):
            columns, stop = Span(stop, stop + width), stop + width
            if way.span == 1:
                own.append(TablePart(table.name, rows, columns, (first,), way.storage))
                continue
            devices = range(first, first + way.span)
            cut = zip(row_spans(table, way.span), devices, strict=False)  # the last devices may have no rows
            own.extend(TablePart(table.name, span, columns, (device,), way.storage) for span, device in cut)
    return found


def choices_of(options: Options, parts: Sequence[TablePart]) -> list[Choice] | None:
    """The choices that stand for a placement; None where a table is sharded in a way that the options do not have.

    Rows that are cut unevenly are taken for even ones.
    """
    by_table = parts_by_table(options.task, parts)
    found = []
    for number, unit in enumerate(options.units):
        choice = choice_like(options, number, by_table[options.task.tables[unit.tables[0]].name])
        if choice is None:
            return None
        found.append(choice)
    return found


def choice_like(options: Options, number: int, of_table: Sequence[TablePart]) -> Choice | None:
    """The choice of a unit whose first table has these parts, by columns and rows; None as in ``choices_of``."""
    task, machine, unit = options.task, options.task.machine, options.units[number]
    way_name = sharding_type(of_table, task.tables[unit.tables[0]], machine)
    span = TYPES[way_name].span(machine)
    places = {part.columns: part.devices[0] // span for part in of_table}
    way = _way_like(options, number, way_name, [columns.size for columns in places], of_table[0].storage)
    return None if way is None else Choice(way, tuple(places.values()))


def _way_like(options: Options, unit: int, name: str, widths: Sequence[int], storage: Storage) -> int | None:
    """The number of a unit's way of this type, storage and these widths, in this order; a new one where it has none.

    A new one is of rows that stay together, or kept outside of device memory.
    """
    own = options.units[unit]
    named = options.usual_name(own.tables[0], name)
    for number, way in enumerate(own.ways):
        same = len(own.tables) > 1 or [one.columns for one in way.pieces] == list(widths)
        if same and way.sharding_type == named and way.storage == storage:
            return number
    stays = not (TYPES[name].cuts_rows or TYPES[name].is_replicated)
    if not own.ways or len(own.tables) > 1 or not (stays or storage != ON_DEVICE):
        return None
    options.add_ways(unit, [options.way_of(unit, named, widths, storage)])
    return len(options.units[unit].ways) - 1
