"""What devices look up, and what that takes: sums of columns, changed one by one or tried out many at a time.

Legend: K kinds of devices, P lookups, G sums of a device (one, or one for each kernel call), D devices, C kernel calls,
H columns, M maxima among them, Q times of a call, N changes that are tried out, E additions and removals of them all,
Y calls of changed places, Z sums that change, X sums of changed devices, T changed devices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.measure.kernel_calls import Lookup
from evenshard.measure.price.device_price import Columns, DevicePrice
from evenshard.tables.reuse import FloatArray

Cell = tuple[int, int]
Indices = npt.NDArray[np.int64]


class LookupColumns:
    """The columns of all that may be looked up, for each kind of device: ``columns_KPH``, complete after ``update``."""

    def __init__(self, prices: Sequence[DevicePrice]) -> None:
        self._prices = prices
        self._rows: dict[tuple[Lookup, ...], int] = {}
        self.columns_KPH: list[Columns] = []

    def row(self, lookups: tuple[Lookup, ...]) -> int:
        """The row of tables that are always looked up together, in one call."""
        return self._rows.setdefault(lookups, len(self._rows))

    def update(self) -> None:
        """Prices what is new."""
        known = len(self.columns_KPH[0]) if self.columns_KPH else 0
        new = list(self._rows)[known:]
        if not new:
            return
        flat = [one for lookups in new for one in lookups]
        found = [_join_columns(price, price.columns(flat), new) for price in self._prices]
        self.columns_KPH = (
            [np.concatenate(pair) for pair in zip(self.columns_KPH, found, strict=True)] if known else found
        )


def _join_columns(price: DevicePrice, columns_PH: Columns, groups: Sequence[tuple[Lookup, ...]]) -> Columns:
    sizes = np.array([len(group) for group in groups])
    if (sizes == 1).all():
        return columns_PH
    firsts = np.cumsum(sizes) - sizes
    found = np.add.reduceat(columns_PH, firsts, axis=0)
    if maxima := price.num_maxima:
        found[:, -maxima:] = np.maximum.reduceat(columns_PH[:, -maxima:], firsts, axis=0)
    return np.asarray(found)


@dataclass(frozen=True)
class CellChanges:
    """Lookups that changes add to places or take away from them, all changes one after the other.

    A place is the devices that look up the same in a kernel call: one, those of a node, or all.

    Attributes:
        change_E: the change that each belongs to.
        device_E: a device of its place.
        sign_E: 1 where it comes, -1 where it goes.
    """

    change_E: Indices
    call_E: Indices
    row_E: Indices
    device_E: Indices
    sign_E: Indices

    def select(self, which: npt.NDArray[Any]) -> CellChanges:
        """Some of them, or all in another order."""
        return CellChanges(
            self.change_E[which], self.call_E[which], self.row_E[which], self.device_E[which], self.sign_E[which]
        )


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


def repeat_numbers(counts_E: Indices) -> tuple[Indices, Indices]:
    """Each number so many times, and which time it is."""
    from_F = np.repeat(np.arange(len(counts_E)), counts_E)
    starts_E = np.cumsum(counts_E) - counts_E
    return from_F, np.arange(len(from_F)) - starts_E[from_F]
