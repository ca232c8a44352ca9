"""What the trainings of the learned sharders have in common: how a network is fitted, and what comes of it.

Legend: N examples, M examples of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic

import torch

from evenshard.sharders.checkpoint import Checkpoint, Net

# Wraps a range of updates, for a progress bar.
Track = Callable[[range], Iterable[int]]


@dataclass(frozen=True)
class FitConfig:
    """Length and speed of a training: gradient steps, measured examples of each, and Adam's learning rate."""

    num_updates: int
    minibatch_size: int
    learning_rate: float


@dataclass(frozen=True)
class FittedCostNet(Generic[Net]):
    """The cost network after one round.

    Attributes:
        checkpoint: the network, ready for the next round.
        losses: loss of every update, in units of the squared cost scale.
        median_abs_pct_error: median absolute error of what it predicts of the examples that it learned from, per cent.
    """

    checkpoint: Checkpoint[Net]
    losses: list[float]
    median_abs_pct_error: float


def fit_minibatches(
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    num_examples: int,
    optimizer: torch.optim.Optimizer,
    config: FitConfig,
    generator: torch.Generator,
    track: Track = iter,
    falls_to_zero: bool = False,
) -> list[float]:
    """Minimises a loss in place, by Adam on random minibatches; returns the loss of every update.

    Args:
        loss_of: the loss of some of the examples, by their numbers [M].
        num_examples: N.
        falls_to_zero: the learning rate falls linearly to 0: the last minibatches shall not stand out.
    """
    losses = []
    for update in track(range(config.num_updates)):
        set_learning_rate(optimizer, config.learning_rate * (1 - falls_to_zero * update / config.num_updates))
        loss = loss_of(torch.randint(num_examples, (config.minibatch_size,), generator=generator))
        descend(optimizer, loss)
        losses.append(loss.item())
    return losses


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropy over the last dimension, [...]; choices without a probability, whose logarithm is -inf, add nothing."""
    return -(log_probs.exp() * log_probs.masked_fill(log_probs.isneginf(), 0.0)).sum(dim=-1)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Gives all parameters one learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor, max_gradient_norm: float = float("inf")) -> None:
    """One gradient step; longer gradients are cut to the norm."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if max_gradient_norm < float("inf"):
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
    optimizer.step()
