"""What no placement that a task allows is predicted to take less than: over all types, all cuts and all places.

Each sharding type that a placement uses costs kernel calls and collectives, whose floors and latencies come on top of
what tables take. So the bound is the least over the sets of types in use, of which those that may be the least are
looked at.

With a set given: a step takes at least what its slowest device does, which is at least the mean. Kernel times are
convex, so that a straight line below them holds for any sum of pieces; along such a line the work of a table is one
number for each of its options, however fine it is cut: cutting columns repeats lookups, cutting rows repeats bags,
replicas repeat rows. Each table takes the option with the least work whose pieces, alone on their device, are below the
time in question; the least time for which this fits into all devices is the bound. All wait for the slowest forward
exchange, which is a window of its own: its mean over the devices comes on top of such a piece. Where a step is the
largest sum, a device that sends little receives the more, so that its exchanges take as long as even ones. Memory
counts with a price (Lagrange) that the bound is largest for. Lines touch the kernel times where the tables' choice puts
the mean device. A pass takes no less than its launches either, whatever its kernels take.

The bound counts the steps of time that a table's own rows need, those that all rows need together on devices that are
alike, and cuts by columns however uneven (``cut_bounds``; of
many tables, those of the ones that are looked up most, and even cuts of the others). It leaves out what whole parts
cannot share out evenly.

Legend: G groups, W options of a group, D devices, P lookups, C looked-up rows of options, K kinds of devices,
H columns, S sets, Y classes of options.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.measure.price.device_price import Columns, DevicePrice, SharedSteps
from evenshard.measure.price.step import dense_ms
from evenshard.measure.step_time import LARGEST_SUM, hides_inputs
from evenshard.placement.sharding import TYPES
from evenshard.sharders.search.cut_bounds import CutBounds
from evenshard.sharders.search.sharding_option import ShardingOption
from evenshard.sharders.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

# Sums of float32 differ by less, relatively.
_ROUNDING = 1e-4
# Lines that are tried for each set of types, each where the choice by the line before puts the mean device.
LINES = 3
# Modules times sharding types up to which each is a class of its own; else all modules are one.
MOST_CLASSES = 8
# Whether the kernels count, or what launching them takes, in the forward and in the backward pass.
KERNELS = (True, True)
OTHERS = ((True, False), (False, True), (False, False))
# Relative difference of times at which a bisection ends.
CLOSE = 1e-5


def lower_bound_ms(space: SearchSpace) -> float:
    """The bound, ms; 0 where nothing can be said."""
    bounds, best = _Bounds(space), np.inf
    for least_ms, classes in bounds.sets():
        if least_ms >= best:
            break
        best = min(best, bounds.of_set(classes, best))
    return best * (1 - _ROUNDING) if np.isfinite(best) else 0.0


@dataclass(frozen=True)
class _Lines:
    """[2, W] work of all options along lines, forward and backward, of all devices together; [2] what is at 0."""

    at_0_2: FloatArray
    works_2W: FloatArray


class _Bounds:
    """What all sets of types have in common.

    Args:
        space: groups and options.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space, self._flat = space, space.flat
        task, costs, flat = space.task, space.costs, space.flat
        self._devices, self._room = task.num_devices, _room(space)
        self._kinds = list(zip(costs.prices, space.lookups.columns_KPH, strict=True))
        self._has_backward = all(price.always_has_backward(columns_PH) for price, columns_PH in self._kinds)
        offload = _least_offload(space)
        slopes_V, replica_ms = costs.exchange_slopes
        replica_ms += min(dense_ms(1.0, kind.bytes_per_ns, task.optimizer) for kind in costs.kinds)
        replicas_W = flat.values_W * replica_ms
        self._bytes_GW = flat.pad_by_group(offload.bytes_W)
        # Work besides kernels.
        self._beside_W = (flat.volume_WV @ slopes_V + replicas_W + offload.offload_W) * flat.copies_W
        self._shared = self._shared_steps()
        self._steps_2W = np.min(
            [
                self._sum_copies(price.own_steps_ms(columns_PH) + self._shared.works(columns_PH))
                for price, columns_PH in self._kinds
            ],
            axis=0,
        )
        longest_W = flat.longest(_least_alone_ms(self._kinds)) + replicas_W + offload.longest_W
        # Alone on its device, a piece may be all that is exchanged.
        self._cuts, own_V = CutBounds(space, self._shared), costs.own_slopes_V
        self._alone_W = longest_W + flat.longest_WV @ own_V
        self._alone_W[self._cuts.options] = self._cuts.alone_ms(own_V)
        # What a piece waits for besides, beyond its own exchange: if all devices' forward exchanges are a window, their
        # mean. Without windows its device waits for none, but on one node no exchange is shorter than an even one.
        is_sum = costs.pipeline == LARGEST_SUM
        exchanges, waits = (slice(None), task.machine.num_nodes == 1) if is_sum else (slice(1, 2), True)
        all_D, first_D = np.ones(self._devices), np.eye(1, self._devices)[0]
        even_V, alone_V = (costs.slopes_V3(held_D)[:, exchanges].sum(axis=1) for held_D in (all_D, first_D))
        self._mean_exchange_W = flat.volume_WV @ even_V * flat.copies_W / self._devices * waits
        self._own_exchange_W = flat.longest_WV @ alone_V
        if is_sum:  # the widest part of an uneven cut may exchange more than that of an even one
            self._own_exchange_W[self._cuts.options] = np.inf
        self._divide_into_classes()

    def _shared_steps(self) -> SharedSteps:
        """Passes that tables share on devices of one kind, for the first option of each group: whole, where allowed."""
        if len(self._kinds) > 1:
            return SharedSteps()
        flat, task, ((price, columns_PH),) = self._flat, self._space.task, self._kinds
        first_C = flat.number_W[flat.option_C] == 0
        rows = sum(table.num_rows for table in task.tables)
        return price.shared_steps(columns_PH[flat.row_C[first_C]], self._devices, rows)

    def _divide_into_classes(self) -> None:
        """Classes of options: those whose kernel calls are launched, and their outputs exchanged, together."""
        space, flat, machine = self._space, self._flat, self._space.task.machine
        call_W = [
            min(space.groups[group].options[number].calls)
            for group, number in zip(flat.group_W.tolist(), flat.number_W.tolist(), strict=True)
        ]
        key_W = [space.collective_of_call[call] for call in call_W]
        if len(set(key_W)) > MOST_CLASSES:
            key_W = [("", sharding_type) for _, sharding_type in key_W]
        call_of = dict(zip(key_W, call_W, strict=True))
        number_of = {key: number for number, key in enumerate(call_of)}
        self._class_W = np.array([number_of[key] for key in key_W])
        is_used_YC = np.arange(len(space.calls)) == np.array(list(call_of.values()))[:, None]
        counted = space.latencies(is_used_YC)[1 if hides_inputs(space.costs.pipeline) else 0 :]
        self._latency_Y = counted.sum(axis=0) * (self._devices > 1)
        self._is_everywhere_Y = np.array([TYPES[one].span(machine) == self._devices for _, one in call_of])

    # Sets -------------------------------------------------------------------------------------------------------------

    def sets(self) -> list[tuple[float, npt.NDArray[np.bool_]]]:
        """The sets of classes that every group has an option of, with what is quickly seen to be below their bounds."""
        flat, lines = self._flat, self._lines(None)
        works_W = lines.works_2W.sum(axis=0) + self._beside_W
        count = len(self._latency_Y)
        sets_SY = np.array(list(product((False, True), repeat=count)), dtype=bool)[1:]
        least_YG = np.array(
            [flat.pad_by_group(np.where(self._class_W == one, works_W, np.inf)).min(axis=1) for one in range(count)]
        )
        least_SG = np.where(sets_SY[..., None], least_YG[None], np.inf).min(axis=1)
        found = []
        for classes, least_ms in zip(sets_SY, least_SG.sum(axis=1) / self._devices, strict=True):
            if np.isfinite(least_ms):
                found.append((float(least_ms + self._offset_ms(classes, lines.at_0_2, KERNELS)), classes))
        return sorted(found, key=lambda one: one[0])

    def of_set(self, classes: npt.NDArray[np.bool_], enough: float) -> float:
        """A bound of placements that use all of these classes and no other; any one that is large enough will do."""
        flat, is_own_W = self._flat, classes[self._class_W]
        alone_W = self._alone_W + self._latency_Y[classes].sum()
        if self._mean_exchange_W.any():
            least_ms = flat.pad_by_group(np.where(is_own_W, self._mean_exchange_W, np.inf)).min(axis=1).sum()
            alone_W = alone_W + np.maximum(least_ms - self._own_exchange_W, 0.0)
        alone_GW = flat.pad_by_group(np.where(is_own_W, alone_W, np.inf))
        best, chosen_G = 0.0, None
        for _ in range(LINES):
            lines = self._lines(chosen_G)
            for counted in product((True, False), repeat=2):  # of each pass the kernels, or the launches
                works_W = np.array(counted) @ lines.works_2W + self._beside_W
                options = _Options(flat.pad_by_group(np.where(is_own_W, works_W, np.inf)), alone_GW, self._bytes_GW)
                found, ending_G = _bound(
                    options, self._offset_ms(classes, lines.at_0_2, counted), self._room, self._devices
                )
                best = max(best, found)
                if best >= enough:
                    return best
                if all(counted):
                    chosen_G = ending_G
        return best

    def _offset_ms(self, classes: npt.NDArray[np.bool_], at_0_2: FloatArray, counted: tuple[bool, ...]) -> float:
        """What some device takes beside its tables' work: floors of kernels, or launches, and latencies.

        Calls of pieces that live everywhere are launched on every device, and one of the others' on some device.
        """
        everywhere = int((classes & self._is_everywhere_Y).sum())
        calls = everywhere + int(bool((classes & ~self._is_everywhere_Y).any()))
        further_2 = np.min([price.further_call_ms_2 for price, _ in self._kinds], axis=0)
        launched_2 = np.min([price.launched_ms_2(calls) for price, _ in self._kinds], axis=0)
        passes_2 = np.where(counted, at_0_2 + (calls - 1) * further_2, launched_2)
        passes_2 = np.where([True, self._has_backward], passes_2, 0.0)
        return float(passes_2.sum() + self._latency_Y[classes].sum())

    # Lines ------------------------------------------------------------------------------------------------------------

    def _lines(self, chosen_G: npt.NDArray[np.int64] | None) -> _Lines:
        """Lines that touch the kernel times of a mean device of the chosen options; where left out, of whole tables."""
        found = [self._lines_of(kind, chosen_G) for kind in range(len(self._kinds))]
        at_0_2 = np.min([one.at_0_2 for one in found], axis=0) + self._shared.at_0_2
        return _Lines(at_0_2, np.min([one.works_2W for one in found], axis=0))

    def _lines_of(self, kind: int, chosen_G: npt.NDArray[np.int64] | None) -> _Lines:
        flat, (price, columns_PH) = self._flat, self._kinds[kind]
        chosen_W = flat.number_W == (0 if chosen_G is None else chosen_G[flat.group_W])
        weight_W = chosen_W * flat.copies_W / self._devices
        is_own_YC = self._class_W[flat.option_C] == np.arange(len(self._latency_Y))[:, None]
        if chosen_G is None or not price.is_by_call:
            is_own_YC = np.ones_like(is_own_YC)
        works_2W, lines = self._steps_2W.copy(), []
        columns_CH = columns_PH[flat.row_C]
        for own, is_own_C in enumerate(is_own_YC):
            sums_H = (weight_W[flat.option_C] * is_own_C) @ columns_CH
            if not sums_H.any():
                sums_H = weight_W[flat.option_C] @ columns_CH
            lines.append(line := price.line_at(sums_H))
            is_own_W = self._class_W == own
            works_2W[:, is_own_W] += self._sum_copies(line.works(columns_PH))[:, is_own_W]
        works_2W[:, self._cuts.options] = self._cuts.works_2(kind, lines, self._class_W)
        return _Lines(np.min([line.at_0_2 for line in lines], axis=0), works_2W)

    def _sum_copies(self, works_2P: FloatArray) -> FloatArray:
        """[2, W] work of all copies of each option."""
        return np.array([self._flat.sum_by_option(works_P) for works_P in works_2P]) * self._flat.copies_W


