"""The axes and bars of the page, and their lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from evenshard.measure.price.step import STEP_PARTS, predicted_step_times
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.memory import DEVICE_COMPONENTS
from evenshard.utils.units import ms_text, pct_text, size_text

NUM_TICKS = 5
# Length of an axis, relative to what is longest on it: that ends before its end.
HEADROOM = 1.02
# Components of memory by the number of their colour.
MEMORY_KINDS = tuple(DEVICE_COMPONENTS)
# Share of all memory: a peak that is at most this much beyond the components is not drawn.
LEAST_PEAK = 0.005


@dataclass(frozen=True)
class Axis:
    """An axis from zero to ``stop``, with a tick at each ``step``."""

    stop: float
    step: float

    @staticmethod
    def of(values: Iterable[float]) -> Axis:
        """An axis that all finite values fit on."""
        longest = max((value for value in values if math.isfinite(value)), default=0.0)
        stop = longest * HEADROOM if longest > 0 else 1.0
        power = 10.0 ** math.floor(math.log10(stop / NUM_TICKS))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * NUM_TICKS >= stop)
        return Axis(stop, step)

    def pct(self, value: float) -> float:
        """Where a value stands, per cent of the axis."""
        return min(max(value / self.stop, 0.0), 1.0) * 100 if math.isfinite(value) else 100.0

    @property
    def step_pct(self) -> float:
        """Distance of two ticks."""
        return self.pct(self.step)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Where ticks stand, and what they say."""
        digits = max(-math.floor(math.log10(self.step)), 0)
        return tuple(
            (self.pct(number * self.step), f"{number * self.step:,.{digits}f}")
            for number in range(math.floor(self.stop / self.step) + 1)
        )


class MemorySegment(NamedTuple):
    """A component of memory: the number of its colour, its name, its size, and its length, per cent of the bar."""

    kind: int
    name: str
    num_bytes: int
    pct: float


@dataclass(frozen=True)
class MemoryBar:
    """The memory of a device, a host, or a host's SSDs.

    ``used_bytes`` is the peak, ``full_pct`` its share of the limit; ``pct`` is the length on the axis of all bars, and
    reserve and peak are per cent of that. A peak of no more than the components, or next to nothing more, is 0.
    """

    label: str
    segments: tuple[MemorySegment, ...]
    used_bytes: int
    limit_bytes: int
    pct: float
    full_pct: float
    reserved_pct: float = 0.0
    peak_pct: float = 0.0


def time_axis(answer: PlacementAnswer) -> Axis:
    """The axis of device times."""
    totals = [device.predicted_total_ms for device in answer.devices]
    return Axis.of([*totals, *answer.measured_device_ms, answer.predicted_ms, answer.high_ms, answer.lower_bound_ms])


def rival_axis(answer: PlacementAnswer) -> Axis:
    """Step times of evenshard and its rivals."""
    rivals = [time for one in answer.comparison for time in (one.predicted_ms, one.measured_ms) if time is not None]
    measured = [] if answer.measured_ms is None else [answer.measured_ms]
    return Axis.of([answer.predicted_ms, *measured, *rivals])


def device_bars(answer: PlacementAnswer) -> tuple[MemoryBar, ...]:
    """The memory of each device, by device id."""
    most = max(*answer.request.caps_bytes, 1)
    return tuple(
        MemoryBar(
            label=f"device {one.device}",
            segments=_segments(one.components, one.cap),
            used_bytes=one.most_bytes,
            limit_bytes=one.limit_bytes,
            pct=100 * one.cap / most,
            full_pct=100 * one.full,
            reserved_pct=100 * min(one.reserved / one.cap, 1) if one.cap else 0.0,
            peak_pct=100 * one.peak / one.cap if one.peak > one.counted_bytes + LEAST_PEAK * one.cap else 0.0,
        )
        for one in answer.memory
    )


def host_bars(answer: PlacementAnswer) -> tuple[MemoryBar, ...]:
    """Memory and SSDs of each host, as far as any host uses them."""
    hosts, found = answer.host_memory, []
    most = max(1, *(max(one.room, one.ssd_room) for one in hosts))
    for host in hosts:
        name = f"host {host.node}" if len(hosts) > 1 else "host"
        if any(one.used_bytes for one in hosts):
            segments = _segments((("weights", host.weights), ("optimizer state", host.optimizer_state)), host.room)
            pcts = 100 * host.room / most, 100 * host.full
            found.append(MemoryBar(name, segments, host.used_bytes, host.room, *pcts))
        if any(one.ssd for one in hosts):
            segments = _segments((("weights", host.ssd),), host.ssd_room)
            pcts = 100 * host.ssd_room / most, 100 * host.ssd_full
            found.append(MemoryBar(f"{name}, SSDs", segments, host.ssd, host.ssd_room, *pcts))
    return tuple(found)


def _segments(components: Iterable[tuple[str, int]], all_bytes: int) -> tuple[MemorySegment, ...]:
    return tuple(
        MemorySegment(MEMORY_KINDS.index(name), name, size, 100 * size / all_bytes if all_bytes else 0.0)
        for name, size in components
        if size
    )


def device_text(answer: PlacementAnswer, number: int) -> str:
    """Return the times and the memory of a device, in a line."""
    device, memory = answer.devices[number], answer.memory[number]
    times = zip(STEP_PARTS, predicted_step_times(device), strict=True)
    each = ", ".join(f"{name} {ms_text(ms)}" for name, ms in times)
    held = ", ".join(f"{name} {size_text(size)}" for name, size in memory.components if size)
    return (
        f"device {number}: {ms_text(device.predicted_total_ms)} ms ({each}), waits "
        f"{ms_text(device.predicted_wait_ms)} ms; "
        f"{len(answer.parts_on_device[number]):,} tables, {size_text(memory.most_bytes)} of "
        f"{size_text(memory.limit_bytes)} ({pct_text(100 * memory.full)}; {held or 'nothing'})"
    )
