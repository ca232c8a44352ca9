"""placement.json: its records, its JSON schema (``evenshard place --schema``), and how it is written and read.

The file includes the request with its tables, so ``evenshard explain`` and ``evenshard diff`` need only the file and
the model that its lineage names. It stores evenshard's own dataclasses unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evenshard.base.documents import read_json
from evenshard.base.errors import BadConfig, BadFile, MeasurementFailed, blame_file
from evenshard.base.messages import brief
from evenshard.base.outputs import write_text
from evenshard.base.typed import check_arguments, read_record
from evenshard.placement.parts import ON_DEVICE, TablePart
from evenshard.planner.answer import Baseline, Nearness, PlacementAnswer
from evenshard.planner.memory import DeviceMemory, NodeMemory
from evenshard.planner.request import PlacementRequest
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.price.dense import StepTime
from evenshard.price.evidence import DeviceError
from evenshard.price.hardware import Times, measured_or_simulated
from evenshard.price.step import PredictedDevice
from evenshard.tables.table import LATER_FIELDS

# Raised when a reader of older files would misread a newer one; other versions are rejected.
FILE_VERSION: Literal[4] = 4


class FileRecord(BaseModel):
    """Base class of the records in placement.json, which reject unknown fields."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Shard(TablePart):
    """A shard: rows and columns of a table on a device. Spans are [first, last + 1].

    Attributes:
        table: name of the table.
        devices: the device with the shard, or every device with a replica of the table.
        storage: compute kernel and cache of the weights; left out for device memory.
        alone_ms: time of the shard alone on its device, a lower bound of the device's time.
        adds_ms: time that the device would save without the shard.
        offload_ms: time that the device would save if the shard were in device memory; left out if it is.
    """

    alone_ms: float
    adds_ms: float
    offload_ms: float = 0.0


class DeviceTimes(FileRecord):
    """Times of a device in a training step, ms."""

    device: int = Field(ge=0)
    input_dist_ms: float = Field(0.0, description="all-to-all of the indices before the lookups")
    fwd_compute_ms: float
    fwd_all_to_all_ms: float
    bwd_all_to_all_ms: float
    bwd_compute_ms: float
    total_ms: float = Field(description="sum of the five times above")


STEP_TIMES = [name for name in DeviceTimes.model_fields if name not in ("device", "total_ms")]
WAIT_TIMES = ("hidden_ms", "wait_ms")


class PredictedTimes(DeviceTimes):
    """Predicted times of a device, with the number and memory of its shards."""

    total_ms: float = Field(description="sum of the five times, without hidden_ms")
    hidden_ms: float = Field(0.0, description="part of the input dist that overlaps the previous step")
    wait_ms: float = Field(0.0, description="time spent waiting for other devices; step time minus total_ms")
    num_shards: int
    used_bytes: int = Field(description="device memory that the tables take; see memory")


class Predicted(FileRecord):
    """Times predicted by the cost model, ms."""

    total_ms: float = Field(description="step time")
    low_ms: float = Field(description="lower end of the 90 % interval, including the error of a simulated device")
    high_ms: float
    model_low_ms: float = Field(
        description="lower end with the cost model's error alone, to compare placements on the same hardware"
    )
    model_high_ms: float
    devices: list[PredictedTimes]
    step: StepTime | None = Field(None, description="whole step; null if its dense part or the device is unknown")


class MeasuredStep(FileRecord):
    """A step on the request's hardware, ms: measured on real hardware, simulated on simulated:<profile>."""

    times: Times = Field(description="measured or simulated")
    total_ms: float = Field(description="step time")
    all_to_all: Literal["measured", "modelled"] = Field(description="measured if the devices really communicated")
    devices: list[DeviceTimes]


class MemoryRecord(FileRecord):
    """Memory taken on devices and hosts, bytes."""

    devices: list[DeviceMemory]
    hosts: list[NodeMemory] = Field(description="memory and SSDs of hosts; empty if tables may not use them")
    warnings: list[str] = Field(description="devices and hosts that are almost full")


