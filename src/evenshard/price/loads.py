"""Compute load of devices for many placements, updated incrementally for batches of changes.

A cell is a row of lookups in a kernel call at a place. A place is the set of devices that do the same lookups of a
call: a device, a node, or all devices.

Legend: N placements, D devices, X devices of all placements, K kinds of devices, P lookups, C kernel calls, G groups of
calls, H columns, L maxima among them, Q times of a call, M candidate changes, E cells, S sums, Y calls of changed
devices, Z sums that change, T changed devices, U devices of changed sums, B cells of some sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from evenshard.price.kernel_calls import Columns, DevicePrice, Lookup
from evenshard.tables.reuse import FloatArray

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Rows:
    """Base of dataclasses whose fields are arrays of equal length."""

    def select(self, which: npt.NDArray[Any]) -> Self:
        """Select rows by index or mask."""
        return type(self)(*(array[which] for array in vars(self).values()))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the rows of all parts."""
        return cls(*map(np.concatenate, zip(*(vars(one).values() for one in parts), strict=True)))


class LookupColumns:
    """Features (columns) of all lookups that placements may contain, per kind of device; ``update`` fills new rows."""

    def __init__(self, prices: Sequence[DevicePrice]) -> None:
        self._prices = prices
        self._new: list[tuple[tuple[Lookup, ...], int | None]] = []
        self._num_rows = 0
        self.columns_KPH: list[Columns] = []

    def row(self, lookups: tuple[Lookup, ...], dim: int | None = None) -> int:
        """Add a row for tables that are always looked up in the same call, and return its index.

        Args:
            dim: dim of all the tables, which replaces their own.
        """
        self._new.append((lookups, dim))
        self._num_rows += 1
        return self._num_rows - 1

    def update(self) -> None:
        """Compute the columns of the rows added since the last update."""
        new, self._new = self._new, []
        if not new:
            return
        flat = [one for lookups, _ in new for one in lookups]
        sizes = np.array([len(lookups) for lookups, _ in new])
        dims_P = np.array([dim or one.table.embedding_dim for lookups, dim in new for one in lookups])
        found = [_sum_runs(price, price.columns(flat, dims_P), np.cumsum(sizes) - sizes) for price in self._prices]
        self.columns_KPH = (
            [np.concatenate(pair) for pair in zip(self.columns_KPH, found, strict=True)] if self.columns_KPH else found
        )


def _sum_runs(price: DevicePrice, columns_EH: Columns, first_Z: Indices) -> Columns:
    """Sum the columns of each run of rows, or take the maximum in the last ``num_maxima`` columns."""
    if len(first_Z) == len(columns_EH):
        return columns_EH
    found_ZH = np.add.reduceat(columns_EH, first_Z, axis=0)
    if maxima := price.num_maxima:
        found_ZH[:, -maxima:] = np.maximum.reduceat(columns_EH[:, -maxima:], first_Z, axis=0)
    return np.asarray(found_ZH)


@dataclass(frozen=True)
class CellChanges(Rows):
    """Lookups of shards in kernel calls (cells) that changes add (+1) or remove (-1).

    ``row_E`` are rows of ``LookupColumns``; ``device_E`` is any of the devices that do these lookups.
    """

    change_E: Indices
    call_E: Indices
    row_E: Indices
    device_E: Indices
    sign_E: Indices


