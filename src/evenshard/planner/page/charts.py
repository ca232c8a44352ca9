"""The bars of the page: times, memory and rivals, as shares of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from evenshard.planner import highlights
from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.highlights import STEP_PARTS
from evenshard.sharders.catalog import label_of
from evenshard.utils.units import ms_text, pct_text, size_text

NUM_TICKS = 5
HEADROOM = 1.02
"""Of an axis: what is longest ends before its end."""
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
class DeviceBar:
    """What a device does and holds.

    Attributes:
        segments: the five times.
        total_ms: predicted.
        measured_ms, measured_pct: measured time, if there is one.
        num_tables: tables of which it holds all or a part.
        used_bytes, reserved_bytes, cap_bytes: memory of the tables, set aside, in all.
        used_pct, reserved_pct, cap_pct: the same, on the memory axis.
        full_pct: tables, of what is not reserved.
        text: all that in a line.
    """

    device: int
    segments: tuple[Segment, ...]
    total_ms: float
    is_slowest: bool
    measured_ms: float | None
    measured_pct: float
    num_tables: int
    used_bytes: int
    reserved_bytes: int
    cap_bytes: int
    used_pct: float
    reserved_pct: float
    cap_pct: float
    full_pct: float
    text: str


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
    reserved, most = answer.request.reserved_bytes, max(*answer.request.caps_bytes, 1)
    bars = []
    for number, (device, cap) in enumerate(zip(answer.devices, answer.request.caps_bytes, strict=True)):
        times, num_tables = highlights.predicted_step_times(device), len(answer.parts_on_device[number])
        used, room = answer.used_bytes[number], max(cap - reserved, 0)
        measured_ms = None if answer.measured is None else answer.measured.devices[number].total_ms
        full_pct = 100 * used / room if room else 0.0
        each = ", ".join(f"{name} {ms_text(ms)}" for name, ms in zip(STEP_PARTS, times, strict=True))
        text = (
            f"device {number}: {ms_text(device.predicted_total_ms)} ms ({each}); {num_tables:,} tables, "
            f"{size_text(used)} of {size_text(room)} ({pct_text(full_pct)})"
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
                used_bytes=used,
                reserved_bytes=min(reserved, cap),
                cap_bytes=cap,
                used_pct=100 * used / most,
                reserved_pct=100 * min(reserved, cap) / most,
                cap_pct=100 * cap / most,
                full_pct=full_pct,
                text=text,
            )
        )
    return tuple(bars)


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
