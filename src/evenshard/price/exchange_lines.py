"""Straight lines below the times of exchanges, by how much devices hold of what is exchanged: for lower bounds.

No latency is part of them. Some times are common: no device takes less, or waits less, than if all of them had the
mean volume. Of these, curves of links count, by a line for each of some ranges of the mean volume:

- Sums over all devices take as long on each of them.
- One link between all devices carries what a device sends, or what all others do, whichever is more.
- All wait for the longest forward exchange, where nothing else of the step is in its window, and some device has the
  mean volume at least. Sums of a node are alike on all of its devices; but where a domain has several nodes, that
  device may have none of them, and the longest exchange takes what all of them take on the mean, by floors.
- If it is longer, without such sums, by as much as a device of another domain may save in the backward exchange,
  both together are common, too. Let a domain have d more than the mean one. Each of its devices receives the less from
  the others, which saves ``(far - near) * d``, by what a byte takes between domains and, its share of a domain, within
  one. But one of them sends the more forward, ``far_forward * (domains - 1) * d``. If d is below 0, a device of another
  domain does, by as much as ``far_forward * -d`` at least.

What else devices take, a line through 0 bounds by their own volume.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import VOLUMES, Links, Volumes, bends, exchange_times
from evenshard.price.step_time import LARGEST_SUM, hides_inputs
from evenshard.tables.reuse import FloatArray

REPLICATED = "replicated_values"
SUMMED_BY_ALL = ("summed", REPLICATED)
OF_A_NODE = "summed_in_node"
SENT = "sent"
MOST_RANGES = 2
TURN = 1.25


@dataclass(frozen=True)
class ExchangeLine:
    """The least time of exchanges, ms, as far as the mean volume of a device is from ``least`` to ``most``.

    Attributes:
        at_0, slope: on every device, and for each unit of the mean volume.
        own_slope, alone_slope: for each unit of a device's own volume, if all devices have as much, or no other any.
    """

    at_0: float
    slope: float
    own_slope: float
    alone_slope: float
    least: float = 0.0
    most: float = float("inf")

    def turned_against(self, volume: float) -> ExchangeLine:
        """A line that says as little or less of the range, and more of a volume beyond it, if this one is."""
        if self.least <= volume <= self.most:
            return self
        end, factor = (self.least, 1 / TURN) if volume < self.least else (self.most, TURN)
        return replace(self, at_0=self.at_0 + self.slope * end * (1 - factor), slope=self.slope * factor)


def exchange_lines(
    task: ShardingTask, links: Links, pipeline: str, *, beside_nodes: bool = False
) -> list[list[ExchangeLine]]:
    """The lines of each of ``VOLUMES``, and of ``REPLICATED``, for ranges of it, one after the other.

    Args:
        beside_nodes: whether devices may also hold sums of a node, of several in their domain.
    """
    return [_lines_of(task, links, pipeline, name, beside_nodes) for name in (*VOLUMES, REPLICATED)]


def _lines_of(task: ShardingTask, links: Links, pipeline: str, name: str, beside_nodes: bool) -> list[ExchangeLine]:
    even, alone = _volumes(task, name, 1.0), _volumes(task, name, 1.0, alone=True)
    is_alike, waits = task.machine.num_domains == 1 or name in SUMMED_BY_ALL, pipeline != LARGEST_SUM
    counts_3 = np.array([not hides_inputs(pipeline), True, True])
    by_curve_3 = np.array([is_alike, is_alike or (waits and not beside_nodes), is_alike]) & (name != OF_A_NODE)
    is_made_up = name == SENT and not beside_nodes and _makes_up(task, links, pipeline)
    by_floor_3 = ~by_curve_3 & np.array([False, waits and beside_nodes, is_made_up])
    own, of_alone, floor = (
        float(times_3(task, volumes, links.floor) @ (counts_3 & phases_3))
        for volumes, phases_3 in (
            (even, ~by_curve_3 & ~by_floor_3),
            (alone, ~by_curve_3 & ~by_floor_3),
            (even, by_floor_3),
        )
    )

    def curve_ms(volume: float) -> float:
        return float(times_3(task, _volumes(task, name, volume), links) @ (counts_3 & by_curve_3))

    return [
        replace(line, slope=line.slope + floor, own_slope=own, alone_slope=of_alone)
        for line in _lines_below(curve_ms, bends(task, even, links))
    ]


def _lines_below(curve_ms: Callable[[float], float], points: list[float]) -> list[ExchangeLine]:
    """Return lines below a time that is straight between these volumes, and 0 at 0."""
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


def _makes_up(task: ShardingTask, links: Links, pipeline: str) -> bool:
    """Return whether the forward exchange of sent tables takes longer by what the backward one saves."""
    machine = task.machine
    if pipeline == LARGEST_SUM or links.inter is None or links.inter.curves:
        return False
    even, floors = _volumes(task, SENT, 1.0), links.floor
    free = replace(floors.intra, bandwidth_gb_s=np.inf, slowest_gb_s=np.inf, shared_gb_s=np.inf, curves=())
    all_3, far_3 = times_3(task, even, floors), times_3(task, even, replace(floors, intra=free))
    far_forward, far = (far_3[1:] / (machine.num_devices - machine.domain_size)).tolist()
    saved: float = far - float(all_3[2] - far_3[2]) / machine.domain_size
    return bool(-far_forward <= saved <= far_forward * (machine.num_domains - 1))


def _volumes(task: ShardingTask, name: str, volume: float, *, alone: bool = False) -> Volumes:
    found = Volumes.empty(task.num_devices)
    if name == REPLICATED:
        found.replicated_values = 0.0 if alone else volume
    else:
        getattr(found, name)[: 1 if alone else None] = volume
    return found


def times_3(task: ShardingTask, volumes: Volumes, links: Links) -> FloatArray:
    """[3] what each exchange takes on the first device, latencies left aside."""
    found = exchange_times(task, volumes, links)
    return np.array([float(found.input_dist[0]), float(found.forward[0]), float(found.backward[0])])
