"""First placements, for a limit on the time of a piece.

Each group takes the option with the least work, then its pieces go where there is least to do.

The work of a piece is what it adds to a device that is as busy as the mean one: one number. Small pieces spread better
and take more work in all; which limit is best is for the caller to find out.

Legend: G groups, W options of a group (padded), V kinds of volumes, D devices, C kernel calls, H columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evenshard.measure.price.device_price import Columns, DevicePrice, alone_ms
from evenshard.measure.price.step import dense_ms
from evenshard.placement.sharding import REPLICATED
from evenshard.sharders.search.sharding_option import Piece, ShardingOption
from evenshard.sharders.search.space import FULL_SHARE, SearchSpace
from evenshard.sharders.search.state import Choice
from evenshard.tables.reuse import FloatArray

FIRST_PRICE, DEAREST = 0.01, 1e6
# Factors by which a price grows from step to step: where tables may be offloaded, the price decides how far.
GROWTH, FINE_GROWTH = 2.0, 1.25


@dataclass(frozen=True)
class Works:
    """The work of all options.

    Attributes:
        piece_GW: what the largest piece adds to a device, ms; infinite where there is no such option.
        total_GW: what all devices together do, ms.
        largest_GW: memory of the largest piece.
        bytes_GW: memory of all devices together.
        host_GW: memory of all hosts together.
        types_GW: number of the sharding type.
    """

    piece_GW: FloatArray
    total_GW: FloatArray
    largest_GW: FloatArray
    bytes_GW: FloatArray
    host_GW: FloatArray
    types_GW: npt.NDArray[np.int64]
    names: tuple[str, ...]

    @staticmethod
    def of(space: SearchSpace, beside_largest: bool = False) -> Works:
        """The work of all options, measured by what pieces add to a device with an even share of everything, whole.

        Args:
            space: groups and options.
            beside_largest: whether that device has the largest of everything, too, such as the widest table, which
                makes all rows beside it take as many lanes as its own.
        """
        costs, flat = space.costs, space.flat
        added_P = _added_ms(space, beside_largest)
        slopes_V, replica_ms = costs.exchange_slopes
        replica_ms += max(dense_ms(1.0, kind.bytes_per_ns, space.task.optimizer) for kind in costs.kinds)
        replicas_W = flat.values_W * replica_ms
        # Tables that stay together are one piece with several rows.
        whole_W = flat.sum_by_option(added_P) + flat.volume_WV @ slopes_V + replicas_W + flat.offload_W
        longest_W = flat.longest(added_P) + flat.longest_WV @ slopes_V + replicas_W + flat.longest_offload_W
        return Works(
            piece_GW=flat.pad_by_group(longest_W),
            total_GW=flat.pad_by_group(whole_W * flat.copies_W),
            largest_GW=flat.pad_by_group(flat.largest_bytes_W),
            bytes_GW=flat.pad_by_group(flat.bytes_W),
            host_GW=flat.pad_by_group(flat.host_W),
            types_GW=np.where(
                np.isfinite(typed := flat.pad_by_group(flat.type_W.astype(np.float64))), typed, -1
            ).astype(int),
            names=flat.names,
        )


def _added_ms(space: SearchSpace, beside_largest: bool) -> FloatArray:
    """Time each looked-up row on a mean device of the slowest kind, [P]; see ``Works.of``."""
    wholes = first_rows(space)
    found = []
    for kind, (price, columns_PH) in enumerate(zip(space.costs.prices, space.lookups.columns_KPH, strict=True)):
        mean_H = mean_device(space, kind, wholes, wholes if beside_largest else [])
        base_ms = float(alone_ms(price, mean_H[None])[0])
        found.append(np.maximum(alone_ms(price, beside(price, columns_PH, mean_H)) - base_ms, 1e-9))
    return np.asarray(np.max(found, axis=0))


def first_rows(space: SearchSpace) -> list[int]:
    """The looked-up row of columns of each group's first option: whole, where that is allowed."""
    return [group.options[0].pieces[0].cells[0][1] for group in space.groups]


