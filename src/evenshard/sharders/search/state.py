"""A placement under search: the option and the places of every group, and the sums that its cost is made of.

Changes are tried out many at a time, all from the same state: their sums and times are counted as arrays, and the state
stays as it is until one of them is made.

Legend: G groups, D devices, W windows of a step, V kinds of volumes, C kernel calls, N changes that are tried out, E
additions and removals of pieces of them all, F the same on each device.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evenshard.measure.collectives import VOLUMES, Volumes, exchange_times
from evenshard.measure.price.loads import Loads
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

if TYPE_CHECKING:
    from evenshard.sharders.search.moves import Moves

Indices = npt.NDArray[np.int64]


Change = Sequence[tuple[int, Choice]]


class State:
    """A complete placement with all its sums; cheap to copy and to change by a group.

    Args:
        space: groups and options.
        choices: of all groups.
        moves: what is moved from an earlier placement, where that has a bound and a price.
    """

    def __init__(self, space: SearchSpace, choices: Sequence[Choice], moves: Moves | None = None) -> None:
        self.space, self.moves = space, moves
        self.moved_bytes = 0
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
            if self.moves is not None:
                self.moved_bytes += self.moves.bytes_of(group, choice)

    def _add(self, group: int, choice: Choice, sign: int) -> None:
        option = self.space.groups[group].options[choice.option]
        if self.moves is not None:
            self.moved_bytes += sign * self.moves.bytes_of(group, choice)
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
        """What a search descends: the cost, a little of how slow the other slow devices are, and the price of moves."""
        moved_ms = 0.0 if self.moves is None else self.moves.price_ms(self.moved_bytes)
        return float(scores_of(self.windows_WD)) + moved_ms

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
