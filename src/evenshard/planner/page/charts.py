"""The bars of the page: times, memory and rivals, as shares of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from evenshard.planner import highlights
from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.highlights import STEP_PARTS
from evenshard.planner.memory import DEVICE_COMPONENTS
from evenshard.sharders.catalog import label_of
from evenshard.utils.units import ms_text, pct_text, size_text

NUM_TICKS = 5
HEADROOM = 1.02
"""Of an axis: what is longest ends before its end."""
MEMORY_KINDS = tuple(DEVICE_COMPONENTS)
"""Components of memory by the number of their colour."""
LEAST_PEAK = 0.005
"""Of all memory: a peak that is no more beyond the components is not drawn."""
LABELLED_PCT = 7.0
"""A segment this wide has room for its number."""


@dataclass(frozen=True)
class Axis:
    """From zero to ``stop``.

    Attributes:
        stop: the value at its end.
        step: distance between ticks.
    """

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


@dataclass(frozen=True)
class Segment:
    """One of the five times of a device.

    Attributes:
        kind: its number, 0 to 4, which gives its colour.
        pct: its length on the axis.
        label: its number, where there is room.
    """

    kind: int
    ms: float
    pct: float
    label: str


@dataclass(frozen=True)
class MemorySegment:
    """A component of the memory of a device or host.

    Attributes:
        kind: its number, which gives its colour.
        name: as in ``memory.DEVICE_COMPONENTS``.
        pct: its length, of all that the device or host has.
    """

    kind: int
    name: str
    num_bytes: int
    pct: float


@dataclass(frozen=True)
class DeviceBar:
    """What a device does and holds.

    Attributes:
        segments: the five times.
        total_ms: predicted.
        measured_ms, measured_pct: measured time, if there is one.
        num_tables: tables of which it holds all or a part.
        memory: the components of its memory that it has some of.
        used_bytes, limit_bytes, reserved_bytes, cap_bytes: taken at the peak, what that may be, set aside, in all.
        peak_pct: the peak, of all that it has; 0 where it is no more than the components, or next to nothing more.
        reserved_pct: set aside, of all that it has.
        cap_pct: all that it has, on the memory axis.
        full_pct: taken, of what is not reserved.
        text: all that in a line.
    """

    device: int
    segments: tuple[Segment, ...]
    total_ms: float
    is_slowest: bool
    measured_ms: float | None
    measured_pct: float
    num_tables: int
    memory: tuple[MemorySegment, ...]
    used_bytes: int
    limit_bytes: int
    reserved_bytes: int
    cap_bytes: int
    peak_pct: float
    reserved_pct: float
    cap_pct: float
    full_pct: float
    text: str


@dataclass(frozen=True)
class HostBar:
    """What a host holds in its memory or on its SSDs.

    Attributes:
        label: which host, and which of the two.
        memory: weights, optimizer state.
        used_bytes, room_bytes: taken, and what tables may take.
        room_pct: that, on the axis of hosts.
        full_pct: taken, of that.
    """

    label: str
    memory: tuple[MemorySegment, ...]
    used_bytes: int
    room_bytes: int
    room_pct: float
    full_pct: float


@dataclass(frozen=True)
class RivalBar:
    """Another sharder beside the answer.

    Attributes:
        pct: length of its predicted time; 0 where it found no placement.
        measured_pct: position of its measured time, if there is one.
        difference: difference to the answer, in words; empty without a placement.
        verdict: "", "no placement" or "breaks a rule".
    """

    name: str
    predicted_ms: float | None
    measured_ms: float | None
    pct: float
    measured_pct: float
    difference: str
    verdict: str
    note: str


def time_axis(answer: PlacementAnswer) -> Axis:
    """Of device times."""
    totals = [device.predicted_total_ms for device in answer.devices]
    measured = [] if answer.measured is None else [device.total_ms for device in answer.measured.devices]
    return Axis.of([*totals, *measured, answer.high_ms, answer.lower_bound_ms])


def device_bars(answer: PlacementAnswer, axis: Axis) -> tuple[DeviceBar, ...]:
    """One per device, by device id."""
    slowest = highlights.slowest_device(answer)
    most = max(*answer.request.caps_bytes, 1)
    bars = []
    for number, (device, memory) in enumerate(zip(answer.devices, answer.memory, strict=True)):
        times, num_tables = highlights.predicted_step_times(device), len(answer.parts_on_device[number])
        used, limit, cap = memory.most_bytes, memory.limit_bytes, memory.cap
        measured_ms = None if answer.measured is None else answer.measured.devices[number].total_ms
        segments = _memory_segments(memory.components, cap)
        each = ", ".join(f"{name} {ms_text(ms)}" for name, ms in zip(STEP_PARTS, times, strict=True))
        held = ", ".join(f"{one.name} {size_text(one.num_bytes)}" for one in segments)
        text = (
            f"device {number}: {ms_text(device.predicted_total_ms)} ms ({each}); {num_tables:,} tables, "
            f"{size_text(used)} of {size_text(limit)} ({pct_text(100 * memory.full)}; {held or 'nothing'})"
        )
        bars.append(
            DeviceBar(
                device=number,
                segments=tuple(_segment(kind, ms, axis) for kind, ms in enumerate(times)),
                total_ms=device.predicted_total_ms,
                is_slowest=number == slowest and answer.num_devices > 1,
                measured_ms=measured_ms,
                measured_pct=0.0 if measured_ms is None else axis.pct(measured_ms),
                num_tables=num_tables,
                memory=segments,
                used_bytes=used,
                limit_bytes=limit,
                reserved_bytes=min(memory.reserved, cap),
                cap_bytes=cap,
                peak_pct=100 * memory.peak / cap if memory.peak > memory.counted_bytes + LEAST_PEAK * cap else 0.0,
                reserved_pct=100 * min(memory.reserved / cap, 1) if cap else 0.0,
                cap_pct=100 * cap / most,
                full_pct=100 * memory.full,
                text=text,
            )
        )
    return tuple(bars)


def _memory_segments(components: Iterable[tuple[str, int]], all_bytes: int) -> tuple[MemorySegment, ...]:
    """Those that are not empty."""
    return tuple(
        MemorySegment(MEMORY_KINDS.index(name), name, size, 100 * size / all_bytes if all_bytes else 0.0)
        for name, size in components
        if size
    )


def host_bars(answer: PlacementAnswer) -> tuple[HostBar, ...]:
    """Memory and SSDs of each host, as far as any host uses them."""
    hosts, found = answer.host_memory, []
    most = max(1, *(max(one.room, one.ssd_room) for one in hosts))
    for host in hosts:
        name = f"host {host.node}" if len(hosts) > 1 else "host"
        if any(one.used_bytes for one in hosts):
            held = (("weights", host.weights), ("optimizer state", host.optimizer_state))
            segments = _memory_segments(held, host.room)
            pcts = 100 * host.room / most, 100 * host.full
            found.append(HostBar(name, segments, host.used_bytes, host.room, *pcts))
        if any(one.ssd for one in hosts):
            segments = _memory_segments((("weights", host.ssd),), host.ssd_room)
            pcts = 100 * host.ssd_room / most, 100 * host.ssd_full
            found.append(HostBar(f"{name}, SSDs", segments, host.ssd, host.ssd_room, *pcts))
    return tuple(found)


def _segment(kind: int, time_ms: float, axis: Axis) -> Segment:
    pct = axis.pct(time_ms)
    return Segment(kind, time_ms, pct, ms_text(time_ms) if pct >= LABELLED_PCT else "")


def rival_axis(answer: PlacementAnswer) -> Axis:
    """Step times of evenshard and its rivals."""
    rivals = [time for one in answer.comparison for time in (one.predicted_ms, one.measured_ms) if time is not None]
    measured = [] if answer.measured is None else [answer.measured.max_device_ms]
    return Axis.of([answer.predicted_ms, *measured, *rivals])


def rival_bars(answer: PlacementAnswer, axis: Axis) -> tuple[RivalBar, ...]:
    """The fastest first; at the end, those without a placement."""
    ordered = sorted(answer.comparison, key=lambda one: (one.predicted_ms is None, one.predicted_ms or 0.0))
    return tuple(_rival_bar(answer, one, axis) for one in ordered)


def _rival_bar(answer: PlacementAnswer, rival: Rival, axis: Axis) -> RivalBar:
    return RivalBar(
        name=label_of(rival.sharder),
        predicted_ms=rival.predicted_ms,
        measured_ms=rival.measured_ms,
        pct=0.0 if rival.predicted_ms is None else axis.pct(rival.predicted_ms),
        measured_pct=0.0 if rival.measured_ms is None else axis.pct(rival.measured_ms),
        difference=highlights.rival_difference(answer, rival),
        verdict="no placement" if rival.predicted_ms is None else "breaks a rule" if rival.note else "",
        note=rival.note,
    )
