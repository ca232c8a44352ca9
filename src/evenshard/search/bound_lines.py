"""Linear lower bounds of kernel and communication times, used by ``lower_bound``.

**Kernels.** A ``kernel_calls.DevicePrice`` describes each table by features, its columns. Kernel time is convex in the
sums of the columns, so a tangent is a lower bound for any sum of shards. ``PriceBounds`` has the tangents of a price,
and bounds of times above them that rise in steps, such as radix-sort passes.

**Communication.** A line bounds communication times by the volumes of devices, without latencies. Part of the time is
common to all devices: including its waits, each device takes at least as long as if all had the mean volume.
Common times follow the curves of links, with a line for each of several ranges of the mean volume:

- Reductions over all devices take the same time on each device.
- A single link between all devices carries the bytes that a device sends or that all others send, whichever is more.
- If the output dist is alone between two barriers, all devices wait for the longest, and some device has at least
  the mean volume. Reductions within a node are equal on all of its devices. But if a domain has several nodes, that
  device may have no reduction; the mean over devices of a linear bound is used instead. It is also used if links
  between domains do not limit all-to-alls.
- Without reductions within nodes, output dist and backward all-to-all together are common if a longer output dist
  costs at least the time that a device of another domain may save backward. Suppose a domain has a volume d above the
  mean. Each of its devices then receives less from other domains, which saves at most ``far * d``, where far is the
  time per byte between domains. But one device sends more forward, which costs ``far_forward * (domains - 1) * d``. If
  d is below 0, a device of another domain sends at least ``far_forward * -d`` more.

A line through 0 in a device's own volume bounds its other communication times.

Legend: P tables looked up, H columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import singledispatch

import numpy as np

from evenshard.placement.task import ShardingTask
from evenshard.price import device_model
from evenshard.price.collectives import VOLUMES, Links, Volumes, find_slope_changes
from evenshard.price.device_model import NS_PER_MS
from evenshard.price.kernel_calls import Columns, DevicePrice, alone_ms
from evenshard.price.link_model import Link
from evenshard.price.loads import Mask
from evenshard.price.simulated_price import (
    GRADIENT_WAITS,
    HOTTEST,
    LONGEST_BAG,
    LOOKUP_WAITS,
    LOOKUPS,
    OTHER_NS,
    ROWS,
    DeviceModelPrice,
)
from evenshard.price.step import exchanges_ms_3
from evenshard.price.step_time import LARGEST_SUM, hides_inputs
from evenshard.tables.reuse import FloatArray

REPLICATED = "replicated_values"
SUMMED_BY_ALL = ("summed", REPLICATED)
OF_A_NODE = "summed_in_node"
SENT = "sent"
MOST_RANGES = 2  # ranges of a volume above the first; more ranges multiply the cases of a bound
TILT = 1.25  # factor of a slope in ``tilt_toward``

# Kernels --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TangentLine:
    """Linear lower bound of a kernel call's forward and backward time, as a function of its column sums.

    Its value is ``at_0_2 + slopes_2H @ sums_H``, where ``at_0_2`` is the time at zero columns. With lines for several
    calls of a device, the ``below_2`` of each counts.
    """

    at_0_2: FloatArray
    slopes_2H: FloatArray
    below_2: FloatArray = field(default_factory=lambda: np.zeros(2))  # at most 0

    def compute_work(self, columns_PH: Columns) -> FloatArray:
        """Return each table's contribution to the linear bound, forward and backward, [2, P] ms."""
        return np.asarray(self.slopes_2H @ columns_PH.T)


class SharedSteps:
    """Linear lower bound of the time of steps, such as sort passes, that calls need only for several tables together.

    ``at_0_2`` is the intercept of this bound, forward and backward, ms; it may be negative.
    """

    def __init__(self) -> None:
        self.at_0_2: FloatArray = np.zeros(2)

    def compute_work(self, columns_PH: Columns) -> FloatArray:
        """Return the time that each table adds to this bound, forward and backward, [2, P] ms."""
        return np.zeros((2, len(columns_PH)))


