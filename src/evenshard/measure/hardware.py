"""What is a piece of hardware to the rest of the code? Something that measures a placement and says what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from evenshard.costs import DeviceCost, PlacementCost, Provenance
from evenshard.placement import Placement
from evenshard.tables import Table
from evenshard.tasks import PlacementTask


@dataclass(frozen=True)
class MeasureConfig:
    """How to measure.

    Attributes:
        hardware: auto, cpu or cuda.
        link: name of the link model behind the all-to-all times (see ``measure/link.py``).
        num_batches: distinct input batches that the repeats cycle through.
        warmup: untimed forward and backward passes at the start of a visit.
        repeats: timed ones after them; their median counts.
        visits: times each placement is measured, seconds or minutes apart; the median of the visits counts. A
            neighbour on the machine disturbs for seconds on end, which more repeats in a row would all catch.
        recorded_batch: a DLRM batch file whose lookups are replayed; None draws lookups that match each table's pooling
            factor and reuse histogram.
        seed: of drawn lookups and of the order of measuring.
    """

    hardware: str = "auto"
    link: str = "ethernet_25g"
    num_batches: int = 4
    warmup: int = 2
    repeats: int = 3
    visits: int = 3
    recorded_batch: str | None = None
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
        """Measures one training step of a placement.

        Raises:
            MeasurementFailed: if a device cannot run its shard.
        """
        ...

    def measure_table(self, table: Table, batch_size: int) -> DeviceCost:
        """Measures one table alone on a device, without communication."""
        ...