class PlacementFile(FileRecord):
    """evenshard's placement of embedding tables on devices."""

    schema_version: Literal[4]
    num_devices: int = Field(ge=1)
    type_of_table: dict[str, str] = Field(description="sharding type of each table, derived from its shards")
    shards: list[Shard]
    predicted: Predicted
    memory: MemoryRecord
    lower_bound_ms: float = Field(
        gt=0, description="no placement that the request allows has a lower predicted step time"
    )
    uncertainty_ms: float = Field(description="half the width of the 90 % interval")
    measured: MeasuredStep | None
    comparison: tuple[Baseline, ...]
    warnings: tuple[str, ...] = Field(
        description="values in an unlikely unit, then values outside the model's training range"
    )
    link: str = Field("", description="link of the model's training data")
    notes: tuple[str, ...] = Field((), description="notes on the accuracy of times")
    device_error: DeviceError | None = Field(
        None, description="error of the simulated device against the real device; null for real hardware"
    )
    link_error: DeviceError | None = Field(
        None, description="error of modelled communication against real links; null if none is modelled"
    )
    nearness: Nearness | None = Field(None, description="comparison with the current placement; left out if none")
    request: PlacementRequest
    lineage: dict[str, Any]

    @property
    def parts(self) -> tuple[TablePart, ...]:
        """Return the shards without their times."""
        return tuple(TablePart(one.table, one.rows, one.columns, one.devices, one.storage) for one in self.shards)


_WHAT = "a placement.json"
_REMEDY = "Write it with `evenshard place ... -o`."

# Fields that the file and an answer share unchanged.
SHARED_FIELDS = (
    *("request", "lower_bound_ms", "comparison", "warnings", "notes", "lineage", "nearness"),
    *("link", "device_error", "link_error"),
)


class _RegisteredVersion(BaseModel):
    name: str = ""
    version: str = ""
    model_id: str | None = None
    run_id: str | None = None
    policy: _RegisteredVersion | None = None


class _TrainingData(BaseModel):
    git_commit: str = ""
    hardware: str = ""
    versions: str = ""
    costs_sha256: tuple[str, ...] = ()


class _ModelLineage(BaseModel):
    source: str = ""
    sha256: str = ""
    mlflow: _RegisteredVersion | None = None
    trained_on: _TrainingData | None = None


class _Lineage(BaseModel):
    model: _ModelLineage | None = None
    evenshard_version: str = ""


class _WithLineage(BaseModel):
    lineage: _Lineage


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of placement.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **PlacementFile.model_json_schema()}


@check_arguments()
def save_answer(answer: PlacementAnswer, path: str | Path) -> None:
    """Write placement.json atomically."""
    write_text(path, json_text(answer))


def json_text(answer: PlacementAnswer) -> str:
    """Return the deterministic text of placement.json."""
    record = _record(answer).model_dump(mode="json")
    for table, written in zip(answer.request.tables, record["request"]["tables"], strict=True):
        for name, usual in LATER_FIELDS.items():
            if getattr(table, name) == usual:
                del written[name]
    for shard, part in zip(record["shards"], answer.parts, strict=True):
        if part.storage == ON_DEVICE:
            del shard["storage"], shard["offload_ms"]
    if answer.nearness is None:
        del record["nearness"]
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


@check_arguments()
@blame_file
def load_answer(path: str | Path) -> PlacementAnswer:
    """Read placement.json of the current version; raise BadFile if it is missing, incomplete or inconsistent."""
    try:
        return _answer(read_placement(path))
    except (BadConfig, MeasurementFailed) as error:
        raise BadFile(path, str(error).rstrip("."), _REMEDY) from None


def read_placement(path: str | Path) -> PlacementFile:
    """Read placement.json like ``load_answer``, without checking its shards."""
    content = read_json(path, _WHAT, _REMEDY)
    if isinstance(content, dict) and "world_size" in content:
        problem = "is a TorchRec plan or a reshard delta, which has no times"
        raise BadFile(path, problem, "Give the placement.json of `evenshard place`.")
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version != FILE_VERSION:
        problem = f"schema_version is {brief(version)}, but this evenshard reads {FILE_VERSION}"
        raise BadFile(path, problem, "Place again with `evenshard place ... -o`.")
    record = read_record(PlacementFile, content, path, _REMEDY)
    read_record(_WithLineage, content, path, _REMEDY)
    return record


# Writing --------------------------------------------------------------------------------------------------------------


