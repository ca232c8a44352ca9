"""AutoShard's training round, and the training of its cost network on measured shards (section 3.2).

The tables of one device form a shard. A measurement is of a whole placement, or of a single shard.

Legend: N measured placements, S shards, P distinct tables, F features, M shards of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from evenshard.price.costs import OK, MeasuredPlacement
from evenshard.sharders.autoshard.env import AutoShardCostNet
from evenshard.sharders.autoshard.impala import ImpalaConfig, policy_round
from evenshard.sharders.autoshard.sharder import AutoShardPolicy, AutoShardSharder
from evenshard.sharders.catalog import LearnedSharder
from evenshard.sharders.checkpoint import Checkpoint, Round
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import FitConfig, FittedCostNet, Track, fit_minibatches


def select_shards(measured: Iterable[MeasuredPlacement]) -> list[MeasuredPlacement]:
    """Select the training data of the cost network: placements that fit in memory, without repeats to measure noise."""
    return [one for one in measured if one.cost.fits and not one.is_control]


def cost_net_round(
    checkpoint: Checkpoint[AutoShardCostNet],
    measured: Sequence[MeasuredPlacement],
    config: FitConfig,
    of_round: Round,
    generator: torch.Generator,
    track: Track = iter,
) -> FittedCostNet[AutoShardCostNet]:
    """Train the cost network in place for one round on all shards measured so far.

    All rounds use the mean cost of the first round's shards as the cost scale. The learning rate falls to 0.
    """
    net, data = checkpoint.net, ShardTensors.of(measured, checkpoint.normalizer)
    if checkpoint.is_new:
        net.cost_scale_ms.copy_(data.cost_S.mean().clamp(min=1e-9))
    losses = fit_autoshard_net(net, checkpoint.optimizer, data, config, generator, track)
    with torch.no_grad():
        predicted_S = predict_shards(net, data, torch.arange(len(data.cost_S)))
    error = float(((predicted_S / data.cost_S.clamp(min=1e-9) - 1).abs() * 100).median())
    return FittedCostNet(replace(checkpoint, round=of_round.number), losses, error)


@dataclass(frozen=True)
class ShardTensors:
    """Measured shards as tensors for training."""

    features_PF: torch.Tensor  # normalised features of the distinct tables
    holds_SP: torch.Tensor  # 1 where a shard holds a table, float32
    cost_S: torch.Tensor  # measured forward and backward compute, ms

    @staticmethod
    def of(measured: Sequence[MeasuredPlacement], normalizer: FeatureNormalizer) -> ShardTensors:
        """Convert measured placements with one batch size to training tensors.

        Devices that have no tables or ran out of memory are left out.
        """
        distinct, features_PF = normalizer.of_tasks([one.task for one in measured])
        shards = [
            ([distinct[table] for table in shard], cost.compute_ms)
            for one in measured
            for shard, cost in zip(one.shards, one.cost.devices, strict=True)
            if shard and cost.status == OK
        ]
        assert shards, "no shard has tables and a measured time"
        holds_SP = torch.zeros(len(shards), len(distinct))
        for row, (tables, _) in enumerate(shards):
            holds_SP[row, torch.tensor(tables)] = 1.0
        return ShardTensors(features_PF, holds_SP, torch.tensor([cost_ms for _, cost_ms in shards]))


def predict_shards(net: AutoShardCostNet, data: ShardTensors, rows_M: torch.Tensor) -> torch.Tensor:
    """Predict the costs of the selected shards, ms, [M]."""
    return net.shard_cost(data.holds_SP[rows_M] @ net.encode(data.features_PF))


def fit_autoshard_net(
    net: AutoShardCostNet,
    optimizer: torch.optim.Optimizer,
    data: ShardTensors,
    config: FitConfig,
    generator: torch.Generator,
    track: Track = iter,
) -> list[float]:
    """Train the network in place; return the mean squared error of every update, in units of the squared cost scale.

    The learning rate falls to 0.
    """

    def loss_of(rows_M: torch.Tensor) -> torch.Tensor:
        error_M = (predict_shards(net, data, rows_M) - data.cost_S[rows_M]) / net.cost_scale_ms
        return error_M.square().mean()

    return fit_minibatches(loss_of, len(data.cost_S), optimizer, config, generator, track, falls_to_zero=True)


SHARDER = LearnedSharder(
    AutoShardSharder.name,
    AutoShardCostNet,
    AutoShardPolicy,
    ImpalaConfig,
    examples=select_shards,
    fit_round=cost_net_round,
    train_round=policy_round,
    # It returns the most probable placement, as published; the number of rollouts has no effect.
    sharder=lambda cost_net, policy, normalizer, num_rollouts: AutoShardSharder(cost_net, policy, normalizer),
    objective="reward",
)
