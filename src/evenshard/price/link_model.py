"""Time of a collective on a link: a latency plus terms for three counts of bytes.

The counts are the bytes of the device in the busier of its two directions, those of the device that moves most (the
other devices wait for its data), and those that all devices send together (they share the path through a host's
memory). In an even collective of N devices, each sends and receives (N - 1) / N of its buffer. NCCL's bus bandwidth is
these bytes over the time, so on a switch, where only a device's own direction counts, ``bandwidth_gb_s`` is the bus
bandwidth of long messages. GPUs on PCIe without peer-to-peer share the path through their host: ``shared_gb_s``. For a
link between nodes, ``bandwidth_gb_s`` applies to the bytes between nodes: each device has its own NIC, and NVLink
carries all other bytes of a collective (``price.collectives``). There, the latency grows with the number of devices.

A link with detailed measurements also has curves: the time of each collective for a number of devices that all move the
same bytes. NCCL changes protocol and channels with the message size, so bandwidth grows in steps: a curve is piecewise
linear between a few points, and linear beyond the last. The three counts then convert an uneven collective to the bytes
of an even collective.
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

BYTES_PER_VALUE = 4  # pooled embeddings and their gradients are sent as FP32
# The bandwidths of a link, and the bytes that each applies to.
BANDWIDTHS = {
    "bandwidth_gb_s": "bytes of the device itself",
    "slowest_gb_s": "bytes of the busiest device",
    "shared_gb_s": "bytes of all devices together",
}

ALL_TO_ALL, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all_to_all", "all_gather", "reduce_scatter", "all_reduce"
COLLECTIVES = (ALL_TO_ALL, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)
_FAR_BYTES = 1e16  # beyond any message: the last point of a curve, so that every size is interpolated


def bus_factor(collective: str, num_devices: int) -> float:
    """Return the bytes that a device sends or receives (the larger) per byte of its buffer."""
    return (2 if collective == ALL_REDUCE else 1) * (num_devices - 1) / num_devices


@dataclass(frozen=True)
class Curve:
    """Time of one of ``COLLECTIVES`` by message size, if all ``num_devices`` devices move the same number of bytes."""

    collective: str
    num_devices: int
    kb: tuple[float, ...]  # 10**3 bytes that each device moves in its busier direction, at each point; the first is 0
    us: tuple[float, ...]  # microseconds at each point; the first is the latency
    gb_s: float  # bandwidth of bytes beyond the last point
    us_per_device: float = 0.0  # latency that each device beyond ``num_devices`` adds

    def problem(self) -> str | None:
        """Return why the curve is invalid; None if it is valid."""
        if self.collective not in COLLECTIVES:
            return f"collective is not one of {', '.join(COLLECTIVES)}"
        if self.num_devices < 2:
            return "num_devices is below 2"
        if len(self.kb) != len(self.us) or not self.kb or self.kb[0] != 0:
            return "kb must begin at 0 and have as many values as us"
        finite = all(math.isfinite(one) for one in (*self.kb, *self.us, self.gb_s, self.us_per_device))
        if not finite or any(high <= low for low, high in zip(self.kb, self.kb[1:], strict=False)):
            return "kb must increase"
        if self.us[0] < 0 or any(high < low for low, high in zip(self.us, self.us[1:], strict=False)):
            return "us must not decrease"
        if not 0 <= self.us_per_device * self.num_devices <= self.us[0]:
            return "us_per_device must be between 0 and the first of us / num_devices"
        return None if self.gb_s > 0 else "gb_s must be above 0"

    @property
    def latency_ms(self) -> float:
        """Return the latency, the time of an empty message, ms."""
        return self.us[0] / 1e3

    def bytes_ms(self, moved: FloatArray | float) -> FloatArray:
        """Return the transfer time without latency, ms, in the shape of ``moved``."""
        return np.asarray(np.interp(moved, *self._points))

    @cached_property
    def _points(self) -> tuple[FloatArray, FloatArray]:
        """Return the curve's points (bytes, ms without latency), extended for extrapolation."""
        moved, ms = 1e3 * np.array(self.kb), (np.array(self.us) - self.us[0]) / 1e3
        beyond_ms = ms[-1] + (_FAR_BYTES - moved[-1]) / self.gb_s / 1e6
        return np.append(moved, _FAR_BYTES), np.append(ms, beyond_ms)

    @property
    def floor(self) -> Curve:
        """Return a linear lower bound of the curve with the same latency."""
        more_us = np.array(self.us[1:]) - self.us[0]
        chords = np.divide(self.kb[1:], more_us, out=np.full(len(more_us), np.inf), where=more_us > 0)
        return replace(self, kb=(0.0,), us=self.us[:1], gb_s=float(chords.max(initial=self.gb_s)))

    def faster(self, factor: float) -> Curve:
        """Return the curve with the same latency and ``factor`` times the bandwidth."""
        us = tuple(self.us[0] + (one - self.us[0]) / factor for one in self.us)
        return replace(self, us=us, gb_s=self.gb_s * factor)

    def between(self, num_devices: int) -> Curve:
        """Return the curve for another number of devices, with the same transfer times."""
        more_us = self.us_per_device * (num_devices - self.num_devices)
        return replace(self, num_devices=num_devices, us=tuple(one + more_us for one in self.us)) if more_us else self


