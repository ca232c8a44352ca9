"""Limits of correct training in TorchRec 1.8, found by training in tests/with_torchrec/test_every_type.py.

- In an ``EmbeddingCollection``, tables are whole, cut by rows over all ranks, replicated, or cut by columns; all
  column parts in the collection must have the same width. FBGEMM cannot look up a replica on the CPU.
- On the CPU, FBGEMM confuses a table without rows with the next table in the same call, and updates that with the
  width of the empty table; after an empty last table it reads arbitrary memory. So every rank must have rows.
- TorchRec computes means of partial sums by dividing a collection's whole output, as soon as one of its mean tables
  is cut by rows. It then also divides tables that are not cut by rows, but not ``grid_shard``: both train wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import (
    COLUMN_WISE,
    ROWS_ALONE,
    SEQUENCE_TYPES,
    SHARDING_TYPES,
    TYPES,
    join_type,
    type_among,
)
from evenshard.tables.table import MEAN, SEQUENCE, Table
from evenshard.torchrec.model.modules import LocatedTable


@dataclass(frozen=True)
class ShardedTable:
    """A table of a collection with its sharding type, the types that it may be written as, and its parts."""

    name: str
    pooling: str
    way: str
    allowed: frozenset[str]
    parts: tuple[TablePart, ...]


ANY_TYPE = frozenset(SHARDING_TYPES)


def sharded_table(
    located: LocatedTable,
    parts: Sequence[TablePart],
    machine: Nodes,
    ways: frozenset[str] = ANY_TYPE,
    allowed: frozenset[str] = ANY_TYPE,
) -> ShardedTable:
    """Return a table of a model with its parts; ``ways`` are its types that are among ``allowed``."""
    table = Table(located.name, *located.shape, 1.0)
    way = type_among(ways, parts, table, machine)
    return ShardedTable(located.name, located.pooling, way, allowed, tuple(parts))


def leaves_a_rank_empty(num_rows: int, way: str, machine: Nodes) -> bool:
    """Return True if a rank of a table that is cut by rows gets no rows under TorchRec's row split."""
    if not TYPES[way].cuts_rows:
        return False
    ranks = len(TYPES[way].row_devices(machine, 0))
    block = math.ceil(num_rows / ranks)
    return block * (ranks - 1) >= num_rows


def check_trainable(collection: Sequence[ShardedTable], machine: Nodes, compute_device: str) -> None:
    """Raise BadConfig if TorchRec cannot train the tables of a collection with these sharding types."""
    widths = {part.columns.size for one in collection if one.way == COLUMN_WISE for part in one.parts}
    others = [one for one in collection if one.way not in ROWS_ALONE]
    for one in collection:
        num_rows = max(part.rows.stop for part in one.parts)
        if compute_device == "cpu" and leaves_a_rank_empty(num_rows, one.way, machine):
            raise BadConfig(
                f"table {brief(one.name)} is sharded {one.way}, and its {num_rows} rows leave a rank without any: on "
                f"the CPU, FBGEMM then trains the tables beside it wrongly. Choose a type that cuts no rows."
            )
        if one.pooling == SEQUENCE:
            _check_sequence(one, widths, compute_device)
        elif one.pooling == MEAN and TYPES[one.way].cuts_rows and TYPES[one.way].cuts_columns:
            raise BadConfig(
                f"table {brief(one.name)} is sharded {one.way}, in which TorchRec trains no means. Leave it whole, "
                f"replicate it, or cut it by columns."
            )
        elif one.pooling == MEAN and one.way in ROWS_ALONE and others:
            raise BadConfig(
                f"table {brief(one.name)} is sharded {one.way}, which TorchRec trains with means only where all tables "
                f"of a collection are cut by rows, and {brief(others[0].name)} is {others[0].way}. Leave it whole, "
                f"replicate it, or cut it by columns."
            )


def _check_sequence(table: ShardedTable, widths: set[int], compute_device: str) -> None:
    if table.way not in SEQUENCE_TYPES:
        raise BadConfig(
            f"table {brief(table.name)} of an EmbeddingCollection is sharded {table.way}; TorchRec knows "
            f"{', '.join(SEQUENCE_TYPES)} there. Choose one."
        )
    if table.way == COLUMN_WISE and len(widths) > 1:
        raise BadConfig(
            f"table {brief(table.name)} of an EmbeddingCollection is cut by columns, where parts have the widths "
            f"{brief(sorted(widths))}. Give all of the collection one width."
        )
    if TYPES[table.way].is_replicated and compute_device == "cpu":
        raise BadConfig(
            f"table {brief(table.name)} of an EmbeddingCollection is replicated, which FBGEMM cannot look up on the "
            f"CPU. Choose another type."
        )


def written_type(table: ShardedTable, collection: Sequence[ShardedTable]) -> str:
    """Return the sharding type to write for a table of a collection."""
    if table.pooling == SEQUENCE:
        return table.way
    return join_type(table.way, table.allowed, [one.way for one in collection])
