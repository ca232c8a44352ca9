"""Records of measured placement costs; times are ms of one training step.

Records reject NaN and negative times: devices and file readers raise MeasurementFailed. A time that was not measured is
None, never an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from evenshard.base.errors import BadInput, MeasurementFailed
from evenshard.base.messages import brief
from evenshard.placement.memory import SGD, optimizer_problem
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.evidence import DeviceError
from evenshard.price.hardware import is_simulated, provenance_problem
from evenshard.price.step_time import Phases, device_ms, step_ms
from evenshard.tables.table import Table

OK = "ok"
OUT_OF_MEMORY = "out_of_memory"
# Values of ``proposed_by`` for repeated placements and for shards measured alone.
CONTROL = "control"
RANDOM_SHARD = "random_shard"
# 31 years as an upper limit of step times; sums and squares of such times are still finite in float32.
MOST_MS = 1e12
# End of the year 9999, the last year of a Python date, in seconds since 1970 UTC.
LAST_MOMENT = 253_402_300_799.0


@dataclass(frozen=True)
class DeviceCost:
    """Times of one device in one training step, ms: medians over repeats."""

    # The shard's fused embedding lookup and pooling; None if only ``fwd_bwd_compute_ms`` is known.
    fwd_compute_ms: float | None
    fwd_all_to_all_ms: float  # all-to-all of pooled embeddings before the dense part
    bwd_all_to_all_ms: float  # all-to-all of their gradients after it
    bwd_compute_ms: float | None  # fused gradient and optimizer update; None if only ``fwd_bwd_compute_ms`` is known
    # Interquartile range over the repeats of a visit, or between visits if that is larger.
    fwd_compute_spread_ms: float = 0.0
    bwd_compute_spread_ms: float = 0.0  # interquartile range of the backward time
    # Start skew: from the end of the device's forward to that of the slowest device, when the all-to-all can start. It
    # is not part of the device's times (docs/decisions/0009).
    fwd_wait_ms: float = 0.0
    status: str = OK  # "ok", or "out_of_memory" for a shard that does not fit the device; its times are then infinite
    # Forward and backward compute together, if only their sum was timed; else None.
    fwd_bwd_compute_ms: float | None = None
    input_dist_ms: float = 0.0  # input dist before the lookups; 0 if not measured, as in DreamShard

    @staticmethod
    def of_total(fwd_bwd_compute_ms: float) -> DeviceCost:
        """Create the cost of a single shard whose forward and backward were timed only together."""
        return DeviceCost(None, 0.0, 0.0, None, fwd_bwd_compute_ms=fwd_bwd_compute_ms)

    @staticmethod
    def out_of_memory() -> DeviceCost:
        """Return the cost of a shard that does not fit: infinite times."""
        never = math.inf
        return DeviceCost(never, never, never, never, status=OUT_OF_MEMORY)

    def with_exchange(self, out_ms: float, back_ms: float, wait_ms: float, inputs_ms: float) -> DeviceCost:
        """Return a copy with communication times."""
        times_ms = {"fwd_all_to_all_ms": out_ms, "bwd_all_to_all_ms": back_ms, "fwd_wait_ms": wait_ms}
        return DeviceCost(**vars(self) | times_ms | {"input_dist_ms": inputs_ms})

    def problem(self) -> str | None:
        """Return why this cost is invalid; None if it is valid."""
        if self.status not in (OK, OUT_OF_MEMORY):
            return f"status is {brief(self.status)}, not {OK} or {OUT_OF_MEMORY}"
        if self.status == OUT_OF_MEMORY:
            return None if self.total_ms == math.inf else f"status is {OUT_OF_MEMORY}, but times are given"
        if self.fwd_bwd_compute_ms is not None:
            if self.fwd_compute_ms is not None or self.bwd_compute_ms is not None:
                return f"{_TOTAL} cannot be given together with fwd_compute_ms or bwd_compute_ms"
            rest = self.fwd_all_to_all_ms, self.bwd_all_to_all_ms, self.fwd_wait_ms
            return time_problem(_TOTAL, self.fwd_bwd_compute_ms) or (
                f"{_TOTAL} cannot be given together with communication or wait times" if any(rest) else None
            )
        times = _times_of(self)
        if {*map(type, times)} == {float} and min(times) >= 0 and sum(times) <= MOST_MS:  # the sum is NaN if a time is
            return None
        return next(filter(None, map(time_problem, _TIMES, times)), None)

    @property
    def compute_ms(self) -> float:
        """Return forward plus backward compute time, without communication; infinite if out of memory."""
        if self.fwd_compute_ms is None or self.bwd_compute_ms is None:
            assert self.fwd_bwd_compute_ms is not None, "neither forward and backward times nor their sum are given"
            return self.fwd_bwd_compute_ms
        return self.fwd_compute_ms + self.bwd_compute_ms

    @property
    def split_ms(self) -> tuple[float, float]:
        """Return forward and backward compute; both NaN if only their sum is known."""
        if self.fwd_compute_ms is None or self.bwd_compute_ms is None:
            return math.nan, math.nan
        return self.fwd_compute_ms, self.bwd_compute_ms

    @property
    def total_ms(self) -> float:
        """Return the sum of the device's times, excluding wait and ignoring overlap."""
        return self.input_dist_ms + self.compute_ms + self.fwd_all_to_all_ms + self.bwd_all_to_all_ms


