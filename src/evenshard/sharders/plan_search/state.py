"""A placement under search: the way and the places of every unit, and the sums that its cost is made of.

Legend: U units, D devices, C kernel calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import Volumes, exchange_ms
from evenshard.measure.price.loads import Loads, LoadTimes
from evenshard.measure.price.step import PartCosts, dense_ms
from evenshard.placement.parts import Span, TablePart, row_spans, whole_part
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import DEVICE, EVERYWHERE, NODE, REPLICA, TYPES, sharding_type
from evenshard.placement.storage import ON_DEVICE, Storage
from evenshard.placement.task import ShardingTask
from evenshard.sharders.plan_search.options import Options, Way, volume_numbers
from evenshard.tables.reuse import FloatArray

if TYPE_CHECKING:
    from evenshard.sharders.plan_search.moves import Moves


@dataclass(frozen=True)
class Choice:
    """How a unit is sharded: the number of its way, and the device or node of each piece that has one."""

    way: int
    places: tuple[int, ...] = ()


Gains = dict[int, dict[int, float]]
"""What a device saves without each unit, ms: by device, then by unit, as far as anybody has asked."""


class Times(NamedTuple):
    """Times of a state."""

    device_ms_D: FloatArray
    loads: LoadTimes
    gains: Gains


class State:
    """A complete placement with all its sums; changed one unit at a time, and cheap to change back.

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
        self.loads = Loads(options.lookups, self._costs.prices, self._costs.kind_of_D, calls)
        self.volumes_4D = np.zeros((4, devices))
        self.used_D = np.zeros(devices, dtype=np.int64)
        self.host_D = np.zeros(devices, dtype=np.int64)
        self.ssd_D = np.zeros(devices, dtype=np.int64)
        self.offload_D = np.zeros(devices)
        self.offloaded = 0
        self.users_C = np.zeros(calls, dtype=np.int64)
        self.replicated_values = 0.0
        self.on_device: list[set[int]] = [set() for _ in range(devices)]
        self.on_node: list[set[int]] = [set() for _ in range(task.machine.num_nodes)]
        self.everywhere: set[int] = set()
        self.gains: Gains = {}
        for unit, choice in enumerate(choices):
            self._add(unit, choice, 1)
        self.loads.refresh(np.arange(devices), range(calls))
        self.device_ms_D = self._device_ms()

    # Changes ----------------------------------------------------------------------------------------------------------

    def way(self, unit: int) -> Way:
        """How a unit is sharded now."""
        return self.options.units[unit].ways[self.choices[unit].way]

    def replace_all(self, changes: Sequence[tuple[int, Choice]]) -> None:
        """Shards units another way, or elsewhere."""
        for unit, choice in changes:
            self._replace(unit, choice)
        self.device_ms_D = self._device_ms()

    def times(self) -> Times:
        """All times as they are now, to come back to."""
        return Times(self.device_ms_D, self.loads.times(), self.gains)

    def undo(self, changes: Sequence[tuple[int, Choice]], times: Times) -> None:
        """Back to earlier choices, with the times that they had."""
        for unit, choice in reversed(changes):
            self._exchange(unit, choice)
        self.device_ms_D = times.device_ms_D
        self.loads.restore(times.loads)
        self.gains = times.gains

    def replace(self, unit: int, choice: Choice) -> None:
        """Shards a unit another way, or elsewhere."""
        self.replace_all([(unit, choice)])

    def _replace(self, unit: int, choice: Choice) -> None:
        old, old_way = self.choices[unit], self.way(unit)
        self._exchange(unit, choice)
        new_way = self.way(unit)
        if DEVICE == old_way.scope == new_way.scope:
            touched = np.array(sorted({*old.places, *choice.places}), dtype=np.int64)
        else:
            touched = np.union1d(self.touched(old_way, old), self.touched(new_way, choice))
        self.loads.refresh(touched, {*old_way.calls, *new_way.calls})
        changed = set(touched.tolist())
        self.gains = {device: gains for device, gains in self.gains.items() if device not in changed}

    def _exchange(self, unit: int, choice: Choice) -> None:
        """One choice in the place of another in all sums; times have to follow."""
        self._add(unit, self.choices[unit], -1)
        self.choices[unit] = choice
        self._add(unit, choice, 1)

    def touched(self, way: Way, choice: Choice) -> npt.NDArray[np.int64]:
        """Devices that hold some of it."""
        if way.scope in (EVERYWHERE, REPLICA):
            return np.arange(self.task.num_devices)
        if way.scope == NODE:
            return np.concatenate([np.arange(self.task.num_devices)[_node(self.task, node)] for node in choice.places])
        return np.array(choice.places, dtype=np.int64)

    def _add(self, unit: int, choice: Choice, sign: int) -> None:
        way = self.options.units[unit].ways[choice.way]
        if self.moves is not None:
            self.moved_bytes += sign * self.moves.bytes_of(unit, choice)
        self._index(unit, way, choice, sign)
        places: Sequence[int] = choice.places if way.scope in (DEVICE, NODE) else (0,) * len(way.pieces)
        for piece, place in zip(way.pieces, places, strict=True):
            where: slice | int
            if way.scope == DEVICE:
                where = place
            elif way.scope == NODE:
                where = _node(self.task, place)
            else:
                where = slice(None)
            for cell in piece.cells:
                self.loads.add(cell, where, place, sign)
                self.users_C[cell[0]] += sign
            volume_4 = sign * volume_numbers(piece.volume)
            self.volumes_4D[:, where] += volume_4[:, None] if isinstance(where, slice) else volume_4
            self.used_D[where] += sign * piece.size_bytes
            if piece.offload_K:
                self.host_D[where] += sign * piece.host_bytes
                self.ssd_D[where] += sign * piece.ssd_bytes
                self.offload_D[where] += sign * np.array(piece.offload_K)[self._costs.kind_of_D[where]]
                self.offloaded += sign
        self.replicated_values += sign * way.values

    def _index(self, unit: int, way: Way, choice: Choice, sign: int) -> None:
        """Remembers where a unit lives, or forgets it."""
        if way.scope in (EVERYWHERE, REPLICA):
            homes = [self.everywhere]
        else:
            where = self.on_device if way.scope == DEVICE else self.on_node
            homes = [where[place] for place in choice.places]
        for home in homes:
            if sign > 0:
                home.add(unit)
            else:
                home.discard(unit)

    # Costs ------------------------------------------------------------------------------------------------------------

    def _device_ms(self) -> FloatArray:
        total = (
            self.loads.compute_ms_D + self._dense_ms_D() + exchange_ms(self.task, self._volumes(), self._costs.links)
        )
        return np.asarray(total + self.offload_D if self.offloaded else total)

    def _dense_ms_D(self) -> FloatArray:
        if not self.replicated_values:
            return np.zeros(self.task.num_devices)
        per_kind = [
            dense_ms(self.replicated_values, kind.bytes_per_ns, self.task.optimizer) for kind in self._costs.kinds
        ]
        return np.asarray(np.array(per_kind)[self._costs.kind_of_D])

    def _volumes(self) -> Volumes:
        collectives = {self.options.collective_of_call[call] for call in np.flatnonzero(self.users_C > 0).tolist()}
        sent, summed, in_node, inputs = np.maximum(self.volumes_4D, 0.0)
        return Volumes(sent, summed, in_node, inputs, self.replicated_values, collectives)

    @property
    def cost_ms(self) -> float:
        """Of the slowest device."""
        return float(self.device_ms_D.max())

    @property
    def score(self) -> float:
        """What a search descends: the cost, a little of how slow the other slow devices are, and the price of moves."""
        slowest = self.device_ms_D.max()
        if slowest <= 0:
            return 0.0
        rest = float(((self.device_ms_D / slowest) ** 16).mean())
        moved_ms = 0.0 if self.moves is None else self.moves.price_ms(self.moved_bytes)
        return float(slowest) * (1 + 0.02 * rest) + moved_ms

    def fits(self, room_D: npt.NDArray[np.int64]) -> bool:
        """Whether the memory suffices."""
        if not (self.used_D <= room_D).all():
            return False
        return not self.offloaded or (
            _host_fits(self.task, self.host_D, self.task.machine.host_bytes)
            and _host_fits(self.task, self.ssd_D, self.task.machine.ssd_bytes)
        )

    # Out --------------------------------------------------------------------------------------------------------------

    def parts(self) -> tuple[TablePart, ...]:
        """The placement, table after table."""
        return parts_of(self.options, self.choices)


