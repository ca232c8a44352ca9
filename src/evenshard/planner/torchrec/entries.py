"""The entry of one table in a TorchRec plan: the same words in a ``ShardingPlan`` and in a plan's file.

They are those that TorchRec's ``EmbeddingModuleShardingPlan`` serializes. Nothing here needs TorchRec.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from evenshard.placement.parts import TablePart
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

COMPUTE_DEVICES = ("cuda", "cpu")


class ShardEntry(BaseModel):
    """A part of a table on a rank; offsets and sizes are [rows, columns]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shard_offsets: tuple[int, int]
    shard_sizes: tuple[int, int]
    placement: str = Field(description="rank and device, such as rank:3/cuda:3")

    @staticmethod
    def of(part: TablePart, compute_device: str, local_world_size: int) -> ShardEntry:
        """The entry of a part."""
        return ShardEntry(
            shard_offsets=(part.rows.start, part.columns.start),
            shard_sizes=(part.rows.size, part.columns.size),
            placement=_place(part.device, compute_device, local_world_size),
        )


class TableEntry(BaseModel):
    """A table: where its shards live, from the first column to the last."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharding_type: str = Field(description="table_wise, or column_wise if it is split")
    compute_kernel: str = Field(description="fused: the backward pass updates the weights")
    ranks: tuple[int, ...]
    shards: tuple[ShardEntry, ...]


def table_entry(parts: Sequence[TablePart], compute_device: str, local_world_size: int) -> TableEntry:
    """The entry of a table that lives in ``parts``, which are in the order of their columns."""
    return TableEntry(
        sharding_type="table_wise" if len(parts) == 1 else "column_wise",
        compute_kernel="fused",
        ranks=tuple(part.device for part in parts),
        shards=tuple(ShardEntry.of(part, compute_device, local_world_size) for part in parts),
    )


def _place(rank: int, compute_device: str, local_world_size: int) -> str:
    """A rank's device; GPUs are counted within a node."""
    device = compute_device if compute_device == "cpu" else f"{compute_device}:{rank % local_world_size}"
    return f"rank:{rank}/{device}"


def checked_local_world_size(local_world_size: int | None, world_size: int, compute_device: str) -> int:
    """Ranks of a node; all of them where it is not given.

    Raises:
        BadConfig: if the ranks do not fill the nodes, or if the kind of device is unknown.
    """
    if compute_device not in COMPUTE_DEVICES:
        raise BadConfig(f"compute_device is {brief(compute_device)}. Choose one of {', '.join(COMPUTE_DEVICES)}.")
    if local_world_size is None:
        return world_size
    if local_world_size < 1 or world_size % local_world_size:
        raise BadConfig(f"local_world_size is {local_world_size}, world_size {world_size}. Give a divisor of it.")
    return local_world_size
