"""Price of a simulated device: the device model in additive columns, for fast updates in a search.

``device_model`` computes a whole call. Here each table has a row of columns (features), most of which add up over a
call: memory waits are linear in them, and kernel times are a function of the waits. Only the sharing of the L2 between
tables is approximated during a search (``WindowGrid``); the final prediction (``held_parts_ms``) is exact.

Legend: P tables looked up, N calls or devices, G calls of a device, D devices, H columns, C work quantities.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evenshard.placement.nodes import Nodes
from evenshard.price import device_model
from evenshard.price.device_model import NS_PER_MS, NS_PER_US, US_PER_MS
from evenshard.price.gpu_profile import GpuProfile
from evenshard.price.kernel_calls import EVERY_DEVICE, HeldPart, Lookup, group_by_bags
from evenshard.price.offload import host_link
from evenshard.price.shard_work import CACHED, DENSE, WindowGrid, WorkCounter
from evenshard.price.step import DeviceKind
from evenshard.tables.reuse import FloatArray

TABLES, BAGS, LOOKUPS, ROWS, ROW_BYTES, ROW_MISSES = range(6)
OTHER_NS = slice(6, 8)  # forward and backward time that is neither a wait nor a floor
# Waits of a kernel for instructions, for the L2, and for device memory, ns.
LOOKUP_WAITS, GRADIENT_WAITS = slice(8, 11), slice(11, 14)
# Instructions with a table's own lanes (in ``OTHER_NS``), and with all lanes of a warp, ns.
OWN_LANES, ALL_LANES = slice(14, 18), slice(18, 22)
SHARED = slice(22, 22 + 2 * len(WindowGrid.edges_W))  # columns of ``WindowGrid``, for tables that share the L2
LONGEST_BAG, HOTTEST, WIDEST, IS_CACHED = -4, -3, -2, -1  # maxima over the tables of a call


class DeviceModelPrice:
    """Compute-time price of a simulated GPU, from the constants of its profile; see ``DevicePrice``.

    Attributes:
        floors_ns: times of the kernels of a tiny call, [2, 1].
        spilled_ns_2: additional time of each of a call's ``spilled_lookups``, [2, 1].
        launch_ms_2, overhead_ms_2: host time to launch each call, and to begin a pass.
    """

    num_maxima = 4
    is_by_call = True
    sees_hot_rows = False

    def __init__(self, profile: GpuProfile) -> None:
        self.profile, self._counter = profile, WorkCounter(profile)
        forward_us = profile.bounds_floor_us + profile.lookup_floor_us
        backward_us = profile.index_floor_us + profile.sort_floor_us + profile.gradient_floor_us + profile.bwd_gap_us
        self.floors_ns = np.array([[forward_us], [backward_us]]) * NS_PER_US
        self.launch_ms_2 = np.array([profile.fwd_host_us, profile.bwd_host_us]) / US_PER_MS
        more_ns = profile.index_ns_per_spilled + profile.gradient_ns_per_spilled
        self.spilled_ns_2 = np.array([[profile.lookup_ns_per_spilled], [more_ns]])
        self._cache_ns_2 = np.array([[profile.cached_fwd_us], [profile.cached_bwd_us]]) * NS_PER_US
        self.overhead_ms_2 = np.array([profile.fwd_overhead_us, profile.bwd_overhead_us]) / US_PER_MS
        self._has_lanes = profile.lookup_lane_power > 0 or profile.gradient_lane_power > 0
        self.lane_limits = device_model.LANE_LIMITS if self._has_lanes else ()

    def columns(self, lookups: Sequence[Lookup], dims_P: npt.NDArray[np.int64] | None = None) -> FloatArray:
        """Return the columns (additive features) of tables, [P, H]."""
        profile = self.profile
        work_PC = work_columns(self._counter, lookups, dims_P)
        work = self._counter.work_of_sums(work_PC)
        found = np.zeros((len(lookups), SHARED.stop + self.num_maxima))
        found[:, TABLES], found[:, BAGS], found[:, LOOKUPS] = work.num_tables, work.bags, work.lookups
        found[:, ROWS], found[:, ROW_BYTES], found[:, ROW_MISSES] = work.num_rows, work.row_bytes, work.row_miss_bytes
        checked_ns = device_model.bounds_check_ns(profile, work) - profile.bounds_floor_us * NS_PER_US
        found[:, OTHER_NS] = np.stack([checked_ns, device_model.additive_index_ns(profile, work)], axis=1)
        found[:, LOOKUP_WAITS] = np.stack(device_model.lookup_waits(profile, work)[:3], axis=1)
        for optimizer in {one.optimizer for one in lookups}:
            own = np.array([one.optimizer == optimizer for one in lookups])
            own_work = work.select(own)
            found[own, GRADIENT_WAITS] = np.stack(device_model.gradient_waits(profile, own_work, optimizer)[:3], axis=1)
            found[own, ALL_LANES] = device_model.all_lanes_ns(profile, own_work, optimizer).T
            found[own, OTHER_NS.stop - 1] += device_model.full_warp_ns(profile, own_work, optimizer)
        if self._has_lanes:
            found[:, OWN_LANES] = found[:, ALL_LANES] * device_model.lanes_by_widest(profile, work.widest).T
            found[:, OTHER_NS] += _by_pass(found[:, OWN_LANES].T).T
        found[:, SHARED] = WindowGrid.of_tables(work_PC)
        found[:, LONGEST_BAG], found[:, HOTTEST] = work.longest_bag, work.hottest
        found[:, WIDEST], found[:, IS_CACHED] = work.widest, work.cached
        return found

    def call_ms(self, sums_NH: FloatArray) -> FloatArray:
        """Return forward kernel time, backward kernel time, and backward time outside of kernels, [3, N]."""
        profile, sums_HN = self.profile, np.maximum(sums_NH.T, 0.0)  # differences of sums may round below 0
        more_N = self._shared_misses(sums_HN)
        waits_WPN = np.empty((4, 2, len(sums_NH)))
        waits_WPN[:3, 0], waits_WPN[:3, 1] = sums_HN[LOOKUP_WAITS], sums_HN[GRADIENT_WAITS]
        waits_WPN[2, 0] += more_N / profile.hbm_bytes_per_ns
        misses_N = sums_HN[ROW_MISSES] + more_N
        waits_WPN[3, 0] = device_model.longest_bag_ns(profile, sums_HN[LONGEST_BAG], sums_HN[ROW_BYTES], misses_N)
        waits_WPN[3, 1] = profile.hot_lookup_ns * sums_HN[HOTTEST]
        found = np.empty((3, len(sums_NH)))
        found[:2] = sums_HN[OTHER_NS]
        if self._has_lanes:
            issued_4N = sums_HN[ALL_LANES] * device_model.lanes_by_widest(profile, sums_HN[WIDEST])
            found[:2] += _by_pass(issued_4N - sums_HN[OWN_LANES])
        found[:2] += device_model.overlap(waits_WPN)
        found[:2] += self.spilled_ns_2 * device_model.spilled_lookups(profile, sums_HN[LOOKUPS])
        found[:2] += self.floors_ns + self._cache_ns_2 * sums_HN[IS_CACHED]
        sort_ns = device_model.sort_passes_ns(profile, sums_HN[LOOKUPS], sums_HN[ROWS])
        found[1] += sort_ns + device_model.hot_row_ns(profile, sums_HN[HOTTEST])
        found[1] += profile.index_bag_ns * sums_HN[LONGEST_BAG]
        found[:2] /= NS_PER_MS
        found[2] = device_model.outside_kernels_ms(profile, sums_HN[LOOKUPS])
        found[0] *= sums_HN[TABLES] > 0.5
        found[1:] *= device_model.has_lookups(sums_HN[LOOKUPS])
        return found

    def _shared_misses(self, sums_HN: FloatArray) -> FloatArray:
        """Return the extra L2 miss bytes of calls whose tables share the L2, [N]; see ``WorkCounter``."""
        tables_N = sums_HN[TABLES]
        several_N = np.maximum(tables_N, 2.0)
        in_flight_N = self._counter.tables_in_flight(np.maximum(sums_HN[BAGS], 1.0) / several_N)
        sharing_N = np.minimum(in_flight_N / (several_N - 1), 1.0)
        together_N = WindowGrid.missed_bytes(sums_HN[SHARED], self.profile.l2_bytes)
        return np.asarray((tables_N > 1.5) * sharing_N * np.maximum(together_N - sums_HN[ROW_MISSES], 0.0))

    def device_ms(self, times_QGN: FloatArray, calls_N: npt.NDArray[np.int64]) -> FloatArray:
        """Return the forward and backward time of devices, [2, N]."""
        calls_2N = np.stack([calls_N, (times_QGN[1] > 0).sum(axis=0, dtype=np.float64)])
        took_2N = np.maximum(times_QGN[:2].sum(axis=1), calls_2N * self.launch_ms_2[:, None])
        took_2N += (calls_2N > 0) * self.overhead_ms_2[:, None]
        took_2N[1] += times_QGN[2].max(axis=0)
        return np.asarray(took_2N)

    def held_parts_ms(self, held: Sequence[HeldPart], num_devices: int) -> FloatArray:
        """Return the forward and backward time of devices by the device model, [D, 1, 2]."""
        calls = {call: number for number, call in enumerate(dict.fromkeys(one.call for one in held))}
        lookups: list[Lookup] = []
        cells: list[int] = []
        for one in held:
            first = calls[one.call] * num_devices
            where = range(num_devices) if one.device == EVERY_DEVICE else (one.device,)
            for device in where:
                lookups += one.lookups
                cells += [first + device] * len(one.lookups)
        if not cells:
            return np.zeros((num_devices, 1, 2))
        profile = self.profile
        count = len(calls) * num_devices
        work = self._counter.shard_work(work_columns(self._counter, lookups), np.array(cells, dtype=np.int64), count)
        optimizer_N = np.array([call.optimizer for call in calls]).repeat(num_devices)
        backward_N = np.zeros(count)
        for optimizer in sorted(set(optimizer_N)):
            own = optimizer_N == optimizer
            backward_N[own] = device_model.backward_ns(profile, work.select(own), str(optimizer))
        calls_D, backward_calls_D = (
            some_N.reshape(-1, num_devices).sum(axis=0).astype(np.float64)
            for some_N in (work.num_tables > 0, device_model.has_lookups(work.lookups))
        )
        forward_D = device_model.forward_ns(profile, work).reshape(-1, num_devices).sum(axis=0)
        backward_D = backward_N.reshape(-1, num_devices).sum(axis=0)
        beside_D = device_model.outside_kernels_ms(profile, work.lookups).reshape(-1, num_devices).max(axis=0)
        forward = device_model.pass_ms(forward_D, calls_D, profile.fwd_overhead_us, profile.fwd_host_us)
        backward = device_model.pass_ms(backward_D, backward_calls_D, profile.bwd_overhead_us, profile.bwd_host_us)
        return np.stack([forward, backward + beside_D], axis=1)[:, None]

    def interval(self, members_M: FloatArray) -> float:
        """Return 0; the error of a device model is in its profile's evidence."""
        return 0.0


