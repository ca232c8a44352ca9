"""The answer to a request: where every column lives, its predicted cost, and where the answer comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evenshard.measure.costs import PlacementCost
from evenshard.measure.evidence import DeviceError, with_device_error
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import Placement, parts_on
from evenshard.placement.task import PlacementTask
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.convex_search.prediction import PredictedDevice


@dataclass(frozen=True)
class Rival:
    """What another sharder's placement of the same tables would cost.

    Attributes:
        sharder: its name.
        predicted_ms: predicted time by the same cost model; None where it found no placement.
        measured_ms: time on the hardware, if measured.
        note: why there is none, or which rules it breaks; empty otherwise.
    """

    sharder: str
    predicted_ms: float | None
    measured_ms: float | None = None
    note: str = ""


@dataclass(frozen=True)
class PlacementAnswer(Placement):
    """A placement of ``parts`` with all that is known about it. Times are milliseconds of one training step.

    Attributes:
        device_of_table: device id of each of ``parts``.
        num_devices: devices of the request.
        request: the request.
        parts: the parts of tables and their devices: the tables in their order, those that are split in several parts.
        alone_ms: time of each part alone: no device that holds it is predicted to take less, whatever else it holds.
        adds_ms: time that each part adds: what its device would save without it.
        devices: predicted times, by device id.
        predicted_ms: predicted time of the slowest device.
        model_low_ms, model_high_ms: the 90 % interval of that by the cost model alone, to compare placements on the
            same hardware with.
        lower_bound_ms: no placement of these parts is predicted to cost less (memory and rules left aside).
        warnings: warnings where the request lies outside of what the model was trained on.
        comparison: placements of other sharders and their costs.
        measured: the cost on the hardware, where that was asked for.
        lineage: model, tables and code that made it; JSON.
        link: name of the link in the training data; empty where a file does not state it.
        notes: notes on how far to trust a time; a sentence or two each.
        device_error: how far the simulated device is from the real one; None for real hardware.
    """

    request: PlacementRequest
    parts: tuple[TablePart, ...]
    alone_ms: tuple[float, ...]
    adds_ms: tuple[float, ...]
    devices: tuple[PredictedDevice, ...]
    predicted_ms: float
    model_low_ms: float
    model_high_ms: float
    lower_bound_ms: float
    warnings: tuple[str, ...]
    comparison: tuple[Rival, ...]
    measured: PlacementCost | None
    lineage: Mapping[str, Any]
    link: str = ""
    notes: tuple[str, ...] = ()
    device_error: DeviceError | None = None

    def __post_init__(self) -> None:
        """The parts live where the placement says."""
        object.__setattr__(self, "parts", parts_on(self.parts, self))

    @property
    def table_shards(self) -> tuple[TablePart, ...]:
        """``parts``, by the word of TorchRec's plans."""
        return self.parts

    @cached_property
    def task(self) -> PlacementTask:
        """The task of placing the parts."""
        return self.request.task(self.parts)

    @cached_property
    def used_bytes(self) -> tuple[int, ...]:
        """Memory that the tables take on each device: weights and optimizer state."""
        used = [0] * self.num_devices
        for device, size in zip(self.device_of_table, self.task.table_bytes, strict=True):
            used[device] += size
        return tuple(used)

    @property
    def low_ms(self) -> float:
        """Lower end of the 90 % interval of ``predicted_ms``, the error of a simulated device included."""
        return self._interval_ms[0]

    @property
    def high_ms(self) -> float:
        """Upper end of it."""
        return self._interval_ms[1]

    @property
    def _interval_ms(self) -> tuple[float, float]:
        return with_device_error(self.device_error, self.predicted_ms, self.model_low_ms, self.model_high_ms)

    @property
    def uncertainty_ms(self) -> float:
        """Half the width of the 90 % interval."""
        return (self.high_ms - self.low_ms) / 2

    @property
    def gap_pct(self) -> float:
        """How much worse than the best possible placement it is at most, by the model, per cent."""
        return (self.predicted_ms / self.lower_bound_ms - 1) * 100