def _record(answer: PlacementAnswer) -> PlacementFile:
    measured, offload_ms = answer.measured, {one.number: one.offload_ms for one in answer.offloaded}
    return PlacementFile(
        schema_version=FILE_VERSION,
        num_devices=answer.num_devices,
        type_of_table=dict(answer.type_of_table),
        shards=[
            Shard(**vars(part), alone_ms=alone_ms, adds_ms=adds_ms, offload_ms=offload_ms.get(number, 0.0))
            for number, (part, alone_ms, adds_ms) in enumerate(
                zip(answer.parts, answer.alone_ms, answer.adds_ms, strict=True)
            )
        ],
        predicted=Predicted(
            total_ms=answer.predicted_ms,
            low_ms=answer.low_ms,
            high_ms=answer.high_ms,
            model_low_ms=answer.model_low_ms,
            model_high_ms=answer.model_high_ms,
            step=answer.step,
            devices=[
                PredictedTimes(
                    **_times(number, one, "predicted_"),
                    **{name: getattr(one, f"predicted_{name}") for name in WAIT_TIMES},
                    num_shards=len(answer.parts_on_device[number]),
                    used_bytes=answer.used_bytes[number],
                )
                for number, one in enumerate(answer.devices)
            ],
        ),
        memory=MemoryRecord(
            devices=list(answer.memory),
            hosts=[one for one in answer.host_memory if one.room or one.ssd_room],
            warnings=list(answer.memory_warnings),
        ),
        uncertainty_ms=answer.uncertainty_ms,
        measured=None
        if measured is None or answer.measured_ms is None
        else MeasuredStep(
            times=measured_or_simulated(answer.request.hardware),
            total_ms=answer.measured_ms,
            all_to_all="measured" if measured.all_to_all == "measured" else "modelled",
            devices=[DeviceTimes(**_times(number, one)) for number, one in enumerate(measured.devices)],
        ),
        **_shared_fields(answer),
    )


def _shared_fields(holder: PlacementAnswer | PlacementFile) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in SHARED_FIELDS}


def _times(device: int, cost: PredictedDevice | DeviceCost, prefix: str = "") -> dict[str, Any]:
    return {"device": device, **{name: getattr(cost, f"{prefix}{name}") for name in (*STEP_TIMES, "total_ms")}}


# Reading --------------------------------------------------------------------------------------------------------------


def _answer(record: PlacementFile) -> PlacementAnswer:
    request, measured, predicted = record.request, record.measured, record.predicted
    if record.num_devices != request.num_devices or len(record.predicted.devices) != request.num_devices:
        raise BadConfig(f"num_devices is {record.num_devices}, but the request has {request.num_devices} devices")
    answer = PlacementAnswer(
        **_shared_fields(record),
        parts=record.parts,
        alone_ms=tuple(one.alone_ms for one in record.shards),
        adds_ms=tuple(one.adds_ms for one in record.shards),
        devices=tuple(
            PredictedDevice(**_times_of(one, "predicted_", (*STEP_TIMES, *WAIT_TIMES))) for one in predicted.devices
        ),
        predicted_ms=predicted.total_ms,
        model_low_ms=predicted.model_low_ms,
        model_high_ms=predicted.model_high_ms,
        measured_ms=None if measured is None else measured.total_ms,
        measured=None
        if measured is None
        else PlacementCost(tuple(DeviceCost(**_times_of(one)) for one in measured.devices), measured.all_to_all),
    )
    for name in ("device_error", "link_error"):
        error: DeviceError | None = getattr(answer, name)
        if error is not None and (problem := error.problem()):
            raise BadConfig(f"{name}.{problem}")
    stated = record.type_of_table
    wrong = next((name for name, kind in answer.type_of_table.items() if stated and stated.get(name) != kind), None)
    if wrong is not None:
        raise BadConfig(
            f"type_of_table says {brief(stated.get(wrong))} for {brief(wrong)}, but the shards of this table are "
            f"{answer.type_of_table[wrong]}"
        )
    return answer


def _times_of(times: DeviceTimes, prefix: str = "", names: Sequence[str] = STEP_TIMES) -> dict[str, Any]:
    return {f"{prefix}{name}": getattr(times, name) for name in names}
