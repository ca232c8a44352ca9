"""Conversion between placements and TorchRec's ``ShardingPlan``.

Replicated tables get dense kernels. All other tables get the fused kernel for their memory, which updates the weights
in the backward pass. A plan identifies a table by the path of its collection and the table's name.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, cast

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import KEY_VALUE, TablePart
from evenshard.placement.placement import Placement, group_parts, parts_by_table
from evenshard.placement.sharding import REPLICATED, tiling_problem
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.output_order import BY_NAME, OrderChange, OutputTable, order_changes, output_keys, sort_outputs
from evenshard.tables.table import SEQUENCE, Table, duplicate_name
from evenshard.torchrec.baseline.topology import DENSE_KERNEL, KERNELS_OF_TABLES, parts_of_parameter, require_torchrec
from evenshard.torchrec.model.fused_optimizers import (
    AllowedReplicas,
    find_fused_optimizers,
    warn_of_replicas,
    weight_of,
)
from evenshard.torchrec.model.modules import LocatedTable, locate_tables, qualify_name
from evenshard.torchrec.model.trainable import (
    ANY_TYPE,
    ShardedTable,
    check_trainable,
    choose_written_type,
    describe_sharded_table,
)
from evenshard.torchrec.plan.entries import TableEntry, check_local_world_size, prefetches, table_entry
from evenshard.torchrec.planner.machine import device_of_process

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import CacheParams, KeyValueParams, ParameterSharding, ShardingPlan

    from evenshard.torchrec.model.modules import Collection

    Modules = nn.Module | Mapping[str, Collection]

# Export ---------------------------------------------------------------------------------------------------------------


def sharding_plan(
    answer: PlacementAnswer | Placement | Sequence[TablePart],
    tables: Sequence[Table] | Modules,
    modules: Modules | None = None,
    world_size: int | None = None,
    *,
    compute_device: str | None = None,
    local_world_size: int | None = None,
) -> ShardingPlan:
    """Convert a placement to a plan for ``DistributedModelParallel``; device ids are ranks.

    An answer of ``evenshard.place`` includes its tables: ``sharding_plan(answer, model)``. Placements and parts do not:
    ``sharding_plan(placement, tables, model)``. If a collection has tables cut by columns, its whole tables are written
    as column_wise with one shard, because TorchRec then looks up both in one call.

    Args:
        answer: a placement of ``tables``, or their parts.
        tables: tables in the placement's order, with the names of ``tables_of``.
        modules: the model that will be wrapped, or its collections by path.
        world_size: number of ranks; by default, that of the answer. Required for parts.
        compute_device: cuda or cpu. By default, the device type of the process, if it has a process group or torchrun
            started it; else cuda.
        local_world_size: ranks per node; by default, that of the answer's machine, else all ranks.

    Raises:
        BadConfig: if answer, tables and modules do not match, if TorchRec cannot train this placement, or if the answer
            replicates a table with a fused optimizer without permission.
    """
    allowed: Mapping[str, frozenset[str]] = {}
    prefetched, replicas = None, None
    if isinstance(answer, PlacementAnswer):
        if modules is None:
            tables, modules = answer.request.tables, cast("Modules", tables)
        if local_world_size is None:
            local_world_size = answer.request.nodes.devices_per_node
        allowed = {table.name: answer.task.limits_of(at).types for at, table in enumerate(answer.request.tables)}
        prefetched = prefetches(answer.request.training_pipeline)
        replicas = AllowedReplicas.of(answer.request)
    if modules is None:
        raise BadConfig("the model is missing. Give tables and model.")
    tables = cast("Sequence[Table]", tables)
    if isinstance(answer, PlacementAnswer | Placement):
        if world_size not in (None, answer.num_devices):
            raise BadConfig(
                f"the placement has {answer.num_devices} devices, but world_size is {world_size}. Place the tables "
                f"again."
            )
        world_size = answer.num_devices
        answer = answer.parts if isinstance(answer, PlacementAnswer) else answer.parts(tables)
    compute_device = device_of_process("cuda") if compute_device is None else compute_device
    if world_size is None or world_size < 1:
        raise BadConfig(f"world_size is {world_size}. Give the number of ranks; table parts do not state it.")
    machine = Nodes(world_size, check_local_world_size(local_world_size, world_size, compute_device))
    return plan_of_parts(answer, tables, modules, machine, compute_device, allowed, prefetched, replicas)


def plan_of_parts(
    parts: Sequence[TablePart],
    tables: Sequence[Table],
    modules: Modules,
    machine: Nodes,
    compute_device: str,
    allowed: Mapping[str, frozenset[str]],
    prefetched: bool | None = None,
    replicas: AllowedReplicas | None = None,
) -> ShardingPlan:
    """Return the plan of table parts; ``allowed`` limits, by table, the sharding types that the plan may write.

    ``prefetched`` is True if the training pipeline prefetches cached rows; None leaves that to the module sharders.
    Without ``replicas``, tables with a fused optimizer may be replicated, with a warning.
    """
    require_torchrec()
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

    parts_of_table = parts_on_machine(parts, tables, machine)
    of_model = locate_tables(modules)
    _check_same_tables(tables, of_model)
    replicated = [one for one in of_model if len(parts_of_table[one.name][0].devices) > 1]
    if replicas is None:
        warn_of_replicas(replicated)
    else:
        for problem in replicas.list_leaving(find_fused_optimizers(replicated)):
            raise BadConfig(problem)
    collections: dict[str, dict[str, ShardedTable]] = {}
    for one in of_model:
        types = allowed.get(one.name, ANY_TYPE)
        sharded = describe_sharded_table(one, parts_of_table[one.name], machine, types, types)
        collections.setdefault(one.path, {})[one.config.name] = sharded
    given = {table.name: table for table in tables}
    data_types = {(one.path, one.config.name): one.config.data_type for one in of_model}
    plan: dict[str, Any] = {}
    for path, collection in collections.items():
        together = list(collection.values())
        check_trainable(together, machine, compute_device)
        plan[path] = EmbeddingModuleShardingPlan()
        for name, table in collection.items():
            written = choose_written_type(table, together)
            entry = table_entry(table.parts, given[table.name], machine, compute_device, written, prefetched)
            plan[path][name] = parameter_sharding(entry, data_types[path, name])
    return ShardingPlan(plan)


def parts_on_machine(
    parts: Sequence[TablePart], tables: Sequence[Table], machine: Nodes
) -> Mapping[str, tuple[TablePart, ...]]:
    """Return the parts of each table, by columns, then rows; raise BadConfig if parts and tables do not match."""
    _check_names(tables)
    return parts_by_table(ShardingTask(tuple(tables), machine, (0,) * machine.num_devices, 1), parts)


def _check_same_tables(tables: Sequence[Table], located: Sequence[LocatedTable]) -> None:
    of_model = {one.name: one.shape for one in located}
    given = {table.name: (table.num_rows, table.embedding_dim) for table in tables}
    for name in (*given, *of_model):
        if name not in of_model:
            raise BadConfig(f"table {brief(name)} is not in the model. Use the tables that `tables_of` returns.")
        if name not in given:
            raise BadConfig(f"table {brief(name)} of the model is not placed. Use the tables that `tables_of` returns.")
        if given[name] != of_model[name]:
            raise BadConfig(
                f"table {brief(name)} was placed with {' x '.join(map(str, given[name]))} weights, but has "
                f"{' x '.join(map(str, of_model[name]))} in the model. Place the model's tables."
            )


def parameter_sharding(entry: TableEntry, data_type: Any) -> ParameterSharding:
    """Convert an entry to ``ParameterSharding``; replicated tables have no sharding spec in TorchRec."""
    from torchrec.distributed.types import EnumerableShardingSpec, ParameterSharding, ShardMetadata

    shards = [
        ShardMetadata(shard_offsets=list(one.shard_offsets), shard_sizes=list(one.shard_sizes), placement=one.placement)
        for one in entry.shards
    ]
    return ParameterSharding(
        sharding_type=entry.sharding_type,
        compute_kernel=entry.compute_kernel,
        ranks=list(entry.ranks),
        sharding_spec=None if entry.sharding_type in REPLICATED else EnumerableShardingSpec(shards),
        cache_params=_cache_params(entry),
        key_value_params=_key_value_params(entry, data_type) if entry.compute_kernel == KEY_VALUE else None,
    )


def _cache_params(entry: TableEntry) -> CacheParams | None:
    """Return cache parameters that keep different caches in separate kernel calls.

    TorchRec looks up all tables with equal parameters in one call with one cache. That cache's rows are as wide as the
    widest table, and its load factor is the mean over whole tables, even if a rank has few of their rows. That can need
    more memory than separate caches, so ``reserved_memory`` makes the parameters of different caches unequal.
    """
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
    from torchrec.distributed.types import CacheParams

    cache = entry.cache_params
    if cache is None:
        return None
    return CacheParams(
        algorithm=CacheAlgorithm[cache.algorithm],
        load_factor=cache.load_factor,
        # A few bytes: the widest shard's columns plus the load factor, which differ between unequal caches.
        reserved_memory=max(shard.shard_sizes[1] for shard in entry.shards) + cache.load_factor,
        prefetch_pipeline=cache.prefetch_pipeline,
    )


def _key_value_params(entry: TableEntry, data_type: Any) -> KeyValueParams:
    """Limit the SSD cache of a table to its load factor; TorchRec 1.8 always asks for 0.2 of the rows.

    Tables that are looked up in the same kernel call also share this limit.
    """
    from torchrec.distributed.types import KeyValueParams
    from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS

    assert entry.cache_params is not None
    # The largest shard decides, because the limit applies to each rank's cache.
    weights = max(rows * columns for rows, columns in (one.shard_sizes for one in entry.shards))
    size_bytes = entry.cache_params.load_factor * weights * DATA_TYPE_NUM_BITS[data_type] / 8
    return KeyValueParams(max_l1_cache_size=max(1, int(size_bytes / 2**20)))  # MB


# Import ---------------------------------------------------------------------------------------------------------------


def placement_of(plan: ShardingPlan, tables: Sequence[Table], num_devices: int) -> Placement:
    """Return the rank of each table in a plan; all parts of a table must be on the same rank.

    ``tables`` must list all tables of the plan, with the names of ``tables_of``. ``num_devices`` is needed because a
    plan does not list ranks without tables.

    Raises:
        BadConfig: if a table is on several ranks, or the plan has other tables.
    """
    _check_names(tables)
    device_of_table = []
    found = group_parts(tables, num_devices, shards_of(plan, tables))
    for table in tables:
        name, parts = table.name, found[table.name]
        if problem := tiling_problem(parts, table):
            raise BadConfig(f"table {brief(name)} {problem}")
        devices = {device for part in parts for device in part.devices}
        if len(devices) > 1:
            raise BadConfig(
                f"table {brief(name)} is split over devices {sorted(devices)}, but a Placement has only whole tables. "
                f"Use shards_of, or allow only table_wise."
            )
        device_of_table.append(devices.pop())
    return Placement(tuple(device_of_table), num_devices)


def _check_names(tables: Sequence[Table]) -> None:
    if (twice := duplicate_name(tables)) is not None:
        raise BadConfig(f"two tables are called {brief(twice)}. Give each its own name.")


def shards_of(plan: ShardingPlan, tables: Sequence[Table]) -> tuple[TablePart, ...]:
    """Return the parts of a plan in the order of ``tables``.

    Parts of a table on the same rank are merged, which may reorder its columns. A cache without a load factor gets
    TorchRec's default. Tables with unsupported kernels are read as tables in device memory.

    Raises:
        BadConfig: if the plan has other tables, or does not list their shards.
    """
    return tuple(part for table, entry in _entries(plan, tables) for part in parts_of_parameter(table, entry))


def find_unsupported_kernels(plan: ShardingPlan, tables: Sequence[Table]) -> dict[str, str]:
    """Return the compute kernel of each table whose kernel evenshard does not support, such as quantized kernels."""
    return {
        table.name: entry.compute_kernel
        for table, entry in _entries(plan, tables)
        if entry.compute_kernel not in (*KERNELS_OF_TABLES, DENSE_KERNEL)
    }


def _entries(plan: ShardingPlan, tables: Sequence[Table]) -> list[tuple[Table, ParameterSharding]]:
    entries = {
        qualify_name(path, name): entry
        for path, module in plan.plan.items()
        for name, entry in _parameters(path, module)
    }
    keys = match_names([table.name for table in tables], entries)
    for table in tables:
        if table.name not in keys:
            problem = "is not in the plan, or is in it several times"
            raise BadConfig(f"table {brief(table.name)} {problem}. Use the table names that `tables_of` returns.")
    if left := cut(", ".join(repr(key) for key in entries if key not in keys.values())):
        raise BadConfig(f"the plan also shards {left}. Give all tables of the plan.")
    return [(table, entries[keys[table.name]]) for table in tables]


def match_names(names: Sequence[str], keys: Mapping[str, object]) -> dict[str, str]:
    """Map the names of tables to the keys of a plan: the same text, or the only other key that ends with the name."""
    found = {name: name for name in names if name in keys}
    counts = Counter(end for key in keys if key not in found for end in _ends(key))
    key_of = {end: key for key in keys if key not in found for end in _ends(key) if counts[end] == 1}
    name_of = {key_of[name]: name for name in names if name not in found and name in key_of}
    return {**found, **{name: key for key, name in name_of.items()}}


def _ends(key: str) -> Iterator[str]:
    """Yield the parts of a dotted key after each dot."""
    while key := key.partition(".")[2]:
        yield key


def _parameters(path: str, module: Any) -> Sequence[tuple[str, ParameterSharding]]:
    if not isinstance(module, Mapping):
        raise BadConfig(
            f"the plan has a {type(module).__name__} for {path or 'the model'}, which does not list tables. Remove it."
        )
    return list(module.items())


log = logging.getLogger(__name__)

# Kernels whose tables share a kernel call with tables on the fused kernel.
_LIKE_FUSED = ("fused", "fused_uvm", "fused_uvm_caching")


def plan_orders(plan: ShardingPlan, located: Sequence[LocatedTable]) -> dict[str, tuple[OutputTable, ...]]:
    """Return the tables of each pooled collection in the order of the collection's output under a plan."""
    collections: dict[str, list[LocatedTable]] = {}
    for one in located:
        if one.pooling != SEQUENCE:
            collections.setdefault(one.path, []).append(one)
    found = {}
    for path, tables in collections.items():
        keys = output_keys([(one.config.name, one.features) for one in tables])
        entries: Any = plan.plan[path]
        found[path] = sort_outputs(
            [_output_table(one, own, entries[one.config.name]) for one, own in zip(tables, keys, strict=True)]
        )
    return found


