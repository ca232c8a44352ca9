"""Placements that a search improves side by side: the option and the places of every group, and their sums, as arrays.

Changes of all chains are scored in one call. Changes that are made in one chain touch different devices.

Legend: N chains, D devices, X devices of all chains, G groups, O options of all groups, P pieces of all options, S
pieces of an option (padded), M changes that are tried out, E edits (a group's new option and places), F pieces that come
or go, C kernel calls, H columns, V volumes, B windows of a step, Q times of a call, Z sums that change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import VOLUMES, Volumes, exchange_times
from evenshard.measure.price.device_price import Columns, DevicePrice
from evenshard.measure.price.loads import CellChanges, repeat_numbers
from evenshard.measure.price.step import dense_ms
from evenshard.measure.step_time import Phases, windows
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def round_last_digits(values: FloatArray) -> FloatArray:
    """Round to 32 bits, so that sums that differ between CPUs in their last digits compare alike."""
    return values.astype(np.float32).astype(np.float64)


class OptionTable:
    """All options of a space, one after the other, and the pieces of each."""

    def __init__(self, space: SearchSpace) -> None:
        options = [option for group in space.groups for option in group.options]
        self.num_options_G = np.array([len(group.options) for group in space.groups], dtype=np.int64)
        self.first_option_G = np.cumsum(self.num_options_G) - self.num_options_G
        self.group_O = np.repeat(np.arange(len(space.groups)), self.num_options_G)
        self.count_O = np.array([len(option.pieces) for option in options], dtype=np.int64)
        self.first_O = np.cumsum(self.count_O) - self.count_O
        self.piece_A = np.array([piece.number for option in options for piece in option.pieces], dtype=np.int64)
        self.span_O = np.array([option.span for option in options], dtype=np.int64)
        self.home_O = np.array([option.home_span for option in options], dtype=np.int64)
        self.bytes_O = np.array([option.largest_bytes for option in options], dtype=np.int64)
        self.most_pieces = int(self.count_O.max())
        types: dict[tuple[str, int], int] = {}
        self.shape_O = np.array(
            [types.setdefault((o.sharding_type, o.pieces[0].columns), len(types)) for o in options], dtype=np.int64
        )
        self.is_replica_O = np.array([option.pieces[0].values > 0 for option in options])
        self.is_unusual_O = np.array([not option.is_usual for option in options])


@dataclass
class _KindSums:
    price: DevicePrice
    columns_PH: Columns
    sums_CXH: Columns
    times_QCX: FloatArray
    largest_CX2M: Columns


@dataclass
class Pieces:
    """Pieces that come or go. ``change_F`` is the change (or chain) of each, ``device_F`` its first device."""

    change_F: Indices
    piece_F: Indices
    device_F: Indices
    sign_F: Indices

    def select(self, which: npt.NDArray[Any]) -> Pieces:
        return Pieces(self.change_F[which], self.piece_F[which], self.device_F[which], self.sign_F[which])


@dataclass
class Edits:
    """Edits of groups: one change may have several."""

    change_E: Indices
    group_E: Indices
    option_E: Indices
    place_ES: Indices

    @staticmethod
    def join(parts: Sequence[Edits]) -> Edits:
        return Edits(
            np.concatenate([one.change_E for one in parts]),
            np.concatenate([one.group_E for one in parts]),
            np.concatenate([one.option_E for one in parts]),
            np.concatenate([one.place_ES for one in parts]),
        )

    def select(self, which: npt.NDArray[Any]) -> Edits:
        return Edits(self.change_E[which], self.group_E[which], self.option_E[which], self.place_ES[which])


@dataclass
class Outcome:
    """Sums and times of changes."""

    volumes_VMD: FloatArray
    used_3MD: Indices
    offload_2MD: FloatArray
    compute_2MD: FloatArray
    values_M: FloatArray
    users_MC: Indices
    windows_BMD: FloatArray


class Chains:
    """Complete placements with all their sums."""

    def __init__(self, space: SearchSpace, table: OptionTable, option_NG: Indices, place_NGS: Indices) -> None:
        self.space, self.table, self.task, self.costs = space, table, space.task, space.costs
        self.arrays = space.piece_arrays
        self.option_NG, self.place_NGS = option_NG, place_NGS
        self.span_C = np.array(space.span_of_call, dtype=np.int64)
        self.active_V = np.flatnonzero(self.arrays.volume_PV.any(axis=0)).tolist()
        self.has_offload = bool(self.arrays.offload_PK2.any())
        self.kind_of_D = self.costs.kind_of_D
        self.fill()

    @property
    def num(self) -> int:
        return len(self.option_NG)

    # Pieces and cells ------------------------------------------------------------------------------------------------

    def pieces(self, number_E: Indices, option_E: Indices, place_ES: Indices, sign: int) -> tuple[Pieces, Indices, Indices]:
        """The pieces of groups, with the edit and the slot of each."""
        table = self.table
        from_F, slot_F = repeat_numbers(table.count_O[option_E])
        option_F = option_E[from_F]
        piece_F = table.piece_A[table.first_O[option_F] + slot_F]
        device_F = place_ES[from_F, slot_F] * table.span_O[option_F]
        return Pieces(number_E[from_F], piece_F, device_F, np.full(len(from_F), sign)), from_F, slot_F

    def _cells(self, pieces: Pieces) -> CellChanges:
        arrays = self.arrays
        from_C, offset_C = repeat_numbers(arrays.cells_P[pieces.piece_F])
        at_C = arrays.first_P[pieces.piece_F[from_C]] + offset_C
        return CellChanges(
            pieces.change_F[from_C], arrays.call_C[at_C], arrays.row_C[at_C], pieces.device_F[from_C], pieces.sign_F[from_C]
        )

    def on_each(self, pieces: Pieces) -> Pieces:
        from_F, offset_F = repeat_numbers(self.arrays.span_P[pieces.piece_F])
        found = pieces.select(from_F)
        return Pieces(found.change_F, found.piece_F, found.device_F + offset_F, found.sign_F)

    def changed_pieces(self, chain_M: Indices, edits: Edits) -> Pieces:
        """The pieces that changes take away and add; those that stay are left out."""
        chain_E = chain_M[edits.change_E]
        old_E = self.option_NG[chain_E, edits.group_E]
        old_ES = self.place_NGS[chain_E, edits.group_E]
        is_same_E = old_E == edits.option_E
        gone, from_F, slot_F = self.pieces(edits.change_E, old_E, old_ES, -1)
        stays_F = is_same_E[from_F] & (old_ES[from_F, slot_F] == edits.place_ES[from_F, slot_F])
        gone = gone.select(~stays_F)
        come, from_F, slot_F = self.pieces(edits.change_E, edits.option_E, edits.place_ES, 1)
        stays_F = is_same_E[from_F] & (old_ES[from_F, slot_F] == edits.place_ES[from_F, slot_F])
        come = come.select(~stays_F)
        return Pieces(*(np.concatenate(pair) for pair in zip(vars(gone).values(), vars(come).values(), strict=True)))

    # Sums --------------------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Sum all chains anew."""
        chains, devices, calls = self.num, self.task.num_devices, len(self.span_C)
        numbers = np.arange(chains).repeat(self.option_NG.shape[1])
        option_E = self.option_NG.reshape(-1)
        pieces, from_F, slot_F = self.pieces(numbers, option_E, self.place_NGS.reshape(len(option_E), -1), 1)
        self.all_pieces, self.all_group_F, self.all_slot_F = pieces, from_F % self.option_NG.shape[1], slot_F
        cells, on_each = self._cells(pieces), self.on_each(pieces)
        self.all_cells = cells
        self.held_CX = np.zeros((calls, chains * devices), dtype=np.int64)
        first_E = cells.change_E * devices + cells.device_E - cells.device_E % self.span_C[cells.call_E]
        np.add.at(self.held_CX, (cells.call_E, first_E), 1)
        for call in np.flatnonzero(self.span_C > 1).tolist():
            span = int(self.span_C[call])
            self.held_CX[call] = self.held_CX[call, ::span].repeat(span)
        self.calls_X = (self.held_CX > 0).sum(axis=0)
        self.users_NC = np.zeros((chains, calls), dtype=np.int64)
        np.add.at(self.users_NC, (cells.change_E, cells.call_E), 1)
        at_F = on_each.change_F * devices + on_each.device_F

        def total(values_F: npt.NDArray[Any]) -> FloatArray:
            return np.bincount(at_F, values_F, chains * devices).reshape(chains, devices)

        arrays, piece_F = self.arrays, on_each.piece_F
        self.volumes_VND = np.zeros((len(VOLUMES), chains, devices))
        for at in self.active_V:
            self.volumes_VND[at] = total(arrays.volume_PV[piece_F, at])
        self.used_3ND = np.zeros((3, chains, devices), dtype=np.int64)
        self.used_3ND[0] = total(arrays.size_P[piece_F])
        self.offload_2ND = np.zeros((2, chains, devices))
        if self.has_offload:
            self.used_3ND[1], self.used_3ND[2] = total(arrays.host_P[piece_F]), total(arrays.ssd_P[piece_F])
            offload_F2 = arrays.offload_PK2[piece_F, self.kind_of_D[on_each.device_F]]
            self.offload_2ND[0], self.offload_2ND[1] = total(offload_F2[:, 0]), total(offload_F2[:, 1])
        self.values_N = np.bincount(pieces.change_F, arrays.values_P[pieces.piece_F], chains)
        self.kinds = []
        self.compute_2X = np.zeros((2, chains * devices))
        for kind, (price, columns_PH) in enumerate(zip(self.costs.prices, self.space.lookups.columns_KPH, strict=True)):
            groups = calls if price.is_by_call else 1
            if price.is_by_call:
                call_E, x_E, row_E = cells.call_E, first_E, cells.row_E
            else:
                each = self._cells_on_each(cells)
                call_E, x_E, row_E = np.zeros_like(each.call_E), each.change_E * devices + each.device_E, each.row_E
            sums = np.zeros((groups, chains * devices, columns_PH.shape[1]), columns_PH.dtype)
            flat = call_E * (chains * devices) + x_E
            order = np.argsort(flat, kind="stable")
            starts = np.flatnonzero(np.diff(flat[order], prepend=-1))
            sums.reshape(-1, sums.shape[2])[flat[order][starts]] = np.add.reduceat(columns_PH[row_E[order]], starts, axis=0)
            largest = np.zeros((groups, chains * devices, 2, price.num_maxima), columns_PH.dtype)
            one = _KindSums(price, columns_PH, sums, np.zeros((1, 1, 1)), largest)
            if price.num_maxima:
                self._set_largest(one, flat, row_E)
            self.kinds.append(one)
            times_QR = price.call_ms(sums.reshape(-1, sums.shape[2]))
            times_QCX = times_QR.reshape(len(times_QR), groups, -1)
            for call in np.flatnonzero(self.span_C > 1).tolist() if price.is_by_call else []:
                span = int(self.span_C[call])
                times_QCX[:, call] = times_QCX[:, call, ::span].repeat(span, axis=-1)
            one.times_QCX = times_QCX
            own_X = np.tile(self.kind_of_D == kind, chains)
            self.compute_2X[:, own_X] = price.device_ms(times_QCX[:, :, own_X], self.calls_X[own_X])
        self.windows_BND = self._windows(
            self.compute_2X.reshape(2, chains, devices) + self.offload_2ND, self.volumes_VND, self.values_N, self.users_NC
        )

    def _set_largest(self, one: _KindSums, flat_E: Indices, row_E: Indices) -> None:
        """The two largest maxima of the places that these cells are all of."""
        if not len(flat_E):
            return
        maxima = one.price.num_maxima
        values_EM = one.columns_PH[row_E, -maxima:]
        out_R2M = one.largest_CX2M.reshape(-1, 2, maxima)
        sums_RH = one.sums_CXH.reshape(-1, one.sums_CXH.shape[2])
        for at in range(maxima):
            order = np.lexsort((-values_EM[:, at], flat_E))
            place = flat_E[order]
            first = np.flatnonzero(np.diff(place, prepend=-1))
            out_R2M[place[first], 0, at] = values_EM[order[first], at]
            second = first + 1
            has = second < len(place)
            has[has] = place[second[has]] == place[first[has]]
            out_R2M[place[first], 1, at] = 0.0
            out_R2M[place[first[has]], 1, at] = values_EM[order[second[has]], at]
            sums_RH[place[first], sums_RH.shape[1] - maxima + at] = out_R2M[place[first], 0, at]

    def _cells_on_each(self, cells: CellChanges) -> CellChanges:
        span_E = self.span_C[cells.call_E]
        if (span_E == 1).all():
            return cells
        from_F, offset_F = repeat_numbers(span_E)
        found = cells.select(from_F)
        first = found.device_E - found.device_E % span_E[from_F]
        return CellChanges(found.change_E, found.call_E, found.row_E, first + offset_F, found.sign_E)

    def _windows(
        self, compute_2ND: FloatArray, volumes_VND: FloatArray, values_N: FloatArray, users_NC: npt.NDArray[Any]
    ) -> FloatArray:
        exchanges = exchange_times(self.task, Volumes.of(np.maximum(volumes_VND, 0.0), values_N), self.costs.links)
        times = [exchanges.input_dist, exchanges.forward, exchanges.backward]
        if self.task.num_devices > 1:
            latencies_3N = self.space.latencies(users_NC > 0)
            times = [one + latency_N[:, None] for one, latency_N in zip(times, latencies_3N, strict=True)]
        inputs, out, back = times
        forward, backward = compute_2ND
        if values_N.any():
            kinds = [kind.bytes_per_ns for kind in self.costs.kinds]
            per_kind = np.stack([dense_ms(values_N, one, self.task.optimizer) for one in kinds])
            backward = backward + per_kind[self.kind_of_D].T
        return np.stack([one.total for one in windows(Phases(inputs, forward, out, back, backward), self.costs.pipeline)])

    # Changes -----------------------------------------------------------------------------------------------------------

    def try_out(self, chain_M: Indices, pieces: Pieces) -> Outcome:
        """The sums and times of chains after each change, by itself."""
        count, devices, arrays = len(chain_M), self.task.num_devices, self.arrays
        cells, on_each = self._cells(pieces), self.on_each(pieces)
        piece_F, at_F = on_each.piece_F, on_each.change_F * devices + on_each.device_F

        def more(values_F: npt.NDArray[Any]) -> FloatArray:
            return np.bincount(at_F, on_each.sign_F * values_F, count * devices).reshape(count, devices)

        volumes_VMD = np.take(self.volumes_VND, chain_M, axis=1)
        for at in self.active_V:
            volumes_VMD[at] += more(arrays.volume_PV[piece_F, at])
        used_3MD = np.take(self.used_3ND, chain_M, axis=1)
        used_3MD[0] += more(arrays.size_P[piece_F]).astype(np.int64)
        offload_2MD = np.take(self.offload_2ND, chain_M, axis=1)
        if self.has_offload:
            used_3MD[1] += more(arrays.host_P[piece_F]).astype(np.int64)
            used_3MD[2] += more(arrays.ssd_P[piece_F]).astype(np.int64)
            offload_F2 = arrays.offload_PK2[piece_F, self.kind_of_D[on_each.device_F]]
            offload_2MD[0] += more(offload_F2[:, 0])
            offload_2MD[1] += more(offload_F2[:, 1])
        values_M = self.values_N[chain_M]
        if arrays.values_P.any():
            values_M = values_M + np.bincount(pieces.change_F, pieces.sign_F * arrays.values_P[pieces.piece_F], count)
        users_MC = self.users_NC[chain_M]
        calls = users_MC.shape[1]
        users_MC += np.bincount(cells.change_E * calls + cells.call_E, cells.sign_E, count * calls).reshape(count, calls).astype(np.int64)
        compute_2MD = np.take(self.compute_2X.reshape(2, self.num, devices), chain_M, axis=1)
        for kind, one in enumerate(self.kinds):
            self._change_kind(kind, one, cells, chain_M, compute_2MD)
        windows_BMD = self._windows(compute_2MD + offload_2MD, volumes_VMD, values_M, users_MC)
        return Outcome(volumes_VMD, used_3MD, offload_2MD, compute_2MD, values_M, users_MC, windows_BMD)

    def _change_kind(
        self, kind: int, one: _KindSums, cells: CellChanges, chain_M: Indices, compute_2MD: FloatArray, commit: bool = False
    ) -> None:
        devices, calls = self.task.num_devices, len(self.span_C)
        by_call = one.price.is_by_call
        if not by_call:
            cells = self._cells_on_each(cells)
            device_E = cells.device_E
        else:
            device_E = cells.device_E - cells.device_E % self.span_C[cells.call_E]
        if not len(device_E):
            return
        key_E = (cells.change_E * devices + device_E) * calls + cells.call_E
        order_E = np.argsort(key_E, kind="stable")
        key_E, sign_E, row_E = key_E[order_E], cells.sign_E[order_E], cells.row_E[order_E]
        first_Y = _firsts(key_E)
        pair_Y, call_Y = np.divmod(key_E[first_Y], calls)
        change_Y, device_Y = np.divmod(pair_Y, devices)
        x_Y = chain_M[change_Y] * devices + device_Y
        held_Y = self.held_CX[call_Y, x_Y]
        now_Y = held_Y + np.add.reduceat(sign_E, first_Y)
        more_Y = (now_Y > 0).astype(np.int64) - (held_Y > 0)
        if by_call:
            of_Z, group_Z, span_Z = np.arange(len(first_Y)), call_Y, self.span_C[call_Y]
        else:
            of_Z = _firsts(pair_Y)
            group_Z, span_Z = np.zeros_like(of_Z), np.ones_like(of_Z)
        pair_Z, x_Z, more_Z = pair_Y[of_Z], x_Y[of_Z], np.add.reduceat(more_Y, of_Z)
        sums_ZH = self._sums(one, group_Z, x_Z, first_Y[of_Z], row_E, sign_E)
        times_QZ = one.price.call_ms(sums_ZH)
        if (span_Z == 1).all():
            from_X, at_X = np.arange(len(pair_Z)), pair_Z
        else:
            from_X, offset_X = repeat_numbers(span_Z)
            at_X = pair_Z[from_X] + offset_X
        if commit:
            if by_call:
                sums_ZH[now_Y == 0] = 0.0
            one.sums_CXH[group_Z, x_Z] = sums_ZH
            one.times_QCX[:, group_Z[from_X], x_Z[from_X] + (at_X - pair_Z[from_X])] = times_QZ[:, from_X]
        if len(self.kinds) > 1:
            own_X = self.kind_of_D[at_X % devices] == kind
            from_X, at_X = from_X[own_X], at_X[own_X]
        is_changed = np.zeros(len(chain_M) * devices, dtype=bool)
        is_changed[at_X] = True
        at_T = np.flatnonzero(is_changed)
        number_X = (np.cumsum(is_changed) - 1)[at_X]
        change_T, device_T = np.divmod(at_T, devices)
        x_T = chain_M[change_T] * devices + device_T
        more_T = np.bincount(number_X, more_Z[from_X], len(at_T)).astype(np.int64)
        times_QGT = one.times_QCX[:, :, x_T]
        times_QGT[:, group_Z[from_X], number_X] = times_QZ[:, from_X]
        compute_2MD.reshape(2, -1)[:, at_T] = one.price.device_ms(times_QGT, self.calls_X[x_T] + more_T)

    @staticmethod
    def _sums(one: _KindSums, group_Z: Indices, x_Z: Indices, first_Z: Indices, row_E: Indices, sign_E: Indices) -> Columns:
        columns_PH = one.columns_PH
        count_Z = np.diff(first_Z, append=len(row_E))
        factor_E1 = sign_E[:, None].astype(columns_PH.dtype)
        sums_ZH = one.sums_CXH[group_Z, x_Z]
        sums_ZH += factor_E1[first_Z] * columns_PH[row_E[first_Z]]
        for at in range(1, int(count_Z.max(initial=0))):
            some = np.flatnonzero(count_Z > at)
            where = first_Z[some] + at
            sums_ZH[some] += factor_E1[where] * columns_PH[row_E[where]]
        if maxima := one.price.num_maxima:
            largest_Z2M = one.largest_CX2M[group_Z, x_Z]
            columns_EM = columns_PH[row_E, -maxima:]
            removed_E1 = sign_E[:, None] < 0
            removed_ZM = np.maximum.reduceat(np.where(removed_E1, columns_EM, -1.0), first_Z, axis=0)
            added_ZM = np.maximum.reduceat(np.where(removed_E1, 0.0, columns_EM), first_Z, axis=0)
            left_ZM = np.where(removed_ZM >= largest_Z2M[:, 0], largest_Z2M[:, 1], largest_Z2M[:, 0])
            sums_ZH[:, -maxima:] = np.maximum(left_ZM, added_ZM)
        return sums_ZH

    def make(self, chain_M: Indices, edits: Edits, pieces: Pieces, outcome: Outcome, chosen_M: Indices) -> None:
        """Make the chosen changes; those of one chain touch different devices and groups."""
        devices = self.task.num_devices
        is_chosen = np.zeros(len(chain_M), dtype=bool)
        is_chosen[chosen_M] = True
        edits = edits.select(is_chosen[edits.change_E])
        pieces = pieces.select(is_chosen[pieces.change_F])
        chain_E = chain_M[edits.change_E]
        self.option_NG[chain_E, edits.group_E] = edits.option_E
        self.place_NGS[chain_E, edits.group_E] = edits.place_ES
        # As one change of each chain.
        pieces = Pieces(chain_M[pieces.change_F], pieces.piece_F, pieces.device_F, pieces.sign_F)
        every = np.arange(self.num)
        cells, on_each = self._cells(pieces), self.on_each(pieces)
        arrays, piece_F = self.arrays, on_each.piece_F
        at_F = on_each.change_F * devices + on_each.device_F
        size = self.num * devices

        def more(values_F: npt.NDArray[Any]) -> FloatArray:
            return np.bincount(at_F, on_each.sign_F * values_F, size).reshape(self.num, devices)

        for at in self.active_V:
            self.volumes_VND[at] += more(arrays.volume_PV[piece_F, at])
        self.used_3ND[0] += more(arrays.size_P[piece_F]).astype(np.int64)
        if self.has_offload:
            self.used_3ND[1] += more(arrays.host_P[piece_F]).astype(np.int64)
            self.used_3ND[2] += more(arrays.ssd_P[piece_F]).astype(np.int64)
            offload_F2 = arrays.offload_PK2[piece_F, self.kind_of_D[on_each.device_F]]
            self.offload_2ND[0] += more(offload_F2[:, 0])
            self.offload_2ND[1] += more(offload_F2[:, 1])
        self.values_N = self.values_N + np.bincount(pieces.change_F, pieces.sign_F * arrays.values_P[pieces.piece_F], self.num)
        compute_2ND = self.compute_2X.reshape(2, self.num, devices)
        for kind, one in enumerate(self.kinds):
            self._change_kind(kind, one, cells, every, compute_2ND, commit=True)
        np.add.at(self.users_NC, (cells.change_E, cells.call_E), cells.sign_E)
        each = self._cells_on_each(cells)
        np.add.at(self.held_CX, (each.call_E, each.change_E * devices + each.device_E), each.sign_E)
        touched_X = np.unique(each.change_E * devices + each.device_E)
        self.calls_X[touched_X] = (self.held_CX[:, touched_X] > 0).sum(axis=0)
        self._list_pieces()
        for one in self.kinds:
            if one.price.num_maxima:
                is_touched = np.zeros(self.held_CX.size, dtype=bool)
                first = cells.change_E * devices + cells.device_E - cells.device_E % self.span_C[cells.call_E]
                flat = cells.call_E * size + first
                is_touched[flat] = True
                one.largest_CX2M.reshape(-1, 2, one.price.num_maxima)[flat] = 0.0
                all_cells = self.all_cells
                all_first = all_cells.change_E * devices + all_cells.device_E - all_cells.device_E % self.span_C[all_cells.call_E]
                all_flat = all_cells.call_E * size + all_first
                some = is_touched[all_flat]
                self._set_largest(one, all_flat[some], all_cells.row_E[some])
        touched_N = np.unique(chain_M[chosen_M])
        self.windows_BND[:, touched_N] = self._windows(
            compute_2ND[:, touched_N] + self.offload_2ND[:, touched_N],
            self.volumes_VND[:, touched_N],
            self.values_N[touched_N],
            self.users_NC[touched_N],
        )

    def _list_pieces(self) -> None:
        groups = self.option_NG.shape[1]
        numbers = np.arange(self.num).repeat(groups)
        option_E = self.option_NG.reshape(-1)
        self.all_pieces, from_F, self.all_slot_F = self.pieces(numbers, option_E, self.place_NGS.reshape(len(option_E), -1), 1)
        self.all_group_F = from_F % groups
        self.all_cells = self._cells(self.all_pieces)

    def with_placements(self, option_NG: Indices, place_NGS: Indices) -> Chains:
        """Chains of other placements of the same space."""
        return Chains(self.space, self.table, option_NG, place_NGS)

    def replace(self, number_M: Indices, option_MG: Indices, place_MGS: Indices) -> None:
        """Put other placements into some chains."""
        self.option_NG[number_M], self.place_NGS[number_M] = option_MG, place_MGS
        self.fill()

    @property
    def unusual_N(self) -> FloatArray:
        """[N] share of the groups whose columns are cut in unusual ways."""
        return np.asarray(self.table.is_unusual_O[self.option_NG].mean(axis=1))

    def unusual_after(self, chain_M: Indices, edits: Edits) -> FloatArray:
        """[M] the same after each change."""
        is_unusual_O, groups = self.table.is_unusual_O, self.option_NG.shape[1]
        old_E = self.option_NG[chain_M[edits.change_E], edits.group_E]
        more_E = is_unusual_O[edits.option_E].astype(np.int64) - is_unusual_O[old_E]
        return self.unusual_N[chain_M] + np.bincount(edits.change_E, more_E, len(chain_M)) / groups

    @property
    def cost_N(self) -> FloatArray:
        return np.asarray(self.windows_BND.max(axis=-1).sum(axis=0))

    def overflow(self, used_3MD: Indices) -> FloatArray:
        """[M] bytes beyond the memory, relative to a device's or a host's."""
        machine, room_D = self.task.machine, self.space.room_D
        found = (np.maximum(used_3MD[0] - room_D, 0) / np.maximum(room_D, 1)).sum(axis=-1)
        if self.has_offload:
            for used_MD, rooms in zip(used_3MD[1:], (machine.host_bytes, machine.ssd_bytes), strict=True):
                by_host = used_MD.reshape(len(used_MD), machine.num_nodes, -1).sum(axis=-1)
                room = np.array(rooms or (0,) * machine.num_nodes)
                found = found + (np.maximum(by_host - room, 0) / np.maximum(room, 1)).sum(axis=-1)
        return np.asarray(found)


def _firsts(sorted_E: Indices) -> Indices:
    is_first_E = np.ones(len(sorted_E), dtype=bool)
    is_first_E[1:] = sorted_E[1:] != sorted_E[:-1]
    return np.flatnonzero(is_first_E)


def arrays_of(table: OptionTable, choices: Sequence[Choice]) -> tuple[Indices, Indices]:
    """[G] options and [G, S] places of choices."""
    option_G = table.first_option_G + np.array([one.option for one in choices])
    place_GS = np.zeros((len(choices), table.most_pieces), dtype=np.int64)
    for group, one in enumerate(choices):
        place_GS[group, : len(one.places)] = one.places
    return option_G, place_GS


def choices_from(table: OptionTable, option_G: Indices, place_GS: Indices) -> list[Choice]:
    """Choices of options and places."""
    number_G = option_G - table.first_option_G
    return [
        Choice(int(number), tuple(places[:count].tolist()))
        for number, places, count in zip(number_G, place_GS, table.count_O[option_G], strict=True)
    ]
