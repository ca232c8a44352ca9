"""TorchRec models that are sharded in any way and trained on one rank of several, beside the same models in one piece.

A model class says in ``rows`` of how many rows each feature is looked up, and in ``with_weights`` which features have
weights: ``forward`` takes the others, and these if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.tables.table import Table


def bag(name: str, rows: int, *features: str, dim: int = 16, pooling: PoolingType = PoolingType.SUM) -> Any:
    of = {"feature_names": list(features or (name,)), "num_embeddings": rows, "embedding_dim": dim}
    return EmbeddingBagConfig(name=name, pooling=pooling, **of)


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
OF_FEATURE = {feature: one for one in (*POOLED, *MEANS, *WEIGHTED, *SEQUENCES) for feature in one.feature_names}


class Everything(nn.Module):
    """Sums and means, weighted bags, sequences, and a linear layer over all of them."""

    rows = {feature: one.num_embeddings for feature, one in OF_FEATURE.items()}  # noqa: RUF012
    with_weights = ("w_long", "w_short")

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.pooled = EmbeddingBagCollection(tables=POOLED, device=device)
        self.means = EmbeddingBagCollection(tables=MEANS, device=device)
        self.weighted = EmbeddingBagCollection(tables=WEIGHTED, is_weighted=True, device=device)
        self.sequences = EmbeddingCollection(tables=SEQUENCES, device=device)
        self.over = nn.Linear(sum(one.embedding_dim for one in OF_FEATURE.values()), 1, bias=False, device=device)

    def forward(self, plain: KeyedJaggedTensor, weighted: KeyedJaggedTensor) -> torch.Tensor:
        found = {**self.pooled(plain).to_dict(), **self.means(plain).to_dict(), **self.weighted(weighted).to_dict()}
        found |= summed_squares(self.sequences(plain))
        return self.over(torch.cat([found[feature] for feature in OF_FEATURE], dim=1)).squeeze(1)


def summed_squares(sequences: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Of each feature's rows."""
    return {name: torch.stack([rows.square().sum(dim=0) for rows in one.to_dense()]) for name, one in sequences.items()}


# Training -------------------------------------------------------------------------------------------------------------

NUM_STEPS, LOCAL_BATCH = 3, 5
# FBGEMM's fused optimizers on the CPU, those of torch or TorchRec that do the same, and learning rates.
OPTIMIZERS: dict[str, tuple[EmbOptimType, Callable[..., torch.optim.Optimizer], float]] = {
    "sgd": (EmbOptimType.EXACT_SGD, torch.optim.SGD, 0.5),
    "adagrad": (EmbOptimType.EXACT_ADAGRAD, partial(torch.optim.Adagrad, eps=1e-8), 0.05),
    "rowwise_adagrad": (EmbOptimType.EXACT_ROWWISE_ADAGRAD, partial(RowWiseAdagrad, eps=1e-8), 0.05),
}


def batches(model: Any, world_size: int) -> list[tuple[list[Any], Any, torch.Tensor]]:
    """Of each step: the features of each rank, of all ranks together, and the labels [global batch]."""
    rng = torch.Generator().manual_seed(3)
    samples, steps = world_size * LOCAL_BATCH, []
    for _ in range(NUM_STEPS):
        lengths = {name: torch.randint(0, 6, (samples,), generator=rng).tolist() for name in model.rows}
        bags = {
            name: [torch.randint(0, rows, (length,), generator=rng) for length in lengths[name]]
            for name, rows in model.rows.items()
        }
        weights = {
            name: [torch.rand(length, generator=rng) for length in lengths[name]]
            for name in getattr(model, "with_weights", ())
        }

        def features(own: slice, bags: Any = bags, weights: Any = weights) -> tuple[KeyedJaggedTensor, ...]:
            plain = [name for name in bags if name not in weights]
            return tuple(jagged(bags, names, own, weights) for names in (plain, list(weights)) if names)

        local = [features(slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)) for rank in range(world_size)]
        steps.append((local, features(slice(samples)), torch.rand(samples, generator=rng)))
    return steps


def jagged(bags: Mapping[str, Any], names: list[str], own: slice, weights: Mapping[str, Any]) -> KeyedJaggedTensor:
    rows = [one for name in names for one in bags[name][own]]
    given = [one for name in names if name in weights for one in weights[name][own]]
    lengths = torch.tensor([len(one) for one in rows])
    return KeyedJaggedTensor.from_lengths_sync(names, torch.cat(rows), lengths, torch.cat(given) if given else None)


