"""A plan as TorchRec's ``ShardingOption``s: what its statistics, callbacks and performance models take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.placement.sharding import DATA_PARALLEL

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import (
        Enumerator,
        ParameterConstraints,
        Shard,
        ShardingOption,
        Stats,
        Topology,
    )
    from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan


def options_of_plan(
    plan: ShardingPlan,
    module: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
    world_size: int,
    batch_size: int,
    lookups: Mapping[tuple[str, str], Sequence[float]],
    constraints: Mapping[str, ParameterConstraints],
) -> list[ShardingOption]:
    """An option for each table of a plan, with its ranks, in the plan's order; times and memory are not filled in.

    Args:
        plan: of the model.
        module: the model.
        sharders: those that the plan was made for.
        world_size: ranks.
        batch_size: samples per rank.
        lookups: pooling factors of each feature, by the path of a table's module and its name; those of the
            constraints, or TorchRec's default, of tables that are missing.
        constraints: by table.
    """
    from torchrec.distributed.planner.constants import POOLING_FACTOR
    from torchrec.distributed.planner.enumerators import get_partition_by_type
    from torchrec.distributed.planner.types import ShardingOption

    sharder_of = {one.module_type: one for one in sharders}
    found = []
    for path, entries in plan.plan.items():
        holder = module.get_submodule(path)
        weights = sharder_of[type(holder)].shardable_parameters(holder)
        for name, entry in entries.items():
            own = constraints.get(name)
            assumed = [POOLING_FACTOR] if own is None else own.pooling_factors
            found.append(
                ShardingOption(
                    name=name,
                    tensor=weights[name],
                    module=(path, holder),
                    input_lengths=list(lookups.get((path, name), assumed)),
                    batch_size=batch_size,
                    sharding_type=entry.sharding_type,
                    partition_by=get_partition_by_type(entry.sharding_type),
                    compute_kernel=entry.compute_kernel,
                    shards=_shards(entry, weights[name].shape, world_size),
                    cache_params=entry.cache_params,
                    enforce_hbm=entry.enforce_hbm,
                    stochastic_rounding=entry.stochastic_rounding,
                    bounds_check_mode=entry.bounds_check_mode,
                    feature_names=None if own is None else own.feature_names,
                    output_dtype=entry.output_dtype,
                    key_value_params=entry.key_value_params,
                )
            )
    return found


def _shards(entry: ParameterSharding, shape: Sequence[int], world_size: int) -> list[Shard]:
    """The shards of a table; a replica is a whole one on each rank."""
    from torchrec.distributed.planner.types import Shard

    if entry.sharding_type == DATA_PARALLEL:
        return [Shard(size=list(shape), offset=[0] * len(shape), rank=rank) for rank in range(world_size)]
    return [
        Shard(size=list(one.shard_sizes), offset=list(one.shard_offsets), rank=one.placement.rank())
        for one in entry.sharding_spec.shards
    ]


def estimate(
    options: Sequence[ShardingOption],
    enumerator: Enumerator | None,
    sharders: Sequence[ModuleSharder[Any]],
    topology: Topology,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints],
) -> Enumerator:
    """Fills in times and memory as TorchRec estimates them, and returns the enumerator that did.

    Args:
        options: of a plan.
        enumerator: with its own estimates, after it has enumerated a model for these sharders; TorchRec's usual one
            where left out.
    """
    from torch import nn
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator

    if enumerator is None:
        enumerator = EmbeddingEnumerator(topology=topology, batch_size=batch_size, constraints=dict(constraints))
        enumerator.enumerate(nn.Module(), list(sharders))  # an empty model, for the sharders alone
    enumerator.populate_estimates(list(options))
    return enumerator


def stats_of(stats: Stats | list[Stats] | None) -> list[Stats]:
    """The statistics to log: those given; TorchRec's own where left out."""
    from torchrec.distributed.planner.stats import EmbeddingStats

    if stats is None:
        return [EmbeddingStats()]
    return list(stats) if isinstance(stats, list) else [stats]


def log_statistics(stats: Sequence[Stats], values: Mapping[str, Any], debug_stats: Mapping[str, Any]) -> None:
    """Calls TorchRec's statistics, with those of the values that the installed version, or a class of one's own, takes.

    Args:
        stats: objects with TorchRec's ``Stats.log``.
        values: its arguments.
        debug_stats: what ``PlanDebugStats`` has, in versions that have it.
    """
    from torchrec.distributed.planner import types

    given = dict(values)
    if hasattr(types, "PlanDebugStats"):  # TorchRec 1.4 or newer
        given["debug_stats"] = types.PlanDebugStats(**debug_stats)
    for one in stats:
        taken = inspect.signature(one.log).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        one.log(**{name: value for name, value in given.items() if takes_all or name in taken})