class PriceBounds:
    """Lower bounds, in ms, of the times that a ``DevicePrice`` gives; adding tables must never lower these times."""

    def __init__(self, price: DevicePrice) -> None:
        self.price = price

    def line_at(self, sums_H: FloatArray, calls: int = 0) -> TangentLine:
        """Return a linear lower bound of kernel time that is tight near the given column sums.

        Args:
            calls: the most calls that a device divides these sums into; 0 if unknown.
        """
        raise NotImplementedError

    def own_steps_ms(self, columns_PH: Columns) -> FloatArray:
        """Return the time of sort passes and warp lanes that ``line_at`` leaves out, for each table alone, [2, P]."""
        return np.zeros((2, len(columns_PH)))

    def shared_steps(self, columns_PH: Columns, num_devices: int, total_rows: int) -> SharedSteps:
        """Return a lower bound of the radix-sort time if identical devices split the rows of all tables.

        Args:
            columns_PH: features of tables. The bound holds for any tables, but is tightest for these.
            total_rows: minimum number of rows on all devices together.
        """
        return SharedSteps()

    def least_call_ms(self, columns_PH: Columns) -> FloatArray:
        """Return each table's least one-time cost per call (such as its hottest row), not in ``line_at``, [2, P]."""
        return np.zeros((2, len(columns_PH)))

    def least_ms(self, columns_PH: Columns) -> FloatArray:
        """Return, for each table, the minimum forward plus backward time of any device that holds it, [P]."""
        return alone_ms(self.price, columns_PH)

    def always_has_backward(self, columns_PH: Columns) -> bool:
        """Return True if every call that contains one of these tables has lookups, hence a backward pass."""
        return True

    @property
    def further_call_ms_2(self) -> FloatArray:
        """Return the least kernel time of each additional call of a device, [2]."""
        return np.zeros(2)

    def least_launch_ms_2(self, calls: int) -> FloatArray:
        """Return the minimum forward and backward time of a device that launches ``calls`` kernel calls, [2]."""
        return np.zeros(2)


@singledispatch
def price_bounds(price: DevicePrice) -> PriceBounds:
    """Return the lower bounds of a ``DevicePrice``; each class of prices registers its own (``singledispatch``)."""
    raise TypeError(f"{type(price).__name__} has no lower bounds")


