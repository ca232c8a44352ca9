"""Which linear layers does a network of one hidden layer have? For code that computes with their weights directly."""

from __future__ import annotations

from torch import nn


def linear_layers(net: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """The hidden and the output layer of an ``mlp`` of ``cost_nets/dreamshard.py``, however it is wrapped."""
    hidden, output = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
    return hidden, output