def _host_fits(task: ShardingTask, used_D: npt.NDArray[np.int64], room_N: Sequence[int]) -> bool:
    """Whether hosts have the memory that their devices take together."""
    if not room_N:
        return not used_D.any()
    return bool((used_D.reshape(task.machine.num_nodes, -1).sum(axis=1) <= np.array(room_N)).all())


def _node(task: ShardingTask, node: int) -> slice:
    devices = task.machine.devices_of_node(node)
    return slice(devices.start, devices.stop)


def parts_of(options: Options, choices: Sequence[Choice]) -> tuple[TablePart, ...]:
    """The parts that choices stand for, in the order of the task's tables."""
    found: dict[int, Sequence[TablePart]] = {}
    for number, choice in enumerate(choices):
        found.update(parts_of_unit(options, number, choice))
    return tuple(part for position in range(len(options.task.tables)) for part in found[position])


def parts_of_unit(options: Options, number: int, choice: Choice) -> dict[int, list[TablePart]]:
    """The parts of each table of a unit, by the table's position, in the order of columns, then rows."""
    task, machine, unit = options.task, options.task.machine, options.units[number]
    way = unit.ways[choice.way]
    found: dict[int, list[TablePart]] = {}
    for position in unit.tables:
        table = task.tables[position]
        rows = Span(0, table.num_rows)
        own = found.setdefault(position, [])
        if way.scope == REPLICA:
            own.append(whole_part(table, tuple(range(task.num_devices))))
            continue
        widths = [piece.columns for piece in way.pieces] if len(unit.tables) == 1 else [table.embedding_dim]
        stop = 0
        for at, width in enumerate(widths):
            columns, stop = Span(stop, stop + width), stop + width
            if way.scope == DEVICE:
                own.append(TablePart(table.name, rows, columns, (choice.places[at],), way.storage))
                continue
            devices = range(task.num_devices)
            if way.scope == NODE:
                devices = machine.devices_of_node(choice.places[at])
            cut = zip(row_spans(table, len(devices)), devices, strict=False)  # the last devices may have no rows
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
    widths = [part.columns.size for part in of_table] if len(unit.tables) == 1 else None
    scope = TYPES[way_name].scope
    if scope == DEVICE:
        places = tuple(part.device for part in of_table)
    elif scope == NODE:
        firsts = {part.columns: machine.node_of(part.device) for part in of_table}
        widths, places = [columns.size for columns in firsts], tuple(firsts.values())
    else:
        widths, places = None, ()
    way = _way_like(options, number, way_name, widths, of_table[0].storage)
    return None if way is None else Choice(way, places)


def _way_like(options: Options, unit: int, name: str, widths: Sequence[int] | None, storage: Storage) -> int | None:
    """The number of a unit's way of this type, storage and these widths, in this order; a new one where it has none."""
    own = options.units[unit]
    for number, way in enumerate(own.ways):
        same = way.sharding_type == name if widths is None else [one.columns for one in way.pieces] == list(widths)
        if same and way.scope == TYPES[name].scope and way.storage == storage:
            return number
    by_columns = TYPES[name].scope == DEVICE and widths is not None
    if not own.ways or len(own.tables) > 1 or not (by_columns or storage != ON_DEVICE):
        return None
    whole = (options.task.tables[own.tables[0]].embedding_dim,)
    named = options.usual_name(own.tables[0], name)
    options.add_ways(unit, [options.way_of(unit, named, whole if widths is None else widths, storage)])
    return len(options.units[unit].ways) - 1
