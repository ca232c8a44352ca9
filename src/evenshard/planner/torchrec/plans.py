"""A placement as TorchRec's ``ShardingPlan``, and a plan as a placement.

A whole table is ``table_wise``, a split one ``column_wise``, both on fused kernels, which update the weights in the
backward pass. A plan names tables by the path of their collection and their own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast, overload

from evenshard.placement.parts import TablePart, whole_tables
from evenshard.placement.placement import Placement, by_table, parts_on
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.torchrec.entries import TableEntry, checked_local_world_size, table_entry
from evenshard.planner.torchrec.modules import LocatedTable, located_tables, qualified_name
from evenshard.sharders.torchrec_planner import part_of_shard, require_torchrec
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

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
    answer: Placement | Sequence[TablePart],
    tables: Sequence[Table],
    modules: Modules,
    world_size: int | None = None,
    *,
    compute_device: str = "cuda",
    local_world_size: int | None = None,
) -> ShardingPlan: ...
def sharding_plan(
    answer: Placement | Sequence[TablePart],
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
        answer: a placement of ``tables``, or parts of them where tables are split.
        tables: tables in the placement's order, with their names from ``tables_of``; they may stand in any order.
        modules: the model that will be wrapped, or its collections by path.
        world_size: ranks; the placement's devices where it is left out, which parts do not tell.
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
        answer = answer.parts if isinstance(answer, PlacementAnswer) else parts_on(whole_tables(tables), answer)
    if world_size is None or world_size < 1:
        raise BadConfig(f"world_size is {world_size}; parts need it. Give the number of ranks.")
    local_world_size = checked_local_world_size(local_world_size, world_size, compute_device)
    parts_of_table = by_table(answer, tables, world_size)
    of_model = located_tables(modules)
    _check_same_tables(tables, of_model)
    plan: dict[str, Any] = {}
    for one in of_model:
        entry = table_entry(parts_of_table[one.name], compute_device, local_world_size)
        plan.setdefault(one.path, EmbeddingModuleShardingPlan())[one.config.name] = _parameter_sharding(entry)
    return ShardingPlan(plan)


def _check_same_tables(tables: Sequence[Table], located: Sequence[LocatedTable]) -> None:
    of_model = {one.name: (one.config.num_embeddings, one.config.embedding_dim) for one in located}
    given = {table.name: (table.num_rows, table.embedding_dim) for table in tables}
    for name in (*given, *of_model):
        if name not in of_model:
            raise BadConfig(f"table {brief(name)} is not in the model's collections. Use the tables of `tables_of`.")
        if name not in given:
            raise BadConfig(f"table {brief(name)} of the model is not placed. Use the tables of `tables_of`.")
        if given[name] != of_model[name]:
            raise BadConfig(
                f"table {brief(name)} was placed with {' x '.join(map(str, given[name]))} weights, but has "
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
    """Where a plan puts whole tables, in the order of ``tables``; a table in several parts on one rank is whole.

    Args:
        plan: TorchRec's or evenshard's.
        tables: all that the plan shards, called as ``tables_of`` calls them.
        num_devices: ranks; a plan does not tell them, as some may hold nothing.

    Raises:
        BadConfig: if the plan splits a table over ranks, shards another way than by whole columns, or is of other
            tables.
    """
    device_of_table = []
    for name, parts in by_table(shards_of(plan, tables), tables, num_devices).items():
        devices = {part.device for part in parts}
        if len(devices) > 1:
            raise BadConfig(
                f"table {brief(name)} is split over the devices {sorted(devices)}, and a Placement holds whole tables. "
                f"Use the shards instead, or plan without column-wise splits."
            )
        device_of_table.append(devices.pop())
    return Placement(tuple(device_of_table), num_devices)


def shards_of(plan: ShardingPlan, tables: Sequence[Table]) -> tuple[TablePart, ...]:
    """The same for plans that may split tables by columns, table after table, in the order of ``tables``.

    Raises:
        BadConfig: if the plan shards another way than by whole columns, or is of other tables.
    """
    entries = {(path, name): one for path, module in plan.plan.items() for name, one in _parameters(path, module)}
    parts: list[TablePart] = []
    for table in tables:
        keys = [key for key in entries if table.name in (key[1], qualified_name(*key))]
        if len(keys) != 1:
            problem = "not in the plan" if not keys else f"in the plan {len(keys)} times"
            raise BadConfig(f"table {brief(table.name)} is {problem}. Give the tables as `tables_of` calls them.")
        parts.extend(_parts(table, entries.pop(keys[0])))
    if entries:
        left = ", ".join(repr(qualified_name(*key)) for key in entries)
        raise BadConfig(f"the plan also shards {left}. Give all its tables.")
    num_devices = 1 + max((part.device for part in parts), default=0)
    return tuple(chain.from_iterable(by_table(parts, tables, num_devices).values()))


def _parameters(path: str, module: Any) -> Sequence[tuple[str, ParameterSharding]]:
    if not isinstance(module, Mapping):
        raise BadConfig(f"the plan shards {path or 'the model'} by a {type(module).__name__}, not by tables. Leave it.")
    return list(module.items())


def _parts(table: Table, entry: ParameterSharding) -> tuple[TablePart, ...]:
    if entry.sharding_type not in READABLE:
        raise BadConfig(
            f"table {brief(table.name)} is sharded {entry.sharding_type}; evenshard knows {', '.join(READABLE)}. "
            f"Constrain TorchRec's planner to these."
        )
    shards = getattr(entry.sharding_spec, "shards", None)
    if not shards:
        raise BadConfig(f"the plan does not list the shards of table {brief(table.name)}. Give a complete plan.")
    ranks = [shard.placement.rank() for shard in shards]
    if entry.ranks is not None and list(entry.ranks) != ranks:
        raise BadConfig(
            f"table {brief(table.name)} is on the ranks {entry.ranks}, its shards on {ranks}. Make a new plan."
        )
    return tuple(
        part_of_shard(table.name, rank, shard.shard_offsets, shard.shard_sizes)
        for rank, shard in zip(ranks, shards, strict=True)
    )
