"""AutoShard's cost network (KDD 2022, section 3.2).

A table MLP encodes each table, the representations of a shard's tables are summed, one head reads the sum. It
predicts the fused forward and backward compute time of the shard, and nothing of the exchange between devices.

Legend: H = 32 representation size.
"""

from __future__ import annotations

import torch

from evenshard.sharders.training import REPRESENTATION_SIZE, TableNetwork, mlp


class AutoShardCostNet(TableNetwork):
    """Predicts the compute cost of a shard in ms from normalised table features.

    Sizes: table MLP 21-128-32, head 32-64-1. The head answers in units of ``cost_scale_ms``, the mean cost of a shard.
    The policy reads the same representations of tables.
    """

    kind = "autoshard_cost_net"

    def __init__(self) -> None:
        super().__init__()
        self.cost_head = mlp(REPRESENTATION_SIZE, 64, 1)

    def shard_cost(self, sums: torch.Tensor) -> torch.Tensor:
        """Forward and backward compute of shards in ms, [...] from sums [..., H] of their tables' representations.

        A shard without tables costs nothing; the network, which has never seen one, is not asked.
        """
        costs: torch.Tensor = self.cost_head(sums).squeeze(-1) * self.cost_scale_ms
        return costs