class _KindLoads:
    """Loads of all devices, as if all were of one kind.

    If calls are priced separately, each has a column sum for each block of ``span_G`` devices with the same lookups,
    stored at the first device; otherwise each device has one sum. The index of a sum is ``group * X + device``, where
    the group is the call, or 0. ``next_SL`` is the second largest value of each column that is a maximum; it equals
    the maximum if two lookups attain it.
    """

    def __init__(self, price: DevicePrice, columns_PH: Columns, span_C: Indices, size: int) -> None:
        self.price, self.columns_PH = price, columns_PH
        self.group_C = np.arange(len(span_C)) if price.is_by_call else np.zeros_like(span_C)
        self.span_G = span_C if price.is_by_call else np.ones(1, dtype=np.int64)
        groups = len(self.span_G)
        self.sums_SH = np.zeros((groups * size, columns_PH.shape[1]), columns_PH.dtype)
        self.next_SL = np.zeros((groups * size, price.num_maxima), columns_PH.dtype)
        self.times_QGX = np.zeros((len(price.call_ms(self.sums_SH[:1])), groups, size))
        self.sum_E = self.row_E = np.zeros(0, dtype=np.int64)

    def sum_cells(self, is_changed_S: Mask) -> None:
        """Recompute the changed column sums from all of their lookups."""
        own_E = np.flatnonzero(is_changed_S[self.sum_E])
        own_E = own_E[np.argsort(self.sum_E[own_E], kind="stable")]
        sum_E, columns_EH = self.sum_E[own_E], self.columns_PH[self.row_E[own_E]]
        first_Z = _firsts(sum_E)
        self.sums_SH[is_changed_S] = 0.0
        self.sums_SH[sum_E[first_Z]] = _sum_runs(self.price, columns_EH, first_Z)
        if maxima := self.price.num_maxima:
            values_EL, largest_EL = columns_EH[:, -maxima:], self.sums_SH[sum_E, -maxima:]
            is_top_EL = values_EL == largest_EL
            below_ZL = np.maximum.reduceat(np.where(is_top_EL, 0.0, values_EL), first_Z, axis=0)
            is_shared_ZL = np.add.reduceat(is_top_EL, first_Z, axis=0, dtype=np.int64) > 1
            self.next_SL[sum_E[first_Z]] = np.where(is_shared_ZL, largest_EL[first_Z], below_ZL)

    def changed_sums(self, sum_Z: Indices, first_Z: Indices, row_E: Indices, sign_E: Indices) -> Columns:
        """Return the column sums after lookups are added or removed."""
        count_Z, columns_EH = np.diff(first_Z, append=len(row_E)), self.columns_PH[row_E]
        more_EH = sign_E[:, None].astype(columns_EH.dtype) * columns_EH
        sums_ZH = self.sums_SH[sum_Z]
        maxima = self.price.num_maxima
        largest_ZL = sums_ZH[:, sums_ZH.shape[1] - maxima :].copy()
        sums_ZH += more_EH[first_Z]
        for at in range(1, int(count_Z.max())):  # mostly one iteration: far faster than ``reduceat`` of rows
            some = np.flatnonzero(count_Z > at)
            sums_ZH[some] += more_EH[first_Z[some] + at]
        if maxima:
            values_EL, is_gone_E = columns_EH[:, -maxima:], sign_E < 0
            gone_ZL = np.maximum.reduceat(np.where(is_gone_E[:, None], values_EL, -1.0), first_Z, axis=0)
            added_ZL = np.maximum.reduceat(np.where(is_gone_E[:, None], 0.0, values_EL), first_Z, axis=0)
            left_ZL = np.where(gone_ZL >= largest_ZL, self.next_SL[sum_Z], largest_ZL)
            sums_ZH[:, -maxima:] = np.maximum(left_ZL, added_ZL)
            is_unsure_Z: Mask = np.add.reduceat(is_gone_E, first_Z, dtype=np.int64) > 1
            if is_unsure_Z.any():
                own_E = np.repeat(is_unsure_Z, count_Z)
                number_E = np.repeat(np.arange(is_unsure_Z.sum()), count_Z[is_unsure_Z])
                found_ZL = self._maxima_after(sum_Z[is_unsure_Z], number_E, row_E[own_E], sign_E[own_E])
                sums_ZH[is_unsure_Z, -maxima:] = found_ZL
        return sums_ZH

    def _maxima_after(self, sum_Z: Indices, number_E: Indices, row_E: Indices, sign_E: Indices) -> Columns:
        """Recompute the maxima of sums with several removed lookups from all remaining lookups."""
        is_asked_S = np.zeros(len(self.sums_SH), dtype=bool)
        is_asked_S[sum_Z] = True
        held = np.flatnonzero(is_asked_S[self.sum_E])
        held = held[np.argsort(self.sum_E[held], kind="stable")]
        first_Z, last_Z = (np.searchsorted(self.sum_E[held], sum_Z, side) for side in ("left", "right"))
        number_B, offset_B = repeat_numbers(last_Z - first_Z)
        row_B, num_rows = self.row_E[held[first_Z[number_B] + offset_B]], len(self.columns_PH)
        key = np.concatenate([number_B, number_E]) * num_rows + np.concatenate([row_B, row_E])
        key, at = np.unique(key, return_inverse=True)
        is_left = np.bincount(at, np.concatenate([np.ones(len(row_B)), sign_E])) > 0
        number, row = np.divmod(key[is_left], num_rows)
        found_ZL = np.zeros((len(sum_Z), self.price.num_maxima), self.columns_PH.dtype)
        first = _firsts(number)
        found_ZL[number[first]] = np.maximum.reduceat(self.columns_PH[row, -self.price.num_maxima :], first, axis=0)
        return found_ZL


