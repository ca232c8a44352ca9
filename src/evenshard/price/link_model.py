"""Times of exchanges over a link: a fixed time, and times that grow with three counts of bytes.

The three counts: what a device itself moves in the busier of its two directions, what the device that moves most does
(the others wait for its data), and what all devices send together (through a host's memory, it takes turns).
In an even exchange of N devices each sends and receives (N - 1) / N of its buffer. NCCL's bus bandwidth is these bytes
over the time, so on a switch, where only a device's own direction counts, it is ``bandwidth_gb_s`` of long exchanges.
Of a link between nodes, ``bandwidth_gb_s`` is for the bytes that cross it: each device has a link of its own there, and
NVLink carries the rest of an exchange (``price.collectives``).

A link that was measured closely has curves besides: the time of each collective between so many devices that all move
as much. NCCL changes its protocol and its channels with the size, so that bandwidth grows with it in steps: a curve is
straight between a few points, and goes straight on beyond the last. The three counts then say as how many bytes of an
even exchange an uneven one counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from evenshard.base.units import seconds_to_ms
from evenshard.price.evidence import DeviceError, Evidence
from evenshard.tables.reuse import FloatArray

BYTES_PER_VALUE = 4  # pooled embeddings and their gradients travel as FP32
# The constants of a link that are bandwidths, and the bytes that each is for.
BANDWIDTHS = {
    "bandwidth_gb_s": "a device's own bytes",
    "slowest_gb_s": "those of the device that moves most",
    "shared_gb_s": "those of all devices",
}

ALL_TO_ALL, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all_to_all", "all_gather", "reduce_scatter", "all_reduce"
COLLECTIVES = (ALL_TO_ALL, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)
_FAR_BYTES = 1e16


def moved_share(collective: str, num_devices: int) -> float:
    """Bytes that a device moves in the busier direction, for each byte of its whole buffer."""
    return (2 if collective == ALL_REDUCE else 1) * (num_devices - 1) / num_devices


@dataclass(frozen=True)
class Curve:
    """The time of one of ``COLLECTIVES`` between so many devices that all move as much.

    Attributes:
        kb: points, the first at 0: 10**3 bytes that each device moves in the busier of its two directions.
        us: microseconds at the points; the first is the latency.
        gb_s: bandwidth of bytes beyond the last point.
    """

    collective: str
    num_devices: int
    kb: tuple[float, ...]
    us: tuple[float, ...]
    gb_s: float

    def problem(self) -> str | None:
        """Return what makes it impossible in one clause, or None."""
        if self.collective not in COLLECTIVES:
            return f"collective is none of {', '.join(COLLECTIVES)}"
        if self.num_devices < 2:
            return "num_devices is below 2"
        if len(self.kb) != len(self.us) or not self.kb or self.kb[0] != 0:
            return "kb does not begin at 0, or us is not as long"
        finite = all(math.isfinite(one) for one in (*self.kb, *self.us, self.gb_s))
        if not finite or any(high <= low for low, high in zip(self.kb, self.kb[1:], strict=False)):
            return "kb does not rise"
        if self.us[0] < 0 or any(high < low for low, high in zip(self.us, self.us[1:], strict=False)):
            return "us falls"
        return None if self.gb_s > 0 else "gb_s is not above 0"

    @property
    def latency_ms(self) -> float:
        """Time without any bytes."""
        return self.us[0] / 1e3

    def bytes_ms(self, moved: FloatArray | float) -> FloatArray:
        """Return the time of bytes without the latency, [any shape]."""
        return np.asarray(np.interp(moved, *self._points))

    @cached_property
    def _points(self) -> tuple[FloatArray, FloatArray]:
        """Return bytes and ms above the latency, with one far point so that every size is between two."""
        moved, ms = 1e3 * np.array(self.kb), (np.array(self.us) - self.us[0]) / 1e3
        beyond_ms = ms[-1] + (_FAR_BYTES - moved[-1]) / self.gb_s / 1e6
        return np.append(moved, _FAR_BYTES), np.append(ms, beyond_ms)

    @property
    def floor(self) -> Curve:
        """A straight line that is nowhere above it, of the same latency."""
        more_us = np.array(self.us[1:]) - self.us[0]
        chords = np.divide(self.kb[1:], more_us, out=np.full(len(more_us), np.inf), where=more_us > 0)
        return replace(self, kb=(0.0,), us=self.us[:1], gb_s=float(chords.max(initial=self.gb_s)))

    def faster(self, factor: float) -> Curve:
        """The curve with the same latency, and with all bytes so many times as fast."""
        us = tuple(self.us[0] + (one - self.us[0]) / factor for one in self.us)
        return replace(self, us=us, gb_s=self.gb_s * factor)


def mean_curve(curves: Sequence[Curve], weights: Sequence[float]) -> Curve:
    """The weighted mean of times at each number of bytes."""
    kb = sorted({point for one in curves for point in one.kb})
    ms = [one.latency_ms + one.bytes_ms(1e3 * np.array(kb)) for one in curves]
    us = 1e3 * np.average(ms, axis=0, weights=weights)
    ns_per_byte = np.average([1 / one.gb_s for one in curves], weights=weights)
    return replace(curves[0], kb=tuple(kb), us=tuple(us.tolist()), gb_s=float(1 / ns_per_byte))


def curve_at(curves: Sequence[Curve], collective: str, num_devices: int) -> Curve | None:
    """The curve between so many devices; None where none of the collective is known.

    Between two known numbers of devices times are interpolated along the logarithm of the number; below the least and
    above the largest they are those of that number.
    """
    known = {one.num_devices: one for one in curves if one.collective == collective}
    if not known:
        return None
    below = max((one for one in known if one <= num_devices), default=min(known))
    above = min((one for one in known if one >= num_devices), default=max(known))
    if below == above:
        return known[below]
    weight = math.log(num_devices / below) / math.log(above / below)
    return replace(mean_curve([known[below], known[above]], [1 - weight, weight]), num_devices=num_devices)


@dataclass(frozen=True)
class Link:
    """A link between devices. Its bandwidths are 10**9 bytes per second; infinite where those bytes take no time.

    Attributes:
        latency_us: microseconds that an exchange takes besides its bytes.
        bandwidth_gb_s, slowest_gb_s, shared_gb_s: for the bytes that ``BANDWIDTHS`` names.
        forward_share: duration of a forward exchange over that of the backward one.
        spans: devices that it connects; infinite for any number.
        curves: times of collectives; those without a curve go by the numbers above.
        evidence: measured exchanges that the numbers were fitted to or compared with.
        extrapolated_from: the links or points that a rule made the numbers of; empty for none.
    """

    latency_us: float
    source: str
    bandwidth_gb_s: float = math.inf
    slowest_gb_s: float = math.inf
    shared_gb_s: float = math.inf
    forward_share: float = 1.0
    spans: float = math.inf
    curves: tuple[Curve, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    extrapolated_from: str = ""

    @property
    def error(self) -> DeviceError:
        """Error of its exchanges by the evidence; unconfirmed links count as devices do."""
        return DeviceError.of(self.evidence, bool(self.extrapolated_from))

    @cached_property
    def floor(self) -> Link:
        """A link that takes no more for any bytes, in proportion to them."""
        return replace(self, curves=tuple(one.floor for one in self.curves)) if self.curves else self

    @cached_property
    def _curve_of(self) -> dict[tuple[str, int], Curve | None]:
        return {}

    def curve(self, collective: str, num_devices: int) -> Curve | None:
        """The curve of a collective between so many devices; None where it goes by the link's own numbers."""
        key = collective, num_devices
        if key not in self._curve_of:
            self._curve_of[key] = curve_at(self.curves, collective, num_devices)
        return self._curve_of[key]

    def latency_ms(self, num_devices: int, collective: str = ALL_TO_ALL) -> float:
        """Return the time of a collective without its bytes."""
        curve = self.curve(collective, num_devices)
        return self.latency_us / 1e3 if curve is None else curve.latency_ms

    def bytes_ms(
        self,
        own: FloatArray | float,
        slowest: FloatArray | float,
        shared: FloatArray | float,
        num_devices: int,
        collective: str = ALL_TO_ALL,
    ) -> FloatArray:
        """Return the time that bytes take without the latency, [any shape] ms.

        Args:
            own, slowest, shared: bytes of the device's own busier direction, of the device that moves most, and of all.
        """
        curve = self.curve(collective, num_devices)
        if curve is not None:
            return curve.bytes_ms(self.even_bytes(own, slowest, shared, num_devices))
        return np.asarray(self._straight_seconds(own, slowest, shared) * seconds_to_ms(1.0))

    def even_bytes(
        self, own: FloatArray | float, slowest: FloatArray | float, shared: FloatArray | float, num_devices: int
    ) -> FloatArray | float:
        """Bytes of an even exchange that takes as long, on a straight line; for the arguments see ``bytes_ms``."""
        if self.counts_own_alone:
            return own
        return self._straight_seconds(own, slowest, shared) * 1e9 * self._straight_gb_s(num_devices)

    def _straight_seconds(
        self, own: FloatArray | float, slowest: FloatArray | float, shared: FloatArray | float
    ) -> FloatArray | float:
        return (own / self.bandwidth_gb_s + slowest / self.slowest_gb_s + shared / self.shared_gb_s) / 1e9

    @property
    def counts_own_alone(self) -> bool:
        """True if the time of a device depends on its own bytes alone."""
        return math.isinf(self.slowest_gb_s) and math.isinf(self.shared_gb_s)

    @property
    def tier(self) -> str:
        """Tier of the link: intra within a node, or several that it spans, inter between nodes."""
        return "inter" if math.isinf(self.spans) else "intra"

    def even_gb_s(self, num_devices: int) -> float:
        """NCCL's bus bandwidth of a long backward exchange in which all devices send alike."""
        curve = self.curve(ALL_TO_ALL, num_devices)
        return self._straight_gb_s(num_devices) if curve is None else curve.gb_s

    def _straight_gb_s(self, num_devices: int) -> float:
        return 1 / (1 / self.bandwidth_gb_s + 1 / self.slowest_gb_s + num_devices / self.shared_gb_s)
