"""FBGEMM's dense embedding calls, whose gradients an optimizer applies."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from evenshard.measure.fbgemm import ShardKernels, weights_dtype
from evenshard.tables.table import Table


def dense_operator(kernels: ShardKernels, tables: Sequence[Table], pooling: str, features: list[int]) -> Any:
    """Return FBGEMM's dense call for replicas, whose gradients an optimizer applies."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen

    # FBGEMM differentiates this call on the CPU without its own kernel; tests compare the gradients.
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
    """Replicas of tables whose lookups are not pooled, which FBGEMM's dense CPU call does not support."""

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