def mean_curve(curves: Sequence[Curve], weights: Sequence[float]) -> Curve:
    """Return the weighted mean of the curves' times at each number of bytes."""
    kb = sorted({point for one in curves for point in one.kb})
    ms = [one.latency_ms + one.bytes_ms(1e3 * np.array(kb)) for one in curves]
    us = 1e3 * np.average(ms, axis=0, weights=weights)
    ns_per_byte, per_device = np.average([(1 / one.gb_s, one.us_per_device) for one in curves], axis=0, weights=weights)
    first = replace(curves[0], gb_s=float(1 / ns_per_byte), us_per_device=float(per_device))
    return replace(first, kb=tuple(kb), us=tuple(us.tolist()))


def curve_at(curves: Sequence[Curve], collective: str, num_devices: int) -> Curve | None:
    """Return the curve of a collective between ``num_devices`` devices; None if there is none.

    Times are interpolated along the logarithm of the number of devices. Outside the known range, only the latency
    changes, by ``us_per_device``.
    """
    known = {one.num_devices: one for one in curves if one.collective == collective}
    if not known:
        return None
    below = max((one for one in known if one <= num_devices), default=min(known))
    above = min((one for one in known if one >= num_devices), default=max(known))
    if below == above:
        return known[below].between(num_devices)
    weight = math.log(num_devices / below) / math.log(above / below)
    return replace(mean_curve([known[below], known[above]], [1 - weight, weight]), num_devices=num_devices)


@dataclass(frozen=True)
class Link:
    """Link between devices: latency, three bandwidths (10**9 bytes per second) and measured curves."""

    latency_us: float  # time of a collective without its bytes
    source: str
    bandwidth_gb_s: float = math.inf  # ``BANDWIDTHS`` names the bytes of each bandwidth; infinite if they take no time
    slowest_gb_s: float = math.inf
    shared_gb_s: float = math.inf
    forward_share: float = 1.0  # forward communication time over backward communication time
    spans: float = math.inf  # largest number of devices that it connects; infinite if unlimited
    curves: tuple[Curve, ...] = ()  # times of collectives; collectives without a curve use the numbers above
    evidence: tuple[Evidence, ...] = ()  # measured collectives that the numbers were fitted to or compared with
    extrapolated_from: str = ""  # links or points that a rule derived the numbers from; empty if measured

    @property
    def error(self) -> DeviceError:
        """Return the error of the link's communication times, from its evidence."""
        return DeviceError.of(self.evidence, bool(self.extrapolated_from))

    @cached_property
    def floor(self) -> Link:
        """Return a link whose transfer times are proportional to bytes and never above this link's times."""
        return replace(self, curves=tuple(one.floor for one in self.curves)) if self.curves else self

    @cached_property
    def _curve_of(self) -> dict[tuple[str, int], Curve | None]:
        return {}

    def curve(self, collective: str, num_devices: int) -> Curve | None:
        """Return the curve of a collective between ``num_devices`` devices; None if there is none."""
        key = collective, num_devices
        if key not in self._curve_of:
            self._curve_of[key] = curve_at(self.curves, collective, num_devices)
        return self._curve_of[key]

    def latency_ms(self, num_devices: int, collective: str = ALL_TO_ALL) -> float:
        """Return the latency of a collective."""
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
        """Return the transfer time of a collective without latency, ms.

        Args:
            own, slowest, shared: bytes of the device in its busier direction, of the busiest device, and of all.
        """
        curve = self.curve(collective, num_devices)
        if curve is not None:
            return curve.bytes_ms(self.even_bytes(own, slowest, shared, num_devices))
        return np.asarray(self._straight_seconds(own, slowest, shared) * seconds_to_ms(1.0))

    def even_bytes(
        self, own: FloatArray | float, slowest: FloatArray | float, shared: FloatArray | float, num_devices: int
    ) -> FloatArray | float:
        """Convert an uneven collective to the equivalent bytes per device of an even collective."""
        if self.counts_own_alone:
            return own
        return self._straight_seconds(own, slowest, shared) * 1e9 * self._straight_gb_s(num_devices)

    def _straight_seconds(
        self, own: FloatArray | float, slowest: FloatArray | float, shared: FloatArray | float
    ) -> FloatArray | float:
        return (own / self.bandwidth_gb_s + slowest / self.slowest_gb_s + shared / self.shared_gb_s) / 1e9

    @property
    def counts_own_alone(self) -> bool:
        """Return True if a device's time depends only on its own bytes."""
        return math.isinf(self.slowest_gb_s) and math.isinf(self.shared_gb_s)

    @property
    def tier(self) -> str:
        """Return the link's tier: intra for links within nodes (or a domain), inter between nodes."""
        return "inter" if math.isinf(self.spans) else "intra"

    def even_gb_s(self, num_devices: int) -> float:
        """Return NCCL's bus bandwidth for a long backward all-to-all in which all devices send the same bytes."""
        curve = self.curve(ALL_TO_ALL, num_devices)
        return self._straight_gb_s(num_devices) if curve is None else curve.gb_s

    def _straight_gb_s(self, num_devices: int) -> float:
        return 1 / (1 / self.bandwidth_gb_s + 1 / self.slowest_gb_s + num_devices / self.shared_gb_s)
