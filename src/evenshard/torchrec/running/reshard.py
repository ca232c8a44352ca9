"""Resharding of a running training job: TorchRec rebuilds a collection, and weights and states move to new ranks.

``DistributedModelParallel.reshard`` of TorchRec 1.8 does this for tables of an ``EmbeddingBagCollection`` that stay
table_wise or column_wise; docs/running_jobs.md lists what it does not preserve. This module moves tables of both kinds
of collections between all types except data_parallel, with the whole optimizer state.

An optimizer state has as many values as the weights (Adagrad, Adam), or one per row of a shard (row-wise Adagrad): the
sum over steps of the mean squared gradient of the shard's columns. A shard merged from old shards gets the mean of
their states, weighted by columns, which is exact. If a shard is split, the contribution of each column is unknown, and
every new shard gets the whole state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.placement.parts import Span
from evenshard.planner.output_order import OrderChange
from evenshard.torchrec.model.modules import find_sharded_collections, original_collection
from evenshard.torchrec.plan.plans import warn_of_order

if TYPE_CHECKING:
    import torch
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingEnv

    from evenshard.torchrec.running.delta_file import Delta


def reshard(model: DistributedModelParallel, delta: Delta) -> float:
    """Move tables of a running model between two steps; every rank must call it.

    Weights, optimizer state, learning rate and step count move. Replicated tables and the dense model are unchanged,
    and their optimizer stays valid. Afterwards ``model.fused_optimizer`` is a new object, and the training pipeline
    must be rebuilt. While a collection moves, a rank holds both its old and its new tables. Rank 0 logs a warning if
    the output order of a pooled collection changes.

    Args:
        model: the running model.
        delta: the result of ``load_delta`` for this model.

    Returns:
        MB of weights and optimizer state that moved to other ranks, as stated in the delta.

    Raises:
        BadConfig: if the delta is not for this model.
    """
    modules = find_sharded_collections(model)
    for path in delta:
        if path not in modules:
            raise BadConfig(f"the model has no sharded collection {brief(path)}. Load the delta for this model.")
        if modules[path] is model.module:
            raise BadConfig("the model itself is a collection. Wrap it in a module before it is sharded.")
    # Collection by collection, so that a rank holds old and new tables of only one collection at a time.
    for path, (_, changed) in delta.items():
        new = _rebuild(model, path, modules[path], changed)
        if model._env.rank == 0:
            before, now = (tuple(getattr(one, "_embedding_names", ())) for one in (modules[path], new))
            if before != now:
                text = "Layers that use the output's values() read other columns."
                warn_of_order([OrderChange(path, before, now)], text)
        for parent in list(model.module.modules()):
            for name, child in list(parent.named_children()):
                if child is modules[path]:
                    setattr(parent, name, new)
        model.plan.plan[path].update(changed)
    model._optim = model._init_optim(model.module)
    return sum(volume for volume, _ in delta.values())


def _rebuild(model: DistributedModelParallel, path: str, old: Any, changed: EmbeddingModuleShardingPlan) -> Any:
    import torch

    plan = {**old.module_sharding_plan, **changed}
    rates, step = _gather_progress(old, model._env)
    whole = original_collection(old)
    sharder = model._sharder_map[type(whole)]
    _give_optimizers(whole, old, rates)
    devices = [model.device.index] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # keep the random state: new weights are drawn
        new = sharder.shard(whole, plan, model._env, model.device, path)
    new.train(old.training)
    _keep_replicas(old, new)
    before, after = _read_local_shards(old), _read_local_shards(new)
    for name, entry in plan.items():
        if entry.sharding_spec is not None:
            _move(before[name], after[name], old.module_sharding_plan[name], entry, model._env, model.device)
    for kernel in _kernels(new):
        kernel.iter.fill_(step)
        kernel.iter_cpu.fill_(step)
    return new


def _keep_replicas(old: Any, new: Any) -> None:
    """Keep the parameters of data_parallel tables, because the dense optimizer refers to them."""
    from torch.nn.parallel import DistributedDataParallel

    kept = [one for one in old._lookups if isinstance(one, DistributedDataParallel)]
    places = [number for number, one in enumerate(new._lookups) if isinstance(one, DistributedDataParallel)]
    for place, lookup in zip(places, kept, strict=True):
        new._lookups[place] = lookup
    tables, of_old = _tables(new), _tables(old)
    for name, entry in old.module_sharding_plan.items():
        if entry.sharding_spec is None:
            tables[name].weight = of_old[name].weight


def _tables(module: Any) -> Any:
    return module.embedding_bags if hasattr(module, "embedding_bags") else module.embeddings


# Shards on a rank -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LocalShards:
    blocks: list[Rectangle]
    values: Mapping[str, list[torch.Tensor]]  # tensor of each block, by ``weight`` or the name of an optimizer state


def _read_local_shards(module: Any) -> dict[str, _LocalShards]:
    states = module.fused_optimizer.state_dict()["state"]
    result = {}
    for key, weight in module.state_dict().items():
        if not hasattr(weight, "local_shards"):
            continue  # replicas do not move
        name = key.split(".")[-2]
        shards = weight.local_shards()
        values = {"weight": [shard.tensor for shard in shards]}
        for state, value in states.get(key, {}).items():
            values[state] = [shard.tensor for shard in value.local_shards()]
        result[name] = _LocalShards(
            [block_of(shard.metadata.shard_offsets, shard.metadata.shard_sizes) for shard in shards], values
        )
    return result


def block_of(offsets: Sequence[int], sizes: Sequence[int]) -> Rectangle:
    """Return the rectangle of a shard; offsets and sizes are TorchRec's [rows, columns]."""
    rows, columns = (Span(start, start + size) for start, size in zip(offsets, sizes, strict=True))
    return Rectangle(rows, columns)


