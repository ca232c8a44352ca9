"""A training on one rank of several, which tests stop, move and start again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ShardingPlan

from support.torchrec_training import LOCAL_BATCH, NUM_STEPS, Everything, batches

# The fused optimizers that FBGEMM has on the CPU.
FUSED = {
    "sgd": {"optimizer": "EXACT_SGD", "learning_rate": 0.5},
    "rowwise_adagrad": {"optimizer": "EXACT_ROWWISE_ADAGRAD", "learning_rate": 0.05},
    "adagrad": {"optimizer": "EXACT_ADAGRAD", "learning_rate": 0.05},
}


class Job:
    """One rank's part of the training.

    Args:
        plan: as ``DistributedModelParallel`` takes it.
        group: process group of the ranks.
        optimizer: of the tables, as evenshard calls it; replicas and the dense model have one of their own.
        model: makes the model in one piece.
        batches: makes the samples of each step, for a number of ranks.
    """

    def __init__(
        self,
        plan: ShardingPlan,
        group: Any,
        optimizer: str = "sgd",
        model: Callable[[], nn.Module] = Everything,
        batches: Callable[[int], list[Any]] = batches,
    ) -> None:
        import torch.distributed as dist
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.types import ShardingEnv
        from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

        self.group, self.rank, self.world_size = group, dist.get_rank(group), dist.get_world_size(group)
        self.samples = batches(self.world_size)
        fused = {**FUSED[optimizer], "optimizer": EmbOptimType[FUSED[optimizer]["optimizer"]]}
        torch.manual_seed(0)
        whole = model()
        weights = {name: weight.detach().clone() for name, weight in whole.state_dict().items()}
        self.model = DistributedModelParallel(
            whole,
            ShardingEnv.from_process_group(group),
            torch.device("cpu"),
            plan=plan,
            sharders=[EmbeddingBagCollectionSharder(fused), EmbeddingCollectionSharder(fused)],
        )
        for name, value in self.model.state_dict().items():
            if not hasattr(value, "local_shards"):
                value.copy_(weights[name])
                continue
            for shard in value.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(weights[name][row : row + rows, column : column + columns])
        held = set(self.model.fused_optimizer.params)
        dense = {name: weight for name, weight in self.model.named_parameters() if name not in held and weight.numel()}
        rate, kind = FUSED[optimizer]["learning_rate"], dense_kind(optimizer)
        flat = {name: dense.pop(name) for name in list(dense) if dense[name].dim() == 1}  # which have no rows
        optimizers = [KeyedOptimizerWrapper(dense, lambda weights: kind(weights, lr=rate))]
        if flat:
            optimizers.append(KeyedOptimizerWrapper(flat, lambda weights: torch.optim.SGD(weights, lr=rate)))
        self.dense = CombinedOptimizer(optimizers)

    def steps(self, first: int, last: int) -> list[Any]:
        """The mean losses over the ranks of these steps, of each prediction; the last one is not done."""
        import torch.distributed as dist

        losses = []
        for number in range(first, last):
            local, _, labels = self.samples[number % NUM_STEPS]
            mine = labels[self.rank * LOCAL_BATCH : (self.rank + 1) * LOCAL_BATCH]
            loss = (self.model(*local[self.rank]) - mine).square().mean(dim=0)
            self.dense.zero_grad()
            self.model.fused_optimizer.zero_grad()
            loss.sum().backward()
            self.dense.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=self.group)
            losses.append((mean / self.world_size).tolist())
        return losses


def dense_kind(optimizer: str) -> Callable[..., torch.optim.Optimizer]:
    """torch's or TorchRec's optimizer that does what FBGEMM's fused one does."""
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adagrad": partial(torch.optim.Adagrad, eps=1e-8),  # FBGEMM's
        "rowwise_adagrad": partial(RowWiseAdagrad, eps=1e-8),
    }
    return kinds[optimizer]


def losses_in_one_piece(
    optimizer: str, model: Callable[[], nn.Module], batches: Callable[[int], list[Any]], world_size: int, num_steps: int
) -> list[Any]:
    """As ``Job.steps`` from the first step on, without ranks and shards."""
    torch.manual_seed(0)
    whole, samples = model(), batches(world_size)
    learner = dense_kind(optimizer)(whole.parameters(), lr=FUSED[optimizer]["learning_rate"])
    losses = []
    for number in range(num_steps):
        _, features, labels = samples[number % NUM_STEPS]
        loss = (whole(*features) - labels).square().mean(dim=0)
        learner.zero_grad()
        loss.sum().backward()
        learner.step()
        losses.append(loss.tolist())
    return losses
