"""The kernels of a device that holds parts: a fused call for each kind of part, and dense ones for replicas.

Legend: F features, B samples of the global batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from evenshard.measure.distributed.part_inputs import Bags
from evenshard.measure.distributed.part_layout import ColumnBlock, ExchangeGroup, is_replicated, kernel_pooling
from evenshard.measure.fbgemm import LEARNING_RATE, ShardKernels, weights_dtype
from evenshard.measure.kernel_calls import KernelCall
from evenshard.tables.table import Table

# Bytes that the weights of a call begin at a multiple of.
ALIGNMENT = 64
_DENSE_OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": torch.optim.Adagrad,  # torch has none by rows
    "adam": torch.optim.Adam,
    # torch has none of these, but one that keeps as much of a weight
    "lars_sgd": torch.optim.Adagrad,
    "partial_rowwise_adam": torch.optim.Adam,
    "partial_rowwise_lamb": torch.optim.Adam,
    "lamb": torch.optim.Adam,
}


@dataclass(frozen=True)
class LoadedCall:
    """A kernel call on its device.

    Attributes:
        call: what its parts have in common.
        operator: FBGEMM's module.
        blocks: that it looks up.
        first, stop: its features among those of its group on the device.
    """

    call: KernelCall
    operator: Any
    blocks: tuple[ColumnBlock, ...]
    first: int
    stop: int

    def forward(self, bags: Bags, ends: torch.Tensor) -> torch.Tensor:
        """Outputs of its features: [B, sum of dims], or one row for each lookup of sequences.

        Args:
            bags: of all features of the group.
            ends: where each of their bags begins, and the last one ends.
        """
        num_samples = bags.lengths.shape[1]
        offsets = ends[self.first * num_samples : self.stop * num_samples + 1]
        start, stop = int(offsets[0]), int(offsets[-1])
        weights = bags.weights[start:stop] if self.call.is_weighted and bags.weights is not None else None
        found: torch.Tensor = self.operator(bags.indices[start:stop], offsets - start, weights)
        return found

    def weights(self) -> list[torch.Tensor]:
        """Weights of each block, [rows, columns]."""
        return list(self.operator.split_embedding_weights())


def load_calls(
    kernels: ShardKernels, groups: Sequence[ExchangeGroup], device: int
) -> tuple[tuple[LoadedCall, ...], ...]:
    """The calls of each group on a device.

    Raises:
        OutOfDeviceMemory: if they do not fit together.
        BadInput: if a call cannot take its tables.
    """
    of_groups = [group.calls_on(device) for group in groups]
    sizes = [
        [0 if call.is_dense else _weight_bytes(_tables_on_device(blocks, device)) for call, blocks in calls]
        for calls in of_groups
    ]
    kernels.reserve(sum(map(sum, sizes)))
    loaded, first_byte = [], 0
    for group, calls, of_group in zip(groups, of_groups, sizes, strict=True):
        found, feature = [], 0
        for (call, blocks), num_bytes in zip(calls, of_group, strict=True):
            held = _tables_on_device(blocks, device)
            features = [at for at, block in enumerate(blocks) for _ in range(block.table.num_features)]
            if is_replicated(group):
                operator = dense_operator(kernels, held, call.pooling, features)
            else:
                operator = kernels.operator(held, kernel_pooling(call), features, first_byte)
            found.append(LoadedCall(call, operator, blocks, feature, feature + len(features)))
            feature += len(features)
            first_byte += num_bytes
        loaded.append(tuple(found))
    return tuple(loaded)


def dense_optimizer(name: str, calls: Sequence[LoadedCall]) -> torch.optim.Optimizer | None:
    """What updates the weights of replicas once their gradients are summed up; None without replicas."""
    weights = [call.operator.weights for call in calls]
    return _DENSE_OPTIMIZERS[name](weights, lr=LEARNING_RATE) if weights else None


def _tables_on_device(blocks: Sequence[ColumnBlock], device: int) -> list[Table]:
    """What the device has of each block; a table has at least one row."""
    return [
        replace(
            block.table,
            num_rows=max(block.rows_on(device).size, 1),
            embedding_dim=block.columns.size,
            row_shares=None,
            miss_ratios=None,
        )
        for block in blocks
    ]


def _weight_bytes(held: Sequence[Table]) -> int:
    size = sum(table.size_bytes for table in held)
    return -(-size // ALIGNMENT) * ALIGNMENT


def dense_operator(kernels: ShardKernels, tables: Sequence[Table], pooling: str, features: list[int]) -> Any:
    """FBGEMM's dense call of replicas: its gradients are left to an optimizer.

    Args:
        kernels: of the device.
        tables: that the device holds.
        pooling: what it does with a bag.
        features: position of the table of each feature.
    """
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen

    # FBGEMM's way of giving the CPU a gradient here; tests compare it.
    warnings.filterwarnings("ignore", ".*an autograd kernel was not registered", UserWarning)
    if tables[0].is_sequence and kernels.device.type == "cpu":
        return _DenseSequences(tables, features, kernels.device)
    return DenseTableBatchedEmbeddingBagsCodegen(
        [(table.num_rows, table.embedding_dim) for table in tables],
        feature_table_map=features,
        weights_precision=SparseType.from_dtype(weights_dtype(tables)),
        pooling_mode=PoolingMode[pooling.upper()],
        use_cpu=kernels.device.type == "cpu",
    )


class _DenseSequences(torch.nn.Module):
    """Replicas of tables whose lookups are not pooled: FBGEMM's dense call for the CPU pools them all the same."""

    def __init__(self, tables: Sequence[Table], features: Sequence[int], device: torch.device) -> None:
        super().__init__()
        self._sizes = [table.num_rows * table.embedding_dim for table in tables]
        self._dim, self._features = tables[0].embedding_dim, features
        self.weights = torch.nn.Parameter(torch.randn(sum(self._sizes), device=device, dtype=weights_dtype(tables)))

    def split_embedding_weights(self) -> list[torch.Tensor]:
        return [one.view(-1, self._dim) for one in torch.split(self.weights, self._sizes)]

    def forward(
        self, indices: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        num_samples = (len(offsets) - 1) // len(self._features)
        of_features = torch.split(indices, offsets[::num_samples].diff().tolist())
        tables = self.split_embedding_weights()
        found = [
            torch.nn.functional.embedding(own, tables[at]) for own, at in zip(of_features, self._features, strict=True)
        ]
        return torch.cat(found).float()
