"""NeuroShard's compute cost network (MLSys 2023), by its published shape.

A table MLP 128-32 encodes each table, the codes of a shard's tables are summed, and a head 64-1 gives the shard's
forward and backward time together. Its loss is the mean squared error in ms; here in units of the mean time.

Legend: N shards, L tables of all shards one after another, F = 21 features, M shards of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from evenshard.measure.costs import MeasuredPlacement
from evenshard.placement.tasks import distinct_tables
from evenshard.sharders.features import NUM_FEATURES, FeatureNormalizer
from evenshard.tables.reuse import FloatArray
from evenshard.utils.process import one_thread

LEARNING_RATE = 1e-3
MINIBATCH = 128


class NeuroShardNet(nn.Module):
    """Times of shards, from the features of their tables.

    Args:
        normalizer: normalizer of the features.
        batch_size: samples of one step.
        scale_ms: unit of what the head answers.
    """

    def __init__(self, normalizer: FeatureNormalizer, batch_size: int, scale_ms: float) -> None:
        super().__init__()
        self.normalizer, self.batch_size, self.scale_ms = normalizer, batch_size, scale_ms
        self.table_mlp = nn.Sequential(nn.Linear(NUM_FEATURES, 128), nn.ReLU(), nn.Linear(128, 32))
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, features_LF: torch.Tensor, shard_of_L: torch.Tensor, num_shards: int) -> torch.Tensor:
        """Times in units of ``scale_ms``, [N]."""
        sums_N = torch.zeros(num_shards, 32).index_add(0, shard_of_L, self.table_mlp(features_LF))
        times_N: torch.Tensor = self.head(sums_N).squeeze(1)
        return times_N

    @torch.no_grad()
    def times_ms(self, shards: Sequence[MeasuredPlacement]) -> FloatArray:
        """Predicted times, [N] ms."""
        features_LF, shard_of_L = _features(self, shards)
        times_N: FloatArray = self(features_LF, shard_of_L, len(shards)).double().numpy() * self.scale_ms
        return times_N


def fit_neuroshard(shards: Sequence[MeasuredPlacement], num_updates: int, seed: int) -> NeuroShardNet:
    """Trains the network on shards that were measured alone; Adam, its rate falls linearly to 0."""
    torch.manual_seed(seed)
    actual_N = torch.tensor([one.cost.max_device_ms for one in shards])
    batch_size = shards[0].task.batch_size
    normalizer = FeatureNormalizer.fit(distinct_tables([one.task for one in shards]), batch_size)
    net = NeuroShardNet(normalizer, batch_size, float(actual_N.mean()))
    features_LF, shard_of_L = _features(net, shards)
    count_N = shard_of_L.bincount(minlength=len(shards))
    first_N = count_N.cumsum(0) - count_N
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, num_updates)
    with one_thread():
        for _ in range(num_updates):
            rows_M = torch.randint(len(shards), (min(MINIBATCH, len(shards)),))
            row_of_held = torch.arange(len(rows_M)).repeat_interleave(count_N[rows_M])
            within = torch.arange(len(row_of_held)) - (count_N[rows_M].cumsum(0) - count_N[rows_M])[row_of_held]
            held = first_N[rows_M][row_of_held] + within
            errors_M = net(features_LF[held], row_of_held, len(rows_M)) - actual_N[rows_M] / net.scale_ms
            optimizer.zero_grad(set_to_none=True)
            errors_M.square().mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
    return net


def _features(net: NeuroShardNet, shards: Sequence[MeasuredPlacement]) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised features [L, F] of the tables of shard after shard, and the shard of each [L]."""
    tables = [table for one in shards for table in one.task.tables]
    shard_of_L = np.repeat(np.arange(len(shards)), [len(one.task.tables) for one in shards])
    return net.normalizer(tables, net.batch_size), torch.from_numpy(shard_of_L)
