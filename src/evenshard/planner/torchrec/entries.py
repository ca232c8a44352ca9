"""The entry of one table in a TorchRec plan: the same words in a ``ShardingPlan`` and in a plan's file.

They are those that TorchRec's ``EmbeddingModuleShardingPlan`` serializes. Nothing here needs TorchRec.

TorchRec finds the rank of a row by its number: ceil(rows / ranks) on each, in the order of the ranks. So rows live in
such blocks, and a rank that has none is listed with an empty shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from pydantic import BaseModel, ConfigDict, Field

from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    IN_ROWS,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    sharding_type,
)
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief, cut

COMPUTE_DEVICES = ("cuda", "cpu")
FUSED_KERNEL, DENSE_KERNEL = "fused", "dense"
WITHIN_NODE = {TABLE_WISE: TABLE_COLUMN_WISE, COLUMN_WISE: TABLE_COLUMN_WISE, ROW_WISE: TABLE_ROW_WISE}
"""Types that parts on the ranks of one node are, too."""


class ShardEntry(BaseModel):
    """A part of a table on a rank; offsets and sizes are [rows, columns]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shard_offsets: tuple[int, int]
    shard_sizes: tuple[int, int]
    placement: str = Field(description="rank and device, such as rank:3/cuda:3")


class TableEntry(BaseModel):
    """A table: where its shards live, by columns, then rows; a replicated one is listed whole for every rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharding_type: str = Field(description="one of the seven of TorchRec")
    compute_kernel: str = Field(description="fused: the backward pass updates the weights; dense: an optimizer does")
    ranks: tuple[int, ...]
    shards: tuple[ShardEntry, ...]


def table_entry(
    parts: Sequence[TablePart], table: Table, machine: Machine, compute_device: str, written_as: str | None = None
) -> TableEntry:
    """The entry of a table.

    Args:
        parts: all parts of the table, by columns, then rows.
        table: the whole one.
        machine: of the ranks.
        compute_device: cuda or cpu.
        written_as: the type to write; None for the one that the parts make.

    Raises:
        BadConfig: if rows do not live where TorchRec looks them up.
    """
    way = sharding_type(parts, table, machine)
    if way == DATA_PARALLEL:
        placed = [(rank, parts[0].rows, parts[0].columns) for rank in range(machine.num_devices)]
    elif way in IN_ROWS:
        placed = list(_row_blocks(parts, table, machine, way))
    else:
        placed = [(part.device, part.rows, part.columns) for part in parts]
    return TableEntry(
        sharding_type=written_as or way,
        compute_kernel=DENSE_KERNEL if way == DATA_PARALLEL else FUSED_KERNEL,
        ranks=tuple(rank for rank, _, _ in placed),
        shards=tuple(
            ShardEntry(
                shard_offsets=(rows.start, columns.start),
                shard_sizes=(rows.size, columns.size),
                placement=_place(rank, compute_device, machine.devices_per_node),
            )
            for rank, rows, columns in placed
        ),
    )


def type_among(allowed: Collection[str], parts: Sequence[TablePart], table: Table, machine: Machine) -> str:
    """The type of a table's parts; that within a node where only this one is allowed."""
    way = sharding_type(parts, table, machine)
    in_node = WITHIN_NODE.get(way, way)
    return in_node if way not in allowed and in_node in allowed else way


def _row_blocks(
    parts: Sequence[TablePart], table: Table, machine: Machine, way: str
) -> Iterator[tuple[int, Span, Span]]:
    """The rank, rows and columns of all blocks of rows, empty ones too."""
    for columns, of_columns in groupby(parts, key=lambda part: part.columns):
        held = {part.device: part.rows for part in of_columns}
        ranks = range(machine.num_devices) if way == ROW_WISE else machine.devices_of_node(machine.node_of(min(held)))
        block = -(-table.num_rows // len(ranks))
        edges = [min(number * block, table.num_rows) for number in range(len(ranks) + 1)]
        blocks = {rank: Span(*edges[number : number + 2]) for number, rank in enumerate(ranks)}
        if held != {rank: rows for rank, rows in blocks.items() if rows.size}:
            where = cut(", ".join(f"{rows} on {rank}" for rank, rows in sorted(held.items())))
            raise BadConfig(
                f"table {brief(table.name)} has the rows {where}. TorchRec trains blocks of {block} rows in the order "
                f"of the ranks. Place it so."
            )
        for rank, rows in blocks.items():
            yield rank, rows, columns


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
