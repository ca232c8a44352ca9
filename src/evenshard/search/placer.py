"""Greedy placement of groups on the devices with the least load and enough memory, for many starts in parallel.

Legend: N starts, G groups, O options of all groups, D devices, S shards of an option (padded), P shards of all options,
Q places, R rules of tables that stay apart, M options.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenshard.price.kernel_calls import alone_ms
from evenshard.price.loads import Indices, Mask, repeat_numbers
from evenshard.search.chains import Chains, round_last_digits
from evenshard.search.sharding_option import OptionTable
from evenshard.search.space import SearchSpace
from evenshard.tables.reuse import FloatArray

# Sort if more than one of this many devices is needed, else search the minimum repeatedly.
DEVICES_PER_ARGMIN = 8
# Additions to the keys of devices with shards of other widths, without enough memory, and forbidden by rules; any work
# is far below them.
FAR, NO_MEMORY, FORBIDDEN = 1e5, 1e6, 1e12
# Penalty for options with faults, ms.
FAULT = 1e6


class ShardTimes:
    """Estimated time of each shard alone, independent of other shards on its device.

    Attributes:
        ms_P: time of each shard alone on a device, without the time of an empty call.
        longest_O, total_O: time of each option's longest shard, and of all its shards on all their devices.
        even_ms: average work per device if each group takes its cheapest option.
    """

    def __init__(self, space: SearchSpace) -> None:
        table, arrays, (slopes_V, replica_ms) = space.table, space.shard_arrays, space.costs.exchange_slopes
        found = []
        for price, columns_PH in zip(space.costs.prices, space.lookups.columns_KPH, strict=True):
            own_P = alone_ms(price, columns_PH)
            # Without the time of an empty call; at least 2 % of it, so that no shard is free.
            found.append(np.maximum(own_P - own_P.min(), 0.02 * own_P.min()))
        row_ms = np.max(found, axis=0)
        shard_of_C = np.arange(len(arrays.cells_P)).repeat(arrays.cells_P)
        ms_P = np.bincount(shard_of_C, row_ms[arrays.row_C], len(arrays.cells_P))
        ms_P += arrays.volume_PV @ slopes_V + arrays.values_P * replica_ms + arrays.offload_PK2.sum(axis=2).max(axis=1)
        self.ms_P = round_last_digits(np.asarray(ms_P, dtype=np.float64))
        of_A = self.ms_P[table.shard_A]
        self.longest_O = np.maximum.reduceat(of_A, table.first_O)
        self.total_O = round_last_digits(
            np.asarray(np.add.reduceat(of_A, table.first_O) * table.span_O, dtype=np.float64)
        )
        self.even_ms = float(np.minimum.reduceat(self.total_O, table.first_option_G).sum()) / space.task.num_devices


class GreedyPlacer:
    """Greedy placer of groups, one by one, on the least loaded devices with enough memory, for many starts at once."""

    def __init__(self, space: SearchSpace) -> None:
        self.space, self.times = space, ShardTimes(space)
        self.table = table = space.table
        self._devices = space.task.num_devices
        self.allowed_GD: Mask | None = None
        if any(group.allowed_D is not None for group in space.groups):
            every = np.ones(self._devices, dtype=bool)
            allowed = (group.allowed_D for group in space.groups)
            self.allowed_GD = np.array([every if one is None else one for one in allowed])
        # Masks of the shards in each rule of tables that stay apart, [R, P].
        rules = sorted({rule for group in space.groups for rule in group.apart})
        group_A = table.group_O.repeat(table.count_O)
        self.apart_RP = np.zeros((len(rules), len(space.shard_arrays.span_P)), dtype=bool)
        for has_rule_P, rule in zip(self.apart_RP, rules, strict=True):
            has_rule_G = np.array([rule in group.apart for group in space.groups])
            has_rule_P[table.shard_A[has_rule_G[group_A]]] = True

    def cheapest(self, fault_O: Indices | Mask) -> Indices:
        """Return each group's cheapest option among those with the lowest ``fault_O`` (rule violation), [G]."""
        return cheapest_options(self.table, self.times.total_O + FAULT * fault_O)

    def place(self, option_NG: Indices, by_width_N: Mask, scale_NG: FloatArray | float = 1.0) -> Indices:
        """Return the devices (or blocks of devices) of all shards, [N, G, S]; they may exceed the memory."""
        table, devices, times = self.table, self._devices, self.times
        count, groups = option_NG.shape
        place_NGS = np.zeros((count, groups, table.most_shards), dtype=table.place_type)
        load_ND = np.zeros((count, devices))
        free_ND = np.repeat(self.space.memory_D[None], count, axis=0)
        is_single_NG = table.span_O[option_NG] == 1
        total_NG = np.where(is_single_NG, times.total_O[option_NG] * scale_NG, 0.0)
        # Rows and replicas first, then groups with few devices to choose from, then narrow shards, then the longest.
        class_NG = np.where(by_width_N[:, None], np.searchsorted(self.space.lane_limits, table.width_O)[option_NG], 0)
        few_G = np.zeros(groups) if self.allowed_GD is None else self.allowed_GD.sum(axis=1)
        few_NG = np.broadcast_to(few_G, (count, groups))
        order_NG = np.lexsort((-times.longest_O[option_NG], class_NG, few_NG, is_single_NG))
        far_CND = self._far(class_NG, total_NG) if by_width_N.any() else None
        rows = np.arange(count)
        apart: dict[int, Mask] = {}
        for step in range(groups):
            group_N = order_NG[:, step]
            option_N, key_ND = option_NG[rows, group_N], load_ND
            if far_CND is not None:
                key_ND = load_ND + far_CND[class_NG[rows, group_N], rows] * is_single_NG[rows, group_N, None]
            place_NGS[rows, group_N] = self.put(group_N, option_N, key_ND, load_ND, free_ND, apart)
        return place_NGS

    def _far(self, class_NG: Indices, total_NG: FloatArray) -> FloatArray:
        """Return penalties that keep each class of shard widths on its own devices, [classes, N, D].

        A class gets devices in proportion to its work. Shards that do not fit go to devices of wider ones, then to any.
        """
        classes, device_D = len(self.space.lane_limits) + 1, np.arange(self._devices)
        work_CN = np.array([(total_NG * (class_NG == number)).sum(axis=1) for number in range(classes)])
        share_CN = work_CN.cumsum(axis=0) / np.maximum(work_CN.sum(axis=0), 1e-12)
        end_CN = np.round(share_CN * self._devices)
        first_CN = np.minimum(np.concatenate([np.zeros_like(end_CN[:1]), end_CN[:-1]]), self._devices - 1)
        end_CN = np.maximum(end_CN, first_CN + 1)
        far_CND = (device_D >= end_CN[..., None]) + 2.0 * (device_D < first_CN[..., None])
        return np.asarray(FAR * far_CND)

    def put(
        self,
        group_N: Indices,
        option_N: Indices,
        key_ND: FloatArray,
        load_ND: FloatArray,
        free_ND: Indices,
        apart: dict[int, Mask],
    ) -> Indices:
        """Place one group of each start on the devices with the lowest ``key_ND``; update loads, memory and ``apart``.

        Args:
            apart: for each keep-apart rule, the devices that have one of its tables, [N, D].
        """
        table = self.table
        no_room_ND = free_ND < table.bytes_O[option_N][:, None]
        key_ND = key_ND + no_room_ND * (NO_MEMORY - free_ND / max(free_ND.max(), 1))
        if self.allowed_GD is not None:
            key_ND = np.where(self.allowed_GD[group_N], key_ND, FORBIDDEN)
        rules = [self.space.groups[group].apart for group in group_N.tolist()]
        ruled = [(row, rule) for row, own in enumerate(rules) for rule in own]
        for row, rule in ruled:
            taken_ND = apart.setdefault(rule, np.zeros(load_ND.shape, dtype=bool))
            key_ND[row, taken_ND[row]] = FORBIDDEN
        place_NS = self.places(option_N, key_ND)
        row_F, slot_F = np.nonzero(np.arange(place_NS.shape[1]) < table.count_O[option_N][:, None])
        span_F = table.span_O[option_N[row_F]]
        first_F = place_NS[row_F, slot_F] * span_F
        if (span_F > 1).any():
            from_F, offset_F = repeat_numbers(span_F)
            row_F, first_F = row_F[from_F], first_F[from_F] + offset_F
        # Each device has at most one shard of an option, so indices are unique.
        load_ND[row_F, first_F] += self.times.longest_O[option_N][row_F]
        free_ND[row_F, first_F] -= table.bytes_O[option_N][row_F]
        for row, rule in ruled:
            apart[rule][row, place_NS[row, : table.count_O[option_N[row]]]] = True
        return place_NS

    def places(self, option_M: Indices, key_MD: FloatArray) -> Indices:
        """Return the devices (or blocks) with the lowest keys for each option's shards, on one node if required."""
        table, devices = self.table, self._devices
        place_MS = np.zeros((len(option_M), table.most_shards), dtype=table.place_type)
        shape_M = table.span_O[option_M] * (devices + 1) + table.home_O[option_M]
        for shape in np.unique(shape_M).tolist():
            own = np.flatnonzero(shape_M == shape)
            span, home = divmod(shape, devices + 1)
            count_M = table.count_O[option_M[own]]
            most = int(count_M.max())
            key_MQ = key_MD[own].reshape(len(own), -1, span).max(axis=-1)
            if home in (span, devices):
                found = _least(key_MQ, most)
            else:
                key_MHQ = key_MQ.reshape(len(own), devices // home, -1)
                total_MHQ = np.sort(key_MHQ, axis=-1).cumsum(axis=-1)
                home_M = np.take_along_axis(total_MHQ, count_M[:, None, None] - 1, axis=-1)[..., 0].argmin(axis=1)
                found = _least(key_MHQ[np.arange(len(own)), home_M], most) + (home_M * key_MHQ.shape[2])[:, None]
            place_MS[own, : found.shape[1]] = np.where(np.arange(found.shape[1]) < count_M[:, None], found, 0)
        return place_MS

    # Rules ------------------------------------------------------------------------------------------------------------

    def count_apart(self, chains: Chains) -> Indices:
        """Count, for each keep-apart rule, the shards of its tables on each device, [R, N, D]."""
        found = [chains.sum_by_device(chains.all_shards, has_P, chains.num) for has_P in self.apart_RP]
        return np.array(found, dtype=np.int64).reshape(-1, chains.num, self._devices)

    def is_legal(self, chains: Chains) -> Mask:
        """Return True where groups are on allowed devices and no device has two tables that must stay apart, [N]."""
        is_legal_N = np.asarray(~(self.count_apart(chains) > 1).any(axis=(0, 2)))
        if self.allowed_GD is not None:
            numbers = np.arange(len(chains.all_group_F))
            shards = chains.all_shards
            each = chains.expand_to_devices(replace(shards, change_F=numbers))
            is_allowed_F = self.allowed_GD[chains.all_group_F[each.change_F], each.device_F]
            is_legal_N[shards.change_F[each.change_F[~is_allowed_F]]] = False
        return is_legal_N


def _least(key_MQ: FloatArray, most: int) -> Indices:
    """Return the indices of the ``most`` smallest values per row, [M, most]; of equal values the first."""
    if 1 < most > key_MQ.shape[1] // DEVICES_PER_ARGMIN:
        return np.asarray(np.argsort(key_MQ, axis=1, kind="stable")[:, :most])
    key_MQ, rows = key_MQ.copy() if most > 1 else key_MQ, np.arange(len(key_MQ))
    found = []
    for _ in range(most):
        found.append(key_MQ.argmin(axis=1))
        if len(found) < most:
            key_MQ[rows, found[-1]] = np.inf
    return np.stack(found, axis=1)


def cheapest_options(table: OptionTable, cost_O: FloatArray) -> Indices:
    """Return each table group's option with the least cost, the first of equal ones, [G]."""
    least = np.flatnonzero(cost_O <= np.minimum.reduceat(cost_O, table.first_option_G)[table.group_O])
    _, first = np.unique(table.group_O[least], return_index=True)
    return least[first]