def _by_pass(issued_4N: FloatArray) -> FloatArray:
    return np.asarray(issued_4N.reshape(2, 2, -1).sum(axis=1))


def work_columns(
    counter: WorkCounter, lookups: Sequence[Lookup], dims_P: npt.NDArray[np.int64] | None = None
) -> FloatArray:
    """Return the work of looked-up tables, with these dims in place of their own, [P, C]."""
    by_bags, rows = group_by_bags(lookups), []
    for bags, numbers in by_bags.items():
        tables = [lookups[at].table for at in numbers]
        rows.append(
            counter.columns(tables, bags) if dims_P is None else counter.narrow_columns(tables, dims_P[numbers], bags)
        )
    found_PC = np.empty((len(lookups), rows[0].shape[1]))
    found_PC[[at for numbers in by_bags.values() for at in numbers]] = np.concatenate(rows)
    found_PC[:, CACHED] = [one.is_cached for one in lookups]
    found_PC[:, DENSE] = [one.is_dense for one in lookups]
    return found_PC


def build_device_kind(profile: GpuProfile, machine: Nodes) -> DeviceKind:
    """Build the ``DeviceKind`` of a profile's devices in a machine."""
    return DeviceKind(DeviceModelPrice(profile), profile.hbm_bytes_per_ns, host_link(machine, profile))
