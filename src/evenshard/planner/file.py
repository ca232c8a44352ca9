"""The records of placement.json; its JSON schema is made from them (``evenshard place --schema``).

The file holds the request too, tables included, so that ``evenshard explain`` and ``evenshard diff`` need nothing else
but the model that its lineage names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.placement.parts import TableShard
from evenshard.planner.answer import PlacementAnswer, Rival
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.sharders.convex_search.prediction import PredictedDevice
from evenshard.tables.assumptions import Assumption
from evenshard.tables.table import Table
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile, MeasurementFailed
from evenshard.utils.json_files import load_json
from evenshard.utils.messages import cut, reason_of

REMEDY = "Write it with `evenshard place ... -o`."


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Shard(_Record):
    """Columns of a table on a device."""

    table: str
    device: int = Field(ge=0)
    columns: tuple[int, int] = Field(description="the first column, and the one behind the last")
    alone_ms: float = Field(description="no device that holds these columns is predicted to take less")
    adds_ms: float = Field(description="what the device would save without these columns")


class DeviceTimes(_Record):
    """One device in one training step, ms."""

    device: int = Field(ge=0)
    fwd_compute_ms: float
    fwd_all_to_all_ms: float
    bwd_all_to_all_ms: float
    bwd_compute_ms: float
    total_ms: float = Field(description="the four together")


class PredictedTimes(DeviceTimes):
    """Predicted times of a device, and what it holds."""

    num_shards: int
    used_bytes: int = Field(description="weights and optimizer state")


class Predicted(_Record):
    """What the cost model says, ms."""

    total_ms: float = Field(description="of the slowest device")
    low_ms: float = Field(description="lower end of the 90 % interval")
    high_ms: float
    devices: list[PredictedTimes]


class Measured(_Record):
    """A step on the request's hardware, ms: measured on real hardware, simulated on simulated:<profile>."""

    total_ms: float
    all_to_all: Literal["measured", "modelled"] = Field(description="whether devices really exchanged anything")
    devices: list[DeviceTimes]


class Compared(_Record):
    """What another sharder's placement would cost."""

    sharder: str
    predicted_ms: float | None
    measured_ms: float | None = Field(description="on the request's hardware; simulated on simulated:<profile>")
    note: str


class Assumed(_Record):
    """A value that nobody told."""

    table: str
    column: str
    text: str


class TableRecord(_Record):
    """A table as it was placed."""

    name: str
    num_rows: int
    embedding_dim: int
    pooling_factor: float
    reuse_bins: tuple[float, ...] | None
    weight_bits: int


class RuleRecord(_Record):
    """Where tables may and may not live."""

    pinned: dict[str, tuple[int, ...]]
    forbidden: dict[str, tuple[int, ...]]
    forbidden_devices: tuple[int, ...]
    together: tuple[tuple[str, ...], ...]
    apart: tuple[tuple[str, ...], ...]


class Request(_Record):
    """What was asked."""

    tables: list[TableRecord]
    caps_bytes: tuple[int, ...] = Field(description="memory of each device")
    reserved_bytes: int
    optimizer: str
    batch_size: int
    rules: RuleRecord
    allow_column_split: bool
    hardware: str = Field(description="simulated:<profile> is a device model, and no GPU")
    assumptions: list[Assumed]


class PlacementFile(_Record):
    """A placement of embedding tables on devices, by evenshard."""

    schema_version: Literal[1]
    num_devices: int = Field(ge=1)
    shards: list[Shard]
    predicted: Predicted
    lower_bound_ms: float = Field(gt=0, description="no placement of these shards is predicted to cost less")
    uncertainty_ms: float = Field(description="half the width of the 90 % interval")
    measured: Measured | None
    comparison: list[Compared]
    warnings: list[str] = Field(description="where the request lies outside of the model's training data")
    link: str = Field("", description="that the exchanges of the model's training data went over")
    notes: list[str] = Field([], description="what else to know before believing a time")
    request: Request
    lineage: dict[str, Any]


class _FollowedVersion(BaseModel):
    name: str = ""
    version: str = ""
    model_id: str | None = None
    run_id: str | None = None
    policy: _FollowedVersion | None = None


class _FollowedData(BaseModel):
    git_commit: str = ""
    hardware: str = ""
    versions: str = ""
    costs_sha256: tuple[str, ...] = ()


class _FollowedModel(BaseModel):
    source: str = ""
    sha256: str = ""
    mlflow: _FollowedVersion | None = None
    trained_on: _FollowedData | None = None


class _Followed(BaseModel):
    """What ``evenshard lineage`` and the page look up in the lineage, where it stands there."""

    model: _FollowedModel | None = None
    evenshard_version: str = ""


def json_schema() -> dict[str, Any]:
    """The JSON schema of placement.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **PlacementFile.model_json_schema()}


def save_answer(answer: PlacementAnswer, path: str | Path) -> None:
    """Writes placement.json as a whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_text(json_text(answer))


def json_text(answer: PlacementAnswer) -> str:
    """placement.json; the same answer gives the same text."""
    return json.dumps(_record(answer).model_dump(mode="json"), indent=1, allow_nan=False) + "\n"


def load_answer(path: str | Path) -> PlacementAnswer:
    """Reads placement.json.

    Raises:
        BadFile: if it is missing, torn, or says something impossible.
    """
    try:
        record = PlacementFile.model_validate(load_json(Path(path).read_bytes()))
        _Followed.model_validate(record.lineage)
        return _answer(record)
    except FileNotFoundError:
        raise BadFile(path, "no such file", REMEDY) from None
    except OSError as error:
        raise BadFile(path, f"cannot be read ({reason_of(error)})", REMEDY) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = cut(".".join(str(step) for step in first["loc"])) or None
        raise BadFile(path, f"is not a placement.json: {first['msg']}", REMEDY, where) from None
    except ValueError as error:
        raise BadFile(path, f"is not a placement.json: {reason_of(error)}", REMEDY) from None
    except (BadConfig, MeasurementFailed) as error:
        raise BadFile(path, str(error).rstrip("."), REMEDY) from None


