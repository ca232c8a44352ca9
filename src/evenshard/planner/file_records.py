"""The records of placement.json: what stands in it beside the request, field by field.

Records of evenshard stand in the file as they are; those below are its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evenshard.measure.evidence import DeviceError
from evenshard.measure.hardware import Times
from evenshard.placement.parts import TablePart
from evenshard.planner.answer import Nearness, Rival
from evenshard.planner.memory import DeviceMemory, NodeMemory
from evenshard.planner.request import PlacementRequest

FILE_VERSION: Literal[4] = 4


class FileRecord(BaseModel):
    """A record of the file's own: fields that it does not know are refused."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Shard(TablePart):
    """Rows and columns of a table that live together; a span is [the first, the one behind the last].

    Attributes:
        table: its name.
        rows, columns: of it.
        devices: the one that holds them, or all devices, each of which holds a replica.
        storage: where its weights are kept; left out where that is device memory.
        alone_ms: no device that holds them is predicted to take less.
        adds_ms: what the device would save without them.
        offload_ms: what it would save with them in device memory; left out where they are there.
    """

    alone_ms: float
    adds_ms: float
    offload_ms: float = 0.0


class DeviceTimes(FileRecord):
    """One device in one training step, ms."""

    device: int = Field(ge=0)
    input_dist_ms: float = Field(0.0, description="exchange of the indices before the lookups")
    fwd_compute_ms: float
    fwd_all_to_all_ms: float
    bwd_all_to_all_ms: float
    bwd_compute_ms: float
    total_ms: float = Field(description="the five together")


STEP_TIMES = [name for name in DeviceTimes.model_fields if name not in ("device", "total_ms")]
WAIT_TIMES = ("hidden_ms", "wait_ms")


class PredictedTimes(DeviceTimes):
    """Predicted times of a device, and what it holds."""

    total_ms: float = Field(description="the five together, without hidden_ms")
    hidden_ms: float = Field(0.0, description="what of the exchange of the indices runs beside the step before")
    wait_ms: float = Field(0.0, description="that it waits for others: with total_ms the time of the step")
    num_shards: int
    used_bytes: int = Field(description="what the tables take of its memory: see memory")


class Predicted(FileRecord):
    """What the cost model says, ms."""

    total_ms: float = Field(description="of the step; in files without wait_ms, of the slowest device")
    low_ms: float = Field(description="lower end of the 90 % interval, the error of a simulated device included")
    high_ms: float
    model_low_ms: float | None = Field(
        None, description="lower end by the cost model alone, to compare placements on the same hardware with"
    )
    model_high_ms: float | None = None
    devices: list[PredictedTimes]


class MeasuredStep(FileRecord):
    """A step on the request's hardware, ms: measured on real hardware, simulated on simulated:<profile>."""

    times: Times | None = Field(None, description="which of the two; null in files from before they said so")
    total_ms: float = Field(description="of the step")
    all_to_all: Literal["measured", "modelled"] = Field(description="whether devices really exchanged anything")
    devices: list[DeviceTimes]


class MemoryRecord(FileRecord):
    """What devices and hosts hold, bytes."""

    devices: list[DeviceMemory]
    hosts: list[NodeMemory] = Field(description="memory and SSDs of hosts; empty where nothing is kept there")
    warnings: list[str] = Field(description="where a device or a host is full to the brim")


class PlacementFile(FileRecord):
    """A placement of embedding tables on devices, by evenshard."""

    schema_version: Literal[4]
    num_devices: int = Field(ge=1)
    type_of_table: dict[str, str] = Field(description="the way that each table is sharded, as its shards say")
    shards: list[Shard]
    predicted: Predicted
    memory: MemoryRecord | None = Field(None, description="null in files from before everything was counted")
    lower_bound_ms: float = Field(gt=0, description="no placement that the request allows is predicted to cost less")
    uncertainty_ms: float = Field(description="half the width of the 90 % interval")
    measured: MeasuredStep | None
    comparison: tuple[Rival, ...]
    warnings: tuple[str, ...] = Field(
        description="values in an unlikely unit, and how the request lies outside the training range"
    )
    link: str = Field("", description="that the exchanges of the model's training data went over")
    notes: tuple[str, ...] = Field((), description="what else to know before believing a time")
    device_error: DeviceError | None = Field(
        None, description="how far the simulated device is from the real one; null for real hardware"
    )
    link_error: DeviceError | None = Field(
        None, description="how far modelled exchanges are from real ones; null where none is modelled"
    )
    nearness: Nearness | None = Field(
        None, description="what moves from the placement that it was to be near to; left out where there is none"
    )
    request: PlacementRequest
    lineage: dict[str, Any]
