"""First placements: for a limit on the time of a piece, each unit takes the way with the least work, then its pieces
go where there is least to do.

The work of a piece is what it adds to a device that is as busy as the mean one: one number. Small pieces spread better
and take more work in all; which limit is best is for the caller to find out.

Legend: U units, W ways of a unit (padded), V kinds of volumes, D devices, C kernel calls, H columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.measure.price.device_price import alone_ms
from evenshard.measure.price.step import dense_ms
from evenshard.placement.items import apart_groups
from evenshard.placement.sharding import REPLICATED
from evenshard.sharders.search.sharding_option import Piece, Way
from evenshard.sharders.search.space import FULL_SHARE, Options
from evenshard.sharders.search.state import Choice
from evenshard.tables.reuse import FloatArray

FIRST_PRICE, DEAREST = 0.01, 1e6
"""Of all memory, in the work of all devices: where a price begins, and where it ends."""
GROWTH, FINE_GROWTH = 2.0, 1.25
"""Of a price from step to step: where tables may be offloaded, it decides how far."""


@dataclass(frozen=True)
class Works:
    """The work of all ways.

    Attributes:
        piece_UW: what the largest piece adds to a device, ms; infinite where there is no such way.
        total_UW: what all devices together do, ms.
        bytes_UW: memory of all devices together.
        host_UW: memory of all hosts together.
        types_UW: number of the sharding type.
    """

    piece_UW: FloatArray
    total_UW: FloatArray
    bytes_UW: FloatArray
    host_UW: FloatArray
    types_UW: npt.NDArray[np.int64]
    names: tuple[str, ...]

    @staticmethod
    def of(options: Options) -> Works:
        """By what pieces add to a device that holds an even share of everything, whole."""
        costs, flat = options.costs, options.flat
        added_P = _added_ms(options)
        slopes_V, replica_ms = costs.exchange_slopes
        replica_ms += max(dense_ms(1.0, kind.bytes_per_ns, options.task.optimizer) for kind in costs.kinds)
        replicas_W = flat.values_W * replica_ms
        # Tables that stay together are one piece with several rows.
        whole_W = flat.summed(added_P) + flat.volume_WV @ slopes_V + replicas_W + flat.offload_W
        longest_W = flat.longest(added_P) + flat.longest_WV @ slopes_V + replicas_W + flat.longest_offload_W
        return Works(
            piece_UW=flat.padded(longest_W),
            total_UW=flat.padded(whole_W * flat.copies_W),
            bytes_UW=flat.padded(flat.bytes_W),
            host_UW=flat.padded(flat.host_W),
            types_UW=np.where(np.isfinite(typed := flat.padded(flat.type_W.astype(np.float64))), typed, -1).astype(int),
            names=flat.names,
        )


def _added_ms(options: Options) -> FloatArray:
    """[P] what each looked-up row of columns adds to a mean device, by the slowest kind of device."""
    devices = options.task.num_devices
    found = []
    for price, columns_PH in zip(options.costs.prices, options.lookups.columns_KPH, strict=True):
        whole = [unit.ways[0].pieces[0].cells[0][1] for unit in options.units]
        mean_H = columns_PH[whole].sum(axis=0, dtype=np.float64).astype(columns_PH.dtype) / devices
        mean_H[len(mean_H) - price.num_maxima :] = 0.0
        base_ms = float(alone_ms(price, mean_H[None])[0])
        found.append(np.maximum(alone_ms(price, columns_PH + mean_H) - base_ms, 1e-9))
    return np.asarray(np.max(found, axis=0))


class Construction:
    """Makes placements.

    Args:
        options: units and ways.
        works: their work.
    """

    def __init__(self, options: Options, works: Works) -> None:
        self._options, self._works, self._room_D = options, works, options.room_D
        self._known: dict[tuple[bytes, float], npt.NDArray[np.int64]] = {}
        task = options.task
        allowed = (unit.allowed_D for unit in options.units)
        self._allowed_U = np.array([task.num_devices if one is None else int(one.sum()) for one in allowed])
        self._groups_of = [apart_groups(task, unit.tables) for unit in options.units]

    @property
    def even_ms(self) -> float:
        """The mean device's work if every unit takes the way with the least."""
        return float(self._works.total_UW.min(axis=1).sum()) / self._options.task.num_devices

    def ways(
        self, limit_ms: float, types: Collection[str], replica_price: float = 1.0, full_share: float = FULL_SHARE
    ) -> npt.NDArray[np.int64]:
        """[U] the way of each unit with the least work whose pieces are below the limit; else that with the least.

        Ways that take less memory are preferred as far as the memory needs it.

        Args:
            limit_ms: of the work of a piece.
            types: sharding types to use where a unit may.
            replica_price: factor on the work of replicas: what they spare the slowest device is more than on average.
            full_share: part of all memory that they may take.
        """
        works = self._works
        wanted = np.isin(works.types_UW, [number for number, name in enumerate(works.names) if name in types])
        wanted &= np.isfinite(works.piece_UW)
        wanted = np.where(wanted.any(axis=1, keepdims=True), wanted, np.isfinite(works.piece_UW))
        piece_UW = np.where(wanted, works.piece_UW, np.inf)
        small = piece_UW <= limit_ms
        allowed = np.where(small.any(axis=1, keepdims=True), small, piece_UW <= piece_UW.min(axis=1, keepdims=True))
        is_replica = np.isin(works.types_UW, [at for at, name in enumerate(works.names) if name in REPLICATED])
        total_UW = np.where(allowed, works.total_UW * np.where(is_replica, replica_price, 1.0), np.inf)
        key = (total_UW.tobytes(), full_share)
        if key not in self._known:  # many limits and sets of types leave the same ways
            self._known[key] = self._cheapest(total_UW, allowed, full_share)
        return self._known[key]

    def _cheapest(
        self, total_UW: FloatArray, allowed: npt.NDArray[np.bool_], full_share: float
    ) -> npt.NDArray[np.int64]:
        """[U] the ways with the least work that memory allows together, as far as a price of it finds them."""
        works, rows = self._works, np.arange(len(total_UW))
        chosen = np.asarray(total_UW.argmin(axis=1))
        machine = self._options.task.machine
        memory = [
            (works.bytes_UW, float(self._room_D.sum())),
            (works.host_UW, float(sum(machine.host_bytes) + sum(machine.ssd_bytes))),
        ]
        if any(np.where(allowed, sizes_UW, np.inf).min(axis=1).sum() > room for sizes_UW, room in memory):
            return chosen  # at no price is there room
        rooms = [(sizes_UW, room * full_share) for sizes_UW, room in memory]
        scale = float(works.total_UW[rows, chosen].sum())
        growth = FINE_GROWTH if self._options.offloads else GROWTH
        prices = [0.0 for _ in rooms]
        while max(prices) < DEAREST:  # what there is too little of becomes dearer
            used = [float(sizes_UW[rows, chosen].sum()) / max(room, 1.0) for sizes_UW, room in rooms]
            if max(used) <= 1:
                break
            prices = [
                max(growth * price, FIRST_PRICE) if share > 1 else price
                for price, share in zip(prices, used, strict=True)
            ]
            priced_UW = total_UW
            for price, (sizes_UW, room) in zip(prices, rooms, strict=True):
                if price:
                    priced_UW = priced_UW + price * scale / max(room, 1.0) * np.where(allowed, sizes_UW, 0.0)
            chosen = np.asarray(priced_UW.argmin(axis=1))
        return chosen

    def place(self, ways_U: npt.NDArray[np.int64], by_memory: bool = False) -> list[Choice] | None:
        """Choices with these ways; None where the pieces found no room.

        Units that may live on few devices go first, before others take their place there.

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
        order = np.lexsort((-key, self._allowed_U)).tolist()
        numbers = ways_U.tolist()
        spread = [unit for unit in order if options.units[unit].ways[numbers[unit]].span > 1]
        alone = [unit for unit in order if options.units[unit].ways[numbers[unit]].span == 1]
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

    def groups_of(self, unit: int) -> tuple[int, ...]:
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
        self.free_D = construction.options.room_D.copy()
        machine = construction.options.task.machine
        self.host_N = np.array(machine.host_bytes or (0,) * machine.num_nodes, dtype=np.int64)
        self.ssd_N = np.array(machine.ssd_bytes or (0,) * machine.num_nodes, dtype=np.int64)
        self.apart: dict[int, set[int]] = {}

    def take_hosts(self, host_D: npt.NDArray[np.int64], ssd_D: npt.NDArray[np.int64]) -> None:
        """What is taken of hosts already, by device."""
        self.host_N -= host_D.reshape(len(self.host_N), -1).sum(axis=1)
        self.ssd_N -= ssd_D.reshape(len(self.ssd_N), -1).sum(axis=1)

    def take(self, unit: int, number: int, piece_ms: float) -> Choice | None:
        """Places all pieces of a unit where least is to do; None where there is no room for them."""
        way = self._construction.options.units[unit].ways[number]
        if way.span > 1:
            return self._take_spread(unit, number, piece_ms)
        devices = self.devices_for(unit, way, self.load_D, self.free_D)
        if devices is None:
            return None
        for piece, device in zip(way.pieces, devices, strict=True):
            self.free_D[device] -= piece.size_bytes
            self._take_host(range(device, device + 1), piece)
            self.load_D[device] += piece_ms
        for group in self._construction.groups_of(unit):
            self.apart.setdefault(group, set()).update(devices)
        return Choice(number, tuple(devices))

    def _take_spread(self, unit: int, number: int, piece_ms: float) -> Choice | None:
        """Places the pieces of a unit that live on several devices each."""
        options = self._construction.options
        way, allowed_D = options.units[unit].ways[number], options.units[unit].allowed_D
        free_P = self.free_D.reshape(-1, way.span).min(axis=1)
        load_P = self.load_D.reshape(-1, way.span).max(axis=1)
        may_P = None if allowed_D is None else allowed_D.reshape(-1, way.span).all(axis=1)
        places: list[int] = []
        for piece in way.pieces:
            fits_P = (free_P >= piece.size_bytes) & self._host_has(way)
            fits_P[places] = False
            if may_P is not None:
                fits_P &= may_P
            if not fits_P.any():
                return None
            place = int(np.where(fits_P, load_P, np.inf).argmin())
            places.append(place)
            own = range(place * way.span, (place + 1) * way.span)
            self.free_D[own.start : own.stop] -= piece.size_bytes
            self._take_host(own, piece)
            self.load_D[own.start : own.stop] += piece_ms
        return Choice(number, tuple(places))

    def _host_has(self, way: Way) -> npt.NDArray[np.bool_]:
        """[places] whether the hosts of the devices have memory for the largest piece."""
        per_host = self._construction.options.task.machine.devices_per_node
        copies = min(way.span, per_host)
        host = max(piece.host_bytes for piece in way.pieces) * copies
        ssd = max(piece.ssd_bytes for piece in way.pieces) * copies
        has_N = (self.host_N >= host) & (self.ssd_N >= ssd)
        if way.span < per_host:
            return np.asarray(has_N.repeat(per_host // way.span))
        return np.asarray(has_N.reshape(-1, way.span // per_host).all(axis=1))

    def _take_host(self, devices: range, piece: Piece) -> None:
        """A piece on these devices, one after the other: on some of one host, or on all of some hosts."""
        if not piece.host_bytes and not piece.ssd_bytes:
            return
        per_host = self._construction.options.task.machine.devices_per_node
        hosts, copies = slice(devices.start // per_host, -(-devices.stop // per_host)), min(len(devices), per_host)
        self.host_N[hosts] -= piece.host_bytes * copies
        self.ssd_N[hosts] -= piece.ssd_bytes * copies

    def devices_for(self, unit: int, way: Way, load_D: FloatArray, free_D: npt.NDArray[np.int64]) -> list[int] | None:
        """Devices for the pieces of a unit, each on one of its own."""
        size = max(piece.size_bytes for piece in way.pieces)
        fits_D = free_D >= size
        if not way.storage.is_on_device:
            fits_D &= self._host_has(way)
        allowed_D = self._construction.options.units[unit].allowed_D
        if allowed_D is not None:
            fits_D &= allowed_D
        for group in self._construction.groups_of(unit):
            fits_D[list(self.apart.get(group, ()))] = False
        if way.home_span < len(fits_D):
            fits_D = _one_home(fits_D, load_D, len(way.pieces), way.home_span)
        load_D = np.where(fits_D, load_D, np.inf)
        if len(way.pieces) == 1:
            device = int(load_D.argmin())
            return [device] if np.isfinite(load_D[device]) else None
        if int(fits_D.sum()) < len(way.pieces):
            return None
        order: list[int] = np.argsort(load_D, kind="stable")[: len(way.pieces)].tolist()
        return order if self._hosts_have(way, order) else None

    def _hosts_have(self, way: Way, devices: Sequence[int]) -> bool:
        """Whether hosts have memory for all pieces that their devices get."""
        if way.storage.is_on_device:
            return True
        host_N, ssd_N = self.host_N.copy(), self.ssd_N.copy()
        for piece, device in zip(way.pieces, devices, strict=True):
            node = self._construction.options.task.machine.node_of(device)
            host_N[node] -= piece.host_bytes
            ssd_N[node] -= piece.ssd_bytes
        return bool(host_N.min() >= 0 and ssd_N.min() >= 0)


def _one_home(fits_D: npt.NDArray[np.bool_], load_D: FloatArray, count: int, size: int) -> npt.NDArray[np.bool_]:
    """The devices with room of the least busy group of so many devices that has room for so many pieces."""
    by_home = fits_D.reshape(-1, size)
    sums = np.where(by_home.sum(axis=1) >= count, np.where(by_home, load_D.reshape(-1, size), 0).sum(axis=1), np.inf)
    chosen = np.zeros_like(by_home)
    if np.isfinite(sums).any():
        best = int(sums.argmin())
        chosen[best] = by_home[best]
    return chosen.reshape(-1)
