"""The step of an answer: its times, the device that it waits for, and what no placement can beat."""

from __future__ import annotations

from evenshard.measure.price.step import PredictedDevice
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.highlights.setting import timing_word
from evenshard.utils.units import ms_text, pct_text

AS_FAST_PCT = 0.05
"""Differences below are rounding."""

EMBEDDING_WORK = "ms of embedding work per step"
"""What every time of an answer is: lookups and exchanges of the tables, without the dense rest of a step."""

STEP_PARTS = ("input exchange", "forward", "forward exchange", "backward exchange", "backward")
"""The five times of a device, in the order of a training step."""


def predicted_step_times(device: PredictedDevice) -> tuple[float, ...]:
    """The predicted times of a device, in the order of ``STEP_PARTS``."""
    return (
        device.predicted_input_dist_ms,
        device.predicted_fwd_compute_ms,
        device.predicted_fwd_all_to_all_ms,
        device.predicted_bwd_all_to_all_ms,
        device.predicted_bwd_compute_ms,
    )


def slowest_device(answer: PlacementAnswer) -> int:
    """The device that a step waits for, by the model."""
    return max(range(answer.num_devices), key=lambda device: answer.devices[device].predicted_total_ms)


def step_headline(answer: PlacementAnswer) -> str:
    """How long the embedding work of a step takes, and how good that is."""
    interval = f"90 %: {ms_text(answer.low_ms)} to {ms_text(answer.high_ms)}"
    if answer.measured is None:
        step = f"{ms_text(answer.predicted_ms)} {EMBEDDING_WORK} predicted ({interval})"
    else:
        predicted = f"{ms_text(answer.predicted_ms)} predicted, {interval}"
        step = f"{ms_text(answer.measured.max_device_ms)} {EMBEDDING_WORK} {timing_word(answer)} ({predicted})"
    return step if answer.num_devices == 1 else f"{step}, {gap_text(answer)}"


def gap_text(answer: PlacementAnswer) -> str:
    """How far from the lower bound it is, in words."""
    if answer.gap_pct < AS_FAST_PCT:
        return "as good as possible by the model"
    return f"at most {pct_text(answer.gap_pct)} above the best possible"


def bound_text(answer: PlacementAnswer) -> str:
    """What the lower bound says, and what it leaves aside."""
    return (
        f"{ms_text(answer.lower_bound_ms)} ms: by the model, no placement that the request allows takes less, however "
        f"tables are cut. Memory counts; latencies of exchanges and rules of places are left aside."
    )
