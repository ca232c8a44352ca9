"""Lower bounds of the predicted step time over all placements that a task allows.

A bound is the minimum over cases. The case with the lowest bound is always tightened next, in these steps:

1. **Sets of sharding types in use.** Each type costs kernel calls and collectives. Their minimum times and latencies
   add to the costs of tables, as do the one-time costs of a call, such as its hottest row.
2. **Ranges of communication volumes.** Each range has a linear lower bound of communication time (``bound_lines``).
3. **The average device** (``least_time_ms``). The slowest device takes at least the mean time over devices. Kernel
   times are convex, so a linear lower bound holds for any sum of shards. With it, each option of a table has a fixed
   amount of work (column shards repeat lookups, row shards repeat bags, replicas repeat rows). Each table takes the
   option with the least work whose shards, alone on their device, stay below the time; the bound is the least time in
   which all devices together can do this work. Memory has the Lagrange price that maximizes the bound. The linear
   bounds are tangent at the average device's load with the tables' current options. A pass takes at least the time of
   its launches.
4. **Indivisible shards** (``IndivisibleShards``). Each shard has to fit on one device, as in bin packing.

The bound includes times that rise in steps, such as sort passes, for each table's own rows and for all rows divided
equally over devices. It is valid for uneven column cuts (``CutBounds``) of the tables with the most lookups; the column
cuts of other tables are assumed to be even.

Legend: G groups, W options of a group, A shards of options, Q classes of equal shards, D devices, P lookups, C
looked-up rows of options, K kinds of devices, H columns, S sets, Y classes of options, X volumes, F tables that are cut
by columns, U blocks of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from itertools import product

import numpy as np
import numpy.typing as npt

from evenshard.placement.sharding import TYPES
from evenshard.price.collectives import VOLUMES
from evenshard.price.step import dense_ms
from evenshard.price.step_time import hides_inputs
from evenshard.search.bound_lines import OF_A_NODE, ExchangeLine, SharedSteps, TangentLine, exchange_lines, price_bounds
from evenshard.search.device_times import CutBounds, IndivisibleShards, Numbers, Options, least_time_ms
from evenshard.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

# Largest relative difference of float32 sums.
_ROUNDING = 1e-4
# Lines that are tried for each set of types, each at the average load of the options chosen with the line before.
LINES = 6
# Most modules times sharding types for which each is a separate class; with more, all modules share classes.
MOST_CLASSES = 8
# True if the kernels count, False if their launches do, for the forward and the backward pass.
KERNELS = (True, True)
OTHERS = ((True, False), (False, True), (False, False))
# With more options, shards are small, and the bound of indivisible shards is left out.
MOST_OPTIONS = 4_096
# Relative amount by which a bound may exceed ``enough_ms``.
ENOUGH = 1e-3


def lower_bound_ms(space: SearchSpace, enough_ms: float = np.inf) -> float:
    """Return a lower bound of the step time, ms, or 0; stop tightening it once it reaches ``enough_ms``."""
    bounds, enough_ms = _Bounds(space), enough_ms * (1 + ENOUGH)
    sets = enumerate(bounds.sets())
    # Ties of bounds are broken by the order of opening.
    opened: list[tuple[float, int, Tighten | None]] = [
        (bound_ms, number, partial(bounds.of_set, classes)) for number, (bound_ms, classes) in sets
    ]
    heapify(opened)
    count = len(opened)
    while opened:
        least_ms, _, tighten = heappop(opened)
        if tighten is None or least_ms >= enough_ms:
            return least_ms * (1 - _ROUNDING)
        most_ms = min((bound_ms for bound_ms, _, further in opened if further is None), default=enough_ms)
        for bound_ms, further in tighten(min(enough_ms, most_ms)):
            count += 1
            heappush(opened, (max(bound_ms, least_ms), count, further))
    return 0.0


# Function that tightens a bound up to a given value: it yields bounds, each with a function to tighten it further.
Tighten = Callable[[float], Iterator[tuple[float, "Tighten | None"]]]


@dataclass(frozen=True)
class _Lines:
    """Linear lower bounds of the average device's times; ``works_2W`` is each option's forward and backward work."""

    of_kinds: tuple[tuple[TangentLine, ...], ...]
    at_0_2: FloatArray
    below_Y2: FloatArray  # added to ``at_0_2`` for each class of the placement
    works_2W: FloatArray

    def at_classes_2(self, classes: npt.NDArray[np.bool_]) -> FloatArray:
        """Return the times at zero work, [2]."""
        return np.asarray(self.at_0_2 + self.below_Y2[classes].sum(axis=0))


@dataclass(frozen=True)
class _Case:
    """Placements with exactly these ``classes`` of kernel calls; ``alone_W`` is each option's longest shard time."""

    classes: npt.NDArray[np.bool_]
    is_own_W: npt.NDArray[np.bool_]
    alone_W: FloatArray
    exchange_X: tuple[ExchangeLine, ...]


