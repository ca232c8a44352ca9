"""DreamShard's cost network (NeurIPS 2022, section 3.2).

A table MLP encodes each table; the representations of a device's tables are summed; three heads read a device's
sum, and an overall head reads the element-wise maximum over devices. A device without tables is the zero vector.

Legend: P tables, F features, H = 32 representation size, D devices, C = 3 costs, B placements.
"""

from __future__ import annotations

import torch
from torch import nn

from evenshard.sharders.checkpoint import Network
from evenshard.sharders.features import NUM_FEATURES

REPRESENTATION_SIZE = 32


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """One hidden ReLU layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def linear_layers(net: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The hidden and the output layer of an ``mlp``, however it is wrapped."""
    hidden, output = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
    return hidden, output


class DreamShardCostNet(Network):
    """Predicts per-device and overall cost in ms from normalised table features.

    Sizes: table MLP 21-128-32, heads 32-64-1. The heads answer in units of ``cost_scale_ms``, the mean overall
    cost of the first training data, so that learning does not depend on how fast the hardware is.
    """

    kind = "dreamshard_cost_net"
    cost_scale_ms: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table_mlp = nn.Sequential(mlp(NUM_FEATURES, 128, REPRESENTATION_SIZE), nn.ReLU())
        self.fwd_compute_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.bwd_all_to_all_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.bwd_compute_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.overall_head = mlp(REPRESENTATION_SIZE, 64, 1)
        self.register_buffer("cost_scale_ms", torch.ones(()))

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Table representations, [P, H] from normalised features [P, F]."""
        representations: torch.Tensor = self.table_mlp(features)
        return representations

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
