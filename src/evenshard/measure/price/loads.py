"""What devices look up, and what that takes: sums of columns, changed one lookup at a time.

Legend: K kinds of devices, P lookups, G sums of a device (one, or one for each kernel call), D devices, N devices or
pieces asked for, H columns, Q times of a call, C kernel calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.measure.kernel_calls import Lookup
from evenshard.measure.price.device_price import Columns, DevicePrice
from evenshard.tables.reuse import FloatArray

Cell = tuple[int, int]
"""The number of a kernel call, and the row of what is looked up in it."""


class LookupColumns:
    """The columns of all that may be looked up, for each kind of device; more may be added.

    Attributes:
        columns_KPH: of each kind; complete after ``update``.

    Args:
        prices: of each kind of device.
    """

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
        found = [_joined(price, price.columns(flat), new) for price in self._prices]
        self.columns_KPH = (
            [np.concatenate(pair) for pair in zip(self.columns_KPH, found, strict=True)] if known else found
        )


def _joined(price: DevicePrice, columns_PH: Columns, groups: Sequence[tuple[Lookup, ...]]) -> Columns:
    """[groups, H] the columns of tables that are looked up together."""
    sizes = np.array([len(group) for group in groups])
    if (sizes == 1).all():
        return columns_PH
    firsts = np.cumsum(sizes) - sizes
    found = np.add.reduceat(columns_PH, firsts, axis=0)
    if maxima := price.num_maxima:
        found[:, -maxima:] = np.maximum.reduceat(columns_PH[:, -maxima:], firsts, axis=0)
    return np.asarray(found)


class LoadTimes(NamedTuple):
    """Times of the lookups of devices.

    Attributes:
        times_KGDQ: of their calls, for each kind of device.
        calls_D, compute_ms_D: as ``Loads`` has them.
    """

    times_KGDQ: Sequence[FloatArray]
    calls_D: npt.NDArray[np.int64]
    compute_ms_D: FloatArray


class Loads:
    """The lookups of devices, and the compute time that they take.

    Attributes:
        held_CD: lookups of each call on each device.
        calls_D: kernel calls of each device.
        compute_ms_D: forward and backward compute time.

    Args:
        lookups: what may be looked up.
        prices: of each kind of device.
        kind_of_D: the kind of each device.
        num_calls: C.
    """

    def __init__(
        self,
        lookups: LookupColumns,
        prices: Sequence[DevicePrice],
        kind_of_D: npt.NDArray[np.int64],
        num_calls: int,
    ) -> None:
        self._lookups, self._prices, self._kind_of_D = lookups, prices, kind_of_D
        devices = len(kind_of_D)
        self.held_CD = np.zeros((num_calls, devices), dtype=np.int32)
        self.calls_D = np.zeros(devices, dtype=np.int64)
        self.compute_ms_D = np.zeros(devices)
        self._sums_KGDH = [
            np.zeros((num_calls if price.is_by_call else 1, devices, columns_PH.shape[1]), dtype=columns_PH.dtype)
            for price, columns_PH in zip(prices, lookups.columns_KPH, strict=True)
        ]
        self._times_KGDQ = [
            price.call_ms(sums_GDH[:, 0]).repeat(devices, axis=0).reshape(len(sums_GDH), devices, -1)
            for price, sums_GDH in zip(prices, self._sums_KGDH, strict=True)
        ]
        self._keeps_rows = any(price.num_maxima for price in prices)
        self._rows: dict[tuple[int, int], list[int]] = {}

    def add(self, cell: Cell, devices: int | slice, place: int, sign: int) -> None:
        """Adds a lookup to devices, or takes it away; ``refresh`` has to follow.

        Args:
            cell: its call and row.
            devices: a device, or those that all look up the same in this call.
            place: tells apart these devices from the others of the call.
            sign: 1 to add, -1 to take away.
        """
        call, row = cell
        self.held_CD[call, devices] += sign
        rows: list[int] = []
        if self._keeps_rows:
            rows = self._rows.setdefault((call, place), [])
            if sign > 0:
                rows.append(row)
            else:
                rows.remove(row)
        for price, sums_GDH, columns_PH in zip(self._prices, self._sums_KGDH, self._lookups.columns_KPH, strict=True):
            sums_H, columns_H = sums_GDH[call if price.is_by_call else 0, devices], columns_PH[row]
            maxima = price.num_maxima
            if not maxima:
                sums_H += sign * columns_H
                continue
            added_H, largest_M, own_M = sums_H[..., :-maxima], sums_H[..., -maxima:], columns_H[-maxima:]
            if sign > 0:
                added_H += columns_H[:-maxima]
                np.maximum(largest_M, own_M, out=largest_M)
            elif rows:
                added_H -= columns_H[:-maxima]
                if (own_M >= largest_M).any():
                    largest_M[...] = columns_PH[rows, -maxima:].max(axis=0)
            else:
                sums_H[...] = 0.0

    def refresh(self, devices: npt.NDArray[np.int64], calls: Collection[int]) -> None:
        """Compute times of devices whose lookups in these calls have changed."""
        self.calls_D[devices] = (self.held_CD[:, devices] > 0).sum(axis=0)
        for kind, price in enumerate(self._prices):
            own = devices if len(self._prices) == 1 else devices[self._kind_of_D[devices] == kind]
            if not len(own):
                continue
            sums_GDH, times_GDQ = self._sums_KGDH[kind], self._times_KGDQ[kind]
            which = np.ix_(np.array(sorted(calls) if price.is_by_call else [0], dtype=np.int64), own)
            sums = sums_GDH[which]
            times_GDQ[which] = price.call_ms(sums.reshape(-1, sums.shape[2])).reshape(*sums.shape[:2], -1)
            self.compute_ms_D[own] = price.device_ms(times_GDQ[:, own], self.calls_D[own])

    def times(self) -> LoadTimes:
        """All times as they are now, to ``restore`` where lookups are what they were again."""
        kept = [times_GDQ.copy() for times_GDQ in self._times_KGDQ]
        return LoadTimes(kept, self.calls_D.copy(), self.compute_ms_D.copy())

    def restore(self, times: LoadTimes) -> None:
        """Back to earlier times, in the place of ``refresh``."""
        for times_GDQ, kept in zip(self._times_KGDQ, times.times_KGDQ, strict=True):
            times_GDQ[...] = kept
        self.calls_D[...], self.compute_ms_D[...] = times.calls_D, times.compute_ms_D

    def without_ms(self, pieces: Sequence[Sequence[Cell]], device: int, place: int) -> FloatArray:
        """[N] compute time of a device without each of some pieces that it holds.

        Args:
            pieces: the lookups of each.
            place: as it was told to ``add``.
        """
        kind = int(self._kind_of_D[device])
        price, sums_GH = self._prices[kind], self._sums_KGDH[kind][:, device]
        columns_PH, maxima = self._lookups.columns_KPH[kind], price.num_maxima
        times_GNQ = self._times_KGDQ[kind][:, [device] * len(pieces)]
        calls_N = np.full(len(pieces), self.calls_D[device])
        numbers: list[int] = []
        groups: list[int] = []
        changed: list[Columns] = []
        for number, cells in enumerate(pieces):
            for call, count in Counter(call for call, _ in cells).items():
                calls_N[number] -= count == self.held_CD[call, device]
            by_group: dict[int, list[int]] = {}
            for call, row in cells:
                by_group.setdefault(call if price.is_by_call else 0, []).append(row)
            for group, rows in by_group.items():
                numbers.append(number)
                groups.append(group)
                taken_H = columns_PH[rows[0]] if len(rows) == 1 else columns_PH[rows].sum(axis=0)
                rest_H = sums_GH[group] - taken_H
                if maxima:
                    rest_H[-maxima:] = self._largest_without(columns_PH, (group, place), rows, maxima)
                changed.append(rest_H)
        if not changed:
            return np.zeros(0)
        times_GNQ[groups, numbers] = price.call_ms(np.array(changed))
        return price.device_ms(times_GNQ, calls_N)

    def _largest_without(self, columns_PH: Columns, key: tuple[int, int], rows: Sequence[int], maxima: int) -> Columns:
        """[M] the maxima of a call without some of its rows."""
        left = list(self._rows[key])
        for row in rows:
            left.remove(row)
        return np.asarray(columns_PH[left, -maxima:].max(axis=0, initial=0.0))

    def with_ms(self, pieces: Sequence[Sequence[Cell]], devices: npt.NDArray[np.int64]) -> FloatArray:
        """[P, N] compute time of each of some devices with the lookups of each piece besides its own."""
        found_PN = np.zeros((len(pieces), len(devices)))
        calls_PN = np.tile(self.calls_D[devices], (len(pieces), 1))
        for number, cells in enumerate(pieces):
            for call in {call for call, _ in cells}:
                calls_PN[number] += self.held_CD[call, devices] == 0
        kinds = self._kind_of_D[devices]
        for kind, price in enumerate(self._prices):
            own = np.flatnonzero(kinds == kind)
            if not len(own):
                continue
            columns_PH, maxima = self._lookups.columns_KPH[kind], price.num_maxima
            times_GPNQ = self._times_KGDQ[kind][:, None, devices[own]].repeat(len(pieces), axis=1)
            numbers: list[int] = []
            groups: list[int] = []
            changed: list[Columns] = []
            for number, cells in enumerate(pieces):
                by_group: dict[int, list[int]] = {}
                for call, row in cells:
                    by_group.setdefault(call if price.is_by_call else 0, []).append(row)
                for group, rows in by_group.items():
                    more_PH = columns_PH[rows]
                    held_NH = self._sums_KGDH[kind][group, devices[own]]
                    sums_NH = held_NH + more_PH.sum(axis=0)
                    if maxima:
                        own_M = more_PH[:, -maxima:].max(axis=0)
                        sums_NH[:, -maxima:] = np.maximum(held_NH[:, -maxima:], own_M)
                    numbers.append(number)
                    groups.append(group)
                    changed.append(sums_NH)
            if changed:
                times_XQ = price.call_ms(np.concatenate(changed))
                times_GPNQ[groups, numbers] = times_XQ.reshape(len(changed), len(own), -1)
            flat_GXQ = times_GPNQ.reshape(len(times_GPNQ), len(pieces) * len(own), -1)
            found_PN[:, own] = price.device_ms(flat_GXQ, calls_PN[:, own].ravel()).reshape(len(pieces), -1)
        return found_PN
