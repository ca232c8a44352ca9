"""Step time from the phase times of all devices; collectives act as barriers.

A collective begins when the slowest device is ready. Between two barriers a step takes the slowest device's time. The
step time is the sum over these windows:

- none, base: input dist and forward kernels; output dist; backward all-to-all and backward kernels.
- sparse_dist, prefetch: output dist; backward all-to-all, backward kernels and the forward kernels of the next step,
  between which no device waits. The input dist overlaps these kernels: only the time that exceeds them counts.

The dense part is between both all-to-alls and equal on all devices, so it moves no barrier. It could hide more of the
input dist, which is ignored. Papers that learn from measured costs (DreamShard, AutoShard) have no barrier: their step
is the largest sum of a device's phases (``LARGEST_SUM``).

Legend: D devices, W windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenshard.placement.memory import PIPELINES, USUAL_PIPELINE
from evenshard.tables.reuse import FloatArray

# In place of a pipeline's name: one window without a barrier in it, after DreamShard, section 2.
LARGEST_SUM = "largest sum"


class Phases(NamedTuple):
    """Times of devices in one step, [..., D] ms each, in the order of the step."""

    input_dist: FloatArray
    forward: FloatArray
    forward_exchange: FloatArray
    backward_exchange: FloatArray
    backward: FloatArray


class Window(NamedTuple):
    """Kernel and communication times of devices between two barriers, [..., D] ms."""

    kernels: FloatArray
    exchanges: FloatArray

    @property
    def total(self) -> FloatArray:
        """Return kernel plus communication time, [..., D]."""
        return self.kernels + self.exchanges


def hides_inputs(pipeline: str) -> bool:
    """Return True if the input dist overlaps the previous step, as in the default pipeline."""
    return pipeline != LARGEST_SUM and PIPELINES[pipeline or USUAL_PIPELINE].overlaps_inputs


def windows(phases: Phases, pipeline: str) -> tuple[Window, ...]:
    """Split a step at its barriers into windows; the step time is the sum of each window's slowest device.

    Args:
        phases: phases of the devices.
        pipeline: one of ``PIPELINES``, empty for the default, or ``LARGEST_SUM``.
    """
    inputs, forward, out, back, backward = phases
    if pipeline == LARGEST_SUM:
        return (Window(forward + backward, inputs + out + back),)
    nothing = np.zeros(())
    if hides_inputs(pipeline):
        kernels = forward + backward
        return Window(nothing, out), Window(kernels, back + np.maximum(inputs - kernels, 0.0))
    return Window(forward, inputs), Window(nothing, out), Window(backward, back)


def round_for_sorting(ms: float) -> float:
    """Round a time so that floating-point noise does not change the sort order."""
    return float(f"{ms:.9g}")


def step_ms(phases: Phases, pipeline: str) -> FloatArray:
    """Return the step time, [...]."""
    return np.asarray(sum(window.total.max(axis=-1) for window in windows(phases, pipeline)))


def device_ms(phases: Phases, pipeline: str) -> FloatArray:
    """Return each device's own time in a step, [..., D]; for the rest of the step it waits."""
    return np.asarray(sum(window.total for window in windows(phases, pipeline)))


def hidden_ms(phases: Phases, pipeline: str) -> FloatArray:
    """Return the input-dist time that is hidden behind the previous step's kernels, [..., D]."""
    if not hides_inputs(pipeline):
        return np.zeros_like(phases.input_dist)
    return np.minimum(phases.input_dist, phases.forward + phases.backward)


def kernels_ms(phases: Phases, pipeline: str) -> float:
    """Sum the kernel times of the slowest device between each two barriers; the rest is communication."""
    found = 0.0
    for window in windows(phases, pipeline):
        slowest = int(window.total.argmax())
        found += float(np.broadcast_to(window.kernels, window.total.shape)[slowest])
    return found
