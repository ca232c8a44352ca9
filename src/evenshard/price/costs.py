"""The records of one measurement of a placement. Times are milliseconds of one training step.

No record holds an impossible time, a NaN or a negative one: a device or a reader of files that would make one fails
with MeasurementFailed. A time that was not taken is None, never a guess.
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
# ``proposed_by`` of repeated placements and of shards measured alone.
CONTROL = "control"
RANDOM_SHARD = "random_shard"
# No step takes 31 years; sums and squares of such times are still finite in float32.
MOST_MS = 1e12
# The end of the year 9999, the last that a date can say, in seconds since 1970 UTC.
LAST_MOMENT = 253_402_300_799.0


@dataclass(frozen=True)
class DeviceCost:
    """Times of one device in one training step, ms: medians over repeats."""

    # The shard's fused embedding lookup and pooling; None where only ``fwd_bwd_compute_ms`` is known.
    fwd_compute_ms: float | None
    fwd_all_to_all_ms: float  # exchange of pooled embeddings before the dense part
    bwd_all_to_all_ms: float  # exchange of their gradients after it
    bwd_compute_ms: float | None  # fused gradient and optimizer update; None where only ``fwd_bwd_compute_ms`` is known
    # Distance between the 25th and 75th percentile, of the repeats of one visit or between visits, whichever is larger.
    fwd_compute_spread_ms: float = 0.0
    bwd_compute_spread_ms: float = 0.0  # the same distance, backward
    # Start skew: from the end of its own forward to the slowest device's, when the exchange can begin. No part of the
    # device's times (docs/decisions/0009).
    fwd_wait_ms: float = 0.0
    status: str = OK  # "ok", or "out_of_memory" for a shard that the device could not hold; its times are infinite then
    # Forward and backward compute together, where they were timed as one; else None.
    fwd_bwd_compute_ms: float | None = None
    input_dist_ms: float = 0.0  # exchange of the indices before the lookups; 0 where it was not taken, as in DreamShard

    @staticmethod
    def of_total(fwd_bwd_compute_ms: float) -> DeviceCost:
        """The cost of a shard alone on a device, of which only forward and backward together were timed."""
        return DeviceCost(None, 0.0, 0.0, None, fwd_bwd_compute_ms=fwd_bwd_compute_ms)

    @staticmethod
    def out_of_memory() -> DeviceCost:
        """The cost of a shard that does not fit: no time is long enough."""
        never = math.inf
        return DeviceCost(never, never, never, never, status=OUT_OF_MEMORY)

    def with_exchange(self, out_ms: float, back_ms: float, wait_ms: float, inputs_ms: float) -> DeviceCost:
        """The same compute times beside these of exchanges; a plain call, as ``replace`` takes ten times as long."""
        return DeviceCost(
            self.fwd_compute_ms,
            out_ms,
            back_ms,
            self.bwd_compute_ms,
            self.fwd_compute_spread_ms,
            self.bwd_compute_spread_ms,
            wait_ms,
            self.status,
            self.fwd_bwd_compute_ms,
            inputs_ms,
        )

    def problem(self) -> str | None:
        """Says in one clause what makes this cost impossible, or None."""
        if self.status not in (OK, OUT_OF_MEMORY):
            return f"status is {brief(self.status)}, not {OK} or {OUT_OF_MEMORY}"
        if self.status == OUT_OF_MEMORY:
            return None if self.total_ms == math.inf else f"a shard that is {OUT_OF_MEMORY} has times"
        if self.fwd_bwd_compute_ms is not None:
            if self.fwd_compute_ms is not None or self.bwd_compute_ms is not None:
                return f"{_TOTAL} is given beside its parts"
            rest = self.fwd_all_to_all_ms, self.bwd_all_to_all_ms, self.fwd_wait_ms
            return time_problem(_TOTAL, self.fwd_bwd_compute_ms) or (
                "a shard that was timed as a whole has other times" if any(rest) else None
            )
        times = _times_of(self)
        if {*map(type, times)} == {float} and min(times) >= 0 and sum(times) <= MOST_MS:  # a NaN makes the sum one
            return None
        return next(filter(None, map(time_problem, _TIMES, times)), None)

    @property
    def compute_ms(self) -> float:
        """Forward and backward compute together, without the exchange; infinite out of memory."""
        if self.fwd_compute_ms is None or self.bwd_compute_ms is None:
            assert self.fwd_bwd_compute_ms is not None, "the time of a device is known in parts or as a whole"
            return self.fwd_bwd_compute_ms
        return self.fwd_compute_ms + self.bwd_compute_ms

    @property
    def split_ms(self) -> tuple[float, float]:
        """Forward and backward compute; NaN both where only their sum is known."""
        if self.fwd_compute_ms is None or self.bwd_compute_ms is None:
            return math.nan, math.nan
        return self.fwd_compute_ms, self.bwd_compute_ms

    @property
    def total_ms(self) -> float:
        """The device's times together, waiting left aside, whatever they run beside."""
        return self.input_dist_ms + self.compute_ms + self.fwd_all_to_all_ms + self.bwd_all_to_all_ms


_TOTAL = "fwd_bwd_compute_ms"
_TIMES = tuple(name for name in DeviceCost.__dataclass_fields__ if name.endswith("_ms") and name != _TOTAL)
_times_of = attrgetter(*_TIMES)


def time_problem(name: str, value: object) -> str | None:
    """Says in one clause why a value is not a measured time, or None."""
    return _number_problem(name, value, MOST_MS, "a time from 0 to {:g} ms")