def mean_device(space: SearchSpace, kind: int, rows: Sequence[int], largest: Sequence[int]) -> Columns:
    """[H] columns of a device with an even share of some looked-up rows.

    Args:
        space: groups and options.
        kind: of device.
        rows: their numbers.
        largest: rows of whose maxima the device has the largest, none where there are none.
    """
    price, columns_PH = space.costs.prices[kind], space.lookups.columns_KPH[kind]
    mean_H = columns_PH[rows].sum(axis=0, dtype=np.float64).astype(columns_PH.dtype) / space.task.num_devices
    maxima = slice(len(mean_H) - price.num_maxima, None)
    mean_H[maxima] = columns_PH[largest, maxima].max(axis=0) if largest else 0.0
    return np.asarray(mean_H)


def beside(price: DevicePrice, columns: Columns, held_H: Columns) -> Columns:
    """[..., H] columns of one more beside others: sums, but of the last columns the largest."""
    found = columns + held_H
    maxima = slice(found.shape[-1] - price.num_maxima, None)
    found[..., maxima] = np.maximum(columns[..., maxima], held_H[maxima])
    return np.asarray(found)


class Construction:
    """Makes placements.

    Args:
        space: groups and options.
        works: their work.
    """

    def __init__(self, space: SearchSpace, works: Works) -> None:
        self._space, self._works, self._room_D = space, works, space.room_D
        self._known: dict[tuple[bytes, float], npt.NDArray[np.int64]] = {}
        self._of_types: dict[frozenset[str], tuple[FloatArray, npt.NDArray[np.bool_]]] = {}
        task = space.task
        allowed = (group.allowed_D for group in space.groups)
        self._allowed_G = np.array([task.num_devices if one is None else int(one.sum()) for one in allowed])

    @cached_property
    def fits_GW(self) -> npt.NDArray[np.bool_]:
        """Options whose largest piece fits into an empty device; all of a group of which none does."""
        exists_GW = np.isfinite(self._works.piece_GW)
        fits_GW = exists_GW & (self._works.largest_GW <= self._room_D.max())
        return np.where(fits_GW.any(axis=1, keepdims=True), fits_GW, exists_GW)

    @property
    def even_ms(self) -> float:
        """The mean device's work if every group takes the option with the least."""
        return float(self._works.total_GW.min(axis=1).sum()) / self._space.task.num_devices

    def options(
        self, limit_ms: float, types: Collection[str], replica_price: float = 1.0, full_share: float = FULL_SHARE
    ) -> npt.NDArray[np.int64]:
        """[G] the option of each group with the least work whose pieces are below the limit; else that with the least.

        Options that take less memory are preferred as far as the memory needs it.

        Args:
            limit_ms: of the work of a piece.
            types: sharding types to use where a group may.
            replica_price: factor on the work of replicas: what they spare the slowest device is more than on average.
            full_share: part of all memory that they may take.
        """
        piece_GW, least_GW = self._pieces_of_types(frozenset(types))
        small = piece_GW <= limit_ms if limit_ms < np.inf else np.isfinite(piece_GW)
        allowed = np.where(small.any(axis=1, keepdims=True), small, least_GW)
        total_GW = self._works.total_GW
        if replica_price != 1.0:
            total_GW = total_GW * np.where(self._are_of(frozenset(REPLICATED)), replica_price, 1.0)
        total_GW = np.where(allowed, total_GW, np.inf)
        key = (total_GW.tobytes(), full_share)
        if key not in self._known:  # many limits and sets of types leave the same options
            self._known[key] = self._cheapest(total_GW, allowed, full_share)
        return self._known[key]

    def _pieces_of_types(self, types: frozenset[str]) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Return the largest pieces' work where types allow, and the least of them, [G, W]."""
        if types not in self._of_types:
            wanted = self._are_of(types) & self.fits_GW
            wanted = np.where(wanted.any(axis=1, keepdims=True), wanted, self.fits_GW)
            piece_GW = np.where(wanted, self._works.piece_GW, np.inf)
            self._of_types[types] = piece_GW, piece_GW <= piece_GW.min(axis=1, keepdims=True)
        return self._of_types[types]

    def _are_of(self, types: frozenset[str]) -> npt.NDArray[np.bool_]:
        """Return which options are of these types; options that only fill up a group are of none."""
        known = np.array([*(name in types for name in self._works.names), False])
        return np.asarray(known[self._works.types_GW])

    def _cheapest(
        self, total_GW: FloatArray, allowed: npt.NDArray[np.bool_], full_share: float
    ) -> npt.NDArray[np.int64]:
        """Return the options of least work that memory allows together, by a price of it."""
        works, rows = self._works, np.arange(len(total_GW))
        chosen = np.asarray(total_GW.argmin(axis=1))
        machine = self._space.task.machine
        memory = [
            (works.bytes_GW, float(self._room_D.sum())),
            (works.host_GW, float(sum(machine.host_bytes) + sum(machine.ssd_bytes))),
        ]
        if any(np.where(allowed, sizes_GW, np.inf).min(axis=1).sum() > room for sizes_GW, room in memory):
            return chosen  # at no price is there room
        rooms = [(sizes_GW, room * full_share) for sizes_GW, room in memory]
        scale = float(works.total_GW[rows, chosen].sum())
        growth = FINE_GROWTH if self._space.offloads else GROWTH
        prices = [0.0 for _ in rooms]
        while max(prices) < DEAREST:  # raise the price of whatever is scarce
            used = [float(sizes_GW[rows, chosen].sum()) / max(room, 1.0) for sizes_GW, room in rooms]
            if max(used) <= 1:
                break
            prices = [
                max(growth * price, FIRST_PRICE) if share > 1 else price
                for price, share in zip(prices, used, strict=True)
            ]
            priced_GW = total_GW
            for price, (sizes_GW, room) in zip(prices, rooms, strict=True):
                if price:
                    priced_GW = priced_GW + price * scale / max(room, 1.0) * np.where(allowed, sizes_GW, 0.0)
            chosen = np.asarray(priced_GW.argmin(axis=1))
        return chosen

    def total_ms(self, options_G: npt.NDArray[np.int64]) -> FloatArray:
        """[G] the work of all devices together for these options."""
        return np.asarray(self._works.total_GW[np.arange(len(options_G)), options_G])

    def mean_ms(self, options_G: npt.NDArray[np.int64]) -> float:
        """The mean device's work for these options."""
        return float(self.total_ms(options_G).sum()) / self._space.task.num_devices

    def place(self, options_G: npt.NDArray[np.int64], by_memory: bool = False) -> list[Choice] | None:
        """Choices with these options; None where the pieces found no room.

        Groups that may live on few devices go first, before others take their place there.

        Args:
            options_G: option of each group.
            by_memory: the largest pieces go first, instead of those with the most work.
        """
        space, works = self._space, self._works
        devices = space.task.num_devices
        choices: list[Choice | None] = [None] * len(space.groups)
        places = Places(self, devices)
        rows = np.arange(len(options_G))
        key = works.bytes_GW[rows, options_G] if by_memory else works.piece_GW[rows, options_G]
        order = np.lexsort((-key, self._allowed_G)).tolist()
        numbers = options_G.tolist()
        spread = [group for group in order if space.groups[group].options[numbers[group]].span > 1]
        alone = [group for group in order if space.groups[group].options[numbers[group]].span == 1]
        for group in (*spread, *alone):
            choice = places.take(group, numbers[group], float(works.piece_GW[group, numbers[group]]))
            if choice is None:
                return None
            choices[group] = choice
        return [choice for choice in choices if choice is not None]

    @property
    def space(self) -> SearchSpace:
        """Groups and options."""
        return self._space


