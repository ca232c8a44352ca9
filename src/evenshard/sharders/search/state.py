"""A placement under search: the option and the places of every group, and the sums that its cost is made of.

Changes are tried out many at a time, all from the same state: their sums and times are counted as arrays, and the state
stays as it is until one of them is made.

Legend: G groups, D devices, W windows of a step, V kinds of volumes, C kernel calls, N changes that are tried out, E
additions and removals of pieces of them all, F the same on each device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import VOLUMES, Volumes, exchange_times
from evenshard.measure.price.device_price import Columns, DevicePrice
from evenshard.measure.price.loads import CellChanges, LookupColumns, repeat_numbers
from evenshard.measure.price.step import PartCosts, dense_ms
from evenshard.measure.step_time import Phases, first_of_lowest, windows
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import spans
from evenshard.placement.task import ShardingTask
from evenshard.sharders.search.arrays import PieceChanges
from evenshard.sharders.search.choices import devices_of, firsts_of, parts_of
from evenshard.sharders.search.sharding_option import Choice, ShardingOption
from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

Indices = npt.NDArray[np.int64]


Cell = tuple[int, int]
Change = Sequence[tuple[int, Choice]]


class State:
    """A complete placement with all its sums; cheap to copy and to change by a group.

    Args:
        space: groups and options.
        choices: of all groups.
    """

    def __init__(self, space: SearchSpace, choices: Sequence[Choice]) -> None:
        self.space = space
        self._costs: PartCosts = space.costs
        task = space.task
        self.task: ShardingTask = task
        devices, calls = task.num_devices, len(space.calls)
        self.choices = list(choices)
        self.loads = Loads(space.lookups, self._costs.prices, self._costs.kind_of_D, space.span_of_call)
        self.volumes_VD = np.zeros((len(VOLUMES), devices))
        self.used_3D = np.zeros((3, devices), dtype=np.int64)
        self.offload_2D = np.zeros((2, devices))
        self.users_C = np.zeros(calls, dtype=np.int64)
        self.replicated_values = 0.0
        self.groups_at: dict[int, list[set[int]]] = {
            span: [set() for _ in range(devices // span)] for span in spans(task.machine)
        }
        self._fill()
        self.loads.refresh(np.arange(devices), range(calls))
        self.windows_WD = self._windows_WD()

    def copy(self) -> State:
        """A copy that may change by itself."""
        found = copy(self)
        found.choices, found.loads = list(self.choices), self.loads.copy()
        found.volumes_VD, found.used_3D = self.volumes_VD.copy(), self.used_3D.copy()
        found.offload_2D, found.users_C = self.offload_2D.copy(), self.users_C.copy()
        found.groups_at = {span: list(map(set, of_places)) for span, of_places in self.groups_at.items()}
        return found

    def become(self, other: State) -> None:
        """What another state of the same space is; that one may not change any more."""
        vars(self).update(vars(other))

    @property
    def on_device(self) -> list[set[int]]:
        """The groups with a piece on one device alone, by device."""
        return self.groups_at[1]

    def option(self, group: int) -> ShardingOption:
        """How a group is sharded now."""
        return self.space.groups[group].options[self.choices[group].option]

    def replace_all(self, change: Change) -> None:
        """Gives groups another option, or another place."""
        touched: set[int] = set()
        calls: set[int] = set()
        for group, choice in change:
            for sign in (-1, 1):
                if sign > 0:
                    self.choices[group] = choice
                self._add(group, self.choices[group], sign)
                touched.update(self.devices_of(self.option(group), self.choices[group]))
                calls.update(self.option(group).calls)
        self.loads.refresh(np.array(sorted(touched), dtype=np.int64), calls)
        self.windows_WD = self._windows_WD()

    def replace(self, group: int, choice: Choice) -> None:
        """Gives a group another option, or another place."""
        self.replace_all([(group, choice)])

    def devices_of(self, option: ShardingOption, choice: Choice) -> Sequence[int]:
        """Devices that hold some of a group that is sharded so."""
        return devices_of(option, choice)

    def _fill(self) -> None:
        """Sum all choices at once, with the result of one ``_add`` after the other."""
        rows = [
            (group, piece.number, first, 1)
            for group, choice in enumerate(self.choices)
            for option in (self.space.groups[group].options[choice.option],)
            for piece, first in zip(option.pieces, firsts_of(option, choice), strict=True)
        ]
        arrays = self.space.piece_arrays
        pieces = PieceChanges(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)
        on_each = arrays.on_each_device(pieces)
        piece_F, device_F = on_each.piece_E, on_each.device_E
        cells = arrays.cells(pieces)
        self.loads.fill(cells)
        self.users_C += np.bincount(cells.call_E, minlength=len(self.users_C))
        np.add.at(self.volumes_VD.T, device_F, arrays.volume_PV[piece_F])
        for at, sizes_P in enumerate((arrays.size_P, arrays.host_P, arrays.ssd_P)):
            np.add.at(self.used_3D[at], device_F, sizes_P[piece_F])
        np.add.at(self.offload_2D.T, device_F, arrays.offload_PK2[piece_F, self._costs.kind_of_D[device_F]])
        self.replicated_values = float(arrays.values_P[pieces.piece_E].sum())
        for group, choice in enumerate(self.choices):
            self._index(group, self.option(group), choice, 1)

    def _add(self, group: int, choice: Choice, sign: int) -> None:
        option = self.space.groups[group].options[choice.option]
        self._index(group, option, choice, sign)
        for piece, first in zip(option.pieces, firsts_of(option, choice), strict=True):
            where = slice(first, first + piece.span)
            for cell in piece.cells:
                self.loads.add(cell, first, sign)
                self.users_C[cell[0]] += sign
            self.volumes_VD[:, where] += sign * piece.volume_V[:, None]
            self.used_3D[0, where] += sign * piece.size_bytes
            if piece.offload_K2:
                self.used_3D[1, where] += sign * piece.host_bytes
                self.used_3D[2, where] += sign * piece.ssd_bytes
                self.offload_2D[:, where] += sign * np.array(piece.offload_K2)[self._costs.kind_of_D[where]].T
            self.replicated_values += sign * piece.values

    def _index(self, group: int, option: ShardingOption, choice: Choice, sign: int) -> None:
        groups_at = self.groups_at[option.span]
        for place in choice.places:
            if sign > 0:
                groups_at[place].add(group)
            else:
                groups_at[place].discard(group)

    def _windows_WD(self) -> FloatArray:
        compute_2ND, volumes_VND = (self.loads.compute_2D + self.offload_2D)[:, None], self.volumes_VD[:, None]
        return self._windows(compute_2ND, volumes_VND, np.array([self.replicated_values]), self.users_C[None])[:, 0]

    def _windows(
        self, compute_2ND: FloatArray, volumes_VND: FloatArray, values_N: FloatArray, users_NC: npt.NDArray[Any]
    ) -> FloatArray:
        exchanges = exchange_times(self.task, Volumes.of(np.maximum(volumes_VND, 0.0), values_N), self._costs.links)
        times = [exchanges.input_dist, exchanges.forward, exchanges.backward]
        if self.task.num_devices > 1:
            latencies_3N = self.space.latencies(users_NC > 0)
            times = [one + latency_N[:, None] for one, latency_N in zip(times, latencies_3N, strict=True)]
        inputs, out, back = times
        forward, backward = compute_2ND
        if values_N.any():
            kinds = [kind.bytes_per_ns for kind in self._costs.kinds]
            per_kind = np.stack([dense_ms(values_N, one, self.task.optimizer) for one in kinds])
            backward = backward + per_kind[self._costs.kind_of_D].T
        phases = Phases(inputs, forward, out, back, backward)
        return np.stack([window.total for window in windows(phases, self._costs.pipeline)])

    @property
    def device_ms_D(self) -> FloatArray:
        """What each device does in a step, waits left aside."""
        return np.asarray(self.windows_WD.sum(axis=0))

    @property
    def slow_devices(self) -> list[int]:
        """The slowest device of each window, that of the longest one first."""
        order = np.argsort(-self.windows_WD.max(axis=1), kind="stable")
        return list(dict.fromkeys(first_of_lowest(-window_D) for window_D in self.windows_WD[order]))

    @property
    def cost_ms(self) -> float:
        """Time of a step with this placement, ms."""
        return float(self.windows_WD.max(axis=1).sum())

    @property
    def score(self) -> float:
        """What a search descends: the cost, and a little of how slow the other slow devices are."""
        return float(scores_of(self.windows_WD))

    def fits(self) -> bool:
        """Whether the memory suffices."""
        return bool(self._fits(self.used_3D[:, None])[0])

    def _fits(self, used_3ND: Indices) -> npt.NDArray[np.bool_]:
        machine = self.task.machine
        fits_N = (used_3ND[0] <= self.space.room_D).all(axis=-1)
        if used_3ND[1:].any():
            for used_ND, rooms in zip(used_3ND[1:], (machine.host_bytes, machine.ssd_bytes), strict=True):
                by_host = used_ND.reshape(len(used_ND), machine.num_nodes, -1).sum(axis=-1)
                fits_N &= (by_host <= np.array(rooms or (0,) * machine.num_nodes)).all(axis=-1)
        return np.asarray(fits_N)

    def piece_changes(self, changes: Sequence[Change]) -> PieceChanges:
        """What changes add and take away."""
        numbers: list[int] = []
        firsts: list[int] = []
        counts: list[int] = []
        for change in changes:
            for group, choice in change:
                for one in (self.choices[group], choice):
                    option = self.space.groups[group].options[one.option]
                    numbers += option.piece_numbers
                    firsts += firsts_of(option, one)
                    counts.append(len(option.pieces))
        of_change = np.repeat(np.arange(len(changes)), [2 * len(change) for change in changes])
        signs = np.tile([-1, 1], len(counts) // 2)
        return PieceChanges(
            np.repeat(of_change, counts),
            np.array(numbers, dtype=np.int64),
            np.array(firsts, dtype=np.int64),
            np.repeat(signs, counts),
        )

    def after(self, pieces: PieceChanges, count: int) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """[W, N, D] times of devices after each of so many changes, by itself, and [N] whether the memory suffices."""
        arrays, devices = self.space.piece_arrays, self.task.num_devices
        cells, on_each = arrays.cells(pieces), arrays.on_each_device(pieces)
        piece_F, at_F = on_each.piece_E, on_each.change_E * devices + on_each.device_E

        def sum_by_device(values_F: npt.NDArray[Any]) -> FloatArray:
            weights = on_each.sign_E * values_F
            return np.asarray(np.bincount(at_F, weights, count * devices), dtype=np.float64).reshape(count, devices)

        volumes_VND = np.repeat(self.volumes_VD[:, None], count, axis=1)
        for at in np.flatnonzero(arrays.volume_PV.any(axis=0)).tolist():
            volumes_VND[at] += sum_by_device(arrays.volume_PV[piece_F, at])
        used_3ND = np.repeat(self.used_3D[:, None], count, axis=1)
        used_3ND[0] += sum_by_device(arrays.size_P[piece_F]).astype(np.int64)
        values_N = np.full(count, self.replicated_values)
        if arrays.values_P.any():
            values_N += np.bincount(pieces.change_E, pieces.sign_E * arrays.values_P[pieces.piece_E], count)
        compute_2ND = self.loads.changed_ms(cells, count) + self.offload_2D[:, None]
        if arrays.offload_PK2.any():
            for own_ND, more_F in zip(compute_2ND, self._offload_2F(on_each), strict=True):
                own_ND += sum_by_device(more_F)
            for at, sizes_P in enumerate((arrays.host_P, arrays.ssd_P), 1):
                used_3ND[at] += sum_by_device(sizes_P[piece_F]).astype(np.int64)
        more_NC = arrays.users(cells, count, len(self.users_C))
        return self._windows(compute_2ND, volumes_VND, values_N, self.users_C + more_NC), self._fits(used_3ND)

    def _offload_2F(self, on_each: PieceChanges) -> FloatArray:
        kind_F = self._costs.kind_of_D[on_each.device_E]
        return np.asarray(self.space.piece_arrays.offload_PK2[on_each.piece_E, kind_F].T)

    def parts(self) -> tuple[TablePart, ...]:
        """The placement, table after table."""
        return parts_of(self.space, self.choices)


def scores_of(windows: FloatArray) -> FloatArray:
    """[...] the time of steps of [W, ..., D] windows, and a little of how slow the other slow devices are in each."""
    slowest = windows.max(axis=-1)
    ratios = windows / np.maximum(slowest, 1e-12)[..., None]
    for _ in range(4):
        ratios *= ratios
    return np.asarray((slowest * (1 + 0.02 * ratios.mean(axis=-1))).sum(axis=0))


@dataclass
class _KindLoads:
    """Loads as one kind of device takes them; sums and the two largest maxima are of a place's first device."""

    price: DevicePrice
    sums_GDH: Columns
    times_QGD: FloatArray
    largest_CD2M: Columns


