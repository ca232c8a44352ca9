"""Settings of TorchRec's planner, and those that ``place --report`` compares with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

# Columns of the narrowest shard, where a setting does not keep TorchRec's own 128.
NARROW = 32


@dataclass(frozen=True)
class PlannerSetting:
    """What a user of TorchRec's planner chooses.

    Attributes:
        min_partition: columns of the narrowest part; None for TorchRec's own, which is 128.
        sort_by: order of its greedy partitioner, storage or perf.
        grid_shard: True if it may use grid_shard, which it does only where it is named.
        replicas: True if it may use data_parallel where the task allows another type, too.
        rows: True if it may use the types that cut rows where the task allows another type, too.
        told: True if it is told pooling factors and bandwidths. By default TorchRec takes each pooling factor to be 1,
            and its own constants for bandwidths.
        dynamic: True if DynamicProgrammingProposer is its only proposer.
        load_factor: initial load factor of every cache, which EmbeddingOffloadScaleupProposer increases; None for
            device memory alone.
    """

    min_partition: int | None = None
    sort_by: str = "storage"
    grid_shard: bool = False
    replicas: bool = field(default=True, kw_only=True)
    rows: bool = field(default=True, kw_only=True)
    told: bool = field(default=True, kw_only=True)
    dynamic: bool = field(default=False, kw_only=True)
    load_factor: float | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        width = "default min_partition" if self.min_partition is None else f"min_partition {self.min_partition}"
        said = (
            *(() if self.load_factor is None else (f"load factor {self.load_factor:g}",)),
            f"{width}, by {self.sort_by}",
            *(("grid_shard",) if self.grid_shard else ()),
            *(() if self.replicas else ("no replicas",)),
            *(() if self.rows else ("no cut rows",)),
            *(() if self.told else ("no pooling factors", "its own bandwidths")),
            *(("dynamic programming proposers",) if self.dynamic else ()),
        )
        return ", ".join(said)


# TorchRec's planner with its defaults: no constraints but sharding types, and its own bandwidths.
AS_IT_COMES = PlannerSetting(told=False)
SETTINGS = (
    AS_IT_COMES,
    PlannerSetting(replicas=False),
    PlannerSetting(NARROW),
    PlannerSetting(NARROW, replicas=False),
)
OFFLOAD_SETTINGS = tuple(replace(one, told=True, load_factor=0.02) for one in SETTINGS)
