"""A placement as TorchRec's ``ShardingPlan``, and a plan as a placement.

A whole table is ``table_wise``, a split one ``column_wise``, both on fused kernels, which update the weights in the
backward pass. A plan names tables by the path of their collection and their own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from evenshard.placement.parts import TableShard, by_table, placement_of_shards, whole_tables
from evenshard.placement.placement import Placement
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.torchrec.entries import TableEntry, checked_local_world_size, table_entry
from evenshard.planner.torchrec.tables import LocatedTable, located_tables, qualified_name
from evenshard.sharders.torchrec_planner import require_torchrec
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import shown

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ParameterSharding, ShardingPlan
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    Modules = nn.Module | Mapping[str, EmbeddingBagCollection]

READABLE = ("table_wise", "column_wise", "table_column_wise")
"""Sharding types that put whole columns on one rank each."""


# Out -----------------------------------------------------------------------------------------------------------------


@overload
def sharding_plan(
    answer: PlacementAnswer,
    tables: Modules,
    /,
    *,
    compute_device: str = "cuda",
    local_world_size: int | None = None,
) -> ShardingPlan: ...
@overload
def sharding_plan(
    answer: Placement | Sequence[TableShard],
    tables: Sequence[Table],
    modules: Modules,
    world_size: int | None = None,
    *,
    compute_device: str = "cuda",
    local_world_size: int | None = None,
) -> ShardingPlan: ...
def sharding_plan(
    answer: Placement | Sequence[TableShard],
    tables: Sequence[Table] | Modules,
    modules: Modules | None = None,
    world_size: int | None = None,
    *,
    compute_device: str = "cuda",
    local_world_size: int | None = None,
) -> ShardingPlan:
    """A plan that ``DistributedModelParallel`` accepts; device ids are ranks.

    An answer of ``evenshard.place`` knows its tables: ``sharding_plan(answer, model)``.

    Args:
        answer: a placement of ``tables``, or shards of them where tables are split.
        tables: in the placement's order, called as ``tables_of`` calls them; they may stand in any order.
        modules: the model that will be wrapped, or its collections by path.
        world_size: ranks; the placement's devices where it is left out, which shards do not tell.
        compute_device: cuda or cpu (TorchRec's device types).
        local_world_size: ranks of a node; all of them where it is left out.

    Raises:
        BadConfig: if answer, tables and modules do not belong together.
    """
    require_torchrec()
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

    if isinstance(answer, PlacementAnswer) and modules is None:
        tables, modules = answer.request.tables, cast("Modules", tables)
    if modules is None:
        raise BadConfig("the model is missing. Give tables and model.")
    tables = cast("Sequence[Table]", tables)
    if isinstance(answer, Placement):
        if world_size not in (None, answer.num_devices):
            raise BadConfig(
                f"the placement has {answer.num_devices} devices, world_size is {world_size}. Place the tables again."
            )
        world_size = answer.num_devices
        answer = answer.table_shards if isinstance(answer, PlacementAnswer) else whole_tables(answer, tables)
    if world_size is None or world_size < 1:
        raise BadConfig(f"world_size is {world_size}; shards need it. Give the number of ranks.")
    local_world_size = checked_local_world_size(local_world_size, world_size, compute_device)
    shards_of_table = by_table(answer, tables, world_size)
    located = located_tables(modules)
    _check_same_tables(tables, located)
    plan: dict[str, Any] = {}
    for one in located:
        entry = table_entry(shards_of_table[one.name], one.config.num_embeddings, compute_device, local_world_size)
        plan.setdefault(one.path, EmbeddingModuleShardingPlan())[one.config.name] = _parameter_sharding(entry)
    return ShardingPlan(plan)


def _check_same_tables(tables: Sequence[Table], located: Sequence[LocatedTable]) -> None:
    of_model = {one.name: (one.config.num_embeddings, one.config.embedding_dim) for one in located}
    given = {table.name: (table.num_rows, table.embedding_dim) for table in tables}
    for name in (*given, *of_model):
        if name not in of_model:
            raise BadConfig(f"table {shown(name)} is not in the model's collections. Use the tables of `tables_of`.")
        if name not in given:
            raise BadConfig(f"table {shown(name)} of the model is not placed. Use the tables of `tables_of`.")
        if given[name] != of_model[name]:
            raise BadConfig(
                f"table {shown(name)} was placed with {' x '.join(map(str, given[name]))} weights, but has "
                f"{' x '.join(map(str, of_model[name]))} in the model. Place the model's tables."
            )


def _parameter_sharding(entry: TableEntry) -> ParameterSharding:
    from torchrec.distributed.types import EnumerableShardingSpec, ParameterSharding, ShardMetadata

    return ParameterSharding(
        sharding_type=entry.sharding_type,
        compute_kernel=entry.compute_kernel,
        ranks=list(entry.ranks),
        sharding_spec=EnumerableShardingSpec(
            [
                ShardMetadata(
                    shard_offsets=list(one.shard_offsets),
                    shard_sizes=list(one.shard_sizes),
                    placement=one.placement,
                )
                for one in entry.shards
            ]
        ),
    )


# In ------------------------------------------------------------------------------------------------------------------


def placement_of(plan: ShardingPlan, tables: Sequence[Table], num_devices: int) -> Placement:
    """Where a plan puts whole tables, in the order of ``tables``.

    Args:
        plan: TorchRec's or evenshard's.
        tables: all that the plan shards, called as ``tables_of`` calls them.
        num_devices: ranks; a plan does not tell them, as some may hold nothing.

    Raises:
        BadConfig: if the plan splits a table over ranks, shards another way than by whole columns, or is of other
            tables.
    """
    return placement_of_shards(shards_of(plan, tables), tables, num_devices)


def shards_of(plan: ShardingPlan, tables: Sequence[Table]) -> tuple[TableShard, ...]:
    """The same for plans that may split tables by columns, table after table, in the order of ``tables``.

    Raises:
        BadConfig: if the plan shards another way than by whole columns, or is of other tables.
    """
    entries = {(path, name): one for path, module in plan.plan.items() for name, one in _parameters(path, module)}
    shards: list[TableShard] = []
    for table in tables:
        keys = [key for key in entries if table.name in (key[1], qualified_name(*key))]
        if len(keys) != 1:
            problem = "not in the plan" if not keys else f"in the plan {len(keys)} times"
            raise BadConfig(f"table {shown(table.name)} is {problem}. Give the tables as `tables_of` calls them.")
        shards.extend(_shards(table, entries.pop(keys[0])))
    if entries:
        left = ", ".join(repr(qualified_name(*key)) for key in entries)
        raise BadConfig(f"the plan also shards {left}. Give all its tables.")
    return tuple(shards)


def _parameters(path: str, module: Any) -> Sequence[tuple[str, ParameterSharding]]:
    if not isinstance(module, Mapping):
        raise BadConfig(f"the plan shards {path or 'the model'} by a {type(module).__name__}, not by tables. Leave it.")
    return list(module.items())


def _shards(table: Table, entry: ParameterSharding) -> tuple[TableShard, ...]:
    if entry.sharding_type not in READABLE:
        raise BadConfig(
            f"table {shown(table.name)} is sharded {entry.sharding_type}; evenshard knows {', '.join(READABLE)}. "
            f"Constrain TorchRec's planner to these."
        )
    parts = getattr(entry.sharding_spec, "shards", None)
    if not parts:
        raise BadConfig(f"the plan does not tell the shards of table {shown(table.name)}. Give a complete plan.")
    ranks = [part.placement.rank() for part in parts]
    if entry.ranks is not None and list(entry.ranks) != ranks:
        raise BadConfig(
            f"table {shown(table.name)} is on the ranks {entry.ranks}, its shards on {ranks}. Make a new plan."
        )
    rows = [(part.shard_offsets[0], part.shard_offsets[0] + part.shard_sizes[0]) for part in parts]
    if set(rows) != {(0, table.num_rows)}:
        held = ", ".join(f"{start}:{stop}" for start, stop in rows)
        raise BadConfig(
            f"table {shown(table.name)} has {table.num_rows} rows, its shards in the plan hold {held}. "
            f"Give the tables of the plan."
        )
    return tuple(
        TableShard(table.name, rank, part.shard_offsets[1], part.shard_offsets[1] + part.shard_sizes[1])
        for rank, part in zip(ranks, parts, strict=True)
    )