def moment_problem(name: str, value: object) -> str | None:
    """Says in one clause why a value is not a moment in seconds since 1970 UTC, or None."""
    return _number_problem(name, value, LAST_MOMENT, "a moment in seconds from 1970 to the year 9999")


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
    # "modelled" where a link model gave the all-to-all times, "measured" where devices really exchanged.
    all_to_all: str

    def __post_init__(self) -> None:
        if not self.devices:
            raise MeasurementFailed("a placement's cost needs at least one device")
        for device_id, device in enumerate(self.devices):
            if problem := device.problem():
                raise MeasurementFailed(f"device {device_id}: {problem}")

    @property
    def max_device_ms(self) -> float:
        """The largest sum of a device's times, by which DreamShard (section 2) and AutoShard learn and are compared.

        It is what cost datasets record. A step takes longer, as exchanges are barriers (``step_ms``). Infinite if a
        device ran out of memory.
        """
        return max(device.total_ms for device in self.devices)

    def step_ms(self, pipeline: str) -> float:
        """The time of a step; infinite if a device ran out of memory. See ``step_time``."""
        return float(step_ms(self._phases, pipeline)) if self.fits else math.inf

    def device_ms(self, pipeline: str) -> tuple[float, ...]:
        """Return the time of each device in a step without waits; infinite if it ran out of memory."""
        if not self.fits:
            return tuple(device.total_ms for device in self.devices)
        return tuple(device_ms(self._phases, pipeline).tolist())

    @property
    def _phases(self) -> Phases:
        """Count a joint time of forward and backward as the backward pass."""
        compute = [one.split_ms if one.fwd_bwd_compute_ms is None else (0.0, one.compute_ms) for one in self.devices]
        forward, backward = np.array(compute).T
        exchanges = [(one.input_dist_ms, one.fwd_all_to_all_ms, one.bwd_all_to_all_ms) for one in self.devices]
        inputs, out, back = np.array(exchanges).T
        return Phases(inputs, forward, out, back, backward)

    @property
    def fits(self) -> bool:
        """True if every device could hold and run its shard."""
        return all(device.status == OK for device in self.devices)


def interquartile_range(values: Sequence[float]) -> float:
    """Distance between the 25th and 75th percentile."""
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def combine_visits(visits: Sequence[PlacementCost]) -> PlacementCost:
    """The cost of a placement that was measured several times, at different moments: medians over the visits.

    A device that ran out of memory in any visit is out of memory.
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
    """The origin of a measurement: columns that every row repeats, so that no row can lose it.

    Attributes:
        hardware: kind of hardware, a colon and its name, such as "cpu: AMD EPYC (1 thread)" or "simulated: h200".
        driver: driver of the GPU, or the kernel of the operating system; "none" for a simulated device.
        versions: libraries as "torch 2.13.0, fbgemm_gpu 1.8.0".
        link: link model of the all-to-all times, or the backend that really exchanged, such as "gloo".
        seed: seed of the lookups.
        repeats: timed repeats behind each median; 0 where that is not known.
        device_error_percent, device_error_points: the two numbers of a simulated device's ``DeviceError``; 0 for real
            hardware, and where a file does not state them.
        optimizer: optimizer of the backward passes.

    Raises:
        MeasurementFailed: if the hardware is of no known kind, or the optimizer is unknown.
    """

    hardware: str
    driver: str
    versions: str
    link: str
    seed: int
    repeats: int
    device_error_percent: float = 0.0
    device_error_points: int = 0
    optimizer: str = SGD

    def __post_init__(self) -> None:
        problem = provenance_problem(self.hardware) or optimizer_problem(self.optimizer)
        problem = problem or DeviceError(self.device_error_percent, self.device_error_points).problem()
        if problem:
            raise MeasurementFailed(problem)

    @property
    def device_error(self) -> DeviceError | None:
        """The error of a simulated device against the real one; None for real hardware."""
        if not is_simulated(self.hardware):
            return None
        stated = DeviceError(self.device_error_percent, self.device_error_points)
        return stated if stated.points else DeviceError()


@dataclass(frozen=True)
class MeasuredPlacement:
    """One measured placement of one task."""

    measurement_id: str  # unique within a dataset
    round: int  # the round of the loop it was measured in; 0 for an evaluation
    proposed_by: str  # the sharder that made the placement; "control" for one that is repeated to watch the noise
    task: ShardingTask  # its tables, and the machine
    parts: tuple[TablePart, ...]  # of the tables, with their devices
    cost: PlacementCost
    provenance: Provenance
    measured_at: float = 0.0  # end of its last visit, seconds since 1970 UTC

    @property
    def is_control(self) -> bool:
        """True for a repeated control placement, which tells about the noise and not about a sharder."""
        return self.proposed_by == CONTROL

    @cached_property
    def placement(self) -> Placement:
        """The devices of its tables, all of which are whole."""
        return Placement.of(self.task, self.parts)

    @cached_property
    def shards(self) -> tuple[tuple[Table, ...], ...]:
        """The tables of each device, all of which are whole, by device id."""
        return self.placement.shards_of(self.task.tables)


def optimizer_of(measured: Iterable[MeasuredPlacement]) -> str:
    """The optimizer behind all of the costs; that of none at all is sgd.

    Raises:
        BadInput: if there are several.
    """
    found = sorted({one.provenance.optimizer for one in measured}) or [SGD]
    if len(found) > 1:
        raise BadInput(
            f"The costs are of several optimizers ({', '.join(found)}), whose backward passes differ. Use those of one."
        )
    return found[0]