def _least_alone_ms(kinds: list[tuple[DevicePrice, Columns]]) -> FloatArray:
    """[P] what each lookup takes on the fastest kind of device, whatever else that holds."""
    return np.asarray(np.min([price.least_ms(columns_PH) for price, columns_PH in kinds], axis=0))


def _room(space: SearchSpace) -> float:
    """Memory of all devices; without end where tables could leave it with options that the space does not have."""
    task = space.task
    if task.may_offload and not space.offloads:
        return float("inf")
    kept = (
        [group for group in space.groups if all(option.storage.is_on_device for option in group.options)]
        if space.offloads
        else []
    )
    return float(sum(task.room_bytes)) + sum(min(_bytes(option) for option in group.options) for group in kept)


def _bytes(option: ShardingOption) -> int:
    return sum(piece.size_bytes for piece in option.pieces)


@dataclass(frozen=True)
class _Options:
    """[G, W] of the options of all groups: work of all devices together, of the slowest piece alone, and memory."""

    total_GW: FloatArray
    alone_GW: FloatArray
    bytes_GW: FloatArray


class _Offload(NamedTuple):
    """[W] memory of all devices, and time outside of it, of all pieces and of the longest."""

    bytes_W: FloatArray
    offload_W: FloatArray
    longest_W: FloatArray


