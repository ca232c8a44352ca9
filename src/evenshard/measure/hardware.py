"""Interface of hardware that measures placements."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import PlacementCost, Provenance


class Hardware(Protocol):
    """Hardware that measures placements."""

    @property
    def provenance(self) -> Provenance:
        """Return the hardware, versions and settings that every measured row records."""

    @property
    def time_share(self) -> TimeShare:
        """Return kernel time and wall time since this hardware was opened."""

    def measure(self, task: ShardingTask, placement: Placement) -> PlacementCost:
        """Measure one training step of a placement; a shard that does not fit has status ``out_of_memory``.

        Raises:
            MeasurementFailed: if a device cannot run its shard for any other reason.
        """

    def close(self) -> None:
        """Free the devices."""


@dataclass(frozen=True)
class TimeShare:
    """Seconds spent in kernels, and total seconds of the measurement."""

    kernel_s: float
    wall_s: float

    @property
    def kernel_share(self) -> float:
        """Return the share of wall time spent inside kernels, 0 to 1."""
        return self.kernel_s / self.wall_s if self.wall_s else 0.0


class TimedHardware:
    """Base of hardware that adds up its kernel time, s, in ``_kernel_s``; 0 for simulated hardware."""

    def __init__(self) -> None:
        self._kernel_s = 0.0
        self._opened = time.perf_counter()

    @property
    def time_share(self) -> TimeShare:
        """Return kernel plus communication time of the slowest rank, and wall time since the hardware was opened."""
        return TimeShare(self._kernel_s, time.perf_counter() - self._opened)
