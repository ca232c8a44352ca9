"""First placements: for a limit on the time of a piece, each unit takes the way with the least work, then its pieces
go where there is least to do.

The work of a piece is what it adds to a device that is as busy as the mean one: one number. Small pieces spread better
and take more work in all; which limit is best is for the caller to find out.

Legend: U units, W ways of a unit (padded), D devices, C kernel calls, H columns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.measure.simulated.cluster import dense_ms
from evenshard.placement.sharding import DATA_PARALLEL
from evenshard.sharders.plan_search.options import DEVICE, NODE, Options, Way
from evenshard.sharders.plan_search.state import Choice
from evenshard.tables.reuse import FloatArray

FULL_SHARE = 0.97
"""Part of the devices' memory that is filled before ways with less memory are preferred."""


@dataclass(frozen=True)
class Works:
    """The work of all ways.

    Attributes:
        piece_UW: what the largest piece adds to a device, ms; infinite where there is no such way.
        total_UW: what all devices together do, ms.
        bytes_UW: memory of all devices together.
        types_UW: number of the sharding type.
    """

    piece_UW: FloatArray
    total_UW: FloatArray
    bytes_UW: FloatArray
    types_UW: npt.NDArray[np.int64]
    names: tuple[str, ...]

    @staticmethod
    def of(options: Options) -> Works:
        """By what pieces add to a device that holds an even share of everything, whole."""
        costs, flat = options.costs, options.flat
        added_P = _added_ms(options)
        slopes_4, replica_ms = costs.exchange_slopes
        replica_ms += max(dense_ms(1.0, kind.bytes_per_ns, options.task.optimizer) for kind in costs.kinds)
        replicas_W = flat.values_W * replica_ms
        # Tables that stay together are one piece with several rows.
        whole_W = flat.summed(added_P) + flat.volume_W4 @ slopes_4 + replicas_W
        longest_W = flat.longest(added_P) + flat.longest_W4 @ slopes_4 + replicas_W
        return Works(
            piece_UW=flat.padded(longest_W),
            total_UW=flat.padded(whole_W * flat.copies_W),
            bytes_UW=flat.padded(flat.bytes_W),
            types_UW=np.where(np.isfinite(typed := flat.padded(flat.type_W.astype(np.float64))), typed, -1).astype(int),
            names=flat.names,
        )


def _added_ms(options: Options) -> FloatArray:
    """[P] what each looked-up row of columns adds to a mean device, by the slowest kind of device."""
    devices = options.task.num_devices
    found = []
    for network, columns_PH in zip(options.costs.networks, options.columns_KPH, strict=True):
        whole = [unit.ways[0].pieces[0].cells[0][1] for unit in options.units]
        mean_H = columns_PH[whole].sum(axis=0, dtype=np.float64).astype(np.float32) / devices
        base = float(network.compute_ms(mean_H[None], np.ones(1, dtype=np.int64))[0])
        with_each = network.compute_ms(columns_PH + mean_H, np.ones(len(columns_PH), dtype=np.int64))
        found.append(np.maximum(with_each - base, 1e-9))
    return np.asarray(np.max(found, axis=0))


class Construction:
    """Makes placements.

    Args:
        options: units and ways.
        works: their work.
        room_D: memory of the devices.
    """

    def __init__(self, options: Options, works: Works, room_D: npt.NDArray[np.int64]) -> None:
        self._options, self._works, self._room_D = options, works, room_D
        task = options.task
        self._groups_of = [
            [number for number, group in enumerate(task.apart) if set(unit.tables) & set(group)]
            for unit in options.units
        ]

    @property
    def even_ms(self) -> float:
        """The mean device's work if every unit takes the way with the least."""
        return float(self._works.total_UW.min(axis=1).sum()) / self._options.task.num_devices

    def ways(self, limit_ms: float, types: Collection[str], replica_price: float = 1.0) -> npt.NDArray[np.int64]:
        """[U] the way of each unit with the least work whose pieces are below the limit; else that with the least.

        Ways that take less memory are preferred as far as the memory needs it.

        Args:
            limit_ms: of the work of a piece.
            types: sharding types to use where a unit may.
            replica_price: factor on the work of replicas: what they spare the slowest device is more than on average.
        """
        works = self._works
        wanted = np.isin(works.types_UW, [number for number, name in enumerate(works.names) if name in types])
        wanted &= np.isfinite(works.piece_UW)
        wanted = np.where(wanted.any(axis=1, keepdims=True), wanted, np.isfinite(works.piece_UW))
        piece_UW = np.where(wanted, works.piece_UW, np.inf)
        small = piece_UW <= limit_ms
        allowed = np.where(small.any(axis=1, keepdims=True), small, piece_UW <= piece_UW.min(axis=1, keepdims=True))
        is_replica = works.types_UW == (works.names.index(DATA_PARALLEL) if DATA_PARALLEL in works.names else -2)
        total_UW = np.where(allowed, works.total_UW * np.where(is_replica, replica_price, 1.0), np.inf)
        room = float(self._room_D.sum()) * FULL_SHARE
        price, chosen = 0.0, np.asarray(total_UW.argmin(axis=1))
        rows = np.arange(len(chosen))
        scale = float(works.total_UW[rows, chosen].sum()) / max(room, 1.0)
        while works.bytes_UW[rows, chosen].sum() > room and price < 1e6 * scale:
            price = max(2 * price, 0.01 * scale)
            chosen = np.asarray(np.where(allowed, total_UW + price * works.bytes_UW, np.inf).argmin(axis=1))
        return chosen

    def place(self, ways_U: npt.NDArray[np.int64], by_memory: bool = False) -> list[Choice] | None:
        """Choices with these ways; None where the pieces found no room.

        Args:
            ways_U: way of each unit.
            by_memory: the largest pieces go first, instead of those with the most work.
        """
        options, works = self._options, self._works
        devices = options.task.num_devices
        choices: list[Choice | None] = [None] * len(options.units)
        places = Places(self, devices)
        rows = np.arange(len(ways_U))
        key = works.bytes_UW[rows, ways_U] if by_memory else works.piece_UW[rows, ways_U]
        order = np.argsort(-key, kind="stable").tolist()
        numbers = ways_U.tolist()
        spread = [unit for unit in order if options.units[unit].ways[numbers[unit]].scope != DEVICE]
        alone = [unit for unit in order if options.units[unit].ways[numbers[unit]].scope == DEVICE]
        for unit in (*spread, *alone):
            choice = places.take(unit, numbers[unit], float(works.piece_UW[unit, numbers[unit]]))
            if choice is None:
                return None
            choices[unit] = choice
        return [choice for choice in choices if choice is not None]

    @property
    def options(self) -> Options:
        """Units and ways."""
        return self._options

    @property
    def room_D(self) -> npt.NDArray[np.int64]:
        """Memory of the devices."""
        return self._room_D

    def groups_of(self, unit: int) -> list[int]:
        """Groups of tables that stay apart, of which the unit has one."""
        return self._groups_of[unit]