@dataclass(frozen=True)
class SpreadPlaces:
    """Sets of devices, one after the other, for pieces that live on several devices each.

    Attributes:
        order: the sets by number, the least busy one first.
        free: memory of the fullest device of each; below 0 where one of them is not allowed.
    """

    order: list[int]
    free: list[int]

    @staticmethod
    def of(
        span: int, load_D: FloatArray, free_D: npt.NDArray[np.int64], allowed_D: npt.NDArray[np.bool_] | None
    ) -> SpreadPlaces:
        """The sets of ``span`` devices, each as busy as the busiest of its devices."""
        free_D = free_D if allowed_D is None else np.where(allowed_D, free_D, -1)
        order_P = np.argsort(load_D.reshape(-1, span).max(axis=1), kind="stable")
        return SpreadPlaces(order_P.tolist(), free_D.reshape(-1, span).min(axis=1).tolist())

    def first(self, size_bytes: int, taken: Sequence[int], has_P: npt.NDArray[np.bool_] | None = None) -> int | None:
        """The least busy set with memory for a piece; None if there is none.

        Args:
            size_bytes: of the piece, on each device.
            taken: sets that other pieces of the table have.
            has_P: whether the hosts have memory for it; None where it is in device memory.
        """
        return next(
            (
                one
                for one in self.order
                if self.free[one] >= size_bytes and one not in taken and (has_P is None or has_P[one])
            ),
            None,
        )

    def place(self, pieces: Sequence[Piece]) -> tuple[int, ...] | None:
        """The least busy set for each piece of a table in device memory, each a set of its own; None without room."""
        taken: list[int] = []
        for piece in pieces:
            if (one := self.first(piece.size_bytes, taken)) is None:
                return None
            taken.append(one)
        return tuple(taken)


