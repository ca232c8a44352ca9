"""Placements that TorchRec 1.8 trains incorrectly, found by training in tests/with_torchrec/test_every_type.py.

- In an ``EmbeddingCollection``, a table must be whole, replicated, cut by rows over all ranks, or cut by columns; all
  column shards of the collection must have the same width. FBGEMM cannot look up a replica on the CPU.
- On the CPU, if a rank has no rows of a table, FBGEMM updates the next table of the same call with the width of the
  empty table. If the last table is empty, FBGEMM reads arbitrary memory. So every rank must have rows.
- If one MEAN table of a collection is cut by rows, TorchRec divides the outputs of all its tables by the number of
  lookups, except those of ``grid_shard``. So tables not cut by rows, and ``grid_shard`` tables, train incorrectly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement import sharding
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.tables.table import MEAN, SEQUENCE, Table
from evenshard.torchrec.model.modules import LocatedTable


@dataclass(frozen=True)
class ShardedTable:
    """A table of a collection with its sharding type and its parts."""

    name: str
    pooling: str
    sharding_type: str
    allowed: frozenset[str]  # types that a plan may write
    parts: tuple[TablePart, ...]


ANY_TYPE = frozenset(sharding.SHARDING_TYPES)  # no limit on the types that a plan may write


def describe_sharded_table(
    located: LocatedTable,
    parts: Sequence[TablePart],
    machine: Nodes,
    types: frozenset[str] = ANY_TYPE,
    allowed: frozenset[str] = ANY_TYPE,
) -> ShardedTable:
    """Return a table of a model with its parts and their sharding type, which is among ``types``."""
    table = Table(located.name, *located.shape, 1.0)
    own_type = sharding.type_among(types, parts, table, machine)
    return ShardedTable(located.name, located.pooling, own_type, allowed, tuple(parts))


def leaves_a_rank_empty(num_rows: int, sharding_type: str, machine: Nodes) -> bool:
    """Return True if a rank gets no rows of a table that is cut by rows."""
    if not sharding.TYPES[sharding_type].cuts_rows:
        return False
    ranks = len(sharding.TYPES[sharding_type].row_devices(machine, 0))
    # TorchRec gives each rank ceil(rows / ranks) rows, so the last rank may get none.
    block = math.ceil(num_rows / ranks)
    return block * (ranks - 1) >= num_rows


def check_trainable(collection: Sequence[ShardedTable], machine: Nodes, compute_device: str) -> None:
    """Raise BadConfig if TorchRec cannot train the tables of a collection with these sharding types."""
    for problem in list_untrainable(collection, machine, compute_device):
        raise BadConfig(problem)


def list_untrainable(collection: Sequence[ShardedTable], machine: Nodes, compute_device: str) -> Iterator[str]:
    """Yield the tables of a collection that TorchRec cannot train with their sharding types, each as a sentence."""
    widths = {
        part.columns.size for table in collection if table.sharding_type == sharding.COLUMN_WISE for part in table.parts
    }
    others = [table for table in collection if table.sharding_type not in sharding.ROWS_ALONE]
    for table in collection:
        num_rows, own_type = max(part.rows.stop for part in table.parts), table.sharding_type
        if compute_device == "cpu" and leaves_a_rank_empty(num_rows, own_type, machine):
            yield (
                f"table {brief(table.name)} is sharded {own_type}, and its {num_rows} rows leave a rank empty: on the "
                f"CPU, FBGEMM then trains other tables of the kernel call incorrectly. Choose a type that cuts no rows."
            )
        if table.pooling == SEQUENCE:
            yield from _sequence_problems(table, widths, compute_device)
        elif table.pooling == MEAN and sharding.TYPES[own_type].cuts_rows and sharding.TYPES[own_type].cuts_columns:
            yield (
                f"table {brief(table.name)} is sharded {own_type}, with which TorchRec trains MEAN pooling "
                f"incorrectly. Leave it whole, replicate it, or cut it by columns."
            )
        elif table.pooling == MEAN and own_type in sharding.ROWS_ALONE and others:
            yield (
                f"table {brief(table.name)} is sharded {own_type}: TorchRec trains row-wise MEAN correctly only if all "
                f"tables of the collection are cut by rows, but {brief(others[0].name)} is {others[0].sharding_type}. "
                f"Leave it whole, replicate it, or cut it by columns."
            )


def _sequence_problems(table: ShardedTable, widths: set[int], compute_device: str) -> Iterator[str]:
    if table.sharding_type not in sharding.SEQUENCE_TYPES:
        yield (
            f"table {brief(table.name)} of an EmbeddingCollection is sharded {table.sharding_type}, which TorchRec "
            f"does not support there. Choose from {', '.join(sharding.SEQUENCE_TYPES)}."
        )
    if table.sharding_type == sharding.COLUMN_WISE and len(widths) > 1:
        yield (
            f"table {brief(table.name)} of an EmbeddingCollection is cut by columns, but the collection's shards have "
            f"different widths, {brief(sorted(widths))}. Use one width for all of its tables."
        )
    if sharding.TYPES[table.sharding_type].is_replicated and compute_device == "cpu":
        yield (
            f"table {brief(table.name)} of an EmbeddingCollection is data_parallel, which FBGEMM does not support on "
            f"the CPU. Choose another type."
        )


def choose_written_type(table: ShardedTable, collection: Sequence[ShardedTable]) -> str:
    """Return the sharding type to write for a table, given all tables of its collection."""
    if table.pooling == SEQUENCE:
        return table.sharding_type
    return sharding.join_type(table.sharding_type, table.allowed, [other.sharding_type for other in collection])