class DeviceModelBounds(PriceBounds):
    """Lower bounds of the device model's times.

    ``shared_steps`` is 0, because each call sorts its own lookups, and a device's number of calls is unknown.
    """

    price: DeviceModelPrice

    def line_at(self, sums_H: FloatArray, calls: int = 0) -> TangentLine:
        """Return a tangent to the memory wait times of a call's kernels as a linear lower bound.

        The waits of several calls are at least those of one call (Minkowski). The bound leaves out the longest bag, the
        hottest row, lanes that a row occupies only because another row is wider, L2 misses caused by other tables, the
        start of each sort pass, time outside of kernels, and a cache's kernels. If the number
        of calls is known, all but the lookups that fit in the L2 in each call count as spilled.
        """
        slopes_2H = np.zeros((2, len(sums_H)))
        others = range(OTHER_NS.start, OTHER_NS.stop)
        for slopes_H, other, waits in zip(slopes_2H, others, (LOOKUP_WAITS, GRADIENT_WAITS), strict=True):
            norm_ns = max(float(device_model.overlap(sums_H[waits])), 1e-9)
            slopes_H[waits] = (sums_H[waits] / norm_ns) ** 2
            slopes_H[other] = 1.0
        at_0_2, below_2 = self.price.overhead_ms_2 + self.further_call_ms_2, np.zeros(2)
        kept = calls * self.price.profile.l2_bytes / device_model.SPILL_BYTES
        if 0 < kept < sums_H[LOOKUPS]:
            spilled_ns_2 = self.price.spilled_ns_2[:, 0]
            slopes_2H[:, LOOKUPS] += spilled_ns_2
            below_2 = -kept * spilled_ns_2 / NS_PER_MS
        return TangentLine(at_0_2, slopes_2H / NS_PER_MS, below_2)

    def own_steps_ms(self, columns_PH: FloatArray) -> FloatArray:
        """Return the radix-sort time that each table's row count alone requires, [2, P]."""
        found_2P = np.zeros((2, len(columns_PH)))
        passes_P = device_model.sort_passes(columns_PH[:, ROWS])
        found_2P[1] = columns_PH[:, LOOKUPS] * passes_P / self.price.profile.sort_pairs_per_ns / NS_PER_MS
        return found_2P

    def least_call_ms(self, columns_PH: FloatArray) -> FloatArray:
        """Return the time of the hottest row, of the longest bag's index kernels and of starting the sort, [2, P]."""
        profile, columns_HP = self.price.profile, columns_PH.T
        starts_P = device_model.sort_passes(columns_HP[ROWS]) * (columns_HP[LOOKUPS] > device_model.ONE_KERNEL_PAIRS)
        once_P = device_model.hot_row_ns(profile, columns_HP[HOTTEST]) + profile.index_bag_ns * columns_HP[LONGEST_BAG]
        once_P += profile.sort_pass_us * device_model.NS_PER_US * starts_P
        return np.stack([np.zeros(len(columns_PH)), once_P]) / NS_PER_MS

    def least_ms(self, columns_PH: FloatArray) -> FloatArray:
        """Return each table's time alone on a device, [P], without terms that fall if the call has more tables."""
        is_bag_H = np.arange(columns_PH.shape[1]) == columns_PH.shape[1] + LONGEST_BAG
        times_QP = self.price.call_ms(np.where(is_bag_H, 0.0, columns_PH))
        times_QP[2] = 0.0
        calls_P = np.ones(len(columns_PH), dtype=np.int64)
        return np.asarray(self.price.device_ms(times_QP[:, None], calls_P).sum(axis=0))

    def always_has_backward(self, columns_PH: FloatArray) -> bool:
        """Return True if every one of these tables has lookups."""
        return bool(device_model.has_lookups(columns_PH[:, LOOKUPS]).all())

    @property
    def further_call_ms_2(self) -> FloatArray:
        """Return the minimum kernel time that each additional call adds, forward and backward, [2]."""
        return np.asarray(self.price.floors_ns[:, 0] / NS_PER_MS)

    def least_launch_ms_2(self, calls: int) -> FloatArray:
        """Return the host time to launch this number of calls, [2]."""
        return np.asarray(self.price.overhead_ms_2 + calls * self.price.launch_ms_2)


price_bounds.register(DeviceModelPrice, DeviceModelBounds)


# Communication -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExchangeLine:
    """Linear lower bound of communication time, ms, valid if the mean volume over devices is ``least`` to ``most``.

    Attributes:
        at_0, slope: what every device takes at least: a constant, plus time per unit of the mean volume.
        own_slope: additional time per unit of a device's own volume, if all devices have equal volumes.
        alone_slope: the same, if no other device has any volume.
    """

    at_0: float
    slope: float
    own_slope: float
    alone_slope: float
    least: float = 0.0
    most: float = float("inf")

    def tilt_toward(self, volume: float) -> ExchangeLine:
        """Return a line that is not above this one in its range, but higher at a ``volume`` outside of the range."""
        if self.least <= volume <= self.most:
            return self
        end, factor = (self.least, 1 / TILT) if volume < self.least else (self.most, TILT)
        return replace(self, at_0=self.at_0 + self.slope * end * (1 - factor), slope=self.slope * factor)


def exchange_lines(
    task: ShardingTask, links: Links, pipeline: str, *, beside_nodes: bool = False
) -> list[list[ExchangeLine]]:
    """Return linear bounds by kind of volume (``VOLUMES``, then ``REPLICATED``), one for each range of volumes.

    Args:
        beside_nodes: True if devices may also have reductions within a node, and a domain has several nodes.
    """
    return [_lines_of(task, links, pipeline, name, beside_nodes) for name in (*VOLUMES, REPLICATED)]


