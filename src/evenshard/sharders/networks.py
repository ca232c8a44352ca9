"""What the networks of the learned sharders have in common.

Legend: P tables, F features, H = 32 representation size.
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


class ScaledNetwork(Network):
    """A network that knows costs in units of ``cost_scale_ms``, the mean cost of the first training data.

    So learning does not depend on how fast the hardware is.
    """

    cost_scale_ms: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cost_scale_ms", torch.ones(()))


class TableNetwork(ScaledNetwork):
    """A network that encodes each table by an MLP 21-128-32; the representations of a device's tables are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.table_mlp = nn.Sequential(mlp(NUM_FEATURES, 128, REPRESENTATION_SIZE), nn.ReLU())

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Table representations, [P, H] from normalised features [P, F]."""
        representations: torch.Tensor = self.table_mlp(features)
        return representations
