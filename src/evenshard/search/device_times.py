"""The least time of the mean device, and a larger bound where whole pieces do not fit into devices.

A step leaves each device its time less what it takes whatever it holds: calls, latencies, and what tables take on all
devices alike, such as replicas, rows cut over all of them, and exchanges between all. Into what is left, its room, all
other pieces have to fit. Whether they can is told by dual feasible functions. Such a function gives each piece, by its
share of the room, a number, and pieces that fit together have at most 1 of these: so all pieces together have at most
as many as there are devices. Functions: Martello and Toth, "Lower bounds and reduction procedures for the bin packing
problem" (1990); Fekete and Schepers, "New classes of fast lower bounds for bin packing problems" (2001).

How large the room is depends on what the tables take on all devices alike, so that ranges of that are looked at one by
one, and halved until none is left in which the pieces may fit. Within a range each table takes the option with the
least of its pieces' numbers and of a price for what it takes on all devices (Lagrange).

Some of what a call takes, such as its hottest row, it takes once: the most that one of its pieces needs. That is no
less than a mean of what all of them need, weighted by their work. So what a piece needs beyond what every call does
counts in proportion to its work.

Legend: G groups, O options of a group, W options (in ``Options`` those of a group), Q pieces of options, F functions,
M prices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from evenshard.search.cut_bounds import CutBounds
from evenshard.search.sharding_option import OptionTable
from evenshard.tables.reuse import FloatArray

Numbers = npt.NDArray[np.int64]
# Relative difference of times at which a bisection ends.
CLOSE = 1e-5


@dataclass(frozen=True)
class Options:
    """[G, W] of the options of all groups: work of all devices together, of the slowest piece alone, and memory."""

    total_GW: FloatArray
    alone_GW: FloatArray
    bytes_GW: FloatArray


def least_time_ms(
    options: Options, offset: float, room: float, devices: int, known: float = 0.0
) -> tuple[float, Numbers | None]:
    """The least time into which all groups fit, by bisection, and what each of them chooses there.

    Args:
        known: times below are not asked for: where all fit into that, it is returned, without a choice.
        offset: what each device takes besides.
    """
    if known > 0 and _fit_options(options, known, offset, room, devices) is not None:
        return known, None
    alone_G = np.where(np.isfinite(options.alone_GW), options.alone_GW, 0.0).max(axis=1)
    chosen_G = np.asarray(options.total_GW.argmin(axis=1))
    low, high = known, float(options.total_GW.min(axis=1).sum()) / devices + max(offset, 0.0) + float(alone_G.max())
    high = max(high, low)
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        found_G = _fit_options(options, middle, offset, room, devices)
        if found_G is None:
            low = middle
        else:
            high, chosen_G = middle, found_G
    return low, chosen_G


def _fit_options(options: Options, time_ms: float, offset: float, room: float, devices: int) -> Numbers | None:
    """Return options that fit into a time, as far as a price of memory tells; None if none do."""
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


# For each of these there is a function: see ``_by_share`` and ``_by_count``.
SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
COUNTS = (1, 2, 3, 4, 5)
# Prices, times what it costs all devices to lose room.
PRICES = (0.0, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
# How often a range is halved, and relative to the time how narrow it is at last.
MOST_HALVES, NARROW = 7, 3e-3
# Relative difference of times at which the bisection for whole pieces ends, which is slower.
CLOSE_PIECES = 4e-3
_ROUNDING = 1e-9


@dataclass(frozen=True)
class WholePieces:
    """The time that options take, each of [W]."""

    table: OptionTable
    devices: int
    offset_ms: float  # what each device takes besides
    # A device with the option's longest piece takes at least that; infinite where it is not allowed.
    alone_W: FloatArray
    common_W: FloatArray  # on every device
    once_W: FloatArray  # what a call with the option takes once, beyond what every call of its class takes
    is_spread_W: npt.NDArray[np.bool_]  # whether its pieces are on all devices
    # Of other options, the pieces that take alike, the time of one, and the number of devices with such pieces.
    option_Q: Numbers
    work_Q: FloatArray
    count_Q: FloatArray
    # Tables that are cut by columns, and the work of a part of 1, 2, ... blocks.
    cuts: CutBounds
    cut_FU: FloatArray

    def least_ms(self, low: float, high: float) -> float:
        """A time between these below which no placement is, as large as is found."""
        if not self.may_fit(high):
            return high
        while high - low > CLOSE_PIECES * high:
            middle = (low + high) / 2
            if self.may_fit(middle):
                high = middle
            else:
                low = middle
        return low

    def may_fit(self, time_ms: float) -> bool:
        """False where no placement takes so little."""
        is_allowed_W = self.alone_W <= time_ms
        most = time_ms - self.offset_ms
        least = float(self.table.pad_by_group(np.where(is_allowed_W, self.common_W, np.inf)).min(axis=1).sum())
        ranges = [(0.0, 0, least, most)] if least < most else []
        while ranges:
            _, halves, low, high = heapq.heappop(ranges)
            excess = self._excess(is_allowed_W, most - low, high)
            if excess > _ROUNDING * self.devices:
                continue
            if halves == MOST_HALVES or high - low < NARROW * time_ms:
                return True
            middle = (low + high) / 2
            for half in ((low, middle), (middle, high)):
                heapq.heappush(ranges, (excess, halves + 1, *half))
        return False

    def _excess(self, is_allowed_W: npt.NDArray[np.bool_], room: float, most: float) -> float:
        """Count the pieces above 1 for each device, if every device takes at most ``most``."""
        common_W = self.common_W * (1 + self.is_spread_W * self.once_W / most)
        share_Q = self.work_Q * (1 + self.once_W[self.option_Q] / room) / room
        is_allowed_W = is_allowed_W & (self._widest_W * (1 + self.once_W / room) <= room * (1 + _ROUNDING))
        numbers_FQ = np.stack([of(np.minimum(share_Q, 1.0)) for of in FUNCTIONS]) * self.count_Q
        count = len(self.alone_W)
        numbers_FW = np.array([np.bincount(self.option_Q, numbers_Q, count) for numbers_Q in numbers_FQ])
        prices_M = self.devices / room * np.array(PRICES)
        excess_FM = self._least_FM(np.where(is_allowed_W, numbers_FW, np.inf), common_W, prices_M)
        excess_FM -= self.devices + prices_M * most
        best, price = np.unravel_index(int(excess_FM.argmax()), excess_FM.shape)
        if not np.isfinite(excess_FM).all():
            return float("inf")
        if excess_FM[best, price] <= 0 or not len(self.cuts.options):
            return float(excess_FM[best, price])
        # Cuts by columns may be uneven.
        numbers_W = np.where(is_allowed_W, numbers_FW[best], np.inf)
        share_FU = self.cut_FU * (1 + self.cuts.of_tables(self.once_W)[:, None] / room) / room
        parts_FU = np.where(share_FU <= 1 + _ROUNDING, FUNCTIONS[best](np.minimum(share_FU, 1.0)), np.inf)
        of_cuts = self.cuts.least(parts_FU[None])[0] * self.table.span_O[self.cuts.options]
        numbers_W[self.cuts.options] = np.where(is_allowed_W[self.cuts.options], of_cuts, np.inf)
        least = self._least_FM(numbers_W[None], common_W, prices_M[price, None])[0, 0]
        return float(least - self.devices - prices_M[price] * most)

    @cached_property
    def _widest_W(self) -> FloatArray:
        """Bound the widest piece's time from below, however uneven its cut is."""
        widest_W = np.zeros(len(self.alone_W))
        np.maximum.at(widest_W, self.option_Q, self.work_Q)
        if len(self.cuts.options):
            widest_W[self.cuts.options] = self.cuts.widest(self.cut_FU)
        return widest_W

    def _least_FM(self, numbers_FW: FloatArray, common_W: FloatArray, prices_M: FloatArray) -> FloatArray:
        numbers_FGO = np.stack([self.table.pad_by_group(numbers_W) for numbers_W in numbers_FW])
        common_GO = np.nan_to_num(self.table.pad_by_group(common_W), posinf=0.0)
        priced_FMGO = numbers_FGO[:, None] + prices_M[:, None, None] * common_GO
        return np.asarray(priced_FMGO.min(axis=3).sum(axis=2))


def _by_share(share_Q: FloatArray, least: float) -> FloatArray:
    """Count small pieces as 0, and pieces that leave room for small pieces alone as a whole device."""
    return np.where(share_Q > 1 - least, 1.0, np.where(share_Q < least, 0.0, share_Q))


def _by_count(share_Q: FloatArray, count: int) -> FloatArray:
    """Count whole steps of 1 / (count + 1): at most ``count`` pieces of a device exceed one."""
    times_Q = (count + 1) * share_Q
    return np.where(times_Q == np.round(times_Q), share_Q, np.floor(times_Q) / count)


FUNCTIONS: tuple[Callable[[FloatArray], FloatArray], ...] = (
    lambda share_Q: share_Q,
    *(partial(_by_share, least=one) for one in SHARES),
    *(partial(_by_count, count=one) for one in COUNTS),
)
