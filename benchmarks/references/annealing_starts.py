"""The starts of annealing: greedy placements on the true cost, with all ways to keep large tables together.

A device that holds few rows sorts its indices in fewer passes. Which devices these are is decided here, for each number
of them; annealing keeps to it.

Legend: S starts, T tables, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.references.annealing import Start
from benchmarks.references.shard_times import IntArray, ShardTimes
from evenshard.measure.simulated.shard_work import NUM_ROWS
from evenshard.sharders.search.whole_starts import row_splits

MAX_SPLITS = 16  # numbers of devices with few rows that are tried; all up to 16 devices
PER_KIND = 3  # starts of one kind that go on
Ranked = list[tuple[float, Start]]


def greedy_starts(times: ShardTimes, num_devices: int) -> list[Start]:
    """Longest-processing-time-first on the true cost, once without limits and once for each split by rows.

    Tables that may not go everywhere come first. Splits for which that finds no room are left out.
    """
    rows_T = times.columns_TC[:-1, NUM_ROWS]
    allowed_STD, limit_SD = row_splits(rows_T, times.alone_ms_T, num_devices, times.row_limits[1:], MAX_SPLITS)
    starts, tables, devices = allowed_STD.shape
    sums_SDC = np.zeros((starts, devices, times.columns_TC.shape[1]))
    device_of_ST = np.zeros((starts, tables), dtype=np.int64)
    placed_S = np.ones(starts, dtype=bool)
    longest_first_ST = np.lexsort((np.broadcast_to(-times.alone_ms_T, (starts, tables)), allowed_STD.all(axis=2)))
    every = np.arange(starts)
    nothing_N = np.full(starts * devices, tables)
    for table_S in longest_first_ST.T:
        came_N = np.repeat(table_S, devices)
        before_NC = sums_SDC.reshape(starts * devices, -1)
        after_NC = times.after_exchange(before_NC, nothing_N, came_N, nothing_N[:, None])
        room_N = times.fits(after_NC) & (times.rows(after_NC) <= limit_SD.ravel()) & allowed_STD[every, table_S].ravel()
        ms_SD = np.where(room_N, times.alone_with_wait_ms(after_NC), np.inf).reshape(starts, devices)
        device_S = ms_SD.argmin(axis=1)
        placed_S &= np.isfinite(ms_SD[every, device_S])
        device_of_ST[every, table_S] = device_S
        sums_SDC[every, device_S] = after_NC.reshape(starts, devices, -1)[every, device_S]
    return [Start(device_of_ST[start], limit_SD[start]) for start in np.flatnonzero(placed_S).tolist()]


def best_of_kinds(ranked: Ranked, share: float) -> list[Start]:
    """A few starts of each of the best kinds. A kind is how many devices keep to which limit.

    Args:
        ranked: ms and start, best first.
        share: share of the kinds that go on.
    """
    kinds: dict[tuple[float, ...], list[Start]] = {}
    for _, start in ranked:
        kinds.setdefault(tuple(sorted(start.row_limit_D.tolist())), []).append(start)
    best = list(kinds.values())[: math.ceil(len(kinds) * share)]
    return [start for of_kind in best for start in of_kind[:PER_KIND]]


def within_its_limits(times: ShardTimes, device_of_T: IntArray) -> Start:
    """The placement, each of its devices kept to the lowest limit that it is within."""
    limits = np.array([*times.row_limits, np.inf])
    return Start(device_of_T, limits[np.searchsorted(limits, times.rows(times.sums(device_of_T)))])


def ranked_starts(times: ShardTimes, starts: Sequence[Start], slack: float) -> Ranked:
    """The starts that fit and are no more than ``slack`` times as slow as the best of them, best first."""
    ranked = sorted(((times.slowest_ms(start.device_of_T), start) for start in starts), key=lambda one: one[0])
    return [(ms, start) for ms, start in ranked if ms < math.inf and ms <= slack * ranked[0][0]]