def warn_of_order(changes: Sequence[OrderChange], why: str) -> None:
    """Log each change of an output order with its reason."""
    for one in changes:
        log.warning("%s %s %s", one.text, why, BY_NAME)


def warn_of_unsharded_order(plan: ShardingPlan, located: Sequence[LocatedTable]) -> None:
    """Log on rank 0 the pooled collections whose output order under a plan differs from the unsharded model."""
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_rank():
        return
    under_plan = plan_orders(plan, located)
    position = {(one.path, one.config.name): at for at, one in enumerate(located)}
    unsharded = {
        path: sorted(tables, key=lambda one, path=path: position[path, one.name])  # type: ignore[misc]
        for path, tables in under_plan.items()
    }
    warn_of_order(
        order_changes(unsharded, under_plan), "The first order is the unsharded model's, the second the plan's."
    )


def _output_table(located: LocatedTable, keys: tuple[str, ...], entry: ParameterSharding) -> OutputTable:
    kernel, cache = entry.compute_kernel, entry.cache_params
    weight = weight_of(located)
    call: Hashable = (
        located.config.data_type,
        located.pooling,
        repr(getattr(weight, "_optimizer_classes", None)),
        repr(getattr(weight, "_optimizer_kwargs", None)),
        "fused" if kernel in _LIKE_FUSED else kernel,
        None if cache is None else repr(astuple(replace(cache, load_factor=None, stats=None))),
        repr((entry.enforce_hbm, entry.stochastic_rounding, entry.bounds_check_mode, entry.output_dtype)),
    )
    ranks = tuple(entry.ranks or ()) if entry.sharding_spec is not None else (0,)  # data_parallel has no spec
    return OutputTable(located.config.name, keys, entry.sharding_type, ranks, call)
