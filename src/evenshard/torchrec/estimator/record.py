"""What an estimator's file holds, field by field: the formula's coefficients, and where they are from."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from evenshard.torchrec.estimator.formula import FittedShard, WorldSize, host_work_of, work_of
from evenshard.utils.messages import brief

SCHEMA_VERSION = 2
_SHARD = FittedShard("table_wise", "fused", 1, 4, 1, 1.0, 1.0, 4.0)
_WORK = frozenset(work_of(_SHARD, WorldSize(1, 1, 1), 1.0, 1.0))
_HOST_WORK = frozenset(host_work_of(_SHARD, {"distinct_share": 1.0, "new_share": 0.0}, 1.0))
# Largest coefficient and constant that is accepted; the largest ones that were fitted are below 100.
_LARGEST = 1e6

Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
NotNegative = Annotated[float, Field(ge=0, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
NumBytes = Annotated[int, Field(ge=1, le=8)]


def _of_names(names: frozenset[str]) -> Any:
    """Coefficients of these names, of which those that are 0 are left out."""

    def check(coefficients: dict[str, float]) -> dict[str, float]:
        unknown = next((name for name in coefficients if name not in names), None)
        if unknown is not None:
            raise PydanticCustomError("unknown_coefficient", f"the coefficient {brief(unknown)} is unknown")
        return coefficients

    return Annotated[dict[str, Positive], AfterValidator(check)]


class Strict(BaseModel):
    """A record of finite numbers of the very types, and of no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LinkTimes(Strict):
    """Nanoseconds for a byte."""

    own_ns: Positive = Field(description="of a rank's own")
    slowest_ns: NotNegative = Field(description="of those of the rank that moves most")
    shared_ns: NotNegative = Field(description="of all ranks'")


class Exchange(Strict):
    """What exchanges take beside the bytes of embeddings."""

    latency_us: NotNegative
    node_latency_us: NotNegative
    forward_share: Positive
    index_bytes: NumBytes
    length_bytes: NumBytes
    lookup_weight_bytes: NumBytes


class Compute(Strict):
    """Coefficients of both passes of a kernel call."""

    forward: _of_names(_WORK) = Field(min_length=1)  # type: ignore[valid-type]
    backward: _of_names(_WORK) = Field(min_length=1)  # type: ignore[valid-type]


class ComputeOfTypes(Strict):
    """Coefficients by the sharding types that have kernel calls of their own."""

    table_wise: Compute
    row_wise: Compute
    table_row_wise: Compute
    data_parallel: Compute


class Outside(Strict):
    """What tables outside of device memory add to both passes."""

    forward: _of_names(_HOST_WORK)  # type: ignore[valid-type]
    backward: _of_names(_HOST_WORK)  # type: ignore[valid-type]


class OutsideOfKernels(Strict):
    """What tables outside of device memory add, by compute kernel."""

    fused_uvm_caching: Outside
    fused_uvm: Outside


class FitError(Strict):
    """How far ratings are from costs, on tables that nothing was fitted to."""

    sets_of_tables: int = Field(ge=1)
    placements: int = Field(ge=1)
    median_percent: NotNegative
    p90_percent: NotNegative
    mean_rank_correlation: float = Field(ge=-1, le=1)


class Estimator(Strict):
    """The coefficients, and where they are from."""

    schema_version: int = Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    evenshard: str = Field(min_length=1)
    command: str
    fitted_to: str = Field(min_length=1)
    hardware: str = Field(min_length=1)
    distinct_share: Share = Field(gt=0)
    new_share: Share
    l2_bytes: float = Field(ge=0, le=2**40)
    host_gb_s: Positive
    dense_ms: Positive
    intra: LinkTimes
    inter: LinkTimes
    exchange: Exchange
    compute: ComputeOfTypes
    kernels: OutsideOfKernels
    error: FitError

    def digest(self) -> str:
        """SHA-256 of all fields but itself, in hexadecimal digits."""
        said = self.model_dump(exclude={"sha256"})
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


class EstimatorFile(Estimator):
    """A JSON file of them. What becomes of a coefficient by accident is mostly another one: the digest tells."""

    sha256: str

    @model_validator(mode="after")
    def _check_digest(self) -> EstimatorFile:
        if self.sha256 != self.digest():
            raise PydanticCustomError("digest", "its sha256 is not that of its content")
        return self
