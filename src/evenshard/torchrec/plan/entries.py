"""Entry of a table in a TorchRec plan: the same fields for a ``ShardingPlan`` and for a plan file.

The fields are those that TorchRec's ``EmbeddingModuleShardingPlan`` serializes. As in TorchRec, a file omits fields
with default values. This module does not need TorchRec.

TorchRec computes the rank of a row from its index: each rank has ceil(rows / ranks) rows, in the order of the ranks. So
row shards are equal blocks, and a rank without rows has an empty shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut
from evenshard.placement.memory import PREFETCH
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import (
    FUSED_UVM,
    FUSED_UVM_CACHING,
    HOST,
    KEY_VALUE,
    ON_DEVICE,
    Span,
    Storage,
    TablePart,
    row_starts,
)
from evenshard.placement.sharding import REPLICATED, TYPES, sharding_type
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import DENSE_KERNEL, parts_of_shards, storage_of

COMPUTE_DEVICES = ("cuda", "cpu")  # TorchRec's device types


class ShardEntry(BaseModel):
    """A shard on a rank; offsets and sizes are [rows, columns]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shard_offsets: tuple[int, int]
    shard_sizes: tuple[int, int]
    placement: str = Field(description="rank and device, such as rank:3/cuda:3")


class CacheEntry(BaseModel):
    """A cache in device memory: the fields of TorchRec's ``CacheParams`` that evenshard sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Literal["LRU"] = Field(description="eviction policy: least recently used rows first")
    load_factor: float = Field(gt=0, le=1, description="cached fraction of the table's rows")
    prefetch_pipeline: bool | None = Field(None, description="true if the training pipeline prefetches rows")


class TableEntry(BaseModel):
    """A table and its shards, sorted by columns, then rows; a replicated table has one whole shard per rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharding_type: str = Field(description="TorchRec's name of the sharding type")
    compute_kernel: str = Field(description="TorchRec's name of the kernel; dense for data_parallel tables")
    ranks: tuple[int, ...]
    shards: tuple[ShardEntry, ...] = ()  # TorchRec lists none of a data_parallel table
    cache_params: CacheEntry | None = Field(None, description="the table's cache, if its kernel has one")


