"""A training of the model of ``torchrec_training`` on one rank of several, which tests stop, move and start again."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import ShardingPlan

from support.torchrec_training import LOCAL_BATCH, NUM_STEPS, Everything, batches

FUSED = {
    "sgd": {"optimizer": "EXACT_SGD", "learning_rate": 0.5},
    "rowwise_adagrad": {"optimizer": "EXACT_ROWWISE_ADAGRAD", "learning_rate": 0.05},
    "adagrad": {"optimizer": "EXACT_ADAGRAD", "learning_rate": 0.05},
}
"""The fused optimizers that FBGEMM has on the CPU."""


class Job:
    """One rank's part of the training.

    Args:
        plan: as ``DistributedModelParallel`` takes it.
        group: process group of the ranks.
        optimizer: of the tables, as evenshard calls it; replicas and the dense model have one of their own.
    """

    def __init__(self, plan: ShardingPlan, group: Any, optimizer: str = "sgd") -> None:
        import torch.distributed as dist
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.types import ShardingEnv
        from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        self.group, self.rank, self.world_size = group, dist.get_rank(group), dist.get_world_size(group)
        fused = {**FUSED[optimizer], "optimizer": EmbOptimType[FUSED[optimizer]["optimizer"]]}
        torch.manual_seed(0)
        whole = Everything()
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
        rate = FUSED[optimizer]["learning_rate"]
        kind = {
            "sgd": torch.optim.SGD,
            "adagrad": partial(torch.optim.Adagrad, eps=1e-8),  # FBGEMM's
            "rowwise_adagrad": partial(RowWiseAdagrad, eps=1e-8),
        }[optimizer]
        flat = {name: dense.pop(name) for name in list(dense) if dense[name].dim() == 1}  # which have no rows
        self.dense = CombinedOptimizer(
            [
                KeyedOptimizerWrapper(dense, lambda weights: kind(weights, lr=rate)),
                KeyedOptimizerWrapper(flat, lambda weights: torch.optim.SGD(weights, lr=rate)),
            ]
        )

    def steps(self, first: int, last: int) -> list[float]:
        """The mean losses over the ranks of these steps; the last one is not done."""
        import torch.distributed as dist

        samples = batches(self.world_size)
        losses = []
        for number in range(first, last):
            local, _, labels = samples[number % NUM_STEPS]
            mine = labels[self.rank * LOCAL_BATCH : (self.rank + 1) * LOCAL_BATCH]
            loss = nn.functional.mse_loss(self.model(*local[self.rank]), mine)
            self.dense.zero_grad()
            self.model.fused_optimizer.zero_grad()
            loss.backward()
            self.dense.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=self.group)
            losses.append(mean.item() / self.world_size)
        return losses