# Transfer -------------------------------------------------------------------------------------------------------------


def _move(
    before: _LocalShards,
    after: _LocalShards,
    old: ParameterSharding,
    new: ParameterSharding,
    env: ShardingEnv,
    device: torch.device,
) -> None:
    """Copy or send overlaps of old and new shards; all ranks list them in the same order, so that sends match."""
    import torch
    import torch.distributed as dist

    rank, group = env.rank, env.process_group
    assert group is not None
    old_ranks, old_blocks = _shards(old)
    new_ranks, new_blocks = _shards(new)
    keys = sorted(set(before.values) | set(after.values))
    for key in keys:
        for target in after.values.get(key, ()):
            target.detach().zero_()
        messages, received = [], []
        number = 0  # tag of a message, the same on both ranks
        for owner, block in zip(new_ranks, new_blocks, strict=True):
            for at, overlap in find_overlaps(block, old_blocks):
                number += 1
                source, from_block = old_ranks[at], old_blocks[at]
                values = slice_block(_tensor(before, key, from_block), from_block, overlap) if source == rank else None
                filled = _tensor(after, key, block) if owner == rank else None
                if values is not None and filled is not None:
                    add_overlap(filled, block, overlap, values)
                elif values is not None:
                    peer = dist.get_global_rank(group, owner)
                    messages.append(dist.P2POp(dist.isend, values.contiguous(), peer, group, number))
                elif filled is not None:
                    shape = slice_block(filled, block, overlap).shape
                    buffer = torch.empty(shape, dtype=filled.dtype, device=device)
                    peer = dist.get_global_rank(group, source)
                    messages.append(dist.P2POp(dist.irecv, buffer, peer, group, number))
                    received.append((filled, block, overlap, buffer))
        if messages:
            for work in dist.batch_isend_irecv(messages):
                work.wait()
        for filled, block, overlap, buffer in received:
            add_overlap(filled, block, overlap, buffer)


def _shards(entry: ParameterSharding) -> tuple[list[int], list[Rectangle]]:
    shards = entry.sharding_spec.shards
    return [shard.placement.rank() for shard in shards], [
        block_of(shard.shard_offsets, shard.shard_sizes) for shard in shards
    ]


def _tensor(held: _LocalShards, key: str, block: Rectangle) -> torch.Tensor:
    return held.values[key][held.blocks.index(block)].detach()


# Optimizers -----------------------------------------------------------------------------------------------------------


def _gather_progress(module: Any, env: ShardingEnv) -> tuple[dict[str, float], int]:
    """Return each table's learning rate, and the step count for Adam's bias correction, gathered from all ranks."""
    import torch.distributed as dist

    rates = {
        key.split(".")[-2]: group["lr"]
        for _, optimizer in module.fused_optimizer.optimizers
        for group in optimizer.param_groups
        for key in optimizer.params
    }
    step = max((int(kernel.iter.item()) for kernel in _kernels(module)), default=0)
    of_ranks: list[Any] = [None] * env.world_size
    dist.all_gather_object(of_ranks, (rates, step), group=env.process_group)
    return {name: rate for of_rank, _ in of_ranks for name, rate in of_rank.items()}, max(step for _, step in of_ranks)


def _kernels(module: Any) -> list[Any]:
    return [one for one in module.modules() if hasattr(one, "iter") and hasattr(one, "iter_cpu")]


def _give_optimizers(whole: Any, old: Any, rates: Mapping[str, float]) -> None:
    """Give rebuilt tables their current learning rates, so that all ranks group them in the same kernel calls."""
    shardings = old._embedding_shardings if hasattr(old, "_embedding_shardings") else old._sharding_type_to_sharding
    tables = _tables(whole)
    for sharding in shardings.values() if isinstance(shardings, Mapping) else shardings:
        for of_rank in sharding._grouped_embedding_configs_per_rank:
            for group in of_rank:
                for table in group.embedding_tables:
                    if table.name in rates:
                        given = {**(table.fused_params or {}), "learning_rate": rates[table.name]}
                        tables[table.name].weight._optimizer_kwargs = [given]


# Overlaps of old and new shards ---------------------------------------------------------------------------------------


class Rectangle(NamedTuple):
    """Rows and columns of a shard, or of the overlap of two shards."""

    rows: Span
    columns: Span


def find_overlaps(new: Rectangle, old: Sequence[Rectangle]) -> Iterator[tuple[int, Rectangle]]:
    """Yield the overlaps of a new block with old blocks, each with the index of the old block."""
    for number, block in enumerate(old):
        rows, columns = new.rows.common(block.rows), new.columns.common(block.columns)
        if rows.size > 0 and columns.size > 0:
            yield number, Rectangle(rows, columns)


def slice_block(values: torch.Tensor, block: Rectangle, overlap: Rectangle) -> torch.Tensor:
    """Return the part of a block's weights or state that is in an overlap, as a view: [rows, columns], or [rows]."""
    rows = slice(overlap.rows.start - block.rows.start, overlap.rows.stop - block.rows.start)
    if values.dim() == 1:
        return values[rows]
    return values[rows, overlap.columns.start - block.columns.start : overlap.columns.stop - block.columns.start]


def add_overlap(target: torch.Tensor, block: Rectangle, overlap: Rectangle, values: torch.Tensor) -> None:
    """Add the values of an overlap to the weights or state (initially zero) of the block that contains it."""
    # Row-wise states are means over columns, so each old shard counts by its share of the columns.
    share = 1.0 if target.dim() > 1 else overlap.columns.size / block.columns.size
    where = slice_block(target, block, overlap)
    if share == 1.0:
        where.copy_(values)
    else:
        where.add_(values, alpha=share)