def errors(predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean squared error of each prediction of the samples, of which there may be several."""
    return (predictions - labels.reshape(-1, *[1] * (predictions.dim() - 1))).square().mean(dim=0)


def module_sharders(optimizer: str = "sgd") -> list[Any]:
    kind, _, rate = OPTIMIZERS[optimizer]
    fused = {"optimizer": kind, "learning_rate": rate, "eps": 1e-8}
    bags = EmbeddingBagCollectionSharder(fused)
    return [bags, EmbeddingCollectionSharder(fused), FeatureProcessedEmbeddingBagCollectionSharder(bags)]


def held(model: nn.Module) -> dict[str, list[tuple[int, int, torch.Tensor]]]:
    """What a rank has of each weight: first row, first column and values of each shard."""
    found: dict[str, list[tuple[int, int, torch.Tensor]]] = {}
    for name, value in model.state_dict().items():
        if hasattr(value, "local_shards"):
            found[name] = [(*one.metadata.shard_offsets, one.tensor.detach()) for one in value.local_shards()]
        else:
            found[name] = [(0, 0, value.detach())]
    return found


def piece(whole: torch.Tensor, row: int, column: int, like: torch.Tensor) -> torch.Tensor:
    """The part of a whole weight that a shard holds."""
    return whole[row : row + like.shape[0], column : column + like.shape[1]] if like.dim() == 2 else whole


class Job:
    """One rank's part of a training, which begins with the weights of the whole model.

    The optimizer is the tables'; replicas and the dense model have one of their own, alike but for ``dense_rate``.
    ``prepare`` gives the tables their optimizer in place of the sharders.
    """

    def __init__(
        self,
        plan: ShardingPlan,
        group: Any = None,
        optimizer: str = "sgd",
        kind: Any = Everything,
        prepare: Callable[[nn.Module], None] | None = None,
        dense_rate: float | None = None,
    ) -> None:
        self.group = group or dist.group.WORLD
        self.rank, self.world_size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.samples = batches(kind, self.world_size)
        torch.manual_seed(0)
        whole = kind()
        weights = {name: weight.detach().clone() for name, weight in whole.state_dict().items()}
        sharders = module_sharders(optimizer)
        if prepare is not None:
            prepare(whole)
            sharders = [EmbeddingBagCollectionSharder()]
        env = ShardingEnv.from_process_group(self.group)
        self.model = DistributedModelParallel(whole, env, torch.device("cpu"), plan=plan, sharders=sharders)
        for name, shards in held(self.model).items():
            for row, column, tensor in shards:
                tensor.copy_(piece(weights[name], row, column, tensor))
        fused = set(self.model.fused_optimizer.params)
        left = in_backward_optimizer_filter(self.model.named_parameters())
        dense = {name: weight for name, weight in left if name not in fused and weight.numel()}
        _, own, rate = OPTIMIZERS[optimizer]
        rate = rate if dense_rate is None else dense_rate
        self.dense = KeyedOptimizerWrapper(dense, lambda weights: own(weights, lr=rate))

    def steps(self, first: int = 0, last: int = NUM_STEPS) -> list[Any]:
        """The mean losses over the ranks of these steps, of each prediction; the last one is not done."""
        losses = []
        mine = slice(self.rank * LOCAL_BATCH, (self.rank + 1) * LOCAL_BATCH)
        for number in range(first, last):
            local, _, labels = self.samples[number % NUM_STEPS]
            loss = errors(self.model(*local[self.rank]), labels[mine])
            self.dense.zero_grad()
            self.model.fused_optimizer.zero_grad()
            loss.sum().backward()
            self.dense.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=self.group)
            losses.append((mean / self.world_size).tolist())
        return losses


def in_one_piece(
    world_size: int, optimizer: str = "sgd", kind: Any = Everything, num_steps: int = NUM_STEPS
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Losses as of ``Job.steps``, and the weights at the end, without ranks and shards."""
    torch.manual_seed(0)
    model, samples, (_, own, rate) = kind(), batches(kind, world_size), OPTIMIZERS[optimizer]
    learner, losses = own(model.parameters(), lr=rate), []
    for number in range(num_steps):
        _, features, labels = samples[number % NUM_STEPS]
        loss = errors(model(*features), labels)
        learner.zero_grad()
        loss.sum().backward()
        learner.step()
        losses.append(loss.tolist())
    return losses, model.state_dict()


def in_parts(table: Table, way: str, machine: Nodes, first: int, widths: Sequence[int] = ()) -> tuple[TablePart, ...]:
    """A table sharded in a way, from this rank or its node on; ``widths`` of cut columns, by default halves."""
    devices, node, half = machine.num_devices, machine.node_of(first), table.embedding_dim // 2
    own = (widths or (half, half)) if way in ("column_wise", "table_column_wise", "grid_shard") else (2 * half,)
    if way == "data_parallel":
        return (TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), tuple(range(devices))),)
    found = []
    for number, width in enumerate(own):
        ranks: Sequence[int] = {
            "table_wise": (first,),
            "column_wise": ((first + number) % devices,),
            "table_column_wise": (node * machine.devices_per_node + number,),
            "row_wise": range(devices),
            "table_row_wise": machine.devices_of_node(node),
            "grid_shard": machine.devices_of_node((node + number) % machine.num_nodes),
        }[way]
        block, left = -(-table.num_rows // len(ranks)), sum(own[:number])
        for rank, start in zip(ranks, range(0, table.num_rows, block), strict=False):
            rows = Span(start, min(start + block, table.num_rows))
            found.append(TablePart(table.name, rows, Span(left, left + width), (rank,)))
    return tuple(found)