def _lines_of(task: ShardingTask, links: Links, pipeline: str, name: str, beside_nodes: bool) -> list[ExchangeLine]:
    even, alone = _volumes(task, name, 1.0), _volumes(task, name, 1.0, alone=True)
    is_alike, waits = task.machine.num_domains == 1 or name in SUMMED_BY_ALL, pipeline != LARGEST_SUM
    by_mean = beside_nodes or (task.machine.num_domains > 1 and not _is_limited_between_domains(task, links))
    counts_3 = np.array([not hides_inputs(pipeline), True, True])
    by_curve_3 = np.array([is_alike, is_alike or (waits and not by_mean), is_alike]) & (name != OF_A_NODE)
    is_made_up = name == SENT and waits and not by_mean and _forward_outweighs_backward(task, links)
    by_floor_3 = ~by_curve_3 & np.array([False, waits and by_mean, is_made_up])
    by_own_3 = ~by_curve_3 & ~by_floor_3

    def sum_ms(volumes: Volumes, curves: Links, phases_3: Mask) -> float:
        return float(exchanges_ms_3(task, volumes, curves) @ (counts_3 & phases_3))

    def curve_ms(volume: float) -> float:
        return sum_ms(_volumes(task, name, volume), links, by_curve_3)

    own, of_alone = (sum_ms(volumes, links.floor, by_own_3) for volumes in (even, alone))
    floor = sum_ms(even, links.floor, by_floor_3)
    return [
        replace(line, slope=line.slope + floor, own_slope=own, alone_slope=of_alone)
        for line in _lines_below(curve_ms, find_slope_changes(task, even, links))
    ]


def _lines_below(curve_ms: Callable[[float], float], points: list[float]) -> list[ExchangeLine]:
    """Return linear lower bounds of a piecewise linear time that is 0 at volume 0."""
    if not points:
        return [ExchangeLine(0.0, curve_ms(1.0), 0.0, 0.0)]
    kept = points[-MOST_RANGES:]
    below = min(curve_ms(point) / point for point in points if point <= kept[0])
    lines = [ExchangeLine(0.0, below, 0.0, 0.0, most=kept[0])]
    for least, most in zip(kept, [*kept[1:], float("inf")], strict=True):
        least_ms, further = curve_ms(least), min(most, 2 * least)
        slope = (curve_ms(further) - least_ms) / (further - least)
        lines.append(ExchangeLine(least_ms - slope * least, slope, 0.0, 0.0, least, most))
    return lines


def _is_limited_between_domains(task: ShardingTask, links: Links) -> bool:
    """Return True if links between domains limit an even all-to-all of any size."""
    free = replace(links, intra=Link(links.intra.latency_us, "", forward_share=links.intra.forward_share))
    points = find_slope_changes(task, _volumes(task, SENT, 1.0), links) or [1.0]
    volumes = [_volumes(task, SENT, point) for point in (*points, 2 * points[-1])]
    return all((exchanges_ms_3(task, one, links) == exchanges_ms_3(task, one, free))[1:].all() for one in volumes)


def _forward_outweighs_backward(task: ShardingTask, links: Links) -> bool:
    """Return True if a longer output dist takes at least the time that it saves in the backward all-to-all."""
    if links.inter is None or any(len(one.kb) > 1 for one in links.inter.curves):
        return False
    far_forward, far = exchanges_ms_3(task, _volumes(task, SENT, 1.0), links.floor)[1:].tolist()
    return bool(far <= far_forward * (task.machine.num_domains - 1))


def _volumes(task: ShardingTask, name: str, volume: float, *, alone: bool = False) -> Volumes:
    found = Volumes.empty(task.num_devices)
    if name == REPLICATED:
        found.replicated_values = 0.0 if alone else volume
    else:
        getattr(found, name)[: 1 if alone else None] = volume
    return found