_TOTAL = "fwd_bwd_compute_ms"
_TIMES = tuple(name for name in DeviceCost.__dataclass_fields__ if name.endswith("_ms") and name != _TOTAL)
_times_of = attrgetter(*_TIMES)


def time_problem(name: str, value: object) -> str | None:
    """Return why a value is not a valid measured time; None if it is valid."""
    return _number_problem(name, value, MOST_MS, "a time from 0 to {:g} ms")


def moment_problem(name: str, value: object) -> str | None:
    """Return why a value is not a valid Unix timestamp in seconds; None if it is valid."""
    return _number_problem(name, value, LAST_MOMENT, "a Unix timestamp up to the year 9999")


def _number_problem(name: str, value: object, most: float, what: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        return f"{name} is {brief(value)}, not {what.format(most)}"
    return None


@dataclass(frozen=True)
class PlacementCost:
    """The measured cost of a placement.

    Raises:
        MeasurementFailed: if a device's cost is impossible.
    """

    devices: tuple[DeviceCost, ...]  # by device id
    # "modelled" if a link model computed the all-to-all times, "measured" if devices communicated.
    all_to_all: str

    def __post_init__(self) -> None:
        if not self.devices:
            raise MeasurementFailed("a placement's cost needs at least one device")
        for device_id, device in enumerate(self.devices):
            if problem := device.problem():
                raise MeasurementFailed(f"device {device_id}: {problem}")

    @property
    def max_device_ms(self) -> float:
        """Return the largest total time of any device, the objective of DreamShard (section 2) and AutoShard.

        Cost datasets record this value. A step takes longer, because devices wait for each other in every collective
        (``step_ms``). Infinite if a device ran out of memory.
        """
        return max(device.total_ms for device in self.devices)

    def step_ms(self, pipeline: str) -> float:
        """Return the step time; infinite if a device ran out of memory. See ``step_time``."""
        return float(step_ms(self._phases, pipeline)) if self.fits else math.inf

    def device_ms(self, pipeline: str) -> tuple[float, ...]:
        """Return the time of each device in a step without waits; infinite for a device that ran out of memory."""
        if not self.fits:
            return tuple(device.total_ms for device in self.devices)
        return tuple(device_ms(self._phases, pipeline).tolist())

    @property
    def _phases(self) -> Phases:
        """Return the phases of all devices; an undivided forward plus backward time counts as backward."""
        compute = [one.split_ms if one.fwd_bwd_compute_ms is None else (0.0, one.compute_ms) for one in self.devices]
        forward, backward = np.array(compute).T
        exchanges = [(one.input_dist_ms, one.fwd_all_to_all_ms, one.bwd_all_to_all_ms) for one in self.devices]
        inputs, out, back = np.array(exchanges).T
        return Phases(inputs, forward, out, back, backward)

    @property
    def fits(self) -> bool:
        """Return True if no device ran out of memory."""
        return all(device.status == OK for device in self.devices)


def interquartile_range(values: Sequence[float]) -> float:
    """Return the distance between the 25th and 75th percentile."""
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def combine_visits(visits: Sequence[PlacementCost]) -> PlacementCost:
    """Combine repeated measurements (visits) of a placement into medians.

    A device that ran out of memory in any visit is out of memory in the result.
    """

    def over_visits(device: int) -> DeviceCost:
        if any(visit.devices[device].status == OUT_OF_MEMORY for visit in visits):
            return DeviceCost.out_of_memory()

        def median_of(name: str) -> float:
            return float(np.median([getattr(visit.devices[device], name) for visit in visits]))

        def spread(name: str) -> float:
            between = interquartile_range([getattr(visit.devices[device], name) for visit in visits])
            return max(between, median_of(name.replace("_ms", "_spread_ms")))

        times: dict[str, Any] = {name: median_of(name) for name in _TIMES}
        spreads = {f"{which}_compute_spread_ms": spread(f"{which}_compute_ms") for which in ("fwd", "bwd")}
        return DeviceCost(**times | spreads)

    return PlacementCost(tuple(over_visits(d) for d in range(len(visits[0].devices))), visits[0].all_to_all)


@dataclass(frozen=True)
class Provenance:
    """Provenance of a measurement, repeated in every dataset row.

    Raises:
        MeasurementFailed: if the kind of hardware or the optimizer is unknown.
    """

    hardware: str  # kind of hardware, a colon and its name, such as "cpu: AMD EPYC (1 thread)" or "simulated: h200"
    driver: str  # driver of the GPU, or the kernel of the operating system; "none" for a simulated device
    versions: str  # libraries as "torch 2.13.0, fbgemm_gpu 1.8.0"
    link: str  # link model of the all-to-all times, or the backend that was measured, such as "gloo"
    seed: int  # seed of the lookups
    repeats: int  # timed repeats behind each median; 0 if unknown
    device_error_percent: float = 0.0  # ``DeviceError`` of a simulated device; 0 for real hardware, or if unknown
    device_error_points: int = 0
    optimizer: str = SGD  # optimizer of the backward passes

    def __post_init__(self) -> None:
        problem = provenance_problem(self.hardware) or optimizer_problem(self.optimizer)
        problem = problem or DeviceError(self.device_error_percent, self.device_error_points).problem()
        if problem:
            raise MeasurementFailed(problem)

    @property
    def device_error(self) -> DeviceError | None:
        """Return the error of a simulated device against the real one; None for real hardware."""
        if not is_simulated(self.hardware):
            return None
        stated = DeviceError(self.device_error_percent, self.device_error_points)
        return stated if stated.percent or stated.points else DeviceError()


@dataclass(frozen=True)
class MeasuredPlacement:
    """One measured placement of one task."""

    measurement_id: str  # unique within a dataset
    round: int  # round of the loop in which it was measured; 0 for an evaluation
    proposed_by: str  # sharder that made the placement; "control" for a placement repeated to observe noise
    task: ShardingTask  # tables and machine
    parts: tuple[TablePart, ...]  # parts of the tables, with their devices
    cost: PlacementCost
    provenance: Provenance
    measured_at: float = 0.0  # end of its last visit, seconds since 1970 UTC

    @property
    def is_control(self) -> bool:
        """Return True if this is a repeated control placement, used to measure noise."""
        return self.proposed_by == CONTROL

    @cached_property
    def placement(self) -> Placement:
        """Return the device of each table; the tables must not be sharded."""
        return Placement.of(self.task, self.parts)

    @cached_property
    def shards(self) -> tuple[tuple[Table, ...], ...]:
        """Return the whole tables of each device, by device id; the placement must not split a table."""
        return self.placement.shards_of(self.task.tables)


def optimizer_of(measured: Iterable[MeasuredPlacement]) -> str:
    """Return the optimizer of all measurements; sgd if there are none.

    Raises:
        BadInput: if they have several optimizers.
    """
    found = sorted({one.provenance.optimizer for one in measured}) or [SGD]
    if len(found) > 1:
        raise BadInput(
            f"The costs mix optimizers ({', '.join(found)}), whose backward passes differ. Use a single optimizer."
        )
    return found[0]
