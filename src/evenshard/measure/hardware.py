"""The interface of all hardware: it measures a placement and says what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenshard.measure.costs import PlacementCost, Provenance
from evenshard.placement.placement import Placement
from evenshard.placement.task import PlacementTask


@dataclass(frozen=True)
class MeasureConfig:
    """How to measure.

    Attributes:
        hardware: auto, cpu, cuda, or simulated:<profile> (a name in ``measure/profiles/`` or a YAML file).
        link: the link model behind the all-to-all times: a name of ``measure/link.py``, a YAML file that
            ``evenshard calibrate-link`` wrote, or auto: a simulated device's own, else ethernet_25g.
        num_batches: distinct input batches that the repeats cycle through.
        warmup: untimed forward and backward passes at the start of a visit.
        repeats: timed ones after them; their median counts.
        visits: times each placement is measured, seconds or minutes apart; the median of the visits counts. A
            neighbour on the machine disturbs for seconds on end, which more repeats in a row would all catch.
        recorded_batch: a DLRM batch file whose lookups are replayed; None draws lookups that match each table's pooling
            factor and reuse histogram.
        keep_cache_warm: leave what the pass before left in the GPU's L2; else it is flushed before every pass.
        controls: placements that are measured again and again, spread over the run, to know the noise.
        control_repeats: times each of them is measured (each time like any other placement).
        noise: relative standard deviation that a simulated device adds to its times; real hardware has its own.
        timeout_s: several devices at once: seconds after which a silent device ends the run.
        seed: of drawn lookups, of simulated noise and of the order of measuring.
    """

    hardware: str = "auto"
    link: str = "auto"
    num_batches: int = 4
    warmup: int = 2
    repeats: int = 3
    visits: int = 3
    recorded_batch: str | None = None
    keep_cache_warm: bool = False
    controls: int = 2
    control_repeats: int = 4
    noise: float = 0.0
    timeout_s: float = 120.0
    seed: int = 0


@dataclass(frozen=True)
class TimeShare:
    """Where the wall time of measuring went.

    Attributes:
        kernel_s: seconds inside timed or warm-up kernels.
        wall_s: seconds altogether.
    """

    kernel_s: float
    wall_s: float

    @property
    def kernel_share(self) -> float:
        """Part of the wall time spent inside kernels, 0 to 1."""
        return self.kernel_s / self.wall_s if self.wall_s else 0.0


Measure = Callable[[Sequence[tuple[PlacementTask, Placement]]], Sequence[PlacementCost]]
"""Measures placements, such as ``SimulatedHardware.measure_many``."""


class Hardware(Protocol):
    """Something that can measure placements."""

    @property
    def provenance(self) -> Provenance:
        """What every row measured here says about its origin."""
        ...

    @property
    def time_share(self) -> TimeShare:
        """Kernel time against wall time since this hardware was opened."""
        ...

    def measure(self, task: PlacementTask, placement: Placement) -> PlacementCost:
        """Measures one training step of a placement; a shard that does not fit is a cost too (``out_of_memory``).

        Raises:
            MeasurementFailed: if a device cannot run its shard for any other reason.
        """
        ...

    def close(self) -> None:
        """Frees the devices."""
        ...