# Out -----------------------------------------------------------------------------------------------------------------


def _record(answer: PlacementAnswer) -> PlacementFile:
    shards = answer.shards()
    devices = [
        PredictedTimes(
            device=number,
            fwd_compute_ms=one.predicted_fwd_compute_ms,
            fwd_all_to_all_ms=one.predicted_fwd_all_to_all_ms,
            bwd_all_to_all_ms=one.predicted_bwd_all_to_all_ms,
            bwd_compute_ms=one.predicted_bwd_compute_ms,
            total_ms=one.predicted_total_ms,
            num_shards=len(shards[number]),
            used_bytes=answer.used_bytes[number],
        )
        for number, one in enumerate(answer.devices)
    ]
    return PlacementFile(
        schema_version=1,
        num_devices=answer.num_devices,
        shards=[
            Shard(
                table=one.table,
                device=one.device,
                columns=(one.column_start, one.column_stop),
                alone_ms=alone_ms,
                adds_ms=adds_ms,
            )
            for one, alone_ms, adds_ms in zip(answer.table_shards, answer.alone_ms, answer.adds_ms, strict=True)
        ],
        predicted=Predicted(
            total_ms=answer.predicted_ms, low_ms=answer.low_ms, high_ms=answer.high_ms, devices=devices
        ),
        lower_bound_ms=answer.lower_bound_ms,
        uncertainty_ms=answer.uncertainty_ms,
        measured=None if answer.measured is None else _measured_record(answer.measured),
        comparison=[Compared(**vars(rival)) for rival in answer.comparison],
        warnings=list(answer.warnings),
        link=answer.link,
        notes=list(answer.notes),
        request=_request_record(answer.request),
        lineage=dict(answer.lineage),
    )


def _measured_record(cost: PlacementCost) -> Measured:
    devices = [
        DeviceTimes(
            device=number,
            fwd_compute_ms=one.fwd_compute_ms,
            fwd_all_to_all_ms=one.fwd_all_to_all_ms,
            bwd_all_to_all_ms=one.bwd_all_to_all_ms,
            bwd_compute_ms=one.bwd_compute_ms,
            total_ms=one.total_ms,
        )
        for number, one in enumerate(cost.devices)
    ]
    all_to_all: Literal["measured", "modelled"] = "measured" if cost.all_to_all == "measured" else "modelled"
    return Measured(total_ms=cost.max_device_ms, all_to_all=all_to_all, devices=devices)


def _request_record(request: PlacementRequest) -> Request:
    return Request(
        tables=[TableRecord(**vars(table)) for table in request.tables],
        caps_bytes=request.caps_bytes,
        reserved_bytes=request.reserved_bytes,
        optimizer=request.optimizer,
        batch_size=request.batch_size,
        rules=RuleRecord(**vars(request.rules)),
        allow_column_split=request.allow_column_split,
        hardware=request.hardware,
        assumptions=[Assumed(**vars(one)) for one in request.assumptions],
    )


# In ------------------------------------------------------------------------------------------------------------------


def _answer(record: PlacementFile) -> PlacementAnswer:
    asked = record.request
    request = PlacementRequest(
        tables=tuple(Table(**dict(table)) for table in asked.tables),
        caps_bytes=asked.caps_bytes,
        batch_size=asked.batch_size,
        reserved_bytes=asked.reserved_bytes,
        optimizer=asked.optimizer,
        rules=Rules(**dict(asked.rules)),
        allow_column_split=asked.allow_column_split,
        hardware=asked.hardware,
        assumptions=tuple(Assumption(**dict(one)) for one in asked.assumptions),
    )
    if record.num_devices != request.num_devices or len(record.predicted.devices) != request.num_devices:
        raise BadConfig(f"num_devices is {record.num_devices}, the request has {request.num_devices} devices")
    shards = [TableShard(one.table, one.device, *one.columns) for one in record.shards]
    parts, _, placement = request.placed(shards)
    shard_of = {(one.table, one.columns): one for one in record.shards}
    ordered = [shard_of[part.whole, (part.column_start, part.column_stop)] for part in parts]
    return PlacementAnswer(
        device_of_table=placement.device_of_table,
        num_devices=request.num_devices,
        request=request,
        parts=parts,
        alone_ms=tuple(one.alone_ms for one in ordered),
        adds_ms=tuple(one.adds_ms for one in ordered),
        devices=tuple(
            PredictedDevice(one.fwd_compute_ms, one.fwd_all_to_all_ms, one.bwd_all_to_all_ms, one.bwd_compute_ms)
            for one in record.predicted.devices
        ),
        predicted_ms=record.predicted.total_ms,
        low_ms=record.predicted.low_ms,
        high_ms=record.predicted.high_ms,
        lower_bound_ms=record.lower_bound_ms,
        warnings=tuple(record.warnings),
        comparison=tuple(Rival(**dict(one)) for one in record.comparison),
        measured=None if record.measured is None else _measured(record.measured),
        lineage=record.lineage,
        link=record.link,
        notes=tuple(record.notes),
    )


def _measured(record: Measured) -> PlacementCost:
    return PlacementCost(
        tuple(
            DeviceCost(one.fwd_compute_ms, one.fwd_all_to_all_ms, one.bwd_all_to_all_ms, one.bwd_compute_ms)
            for one in record.devices
        ),
        record.all_to_all,
    )
