"""AutoShard's cost network (KDD 2022, section 3.2).

A table MLP encodes each table, the representations of a shard's tables are summed, one head reads the sum. It
predicts the fused forward and backward compute time of the shard, and nothing of the exchange between devices.

Legend: P tables, F features, H = 32 representation size.
"""

from __future__ import annotations

import torch
from torch import nn

from evenshard.sharders.checkpoint import Network
from evenshard.sharders.dreamshard.cost_net import REPRESENTATION_SIZE, mlp
from evenshard.sharders.features import NUM_FEATURES


class AutoShardCostNet(Network):
    """Predicts the compute cost of a shard in ms from normalised table features.

    Sizes: table MLP 21-128-32, head 32-64-1. The head answers in units of ``cost_scale_ms``, the mean cost of the
    training shards, so that learning does not depend on how fast the hardware is.
    """

    kind = "autoshard_cost_net"
    cost_scale_ms: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table_mlp = nn.Sequential(mlp(NUM_FEATURES, 128, REPRESENTATION_SIZE), nn.ReLU())
        self.cost_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.register_buffer("cost_scale_ms", torch.ones(()))

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Table representations, [P, H] from normalised features [P, F]. The policy reads the same ones."""
        representations: torch.Tensor = self.table_mlp(features)
        return representations

    def shard_cost(self, sums: torch.Tensor) -> torch.Tensor:
        """Forward and backward compute of shards in ms, [...] from sums [..., H] of their tables' representations.

        A shard without tables costs nothing; the network, which has never seen one, is not asked.
        """
        costs: torch.Tensor = self.cost_head(sums).squeeze(-1) * self.cost_scale_ms
        return costs