class PlanFile(BaseModel):
    """evenshard's plan for TorchRec, before the tables' modules are known."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1]
    world_size: int = Field(ge=1)
    local_world_size: int = Field(ge=1, description="ranks per node")
    compute_device: Literal["cuda", "cpu"]
    tables: dict[str, TableEntry]
    lineage: dict[str, Any] = Field(description="as in placement.json")
    dense_optimizer: str = Field(
        default="", description="optimizer of the dense model, which updates data_parallel tables; omitted if unknown"
    )
    replicas_by_name: list[str] = Field(
        default=[], description="tables that the request allows by name to be data_parallel; omitted if there are none"
    )


def table_entry(
    parts: Sequence[TablePart],
    table: Table,
    machine: Nodes,
    compute_device: str,
    written_as: str | None = None,
    prefetched: bool | None = None,
) -> TableEntry:
    """Return the entry of a table from all its parts, sorted by columns, then rows.

    ``written_as`` is the sharding type to write; by default, that of the parts. ``prefetched`` is True if the training
    pipeline prefetches cached rows; None leaves that to the module sharders.

    Raises:
        BadConfig: if TorchRec would look for rows on other ranks, or has no kernel for the table's memory.
    """
    own_type = sharding_type(parts, table, machine)
    if TYPES[own_type].is_replicated:
        placed = [(rank, parts[0].rows, parts[0].columns) for rank in range(machine.num_devices)]
    elif TYPES[own_type].cuts_rows:
        placed = list(row_blocks(parts, table, machine, own_type))
    else:
        placed = [(part.device, part.rows, part.columns) for part in parts]
    kept = _storage(table, parts[0].storage, compute_device)
    return TableEntry(
        sharding_type=written_as or own_type,
        compute_kernel=DENSE_KERNEL if TYPES[own_type].is_replicated else kept.kernel,
        ranks=tuple(rank for rank, _, _ in placed),
        shards=tuple(
            ShardEntry(
                shard_offsets=(rows.start, columns.start),
                shard_sizes=(rows.size, columns.size),
                placement=_place(rank, compute_device, machine.devices_per_node),
            )
            for rank, rows, columns in placed
        ),
        cache_params=CacheEntry(algorithm="LRU", load_factor=kept.load_factor, prefetch_pipeline=prefetched)
        if kept.is_cached
        else None,
    )


def prefetches(training_pipeline: str) -> bool | None:
    """Return True if a training pipeline prefetches cached rows; None if no pipeline is named."""
    return training_pipeline == PREFETCH if training_pipeline else None


def _storage(table: Table, storage: Storage, compute_device: str) -> Storage:
    """Return the storage to write into the plan; on the CPU, ``host`` and ``key_value`` become ``fused``."""
    if compute_device == "cpu":
        return ON_DEVICE if storage.kernel in (HOST, KEY_VALUE) else storage
    if storage.kernel == HOST:
        raise BadConfig(
            f"table {brief(table.name)} uses kernel {HOST}, which TorchRec does not have on GPU ranks. Allow "
            f"{FUSED_UVM_CACHING} or {FUSED_UVM}."
        )
    return storage


def parts_of_entry(name: str, entry: TableEntry) -> tuple[TablePart, ...]:
    """Return the parts of an entry; a data_parallel table is one part on several devices."""
    if not entry.shards or len(entry.ranks) != len(entry.shards):
        raise BadConfig(f"table {brief(name)} has {len(entry.ranks)} ranks for {len(entry.shards)} shards")
    load_factor = None if entry.cache_params is None else entry.cache_params.load_factor
    shards = zip(
        entry.ranks, (one.shard_offsets for one in entry.shards), (one.shard_sizes for one in entry.shards), strict=True
    )
    parts = parts_of_shards(name, shards, storage_of(name, entry.compute_kernel, load_factor))
    if parts and entry.sharding_type in REPLICATED:
        return (replace(parts[0], devices=tuple(sorted(entry.ranks))),)
    return tuple(parts)


def table_of_parts(name: str, parts: Sequence[TablePart]) -> Table:
    """Return a table as large as its parts, with an assumed pooling factor of 1."""
    num_rows = max((part.rows.stop for part in parts), default=0)
    return Table(name, num_rows, max((part.columns.stop for part in parts), default=0), 1.0)


def row_blocks(
    parts: Sequence[TablePart], table: Table, machine: Nodes, own_type: str
) -> Iterator[tuple[int, Span, Span]]:
    """Yield rank, rows and columns of each block of rows, including empty blocks; raise BadConfig for other blocks."""
    for columns, of_columns in groupby(parts, key=lambda part: part.columns):
        held = {part.device: part.rows for part in of_columns}
        ranks = TYPES[own_type].row_devices(machine, min(held))
        block = row_starts(table.num_rows, len(ranks)).step
        # The last blocks may be short or empty.
        edges = [min(number * block, table.num_rows) for number in range(len(ranks) + 1)]
        blocks = {rank: Span(*edges[number : number + 2]) for number, rank in enumerate(ranks)}
        if held != {rank: rows for rank, rows in blocks.items() if rows.size}:
            where = cut(", ".join(f"{rows} on rank {rank}" for rank, rows in sorted(held.items())))
            raise BadConfig(
                f"table {brief(table.name)} has rows {where}. TorchRec needs blocks of {block} rows on the ranks "
                f"{ranks[0]} to {ranks[-1]} in order ({machine.devices_per_node} ranks per node). Place it again."
            )
        for rank, rows in blocks.items():
            yield rank, rows, columns


def _place(rank: int, compute_device: str, local_world_size: int) -> str:
    """Return a rank's device such as rank:9/cuda:1; GPUs are numbered within a node."""
    device = compute_device if compute_device == "cpu" else f"{compute_device}:{rank % local_world_size}"
    return f"rank:{rank}/{device}"


def check_local_world_size(local_world_size: int | None, world_size: int, compute_device: str) -> int:
    """Return the ranks per node, by default all ranks; raise BadConfig if they or the device type are invalid."""
    if compute_device not in COMPUTE_DEVICES:
        raise BadConfig(f"compute_device is {brief(compute_device)}. Choose one of {', '.join(COMPUTE_DEVICES)}.")
    if local_world_size is None:
        return world_size
    if local_world_size < 1 or world_size % local_world_size:
        raise BadConfig(f"local_world_size is {local_world_size}. Give a divisor of world_size ({world_size}).")
    return local_world_size