class _Bounds:
    def __init__(self, space: SearchSpace) -> None:
        self._space, self._table, shards = space, space.table, space.shard_arrays
        task, costs, table, shard_A = space.task, space.costs, space.table, space.table.shard_A
        self._devices, self._copies_W = task.num_devices, table.span_O.astype(np.float64)
        # Looked-up rows of all shards, with their kernel calls.
        self._shard_C, cell_C = shards.cells_of(shard_A)
        self._option_C = table.option_A[self._shard_C]
        self._call_C, self._row_C = shards.call_C[cell_C], shards.row_C[cell_C]
        self._kinds = list(zip(map(price_bounds, costs.prices), space.lookups.columns_KPH, strict=True))
        self._has_backward = all(bounds.always_has_backward(columns_PH) for bounds, columns_PH in self._kinds)
        bytes_W = np.add.reduceat(shards.size_P[shard_A], table.first_O)
        self._memory_bytes = _available_bytes(space, bytes_W)
        least_bytes_W, offload_W, longest_offload_W = _least_offload(space, self._copies_W * bytes_W)
        self._bytes_GW = table.pad_by_group(least_bytes_W)
        # Work outside of kernels and communication.
        update_ms = min(dense_ms(1.0, kind.bytes_per_ns, task.optimizer) for kind in costs.kinds)
        values_W, self._volume_AV = shards.values_P[shard_A[table.first_O]], shards.volume_PV[shard_A]
        self._replicas_W = values_W * update_ms
        self._apart_W = (self._replicas_W + offload_W) * self._copies_W
        volume_VW = np.add.reduceat(self._volume_AV, table.first_O).T
        self._volume_XW = np.stack([*volume_VW, values_W]) * (self._copies_W / self._devices)
        self._lines_X, self._lines_beside_nodes_X = (
            exchange_lines(task, costs.links, costs.pipeline, beside_nodes=one) for one in (False, True)
        )
        self._shared = self._shared_steps()
        steps_K2W = [
            self._sum_copies(bounds.own_steps_ms(columns_PH) + self._shared.compute_work(columns_PH))
            for bounds, columns_PH in self._kinds
        ]
        self._steps_2W = np.min(steps_K2W, axis=0)
        least_P = np.min([bounds.least_ms(columns_PH) for bounds, columns_PH in self._kinds], axis=0)
        longest_W = np.zeros(len(self._copies_W))
        np.maximum.at(longest_W, self._option_C, least_P[self._row_C])
        longest_W += self._replicas_W + longest_offload_W + values_W * costs.exchange_slopes[1]
        # A shard alone on its device may be the only communication.
        self._cuts, own_V = CutBounds(space, self._shared), costs.slopes_V(np.eye(1, space.task.num_devices)[0])
        self._alone_W = longest_W + np.maximum.reduceat(self._volume_AV, table.first_O) @ own_V
        self._alone_W[self._cuts.options] = self._cuts.alone_ms(own_V)
        self._divide_into_classes()

    def _shared_steps(self) -> SharedSteps:
        if len(self._kinds) > 1:
            return SharedSteps()
        ((bounds, columns_PH),) = self._kinds
        first_C = self._table.number_O[self._option_C] == 0
        rows = sum(table.num_rows for table in self._space.task.tables)
        return bounds.shared_steps(columns_PH[self._row_C[first_C]], self._devices, rows)

    def _divide_into_classes(self) -> None:
        """Divide options into classes that share kernel launches and output dists."""
        space, machine = self._space, self._space.task.machine
        first_W = np.full(len(self._copies_W), len(space.calls))
        np.minimum.at(first_W, self._option_C, self._call_C)
        call_W = first_W.tolist()
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
        least_2P = np.min([bounds.least_call_ms(columns_PH) for bounds, columns_PH in self._kinds], axis=0)
        self._least_call_2C, self._least_call_2Y = least_2P[:, self._row_C], np.full((2, len(call_of)), np.inf)
        for least_Y, least_C in zip(self._least_call_2Y, self._least_call_2C, strict=True):
            np.minimum.at(least_Y, self._class_W[self._option_C], least_C)

    def sets(self) -> Iterator[tuple[float, npt.NDArray[np.bool_]]]:
        """Yield sets of classes of options (with equal kernel calls) that suffice for all groups, with lower bounds."""
        table, lines = self._table, self._lines_of_wholes
        all_lines_X = zip(self._lines_X, self._lines_beside_nodes_X, strict=True)
        slopes_X = [min(one.slope + one.own_slope for one in (*some, *others)) for some, others in all_lines_X]
        works_W = lines.works_2W.sum(axis=0) + self._apart_W + self._communication_W(slopes_X) * self._devices
        count = len(self._latency_Y)
        sets_SY = np.array(list(product((False, True), repeat=count)), dtype=bool)[1:]
        least_YG = np.array(
            [table.pad_by_group(np.where(self._class_W == one, works_W, np.inf)).min(axis=1) for one in range(count)]
        )
        least_SG = np.where(sets_SY[..., None], least_YG[None], np.inf).min(axis=1)
        for classes, mean_ms in zip(sets_SY, least_SG.sum(axis=1) / self._devices, strict=True):
            if np.isfinite(mean_ms):
                yield float(mean_ms + self._offset_ms(classes, lines.at_classes_2(classes), KERNELS)), classes

    def of_set(self, classes: npt.NDArray[np.bool_], enough: float) -> Iterator[tuple[float, Tighten | None]]:
        is_own_W = classes[self._class_W]
        alone_W = np.where(is_own_W, self._alone_W + self._latency_Y[classes].sum(), np.inf)
        for exchange_X in product(*self._ranges(classes, is_own_W)):
            case = _Case(classes, is_own_W, alone_W, exchange_X)
            bound_ms, _ = self._least_ms(case, self._lines_of_wholes, KERNELS, 0.0)
            yield bound_ms, partial(self._of_mean_device, case)

    def _ranges(self, classes: npt.NDArray[np.bool_], is_own_W: npt.NDArray[np.bool_]) -> Iterator[list[ExchangeLine]]:
        has_nodes = self._space.task.machine.nodes_per_domain > 1
        has_nodes = has_nodes and bool(self._volume_XW[VOLUMES.index(OF_A_NODE), is_own_W].any())
        lines_X = self._lines_beside_nodes_X if has_nodes else self._lines_X
        for lines, volume_W in zip(lines_X, self._volume_XW, strict=True):
            volume_GW = self._table.pad_by_group(np.where(is_own_W, volume_W, np.inf))
            of_classes = (volume_W[self._class_W == one].min() for one in np.flatnonzero(classes))
            least = max(float(volume_GW.min(axis=1).sum()), *of_classes)
            most = float(np.where(np.isfinite(volume_GW), volume_GW, 0.0).max(axis=1).sum())
            yield [line for line in lines if least <= line.most and line.least <= most]

    def _of_mean_device(self, case: _Case, enough: float) -> Iterator[tuple[float, Tighten | None]]:
        """Yield the best lower bound from the average device; each tangent is at the load of the last solution."""
        lines, chosen_G = self._lines_of_wholes, None
        best, found = 0.0, (case, lines)
        for _ in range(LINES):
            before, before_G = best, chosen_G
            best, chosen_G = self._least_ms(case, lines, KERNELS, best)
            for counted in OTHERS:
                best, _ = self._least_ms(case, lines, counted, best)
            if best > before:
                found = case, lines
            if best >= enough or chosen_G is None:
                break
            volume_X = self._volume_XW @ (self._table.number_O == chosen_G[self._table.group_O])
            turned_X = tuple(line.tilt_toward(one) for line, one in zip(case.exchange_X, volume_X, strict=True))
            if before_G is not None and np.array_equal(before_G, chosen_G) and turned_X == case.exchange_X:
                break
            case, lines = replace(case, exchange_X=turned_X), self._lines(chosen_G)
        is_small = len(self._table.group_O) <= MOST_OPTIONS
        yield best, partial(self._of_whole_shards, *found, best) if is_small else None

    def _least_ms(
        self, case: _Case, lines: _Lines, counted: tuple[bool, bool], known: float
    ) -> tuple[float, Numbers | None]:
        """Return the average device's minimum time, at least ``known``, and the option of each table group."""
        slopes_X = [one.slope + one.own_slope for one in case.exchange_X]
        works_W = np.array(counted) @ lines.works_2W + self._apart_W + self._communication_W(slopes_X) * self._devices
        total_GW = self._table.pad_by_group(np.where(case.is_own_W, works_W, np.inf))
        at_0_2 = lines.at_classes_2(case.classes)
        offset_ms = sum(one.at_0 for one in case.exchange_X) + self._offset_ms(case.classes, at_0_2, counted)
        options = Options(total_GW, self._table.pad_by_group(case.alone_W), self._bytes_GW)
        return least_time_ms(options, offset_ms, self._memory_bytes, self._devices, known)

    @cached_property
    def _lines_of_wholes(self) -> _Lines:
        return self._lines(None)

    def _of_whole_shards(self, case: _Case, lines: _Lines, low: float, enough: float) -> Iterator[tuple[float, None]]:
        """Yield lower bounds that treat shards as indivisible."""
        table = self._table
        own_V = np.array([one.alone_slope for one in case.exchange_X[: len(VOLUMES)]])
        work_A = np.bincount(self._shard_C, self._row_works(lines), len(table.option_A)) + self._volume_AV @ own_V
        is_spread_W = self._copies_W == self._devices
        common_W = self._communication_W([one.slope for one in case.exchange_X])
        common_W += is_spread_W * (np.bincount(table.option_A, work_A, len(common_W)) + self._replicas_W)
        parts_A = np.stack([table.option_A, work_A])[:, ~is_spread_W[table.option_A]]
        (option_Q, work_Q), count_Q = np.unique(parts_A, axis=1, return_counts=True)
        option_Q = option_Q.astype(np.int64)
        at_0_2 = lines.at_classes_2(case.classes) - self._shared.at_0_2  # it holds for all devices together
        shards = IndivisibleShards(
            table,
            self._devices,
            sum(one.at_0 for one in case.exchange_X) + self._offset_ms(case.classes, at_0_2, KERNELS),
            case.alone_W,
            common_W,
            self._once_W(case.classes),
            is_spread_W,
            option_Q,
            work_Q,
            count_Q * self._copies_W[option_Q],
            self._cuts,
            self._cut_works_FU(lines, own_V),
        )
        yield shards.least_ms(low, enough if np.isfinite(enough) else 2 * low), None

    def _row_works(self, lines: _Lines) -> FloatArray:
        found, class_C = list[FloatArray](), self._class_W[self._option_C]
        for (bounds, columns_PH), of_classes in zip(self._kinds, lines.of_kinds, strict=True):
            works_YP = np.array([line.compute_work(columns_PH).sum(axis=0) for line in of_classes])
            works_YP += bounds.own_steps_ms(columns_PH).sum(axis=0)
            found.append(works_YP[class_C, self._row_C])
        return np.asarray(np.min(found, axis=0))

    def _cut_works_FU(self, lines: _Lines, own_V: FloatArray) -> FloatArray:
        of_kinds = enumerate(lines.of_kinds)
        works_K2FU = [self._cuts.part_work_2FU(kind, of_classes, self._class_W) for kind, of_classes in of_kinds]
        return np.asarray(np.min([one.sum(axis=0) for one in works_K2FU], axis=0)) + self._cuts.communication_FU(own_V)

    def _once_W(self, classes: npt.NDArray[np.bool_]) -> FloatArray:
        """Return each option's one-time cost of a kernel call beyond the minimum that ``_offset_ms`` includes."""
        of_some = classes & ~self._is_everywhere_Y
        least_Y = self._least_call_2Y.sum(axis=0)
        least_Y[of_some] = least_Y[of_some].min(initial=np.inf)
        least_W = np.full(len(self._class_W), np.inf)
        np.minimum.at(least_W, self._option_C, self._least_call_2C.sum(axis=0))
        more_W = least_W - least_Y[self._class_W]
        return np.where(classes[self._class_W], np.maximum(more_W, 0.0), 0.0) * self._has_backward

    def _communication_W(self, slopes_X: Sequence[float]) -> FloatArray:
        return np.asarray(np.array(slopes_X) @ self._volume_XW)

    def _offset_ms(self, classes: npt.NDArray[np.bool_], at_0_2: FloatArray, counted: tuple[bool, ...]) -> float:
        """Return the fixed time of every device: minimum kernel times or launches, one-time costs, and latencies."""
        of_all, of_some = classes & self._is_everywhere_Y, classes & ~self._is_everywhere_Y
        calls = int(of_all.sum() + of_some.any())
        once_2 = self._least_call_2Y[:, of_all].sum(axis=1)
        if of_some.any():
            once_2 += self._least_call_2Y[:, of_some].min(axis=1)
        further_2 = np.min([bounds.further_call_ms_2 for bounds, _ in self._kinds], axis=0)
        launched_2 = np.min([bounds.least_launch_ms_2(calls) for bounds, _ in self._kinds], axis=0)
        passes_2 = np.where(counted, at_0_2 + (calls - 1) * further_2 + once_2, launched_2)
        passes_2 = np.where([True, self._has_backward], passes_2, 0.0)
        return float(passes_2.sum() + self._latency_Y[classes].sum())

    def _lines(self, chosen_G: npt.NDArray[np.int64] | None) -> _Lines:
        """Return tangents to kernel times at the average device's load, for the chosen options or for whole tables."""
        found = [self._lines_of(kind, chosen_G) for kind in range(len(self._kinds))]
        at_0_2 = np.min([one.at_0_2 for one in found], axis=0) + self._shared.at_0_2
        of_kinds = tuple(one.of_kinds[0] for one in found)
        below_Y2 = np.min([one.below_Y2 for one in found], axis=0)
        return _Lines(of_kinds, at_0_2, below_Y2, np.min([one.works_2W for one in found], axis=0))

    def _lines_of(self, kind: int, chosen_G: npt.NDArray[np.int64] | None) -> _Lines:
        table, (bounds, columns_PH) = self._table, self._kinds[kind]
        chosen_W = table.number_O == (0 if chosen_G is None else chosen_G[table.group_O])
        weight_W = chosen_W * self._copies_W / self._devices
        is_own_YC = self._class_W[self._option_C] == np.arange(len(self._latency_Y))[:, None]
        calls_Y = np.array([len(np.unique(self._call_C[is_own_C])) for is_own_C in is_own_YC])
        shares_Y = np.ones(len(calls_Y))
        if chosen_G is None or not bounds.price.is_by_call:  # one line for all classes
            shares_Y, calls_Y = calls_Y / calls_Y.sum(), np.full_like(calls_Y, calls_Y.sum())
            is_own_YC = np.ones_like(is_own_YC)
        works_2W, lines = self._steps_2W.copy(), []
        columns_CH = columns_PH[self._row_C]
        for own, (is_own_C, calls) in enumerate(zip(is_own_YC, calls_Y.tolist(), strict=True)):
            sums_H = (weight_W[self._option_C] * is_own_C) @ columns_CH
            if not sums_H.any():
                sums_H, calls = weight_W[self._option_C] @ columns_CH, 0
            lines.append(line := bounds.line_at(sums_H, calls))
            is_own_W = self._class_W == own
            works_2W[:, is_own_W] += self._sum_copies(line.compute_work(columns_PH))[:, is_own_W]
        parts_2FU = self._cuts.part_work_2FU(kind, lines, self._class_W) + self._cuts.shared_work_2FU
        works_2W[:, self._cuts.options] = self._cuts.least_work_2(parts_2FU)
        below_Y2 = shares_Y[:, None] * [line.below_2 for line in lines]
        return _Lines((tuple(lines),), np.min([line.at_0_2 for line in lines], axis=0), below_Y2, works_2W)

    def _sum_copies(self, works_2P: FloatArray) -> FloatArray:
        """Sum the work of each option's looked-up rows over all its devices."""
        count, works_2C = len(self._copies_W), works_2P[:, self._row_C]
        return np.array([np.bincount(self._option_C, works_C, count) for works_C in works_2C]) * self._copies_W


