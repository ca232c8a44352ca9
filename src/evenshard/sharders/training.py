"""Networks, rewards and training loops shared by the learned sharders.

Legend: P tables, F features, H = 32 representation size, B episodes, D devices, N examples, M examples of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic

import torch
from torch import nn

from evenshard.sharders.checkpoint import Checkpoint, Net, Network
from evenshard.sharders.features import NUM_FEATURES

REPRESENTATION_SIZE = 32  # of a table, as in DreamShard and AutoShard


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build an MLP with one hidden ReLU layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def linear_layers(net: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """Return the hidden and output layers of an ``mlp``, which may be inside another module."""
    hidden, output = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
    return hidden, output


class ScaledNetwork(Network):
    """Network that predicts costs in units of ``cost_scale_ms``, the mean cost in the first round's training data.

    This makes training independent of the speed of the hardware.
    """

    cost_scale_ms: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cost_scale_ms", torch.ones(()))


class TableNetwork(ScaledNetwork):
    """Network that encodes each table by an MLP 21-128-32, and sums the representations of a device's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.table_mlp = nn.Sequential(mlp(NUM_FEATURES, 128, REPRESENTATION_SIZE), nn.ReLU())

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Compute table representations, [P, H], from normalised features [P, F]."""
        representations: torch.Tensor = self.table_mlp(features)
        return representations


def standardise_B(returns_B: torch.Tensor) -> torch.Tensor:
    """Standardise returns to mean 0 and deviation 1, [B]; zeros if all returns are equal."""
    centred_B = returns_B - returns_B.mean()
    return centred_B / (centred_B.square().mean().sqrt() + 1e-8)


def degree_of_balance_B(costs_BD: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
    """Return the lowest device cost divided by the highest, [B], 0 to 1 (AutoShard, section 2).

    A predicted cost below 0 counts as 0. If all devices cost 0, the result is 1.
    """
    costs_BD = costs_BD.clamp(min=0.0)
    least_B = costs_BD.masked_fill(~device_mask_BD, torch.inf).amin(dim=1)
    most_B = costs_BD.masked_fill(~device_mask_BD, 0.0).amax(dim=1)
    return torch.where(most_B > 0, least_B / most_B.clamp(min=torch.finfo(costs_BD.dtype).tiny), 1.0)


def overflow_ratio_B(used_bytes_BD: torch.Tensor, memory_cap_B: torch.Tensor) -> torch.Tensor:
    """Return the excess of the fullest device over its memory, as a share of that memory, [B]; 0 if all fit."""
    excess_B = used_bytes_BD.amax(dim=1) - memory_cap_B
    return excess_B.clamp(min=0) / memory_cap_B


def balance_reward_B(
    costs_BD: torch.Tensor, used_bytes_BD: torch.Tensor, memory_cap_B: torch.Tensor, device_mask_BD: torch.Tensor
) -> torch.Tensor:
    """Compute the final reward, [B]: degree of balance minus overflow ratio (AutoShard, section 3.3)."""
    return degree_of_balance_B(costs_BD, device_mask_BD) - overflow_ratio_B(used_bytes_BD, memory_cap_B)


Track = Callable[[range], Iterable[int]]  # function that wraps a range of updates, for example to show progress


@dataclass(frozen=True)
class FitConfig:
    """Training settings: gradient steps, batch size and Adam's learning rate."""

    num_updates: int
    minibatch_size: int
    learning_rate: float


@dataclass(frozen=True)
class FittedCostNet(Generic[Net]):
    """Result of one training round: the cost network and its metrics."""

    checkpoint: Checkpoint[Net]  # the network for the next round
    losses: list[float]  # loss of every update, in units of the squared cost scale
    median_abs_pct_error: float  # median absolute error of predictions on the training data, %


def fit_minibatches(
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    num_examples: int,
    optimizer: torch.optim.Optimizer,
    config: FitConfig,
    generator: torch.Generator,
    track: Track = iter,
    falls_to_zero: bool = False,
) -> list[float]:
    """Minimize a loss in place with Adam on random minibatches; return the loss of every update.

    Args:
        loss_of: function that returns the loss of a minibatch, given the numbers of its examples [M].
        falls_to_zero: decay the learning rate linearly to 0, so that the last minibatches do not dominate.
    """
    losses = []
    for update in track(range(config.num_updates)):
        set_learning_rate(optimizer, config.learning_rate * (1 - falls_to_zero * update / config.num_updates))
        loss = loss_of(torch.randint(num_examples, (config.minibatch_size,), generator=generator))
        descend(optimizer, loss)
        losses.append(loss.item())
    return losses


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Compute the entropy over the last dimension, [...]; a log-probability of -inf contributes 0."""
    return -(log_probs.exp() * log_probs.masked_fill(log_probs.isneginf(), 0.0)).sum(dim=-1)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set one learning rate for all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor, max_gradient_norm: float = float("inf")) -> None:
    """Take one gradient step with a clipped gradient norm."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if max_gradient_norm < float("inf"):
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
    optimizer.step()
