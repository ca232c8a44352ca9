"""A TorchRec model of every kind of collection, sharded in any way and trained on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.tables.table import Table


def bag(name: str, rows: int, *features: str, dim: int = 16, pooling: PoolingType = PoolingType.SUM) -> Any:
    return EmbeddingBagConfig(
        name=name,
        feature_names=list(features or (name,)),
        num_embeddings=rows,
        embedding_dim=dim,
        pooling=pooling,
    )


POOLED = [
    bag("p_tiny", 3, dim=8),  # enough rows for two ranks, not for four
    bag("p_sum", 50),
    bag("p_mean", 37, pooling=PoolingType.MEAN),
    bag("p_shared", 29, "p_left", "p_right"),
]
MEANS = [bag("m_long", 41, pooling=PoolingType.MEAN), bag("m_short", 11, dim=8, pooling=PoolingType.MEAN)]
WEIGHTED = [bag("w_long", 40, dim=8), bag("w_short", 21)]
SEQUENCES = [
    EmbeddingConfig(name="s_shared", feature_names=["s_left", "s_right"], num_embeddings=45, embedding_dim=16),
    EmbeddingConfig(name="s_own", feature_names=["s_own"], num_embeddings=33, embedding_dim=16),
]
CONFIGS = (*POOLED, *MEANS, *WEIGHTED, *SEQUENCES)
DIM_OF_FEATURE = {feature: one.embedding_dim for one in CONFIGS for feature in one.feature_names}
ROWS_OF_FEATURE = {feature: one.num_embeddings for one in CONFIGS for feature in one.feature_names}
WEIGHTED_FEATURES = [feature for one in WEIGHTED for feature in one.feature_names]
PLAIN_FEATURES = [feature for feature in ROWS_OF_FEATURE if feature not in WEIGHTED_FEATURES]


class Everything(nn.Module):
    """Sums and means, weighted bags, sequences, and a linear layer over all of them."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.pooled = EmbeddingBagCollection(tables=POOLED, device=device)
        self.means = EmbeddingBagCollection(tables=MEANS, device=device)
        self.weighted = EmbeddingBagCollection(tables=WEIGHTED, is_weighted=True, device=device)
        self.sequences = EmbeddingCollection(tables=SEQUENCES, device=device)
        self.over = nn.Linear(sum(DIM_OF_FEATURE.values()), 1, device=device)

    def forward(self, plain: KeyedJaggedTensor, weighted: KeyedJaggedTensor) -> torch.Tensor:
        found = {**self.pooled(plain).to_dict(), **self.means(plain).to_dict(), **self.weighted(weighted).to_dict()}
        for feature, jagged in self.sequences(plain).items():
            found[feature] = torch.stack([rows.square().sum(dim=0) for rows in jagged.to_dense()])
        return self.over(torch.cat([found[feature] for feature in DIM_OF_FEATURE], dim=1)).squeeze(1)


NUM_STEPS = 3
LOCAL_BATCH = 5
LEARNING_RATE = 0.5
Features = tuple[KeyedJaggedTensor, KeyedJaggedTensor]


def batches(world_size: int) -> list[tuple[list[Features], Features, torch.Tensor]]:
    """Of each step: the features of each rank, of all ranks together, and the labels [global batch]."""
    rng = torch.Generator().manual_seed(3)
    samples = world_size * LOCAL_BATCH
    result = []
    for _ in range(NUM_STEPS):
        lengths = {one: torch.randint(0, 6, (samples,), generator=rng).tolist() for one in ROWS_OF_FEATURE}
        bags = {
            one: [torch.randint(0, rows, (length,), generator=rng) for length in lengths[one]]
            for one, rows in ROWS_OF_FEATURE.items()
        }
        weights = {one: [torch.rand(length, generator=rng) for length in lengths[one]] for one in WEIGHTED_FEATURES}

        def features(
            rows: slice,
            bags: Mapping[str, list[torch.Tensor]] = bags,
            weights: Mapping[str, list[torch.Tensor]] = weights,
        ) -> Features:
            return jagged(bags, PLAIN_FEATURES, rows), jagged(bags, WEIGHTED_FEATURES, rows, weights)

        local = [features(slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)) for rank in range(world_size)]
        result.append((local, features(slice(samples)), torch.rand(samples, generator=rng)))
    return result


