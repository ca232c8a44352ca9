"""DreamShard's cost network (NeurIPS 2022, section 3.2).

A table MLP encodes each table; the representations of a device's tables are summed; three heads read a device's
sum, and an overall head reads the element-wise maximum over devices. A device without tables is the zero vector.

Legend: H = 32 representation size, D devices, C = 3 costs, B placements.
"""

from __future__ import annotations

import torch

from evenshard.sharders.training import REPRESENTATION_SIZE, TableNetwork, mlp


class DreamShardCostNet(TableNetwork):
    """Predicts per-device and overall cost in ms from normalised table features.

    Sizes: table MLP 21-128-32, heads 32-64-1. The heads answer in units of ``cost_scale_ms``, the mean overall cost.
    """

    kind = "dreamshard_cost_net"

    def __init__(self) -> None:
        super().__init__()
        self.fwd_compute_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.bwd_all_to_all_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.bwd_compute_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.overall_head = mlp(REPRESENTATION_SIZE, 64, 1)

    def device_costs(self, sums: torch.Tensor) -> torch.Tensor:
        """Forward compute, backward all-to-all and backward compute of devices in ms, [..., C] from sums [..., H]."""
        heads = (self.fwd_compute_head, self.bwd_all_to_all_head, self.bwd_compute_head)
        return torch.cat([head(sums) for head in heads], dim=-1) * self.cost_scale_ms

    def overall_cost(self, sums_BDH: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
        """Overall cost of placements in ms, [B]; devices outside the mask do not count."""
        outside_BD1 = ~device_mask_BD[..., None]
        worst_BH = sums_BDH.masked_fill(outside_BD1, -torch.inf).amax(dim=1)
        overall_B: torch.Tensor = self.overall_head(worst_BH).squeeze(-1) * self.cost_scale_ms
        return overall_B