class Places:
    """The devices while pieces are placed on them: their work, and their memory.

    Args:
        construction: what is placed.
        num_devices: D.
    """

    def __init__(self, construction: Construction, num_devices: int) -> None:
        self._construction = construction
        self.load_D = np.zeros(num_devices)
        self.free_D = construction.space.room_D.copy()
        machine = construction.space.task.machine
        self.host_N = np.array(machine.host_bytes or (0,) * machine.num_nodes, dtype=np.int64)
        self.ssd_N = np.array(machine.ssd_bytes or (0,) * machine.num_nodes, dtype=np.int64)
        self.apart: dict[int, set[int]] = {}

    def take_hosts(self, host_D: npt.NDArray[np.int64], ssd_D: npt.NDArray[np.int64]) -> None:
        """What is taken of hosts already, by device."""
        self.host_N -= host_D.reshape(len(self.host_N), -1).sum(axis=1)
        self.ssd_N -= ssd_D.reshape(len(self.ssd_N), -1).sum(axis=1)

    def take(
        self, group: int, number: int, piece_ms: float, may_D: npt.NDArray[np.bool_] | None = None
    ) -> Choice | None:
        """Places all pieces of a group where least is to do; None where there is no room for them.

        Args:
            group: to place.
            number: of its option.
            piece_ms: work of a piece.
            may_D: devices that pieces on single devices may go to; all where left out.
        """
        option = self._construction.space.groups[group].options[number]
        if option.span > 1:
            return self._take_spread(group, number, piece_ms)
        free_D = self.free_D if may_D is None else np.where(may_D, self.free_D, -1)
        devices = self.devices_for(group, option, self.load_D, free_D)
        if devices is None:
            return None
        self.free_D[devices] -= option.bytes_P  # each on a device of its own
        self.load_D[devices] += piece_ms
        if not option.storage.is_on_device:
            for piece, device in zip(option.pieces, devices, strict=True):
                self._take_host(range(device, device + 1), piece)
        for rule in self._construction.space.groups[group].apart:
            self.apart.setdefault(rule, set()).update(devices)
        return Choice(number, tuple(devices))

    def _take_spread(self, group: int, number: int, piece_ms: float) -> Choice | None:
        space = self._construction.space
        option, allowed_D = space.groups[group].options[number], space.groups[group].allowed_D
        spread, places = SpreadPlaces.of(option.span, self.load_D, self.free_D, allowed_D), list[int]()
        for piece in option.pieces:
            has_P = None if option.storage.is_on_device else self._host_has(option)
            place = spread.first(piece.size_bytes, places, has_P)
            if place is None:
                return None
            places.append(place)
            own = range(place * option.span, (place + 1) * option.span)
            self.free_D[own.start : own.stop] -= piece.size_bytes
            self._take_host(own, piece)
            self.load_D[own.start : own.stop] += piece_ms
        return Choice(number, tuple(places))

    def _host_has(self, option: ShardingOption) -> npt.NDArray[np.bool_]:
        per_host = self._construction.space.task.machine.devices_per_node
        copies = min(option.span, per_host)
        host = max(piece.host_bytes for piece in option.pieces) * copies
        ssd = max(piece.ssd_bytes for piece in option.pieces) * copies
        has_N = (self.host_N >= host) & (self.ssd_N >= ssd)
        if option.span < per_host:
            return np.asarray(has_N.repeat(per_host // option.span))
        return np.asarray(has_N.reshape(-1, option.span // per_host).all(axis=1))

    def _take_host(self, devices: range, piece: Piece) -> None:
        """Place a piece on consecutive devices: some of one host, or all of some hosts."""
        if not piece.host_bytes and not piece.ssd_bytes:
            return
        per_host = self._construction.space.task.machine.devices_per_node
        hosts, copies = slice(devices.start // per_host, -(-devices.stop // per_host)), min(len(devices), per_host)
        self.host_N[hosts] -= piece.host_bytes * copies
        self.ssd_N[hosts] -= piece.ssd_bytes * copies

    def devices_for(
        self, group: int, option: ShardingOption, load_D: FloatArray, free_D: npt.NDArray[np.int64]
    ) -> list[int] | None:
        """Devices for the pieces of a group, each on one of its own."""
        fits_D = free_D >= option.largest_bytes
        if not option.storage.is_on_device:
            fits_D &= self._host_has(option)
        own = self._construction.space.groups[group]
        if own.allowed_D is not None:
            fits_D &= own.allowed_D
        for rule in own.apart:
            fits_D[list(self.apart.get(rule, ()))] = False
        if option.home_span < len(fits_D):
            fits_D = _one_home(fits_D, load_D, len(option.pieces), option.home_span)
        load_D = np.where(fits_D, load_D, np.inf)
        if len(option.pieces) == 1:
            device = int(load_D.argmin())
            return [device] if fits_D[device] else None
        order: list[int] = np.argsort(load_D, kind="stable")[: len(option.pieces)].tolist()
        if len(order) < len(option.pieces) or not fits_D[order[-1]]:
            return None
        return order if self._hosts_have(option, order) else None

    def _hosts_have(self, option: ShardingOption, devices: Sequence[int]) -> bool:
        if option.storage.is_on_device:
            return True
        host_N, ssd_N = self.host_N.copy(), self.ssd_N.copy()
        for piece, device in zip(option.pieces, devices, strict=True):
            node = self._construction.space.task.machine.node_of(device)
            host_N[node] -= piece.host_bytes
            ssd_N[node] -= piece.ssd_bytes
        return bool(host_N.min() >= 0 and ssd_N.min() >= 0)


def _one_home(fits_D: npt.NDArray[np.bool_], load_D: FloatArray, count: int, size: int) -> npt.NDArray[np.bool_]:
    """Choose the least busy ``size`` devices in a row with room for ``count`` pieces; return those with room."""
    by_home = fits_D.reshape(-1, size)
    sums = np.where(by_home.sum(axis=1) >= count, np.where(by_home, load_D.reshape(-1, size), 0).sum(axis=1), np.inf)
    chosen = np.zeros_like(by_home)
    if np.isfinite(sums).any():
        best = int(sums.argmin())
        chosen[best] = by_home[best]
    return chosen.reshape(-1)