def jagged(
    bags: Mapping[str, list[torch.Tensor]],
    names: list[str],
    rows: slice,
    weights: Mapping[str, list[torch.Tensor]] | None = None,
) -> KeyedJaggedTensor:
    mine = [one for name in names for one in bags[name][rows]]
    own = None if weights is None else torch.cat([one for name in names for one in weights[name][rows]])
    return KeyedJaggedTensor.from_lengths_sync(names, torch.cat(mine), torch.tensor([len(one) for one in mine]), own)


# Looks at a trained model.
Look = Callable[[Any], None]


def unsharded_losses(world_size: int, look: Look | None = None) -> list[float]:
    """The losses of the model in one piece."""
    torch.manual_seed(0)
    model = Everything()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for _, features, labels in batches(world_size):
        loss = nn.functional.mse_loss(model(*features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if look is not None:
        look(model)
    return losses


def module_sharders() -> list[Any]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    return [EmbeddingBagCollectionSharder(fused), EmbeddingCollectionSharder(fused)]


def sharded_losses(plan: ShardingPlan, group: Any, look: Look | None = None) -> list[float]:
    """The sharded model's mean losses over the ranks of a group; it begins with the weights of the whole one."""
    import torch.distributed as dist
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv

    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    env = ShardingEnv.from_process_group(group)
    torch.manual_seed(0)
    whole = Everything()
    weights = {name: weight.detach().clone() for name, weight in whole.state_dict().items()}
    model = DistributedModelParallel(whole, env, torch.device("cpu"), plan=plan, sharders=module_sharders())
    for name, value in model.state_dict().items():
        if not hasattr(value, "local_shards"):
            value.copy_(weights[name])
            continue
        for shard in value.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(weights[name][row : row + rows, column : column + columns])
    fused = set(model.fused_optimizer.params)
    dense = [weight for name, weight in model.named_parameters() if name not in fused]
    optimizer = torch.optim.SGD(dense, lr=LEARNING_RATE)
    losses = []
    for local, _, labels in batches(world_size):
        loss = nn.functional.mse_loss(model(*local[rank]), labels[rank * LOCAL_BATCH : (rank + 1) * LOCAL_BATCH])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(mean.item() / world_size)
    if look is not None:
        look(model)
    return losses


# Parts ----------------------------------------------------------------------------------------------------------------

Widths = Sequence[int]


def row_blocks(table: Table, ranks: Sequence[int]) -> list[tuple[int, Span]]:
    """Ranks that have rows, and these: equal blocks of them, the last one shorter."""
    block = -(-table.num_rows // len(ranks))
    starts = range(0, table.num_rows, block)
    spans = [Span(start, min(start + block, table.num_rows)) for start in starts]
    return list(zip(ranks, spans, strict=False))


def in_parts(table: Table, way: str, machine: Nodes, first: int, widths: Widths = ()) -> tuple[TablePart, ...]:
    """A table sharded in a way.

    Args:
        first: rank of its first part, or any of that part's node.
        widths: columns of each part, where columns are cut; halves where left out.
    """
    every_row, devices, size = Span(0, table.num_rows), machine.num_devices, machine.devices_per_node
    half = table.embedding_dim // 2
    given = widths or (half, half)
    edges = [sum(given[:number]) for number in range(len(given) + 1)]
    cuts = [Span(*edges[number : number + 2]) for number in range(len(given))]
    every_column = Span(0, table.embedding_dim)
    node = machine.node_of(first)
    if way == "table_wise":
        return (TablePart(table.name, every_row, every_column, (first,)),)
    if way == "data_parallel":
        return (TablePart(table.name, every_row, every_column, tuple(range(devices))),)
    if way == "column_wise":
        return tuple(
            TablePart(table.name, every_row, columns, ((first + number) % devices,))
            for number, columns in enumerate(cuts)
        )
    if way == "table_column_wise":
        return tuple(
            TablePart(table.name, every_row, columns, (node * size + number,)) for number, columns in enumerate(cuts)
        )
    if way in ("row_wise", "table_row_wise"):
        ranks = range(devices) if way == "row_wise" else machine.devices_of_node(node)
        return tuple(TablePart(table.name, rows, every_column, (rank,)) for rank, rows in row_blocks(table, ranks))
    assert way == "grid_shard"
    return tuple(
        TablePart(table.name, rows, columns, (rank,))
        for number, columns in enumerate(cuts)
        for rank, rows in row_blocks(table, machine.devices_of_node((node + number) % machine.num_nodes))
    )