class Places:
    """The devices while pieces are placed on them: their work, and their memory.

    Args:
        construction: what is placed.
        num_devices: D.
    """

    def __init__(self, construction: Construction, num_devices: int) -> None:
        self._construction = construction
        self.load_D = np.zeros(num_devices)
        self.free_D = construction.room_D.copy()
        self.apart: dict[int, set[int]] = {}

    def take(self, unit: int, number: int, piece_ms: float) -> Choice | None:
        """Places all pieces of a unit where least is to do; None where there is no room for them."""
        options = self._construction.options
        way = options.units[unit].ways[number]
        machine = options.task.machine
        if way.scope not in (DEVICE, NODE):
            size = way.pieces[0].size_bytes
            if (self.free_D < size).any():
                return None
            self.free_D -= size
            self.load_D += piece_ms
            return Choice(number)
        if way.scope == NODE:
            free_N = self.free_D.reshape(machine.num_nodes, -1).min(axis=1)
            load_N = self.load_D.reshape(machine.num_nodes, -1).max(axis=1)
            allowed_D = options.units[unit].allowed_D
            may_N = None if allowed_D is None else allowed_D.reshape(machine.num_nodes, -1).all(axis=1)
            nodes: list[int] = []
            for piece in way.pieces:
                fits_N = free_N >= piece.size_bytes
                fits_N[nodes] = False
                if may_N is not None:
                    fits_N &= may_N
                if not fits_N.any():
                    return None
                node = int(np.where(fits_N, load_N, np.inf).argmin())
                nodes.append(node)
                own = machine.devices_of_node(node)
                self.free_D[own.start : own.stop] -= piece.size_bytes
                self.load_D[own.start : own.stop] += piece_ms
            return Choice(number, tuple(nodes))
        devices = self.devices_for(unit, way, self.load_D, self.free_D)
        if devices is None:
            return None
        for piece, device in zip(way.pieces, devices, strict=True):
            self.free_D[device] -= piece.size_bytes
            self.load_D[device] += piece_ms
        for group in self._construction.groups_of(unit):
            self.apart.setdefault(group, set()).update(devices)
        return Choice(number, tuple(devices))

    def devices_for(self, unit: int, way: Way, load_D: FloatArray, free_D: npt.NDArray[np.int64]) -> list[int] | None:
        """Devices for the pieces of a unit, each on one of its own."""
        size = max(piece.size_bytes for piece in way.pieces)
        fits_D = free_D >= size
        allowed_D = self._construction.options.units[unit].allowed_D
        if allowed_D is not None:
            fits_D &= allowed_D
        for group in self._construction.groups_of(unit):
            fits_D[list(self.apart.get(group, ()))] = False
        if way.sharding_type == "table_column_wise":
            fits_D = _one_node(fits_D, load_D, len(way.pieces), self._construction.options)
        load_D = np.where(fits_D, load_D, np.inf)
        if len(way.pieces) == 1:
            device = int(load_D.argmin())
            return [device] if np.isfinite(load_D[device]) else None
        if int(fits_D.sum()) < len(way.pieces):
            return None
        order: list[int] = np.argsort(load_D, kind="stable")[: len(way.pieces)].tolist()
        return order


def _one_node(fits_D: npt.NDArray[np.bool_], load_D: FloatArray, count: int, options: Options) -> npt.NDArray[np.bool_]:
    """The devices of the least busy node that has room for so many pieces."""
    nodes = options.task.machine.num_nodes
    by_node = fits_D.reshape(nodes, -1)
    sums = np.where(by_node.sum(axis=1) >= count, np.where(by_node, load_D.reshape(nodes, -1), 0).sum(axis=1), np.inf)
    chosen = np.zeros_like(by_node)
    if np.isfinite(sums).any():
        best = int(sums.argmin())
        chosen[best] = by_node[best]
    return chosen.reshape(-1)