class Loads:
    """The lookups of devices, and the compute time that they take.

    Attributes:
        held_CD: lookups of each call on each device.
        calls_D: kernel calls of each device.
        compute_2D: forward and backward compute time, ms.

    Args:
        kind_of_D: the kind of each device.
        span_C: number of devices, one after the other, that look up the same in each call: 1, a node's, or all.
    """

    def __init__(
        self, lookups: LookupColumns, prices: Sequence[DevicePrice], kind_of_D: Indices, span_C: Sequence[int]
    ) -> None:
        self._lookups, self._kind_of_D, self._span_C = lookups, kind_of_D, np.array(span_C, dtype=np.int64)
        devices, calls = len(kind_of_D), len(span_C)
        self.held_CD = np.zeros((calls, devices), dtype=np.int64)
        self.calls_D = np.zeros(devices, dtype=np.int64)
        self.compute_2D = np.zeros((2, devices))
        self._kinds = []
        for price, columns_PH in zip(prices, lookups.columns_KPH, strict=True):
            sums_GDH = np.zeros((calls if price.is_by_call else 1, devices, columns_PH.shape[1]), columns_PH.dtype)
            times_QGD = price.call_ms(sums_GDH[:, 0])[..., None].repeat(devices, axis=-1)
            largest_CD2M = np.zeros((calls, devices, 2, price.num_maxima), columns_PH.dtype)
            self._kinds.append(_KindLoads(price, sums_GDH, times_QGD, largest_CD2M))
        self._keeps_rows = any(price.num_maxima for price in prices)
        self._rows: dict[tuple[int, int], list[int]] = {}

    def copy(self) -> Loads:
        """A copy that may change by itself."""
        found = copy(self)
        found.held_CD, found.calls_D, found.compute_2D = (
            self.held_CD.copy(),
            self.calls_D.copy(),
            self.compute_2D.copy(),
        )
        found._kinds = [
            _KindLoads(one.price, one.sums_GDH.copy(), one.times_QGD.copy(), one.largest_CD2M.copy())
            for one in self._kinds
        ]
        found._rows = {key: list(rows) for key, rows in self._rows.items()}
        return found

    def add(self, cell: Cell, device: int, sign: int) -> None:
        """Adds a lookup to a device and those that look up the same, or takes it away; ``refresh`` has to follow.

        Args:
            cell: its call and row.
            device: the first of the devices.
            sign: 1 to add, -1 to take away.
        """
        call, row = cell
        devices = slice(device, device + int(self._span_C[call]))
        self.held_CD[call, devices] += sign
        is_empty = not self.held_CD[call, device]
        for one, columns_PH in zip(self._kinds, self._lookups.columns_KPH, strict=True):
            if not one.price.is_by_call:
                one.sums_GDH[0, devices] += sign * columns_PH[row]
            elif is_empty:
                one.sums_GDH[call, device] = 0.0
            else:
                one.sums_GDH[call, device] += sign * columns_PH[row]
        if self._keeps_rows:
            rows = self._rows.setdefault((call, device), [])
            if sign > 0:
                rows.append(row)
            else:
                rows.remove(row)
            self._update_largest(call, device, rows)

    def fill(self, cells: CellChanges) -> None:
        """Adds the lookups of devices that have none so far; ``refresh`` has to follow."""
        np.add.at(self.held_CD, (cells.call_E, self._first_devices(cells)), 1)
        for call in np.flatnonzero(self._span_C > 1).tolist():
            span = int(self._span_C[call])
            self.held_CD[call] = self.held_CD[call, ::span].repeat(span)
        for one, columns_PH in zip(self._kinds, self._lookups.columns_KPH, strict=True):
            own = cells if one.price.is_by_call else self._on_each_device(cells)
            group_E, device_E = np.zeros_like(own.call_E), own.device_E
            if one.price.is_by_call:
                group_E, device_E = own.call_E, self._first_devices(own)
            np.add.at(one.sums_GDH, (group_E, device_E), columns_PH[own.row_E])
        if self._keeps_rows:
            firsts = self._first_devices(cells).tolist()
            for call, first, row in zip(cells.call_E.tolist(), firsts, cells.row_E.tolist(), strict=True):
                self._rows.setdefault((call, first), []).append(row)
            for (call, first), rows in self._rows.items():
                self._update_largest(call, first, rows)

    def _first_devices(self, cells: CellChanges) -> Indices:
        return np.asarray(cells.device_E - cells.device_E % self._span_C[cells.call_E])

    def _on_each_device(self, cells: CellChanges) -> CellChanges:
        span_E = self._span_C[cells.call_E]
        if (span_E == 1).all():
            return cells
        from_F, offset_F = repeat_numbers(span_E)
        found = cells.select(from_F)
        return replace(found, device_E=self._first_devices(found) + offset_F)

    def _update_largest(self, call: int, first: int, rows: Sequence[int]) -> None:
        for one, columns_PH in zip(self._kinds, self._lookups.columns_KPH, strict=True):
            if maxima := one.price.num_maxima:
                ordered_RM = np.sort(columns_PH[rows, -maxima:], axis=0)
                largest_2M = np.zeros((2, maxima), columns_PH.dtype)
                largest_2M[: len(rows)] = ordered_RM[:-3:-1]
                one.largest_CD2M[call, first] = largest_2M
                one.sums_GDH[call, first, -maxima:] = largest_2M[0]

    def refresh(self, devices: Indices, calls: Collection[int]) -> None:
        """Compute times of devices whose lookups in these calls have changed."""
        self.calls_D[devices] = (self.held_CD[:, devices] > 0).sum(axis=0)
        for kind, one in enumerate(self._kinds):
            own = devices if len(self._kinds) == 1 else devices[self._kind_of_D[devices] == kind]
            if not len(own):
                continue
            group_G = np.array(sorted(calls) if one.price.is_by_call else [0], dtype=np.int64)
            span_G = self._span_C[group_G] if one.price.is_by_call else np.ones(1, dtype=np.int64)
            first_GD = own - own % span_G[:, None]
            place_Z, number_GD = np.unique(group_G[:, None] * len(self.calls_D) + first_GD, return_inverse=True)
            times_QZ = one.price.call_ms(one.sums_GDH.reshape(-1, one.sums_GDH.shape[2])[place_Z])
            one.times_QGD[:, group_G[:, None], own] = times_QZ[:, number_GD.reshape(first_GD.shape)]
            self.compute_2D[:, own] = one.price.device_ms(one.times_QGD[:, :, own], self.calls_D[own])

    def changed_ms(self, changes: CellChanges, count: int) -> FloatArray:
        """[2, N, D] compute times of all devices after each of so many changes, by itself: forward and backward."""
        found_2ND = np.repeat(self.compute_2D[:, None], count, axis=1)
        for kind, one in enumerate(self._kinds):
            own, is_kind_D = changes if one.price.is_by_call else self._on_each_device(changes), self._kind_of_D == kind
            if len(self._kinds) > 1:
                own = own.select(is_kind_D[own.device_E] | (self._span_C[own.call_E] > 1))
            if len(own.change_E):
                self._change_kind(one, self._lookups.columns_KPH[kind], own, is_kind_D, found_2ND)
        return found_2ND

    def _change_kind(
        self,
        one: _KindLoads,
        columns_PH: Columns,
        changes: CellChanges,
        is_kind_D: npt.NDArray[np.bool_],
        found_2ND: FloatArray,
    ) -> None:
        calls, devices = self.held_CD.shape
        by_call = one.price.is_by_call
        device_E = self._first_devices(changes) if by_call else changes.device_E
        key_E = (changes.change_E * devices + device_E) * calls + changes.call_E
        order_E = np.argsort(key_E, kind="stable")
        key_E, sign_E, row_E = key_E[order_E], changes.sign_E[order_E], changes.row_E[order_E]
        first_Y = _firsts(key_E)
        pair_Y, call_Y = np.divmod(key_E[first_Y], calls)
        held_Y = self.held_CD[call_Y, pair_Y % devices]
        more_Y = (held_Y + np.add.reduceat(sign_E, first_Y) > 0).astype(np.int64) - (held_Y > 0)
        of_Z = np.arange(len(first_Y)) if by_call else _firsts(pair_Y)
        group_Z, span_Z = (call_Y, self._span_C[call_Y]) if by_call else (np.zeros_like(of_Z), np.ones_like(of_Z))
        pair_Z, more_Z = pair_Y[of_Z], np.add.reduceat(more_Y, of_Z)
        sums_ZH = self._changed_sums(one, columns_PH, group_Z, pair_Z % devices, first_Y[of_Z], row_E, sign_E)
        times_QZ = one.price.call_ms(sums_ZH)
        from_X, offset_X = repeat_numbers(span_Z)
        at_X = pair_Z[from_X] + offset_X
        if len(self._kinds) > 1:
            own_X = is_kind_D[at_X % devices]
            from_X, at_X = from_X[own_X], at_X[own_X]
        is_changed = np.zeros(found_2ND[0].size, dtype=bool)
        is_changed[at_X] = True
        at_T = np.flatnonzero(is_changed)
        number_X, device_T = (np.cumsum(is_changed) - 1)[at_X], at_T % devices
        more_T = np.bincount(number_X, more_Z[from_X], len(at_T)).astype(np.int64)
        times_QGT = one.times_QGD[:, :, device_T]
        times_QGT[:, group_Z[from_X], number_X] = times_QZ[:, from_X]
        found_2ND.reshape(2, -1)[:, at_T] = one.price.device_ms(times_QGT, self.calls_D[device_T] + more_T)

    def _changed_sums(
        self,
        one: _KindLoads,
        columns_PH: Columns,
        group_Z: Indices,
        device_Z: Indices,
        first_Z: Indices,
        row_E: Indices,
        sign_E: Indices,
    ) -> Columns:
        """Apply the additions and removals of each sum one after the other."""
        count_Z, factor_E1 = np.diff(first_Z, append=len(row_E)), sign_E[:, None].astype(columns_PH.dtype)
        sums_ZH = one.sums_GDH[group_Z, device_Z]
        sums_ZH += factor_E1[first_Z] * columns_PH[row_E[first_Z]]
        for at in range(1, int(count_Z.max())):  # once, mostly: far faster than ``reduceat`` of rows
            some = np.flatnonzero(count_Z > at)
            where = first_Z[some] + at
            sums_ZH[some] += factor_E1[where] * columns_PH[row_E[where]]
        if maxima := one.price.num_maxima:
            largest_Z2M = one.largest_CD2M[group_Z, device_Z]
            sums_ZH[:, -maxima:] = self._maxima(largest_Z2M, columns_PH[row_E, -maxima:], sign_E, first_Z)
            for at in np.flatnonzero(np.add.reduceat((sign_E < 0).astype(np.int64), first_Z) > 1).tolist():
                own = slice(first_Z[at], first_Z[at + 1] if at + 1 < len(first_Z) else None)
                rows = self._rows_after(int(group_Z[at]), int(device_Z[at]), row_E[own], sign_E[own])
                sums_ZH[at, -maxima:] = columns_PH[rows, -maxima:].max(axis=0, initial=0.0)
        return sums_ZH

    @staticmethod
    def _maxima(largest_Z2M: Columns, columns_EM: Columns, sign_E: Indices, first_Z: Indices) -> Columns:
        """Return the maxima of calls after additions and at most one removal."""
        removed_E1 = sign_E[:, None] < 0
        removed_ZM = np.maximum.reduceat(np.where(removed_E1, columns_EM, -1.0), first_Z, axis=0)
        added_ZM = np.maximum.reduceat(np.where(removed_E1, 0.0, columns_EM), first_Z, axis=0)
        left_ZM = np.where(removed_ZM >= largest_Z2M[:, 0], largest_Z2M[:, 1], largest_Z2M[:, 0])
        return np.asarray(np.maximum(left_ZM, added_ZM))

    def _rows_after(self, call: int, first: int, row_E: Indices, sign_E: Indices) -> list[int]:
        rows = list(self._rows.get((call, first), ()))
        rows += row_E[sign_E > 0].tolist()
        for row in row_E[sign_E < 0].tolist():
            rows.remove(row)
        return rows


def _firsts(sorted_E: Indices) -> Indices:
    """Return where each run of equal numbers begins."""
    is_first_E = np.ones(len(sorted_E), dtype=bool)  # far faster than ``np.diff`` with something before it
    is_first_E[1:] = sorted_E[1:] != sorted_E[:-1]
    return np.flatnonzero(is_first_E)