def _least_offload(space: SearchSpace) -> _Offload:
    """What no cache takes less than, whatever its size: each option stands for those up to the next larger cache.

    It takes the memory of its own cache, the smallest none, and the time of the next larger one, the largest none.
    """
    flat = space.flat
    bytes_W, offload_W, longest_W = flat.bytes_W.copy(), flat.offload_W.copy(), flat.longest_offload_W.copy()
    shapes: dict[tuple[object, ...], list[tuple[float, int]]] = {}
    for at, (group, number) in enumerate(zip(flat.group_W.tolist(), flat.number_W.tolist(), strict=True)):
        option = space.groups[group].options[number]
        if option.storage.is_cached:
            widths = tuple(piece.columns for piece in option.pieces)
            shape = (group, option.storage.kernel, option.sharding_type, widths)
            shapes.setdefault(shape, []).append((option.storage.load_factor, at))
    for of_shape in shapes.values():
        ordered = [at for _, at in sorted(of_shape)]
        bytes_W[ordered[0]] = 0.0
        offload_W[ordered] = [*offload_W[ordered[1:]], 0.0]
        longest_W[ordered] = [*longest_W[ordered[1:]], 0.0]
    return _Offload(bytes_W, offload_W, longest_W)


def _bound(options: _Options, offset: float, room: float, devices: int) -> tuple[float, npt.NDArray[np.int64]]:
    """The least time into which all groups fit, by bisection, and what each of them chooses there."""
    alone_G = np.where(np.isfinite(options.alone_GW), options.alone_GW, 0.0).max(axis=1)
    chosen_G = np.asarray(options.total_GW.argmin(axis=1))
    low, high = 0.0, float(options.total_GW.min(axis=1).sum()) / devices + max(offset, 0.0) + float(alone_G.max())
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        found_G = _fit_options(options, middle, offset, room, devices)
        if found_G is None:
            low = middle
        else:
            high, chosen_G = middle, found_G
    return low, chosen_G


def _fit_options(
    options: _Options, time_ms: float, offset: float, room: float, devices: int
) -> npt.NDArray[np.int64] | None:
    """[G] options that fit into a time, as far as a price of memory tells; None where none can."""
    total = np.where(options.alone_GW <= time_ms, options.total_GW, np.inf)
    rows = np.arange(len(total))
    chosen = np.asarray(total.argmin(axis=1))
    if not np.isfinite(total[rows, chosen]).all():
        return None
    budget = (time_ms - offset) * devices
    if total[rows, chosen].sum() > budget:
        return None
    bytes_GW = np.where(np.isfinite(total), options.bytes_GW, 0.0)
    used = bytes_GW[rows, chosen].sum()
    price = float(total[rows, chosen].sum()) / max(room, 1.0) * 1e-3
    for _ in range(24):
        if used <= room:
            return chosen
        priced = total + price * bytes_GW
        chosen = np.asarray(priced.argmin(axis=1))
        used = bytes_GW[rows, chosen].sum()
        if priced[rows, chosen].sum() - price * room > budget:
            return None
        price *= 2
    return chosen