class Loads:
    """Compute loads of N placements: lookups of every device, and their forward and backward times, ms.

    Args:
        kind_of_D: the kind of each device.
        span_C: number of consecutive devices with the same lookups in each call: 1, a node's, or all.
    """

    def __init__(
        self, lookups: LookupColumns, prices: Sequence[DevicePrice], kind_of_D: Indices, span_C: Sequence[int], num: int
    ) -> None:
        self._span_C, self._kind_of_D = np.array(span_C, dtype=np.int64), kind_of_D
        self._devices, self._size = len(kind_of_D), num * len(kind_of_D)
        self._held_CX = np.zeros((len(span_C), self._size), dtype=np.int64)
        self._calls_X = np.zeros(self._size, dtype=np.int64)
        self.compute_2ND = np.zeros((2, num, self._devices))
        self._kinds = [
            _KindLoads(price, columns_PH, self._span_C, self._size)
            for price, columns_PH in zip(prices, lookups.columns_KPH, strict=True)
        ]

    def recompute(self, cells: CellChanges) -> None:
        """Recompute the loads of all placements from all of their lookups."""
        self._sum(cells, np.arange(self._size) % self._devices % self._span_C[:, None] == 0)

    def apply(self, changes: CellChanges, cells: CellChanges) -> None:
        """Apply changes, and recompute the sums that they affect; ``cells`` are all lookups after the changes."""
        is_changed_CX = np.zeros(self._held_CX.shape, dtype=bool)
        is_changed_CX[changes.call_E, changes.change_E * self._devices + self._first_devices(changes)] = True
        self._sum(cells, is_changed_CX)

    def _first_devices(self, cells: CellChanges) -> Indices:
        return np.asarray(cells.device_E - cells.device_E % self._span_C[cells.call_E])

    def _by_sum(self, one: _KindLoads, cells: CellChanges) -> CellChanges:
        """Expand lookups to one entry for each column sum that includes them."""
        first_E = self._first_devices(cells)
        if one.price.is_by_call:
            return CellChanges(cells.change_E, cells.call_E, cells.row_E, first_E, cells.sign_E)
        from_F, offset_F = repeat_numbers(self._span_C[cells.call_E])
        return replace(cells.select(from_F), device_E=first_E[from_F] + offset_F)

    def _on_each_device(self, of_place_CX: Mask) -> Mask:
        found_CX = of_place_CX.copy()
        for call in np.flatnonzero(self._span_C > 1).tolist():
            span = int(self._span_C[call])
            found_CX[call] = of_place_CX[call, ::span].repeat(span)
        return found_CX

    def _sum(self, cells: CellChanges, is_changed_CX: Mask) -> None:
        size, devices = self._size, self._devices
        place_E = cells.call_E * size + cells.change_E * devices + self._first_devices(cells)
        self._held_CX = np.bincount(place_E, minlength=self._held_CX.size).reshape(-1, size)
        self._calls_X = self._on_each_device(self._held_CX > 0).sum(axis=0)
        is_changed_X: Mask = np.asarray(self._on_each_device(is_changed_CX).any(axis=0))
        for kind, one in enumerate(self._kinds):
            own = self._by_sum(one, cells)
            one.sum_E = one.group_C[own.call_E] * size + own.change_E * devices + own.device_E
            one.row_E = own.row_E
            is_changed_S = is_changed_CX.reshape(-1) if one.price.is_by_call else is_changed_X
            one.sum_cells(is_changed_S)
            sum_Z = np.flatnonzero(is_changed_S)
            group_Z, x_Z = np.divmod(sum_Z, size)
            from_U, offset_U = repeat_numbers(one.span_G[group_Z])
            times_QZ = one.price.call_ms(one.sums_SH[sum_Z])
            one.times_QGX[:, group_Z[from_U], x_Z[from_U] + offset_U] = times_QZ[:, from_U]
            own_X = np.flatnonzero(is_changed_X & (self._kind_of_D == kind)[np.arange(size) % devices])
            compute_2X = one.price.device_ms(one.times_QGX[:, :, own_X], self._calls_X[own_X])
            self.compute_2ND.reshape(2, -1)[:, own_X] = compute_2X

    def try_out(self, placement_M: Indices, changes: CellChanges) -> FloatArray:
        """Compute device times after each change applied alone, [2, M, D] ms."""
        found_2MD = np.take(self.compute_2ND, placement_M, axis=1)
        for kind, one in enumerate(self._kinds):
            own, is_kind_D = self._by_sum(one, changes), self._kind_of_D == kind
            if len(self._kinds) > 1:
                own = own.select(is_kind_D[own.device_E] | (one.span_G[one.group_C[own.call_E]] > 1))
            if len(own.change_E):
                self._try_out_kind(one, placement_M, own, is_kind_D, found_2MD)
        return found_2MD

    def _try_out_kind(
        self, one: _KindLoads, placement_M: Indices, changes: CellChanges, is_kind_D: Mask, found_2MD: FloatArray
    ) -> None:
        calls, devices = len(self._span_C), self._devices
        key_E = (changes.change_E * devices + changes.device_E) * calls + changes.call_E
        order_E = np.argsort(key_E, kind="stable")
        key_E, sign_E, row_E = key_E[order_E], changes.sign_E[order_E], changes.row_E[order_E]
        first_Y = _firsts(key_E)
        at_Y, call_Y = np.divmod(key_E[first_Y], calls)
        change_Y, device_Y = np.divmod(at_Y, devices)
        x_Y = placement_M[change_Y] * devices + device_Y
        held_Y = self._held_CX[call_Y, x_Y - device_Y % self._span_C[call_Y]]
        more_Y = (held_Y + np.add.reduceat(sign_E, first_Y) > 0).astype(np.int64) - (held_Y > 0)
        of_Z = np.arange(len(first_Y)) if one.price.is_by_call else _firsts(at_Y)
        group_Z, at_Z, more_Z = one.group_C[call_Y[of_Z]], at_Y[of_Z], np.add.reduceat(more_Y, of_Z)
        sums_ZH = one.changed_sums(group_Z * self._size + x_Y[of_Z], first_Y[of_Z], row_E, sign_E)
        times_QZ = one.price.call_ms(sums_ZH)
        from_U, offset_U = repeat_numbers(one.span_G[group_Z])
        at_U = at_Z[from_U] + offset_U
        if len(self._kinds) > 1:
            own_U = is_kind_D[at_U % devices]
            from_U, at_U = from_U[own_U], at_U[own_U]
        is_changed = np.zeros(found_2MD[0].size, dtype=bool)
        is_changed[at_U] = True
        at_T = np.flatnonzero(is_changed)
        number_U = (np.cumsum(is_changed) - 1)[at_U]
        x_T = placement_M[at_T // devices] * devices + at_T % devices
        more_T = np.bincount(number_U, more_Z[from_U], len(at_T)).astype(np.int64)
        times_QGT = one.times_QGX[:, :, x_T]
        times_QGT[:, group_Z[from_U], number_U] = times_QZ[:, from_U]
        found_2MD.reshape(2, -1)[:, at_T] = one.price.device_ms(times_QGT, self._calls_X[x_T] + more_T)


def _firsts(sorted_E: Indices) -> Indices:
    """Return the start index of each run of equal numbers."""
    is_first_E = np.ones(len(sorted_E), dtype=bool)  # far faster than ``np.diff`` with a prepended value
    is_first_E[1:] = sorted_E[1:] != sorted_E[:-1]
    return np.flatnonzero(is_first_E)


def repeat_numbers(counts_E: Indices) -> tuple[Indices, Indices]:
    """Repeat each index by its count, and number the repetitions from 0."""
    from_F = np.repeat(np.arange(len(counts_E)), counts_E)
    starts_E = np.cumsum(counts_E) - counts_E
    return from_F, np.arange(len(from_F)) - starts_E[from_F]