def _available_bytes(space: SearchSpace, bytes_W: Numbers) -> float:
    """Return the devices' memory; infinite if the task allows offloading, but the space has no offloaded options."""
    task = space.task
    if task.may_offload and not space.offloads:
        return float("inf")
    room = float(sum(task.room_bytes))
    if not space.offloads:
        return room
    is_kept_G = [all(run.storage.is_on_device for run in group.runs) for group in space.groups]
    return room + float(space.table.pad_by_group(bytes_W.astype(np.float64)).min(axis=1)[is_kept_G].sum())


def _least_offload(space: SearchSpace, bytes_W: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return each option's device memory, and its minimum offload time in all and of its longest shard, [W] each.

    To cover caches of any size, each cache has the time of the next larger cache (0 for the largest), and the smallest
    cache takes no memory.
    """
    table, bytes_W = space.table, bytes_W.copy()
    offload_A = space.shard_arrays.offload_PK2.sum(axis=2).max(axis=1)[table.shard_A]
    offload_W, longest_W = (of.reduceat(offload_A, table.first_O) for of in (np.add, np.maximum))
    caches: dict[tuple[str, int], list[tuple[float, int]]] = {}
    storage_W = [table.storages[at] for at in table.storage_O]
    for at, (storage, twins) in enumerate(zip(storage_W, table.first_twin_O.tolist(), strict=True)):
        if storage.is_cached:
            caches.setdefault((storage.kernel, twins), []).append((storage.load_factor, at))
    for alike in caches.values():
        ordered = [at for _, at in sorted(alike)]
        bytes_W[ordered[0]] = 0.0
        offload_W[ordered] = [*offload_W[ordered[1:]], 0.0]
        longest_W[ordered] = [*longest_W[ordered[1:]], 0.0]
    return bytes_W, offload_W, longest_W
