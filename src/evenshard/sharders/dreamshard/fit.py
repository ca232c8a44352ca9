"""DreamShard's training round, and the training of its cost network on measured placements (section 3.2).

Legend: N measured placements, D devices, P distinct tables, F features, C = 3 costs, M placements of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from evenshard.price.costs import RANDOM_SHARD, MeasuredPlacement
from evenshard.sharders.catalog import LearnedSharder
from evenshard.sharders.checkpoint import Checkpoint, Round
from evenshard.sharders.dreamshard.reinforce import ReinforceConfig, policy_round
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardPolicy, DreamShardSharder
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import FitConfig, FittedCostNet, Track, fit_minibatches


def select_placements(measured: Iterable[MeasuredPlacement]) -> list[MeasuredPlacement]:
    """Select the training data of the cost network: placements that fit in memory, without repeats to measure noise.

    Single shards, which have no communication, are used only if there are no other measurements.
    """
    ran = [one for one in measured if one.cost.fits and not one.is_control]
    return [one for one in ran if one.proposed_by != RANDOM_SHARD] or ran


def cost_net_round(
    checkpoint: Checkpoint[DreamShardCostNet],
    measured: Sequence[MeasuredPlacement],
    config: FitConfig,
    of_round: Round,
    generator: torch.Generator,
    track: Track = iter,
) -> FittedCostNet[DreamShardCostNet]:
    """Train the cost network for one round (Algorithm 1) on all costs measured so far.

    Args:
        checkpoint: checkpoint of the last round, or a new one; its network is trained in place.
        measured: ``select_placements`` of all rounds, not empty. In the first round, their mean cost becomes the scale.
        config: settings, with the learning rate of the first round.
    """
    if checkpoint.is_new:
        checkpoint.net.cost_scale_ms.fill_(max(1e-9, fmean(one.cost.max_device_ms for one in measured)))
    data = CostTensors.of(measured, checkpoint.normalizer)
    config = replace(config, learning_rate=of_round.decay(config.learning_rate))
    losses = fit_cost_net(checkpoint.net, checkpoint.optimizer, data, config, generator, track)
    with torch.no_grad():
        _, overall_N = predict(checkpoint.net, data, torch.arange(len(measured)))
    error = float(((overall_N / data.overall_N - 1).abs() * 100).median())
    return FittedCostNet(replace(checkpoint, round=of_round.number), losses, error)


@dataclass(frozen=True)
class CostTensors:
    """Measured placements as tensors for training."""

    features_PF: torch.Tensor  # normalised features of the distinct tables
    # 1 where a device holds a table, float32. One matrix product with it sums the representations of the tables of
    # each device.
    holds_NDP: torch.Tensor
    device_mask_ND: torch.Tensor  # False for devices that a placement does not have
    # Measured forward compute, backward all-to-all, backward compute, ms; the first and last are NaN if only their
    # sum, ``compute_ND``, is known.
    costs_NDC: torch.Tensor
    compute_ND: torch.Tensor  # measured forward and backward compute together, ms
    overall_N: torch.Tensor  # measured cost of the slowest device, ms

    @staticmethod
    def of(measured: Sequence[MeasuredPlacement], normalizer: FeatureNormalizer) -> CostTensors:
        """Convert measured placements that share one batch size."""
        distinct, features_PF = normalizer.of_tasks([one.task for one in measured])
        num_devices = max(one.task.num_devices for one in measured)
        holds_NDP = torch.zeros(len(measured), num_devices, len(distinct))
        costs_NDC, compute_ND = torch.zeros(len(measured), num_devices, 3), torch.zeros(len(measured), num_devices)
        device_mask_ND = torch.zeros(len(measured), num_devices, dtype=torch.bool)
        for row, one in enumerate(measured):
            tables = torch.tensor([distinct[table] for table in one.task.tables])
            holds_NDP[row, torch.tensor(one.placement.device_of_table), tables] = 1.0
            for device, cost in enumerate(one.cost.devices):
                forward, backward = cost.split_ms
                costs_NDC[row, device] = torch.tensor([forward, cost.bwd_all_to_all_ms, backward])
                compute_ND[row, device] = cost.compute_ms
                device_mask_ND[row, device] = True
        overall_N = torch.tensor([one.cost.max_device_ms for one in measured])
        return CostTensors(features_PF, holds_NDP, device_mask_ND, costs_NDC, compute_ND, overall_N)


def predict(net: DreamShardCostNet, data: CostTensors, rows_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Predict device costs [M, D, C] and overall costs [M], ms."""
    sums_MDH = data.holds_NDP[rows_M] @ net.encode(data.features_PF)
    return net.device_costs(sums_MDH), net.overall_cost(sums_MDH, data.device_mask_ND[rows_M])


def fit_cost_net(
    net: DreamShardCostNet,
    optimizer: torch.optim.Optimizer,
    data: CostTensors,
    config: FitConfig,
    generator: torch.Generator,
    track: Track = iter,
) -> list[float]:
    """Train the network in place; return the ``cost_loss`` of every update, in units of the squared cost scale."""
    return fit_minibatches(
        lambda rows_M: cost_loss(net, data, rows_M), len(data.overall_N), optimizer, config, generator, track
    )


def cost_loss(net: DreamShardCostNet, data: CostTensors, rows_M: torch.Tensor) -> torch.Tensor:
    """Compute the squared errors of device costs (mean over devices) and overall cost (mean over placements).

    If only the sum of forward and backward compute was measured, the error of the sum replaces their errors.
    """
    costs_MDC, overall_M = predict(net, data, rows_M)
    mask_MD, measured_MDC = data.device_mask_ND[rows_M], data.costs_NDC[rows_M]
    goal_MDC = torch.where(measured_MDC.isnan(), costs_MDC.detach(), measured_MDC)
    errors_MDC = (costs_MDC - goal_MDC) / net.cost_scale_ms
    sums_MD = (costs_MDC[..., 0] + costs_MDC[..., 2] - data.compute_ND[rows_M]) / net.cost_scale_ms
    of_sums_MD = torch.where(measured_MDC[..., 0].isnan(), sums_MD, 0.0)
    errors_M = (overall_M - data.overall_N[rows_M]) / net.cost_scale_ms
    errors_MD = errors_MDC.square().sum(dim=2) + of_sums_MD.square()
    return errors_MD[mask_MD].mean() + errors_M.square().mean()


SHARDER = LearnedSharder(
    DreamShardSharder.name,
    DreamShardCostNet,
    DreamShardPolicy,
    ReinforceConfig,
    examples=select_placements,
    fit_round=cost_net_round,
    train_round=policy_round,
    sharder=DreamShardSharder,
    objective="predicted_ms",
)
