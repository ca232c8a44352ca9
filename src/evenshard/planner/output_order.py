"""The order of a pooled collection's output, which TorchRec takes from the plan.

``ShardedEmbeddingBagCollection`` orders the keys and ``values()`` of its output by group, and each table's features
are together:

1. sharding types, in the order in which the collection's tables first have them;
2. of each type the ranks: a table cut by columns counts on the first of its ranks;
3. on a rank the kernel calls, in the order of their first tables: data type, pooling, optimizer and cache tell them
   apart;
4. the tables of a call, in the order of the collection.

So ``row_wise`` and ``data_parallel`` tables are not ordered by ranks, as each rank has all of them. An
``EmbeddingCollection`` has no such order: its output is a dict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from evenshard.placement.parts import FUSED, FUSED_UVM, FUSED_UVM_CACHING, Storage, TablePart
from evenshard.placement.sharding import SHARDING_TYPES, TABLE_WISE, TYPES, join_type, type_among
from evenshard.planner.request import PlacementRequest
from evenshard.tables.table import Table
from evenshard.utils.messages import cut

# Keys that are shown of an order.
MOST_KEYS = 8
BY_NAME = "Look up pooled outputs by name (output[feature]), or place with --keep-output-order."


@dataclass(frozen=True)
class OutputTable:
    """A table of a pooled collection, as far as it decides the order of the output.

    Attributes:
        name: of the table.
        keys: of its columns in the output, one for each feature.
        sharding_type: as it is written in the plan.
        ranks: that have a shard of it; (0,) for a replicated table.
        call: tells kernel calls of a rank apart.
    """

    name: str
    keys: tuple[str, ...]
    sharding_type: str
    ranks: tuple[int, ...]
    call: Hashable


@dataclass(frozen=True)
class OrderChange:
    """A pooled collection whose output has another order.

    Attributes:
        collection: its path in the model; empty where it is not known.
        old, new: keys of the output.
    """

    collection: str
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def text(self) -> str:
        """The change as a sentence, with the keys around the first difference."""
        first = next((at for at, pair in enumerate(zip(self.old, self.new, strict=False)) if pair[0] != pair[1]), 0)
        start = max(first - 1, 0) if len(self.old) > MOST_KEYS else 0
        before, now = (keys_text(keys, start) for keys in (self.old, self.new))
        name = f" of {cut(self.collection)}" if self.collection else ""
        return f"The pooled output{name} changes its order: {before} -> {now}."


def keys_text(keys: Sequence[str], start: int = 0) -> str:
    """Return some keys as text, from one of them on."""
    left = len(keys) - start - MOST_KEYS
    ends = ("... " if start else "", f" ... ({left:,} more)" if left > 0 else "")
    return f"{ends[0]}{cut(' '.join(keys[start : start + MOST_KEYS]), 200)}{ends[1]}"


def sort_outputs(tables: Sequence[OutputTable]) -> tuple[OutputTable, ...]:
    """Return the tables of a collection, which are in its own order, in the order of its sharded output."""
    found: dict[OutputTable, None] = {}
    for way in dict.fromkeys(one.sharding_type for one in tables):
        tables_on: dict[int, list[OutputTable]] = {}
        for one in tables:
            if one.sharding_type == way:
                for rank in dict.fromkeys(one.ranks):
                    tables_on.setdefault(rank, []).append(one)
        for _, there in sorted(tables_on.items()):
            for call in dict.fromkeys(one.call for one in there):
                found |= dict.fromkeys(one for one in there if one.call == call)
    return tuple(found)


def output_keys(tables: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, ...]]:
    """Return the keys of each table's output, given names and features: TorchRec adds the table to a shared feature."""
    counts = Counter(feature for _, features in tables for feature in features)
    return [tuple(f"{one}@{name}" if counts[one] > 1 else one for one in features) for name, features in tables]


def output_orders(
    request: PlacementRequest, parts_of_table: Mapping[str, Sequence[TablePart]]
) -> dict[str, tuple[OutputTable, ...]]:
    """Return the tables of each pooled collection in the order of its output, by the collection's path.

    Tables of a file are taken for one collection, in the order of the file, and their optimizers for equal settings.
    """
    collections = collections_of(request.tables)
    return {path: sort_outputs(_output_tables(request, tables, parts_of_table)) for path, tables in collections.items()}


def orders_of_model(tables: Sequence[Table]) -> dict[str, tuple[OutputTable, ...]]:
    """Return the pooled tables in the order of the unsharded collections, by the path of these."""
    return {
        path: tuple(
            OutputTable(table.name, keys, TABLE_WISE, (0,), None)
            for table, keys in zip(own, _keys_of(own), strict=True)
        )
        for path, own in collections_of(tables).items()
    }


def collections_of(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """Return the tables of each pooled collection by its path."""
    collections: dict[str, list[Table]] = {}
    for table in tables:
        if not table.is_sequence:
            collections.setdefault(table.module, []).append(table)
    return collections


def _keys_of(tables: Sequence[Table]) -> list[tuple[str, ...]]:
    return output_keys([(table.name, table.feature_names or (table.name,)) for table in tables])


def _output_tables(
    request: PlacementRequest, tables: Sequence[Table], parts_of_table: Mapping[str, Sequence[TablePart]]
) -> list[OutputTable]:
    ways = [
        type_among(request.limits_of(table.name).types, parts_of_table[table.name], table, request.nodes)
        for table in tables
    ]
    found = []
    for table, own, way in zip(tables, _keys_of(tables), ways, strict=True):
        parts = parts_of_table[table.name]
        ranks = (0,) if TYPES[way].is_replicated else tuple(sorted({part.device for part in parts}))
        widest = max(part.columns.size for part in parts)
        call = (table.dtype, table.pooling, request.optimizer_of(table.name), _cache_key(parts[0].storage, widest))
        found.append(OutputTable(table.name, own, join_type(way, SHARDING_TYPES, ways), ranks, call))
    return found


def _cache_key(storage: Storage, widest: int) -> Hashable:
    if storage.kernel in (FUSED, FUSED_UVM):
        return FUSED
    return storage.kernel, storage.load_factor if storage.kernel == FUSED_UVM_CACHING else None, widest


def order_changes(
    old: Mapping[str, Sequence[OutputTable]], new: Mapping[str, Sequence[OutputTable]]
) -> tuple[OrderChange, ...]:
    """Return the collections of both placements whose keys are the same, in another order."""
    changes = (
        OrderChange(path, *(tuple(key for one in tables for key in one.keys) for tables in (old[path], new[path])))
        for path in new
        if path in old
    )
    return tuple(one for one in changes if one.old != one.new and sorted(one.old) == sorted(one.new))
