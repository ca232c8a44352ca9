"""The time of a training step from the times of its devices' phases: exchanges are barriers.

No exchange begins before the slowest device is there. Between two barriers a step takes the slowest device's time, and
a step is the sum of that over its windows:

- none, base: exchange of indices and forward kernels; forward exchange; backward exchange and backward kernels.
- sparse_dist, prefetch: forward exchange; backward exchange, backward kernels and the forward kernels of the next step,
  between which nothing makes devices wait. The exchange of indices runs beside these kernels: on each device only what
  is longer than they are counts.

The dense part stands between both exchanges and is alike on all devices: it moves no barrier. It could hide more of the
exchange of indices, which is left aside. Papers that learn from measured costs (DreamShard, AutoShard) know no barrier:
their step is the largest sum of a device's phases (``LARGEST_SUM``).

Legend: D devices, W windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenshard.placement.memory import PIPELINES, USUAL_PIPELINE
from evenshard.tables.reuse import FloatArray

# Stands in place of a pipeline's name: one window without a barrier in it, after DreamShard, section 2.
LARGEST_SUM = "largest sum"


class Phases(NamedTuple):
    """Times of devices in one step, [..., D] ms each, in the order of the step."""

    input_dist: FloatArray
    forward: FloatArray
    forward_exchange: FloatArray
    backward_exchange: FloatArray
    backward: FloatArray


class Window(NamedTuple):
    """Times of devices between two barriers, [..., D] ms each."""

    kernels: FloatArray
    exchanges: FloatArray

    @property
    def total(self) -> FloatArray:
        """Sum of both, [..., D]."""
        return self.kernels + self.exchanges


def hides_inputs(pipeline: str) -> bool:
    """Return True if the exchange of indices runs beside the step before, as it does where no pipeline is named."""
    return pipeline != LARGEST_SUM and PIPELINES[pipeline or USUAL_PIPELINE].overlaps_inputs


def windows(phases: Phases, pipeline: str) -> tuple[Window, ...]:
    """The windows of a step; its time is the sum of their slowest devices' times.

    Args:
        phases: of the devices.
        pipeline: one of ``PIPELINES``, empty for the usual one, or ``LARGEST_SUM``.
    """
    inputs, forward, out, back, backward = phases
    if pipeline == LARGEST_SUM:
        return (Window(forward + backward, inputs + out + back),)
    nothing = np.zeros(())
    if hides_inputs(pipeline):
        kernels = forward + backward
        return Window(nothing, out), Window(kernels, back + np.maximum(inputs - kernels, 0.0))
    return Window(forward, inputs), Window(nothing, out), Window(backward, back)


def without_last_digits(ms: float) -> float:
    """Round a time, so that a sort leaves the order of equal times to their places."""
    return float(f"{ms:.9g}")


def step_ms(phases: Phases, pipeline: str) -> FloatArray:
    """Return the time of a step, [...]."""
    return np.asarray(sum(window.total.max(axis=-1) for window in windows(phases, pipeline)))


def device_ms(phases: Phases, pipeline: str) -> FloatArray:
    """Return the time of each device's own work in a step, [..., D]: the rest of the step it waits."""
    return np.asarray(sum(window.total for window in windows(phases, pipeline)))


def hidden_ms(phases: Phases, pipeline: str) -> FloatArray:
    """Return the time of the exchange of indices beside kernels of the step before, [..., D]."""
    if not hides_inputs(pipeline):
        return np.zeros_like(phases.input_dist)
    return np.minimum(phases.input_dist, phases.forward + phases.backward)


def kernels_ms(phases: Phases, pipeline: str) -> float:
    """Return the kernel time of the slowest device of each window of a step; the rest is exchanged."""
    found = 0.0
    for window in windows(phases, pipeline):
        slowest = int(window.total.argmax())
        found += float(np.broadcast_to(window.kernels, window.total.shape)[slowest])
    return found
