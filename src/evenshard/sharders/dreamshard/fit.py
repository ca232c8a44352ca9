"""DreamShard's training: of its cost network on measured placements (section 3.2), and of its policy by REINFORCE.

The policy is trained on predicted costs, without measurements (section 3.3, Algorithm 1).

Legend: N measured placements, D devices, P distinct tables, F features, C = 3 costs, M placements of a minibatch, B
episodes, T steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from evenshard.base.knobs import knob
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import RANDOM_SHARD, MeasuredPlacement
from evenshard.sharders import training
from evenshard.sharders.catalog import LearnedSharder
from evenshard.sharders.checkpoint import Checkpoint, Round
from evenshard.sharders.dreamshard import env, sharder
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


# Policy ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReinforceConfig:
    """Settings of policy training; the defaults are the paper's."""

    num_updates: int = knob(10, "gradient steps, each on one task")
    num_episodes: int = knob(10, "episodes per step")
    learning_rate: float = knob(5e-4, "learning rate of Adam")
    entropy_weight: float = knob(1e-3, "weight of the entropy bonus")


def policy_round(
    checkpoint: Checkpoint[DreamShardPolicy],
    cost_net: DreamShardCostNet,
    tasks: Sequence[ShardingTask],
    config: ReinforceConfig,
    of_round: Round,
    generator: torch.Generator,
    track: Track = iter,
) -> tuple[Checkpoint[DreamShardPolicy], list[float]]:
    """Train the policy for one round (Algorithm 1) on the predictions of this round's cost network.

    Args:
        checkpoint: checkpoint of the last round, or a new one; its network is trained in place.
        tasks: training tasks.
        config: settings, with the learning rate of the first round.

    Returns:
        The policy, ready for the next round, and the history that ``train_policy`` returns.
    """
    if checkpoint.is_new:
        checkpoint.net.cost_scale_ms.copy_(cost_net.cost_scale_ms)
    episodes = [env.EpisodeBatch.of([task], checkpoint.normalizer) for task in tasks]
    config = replace(config, learning_rate=of_round.decay(config.learning_rate))
    history = train_policy(checkpoint.net, checkpoint.optimizer, cost_net, episodes, config, generator, track)
    return replace(checkpoint, round=of_round.number), history


def train_policy(
    policy: env.Policy,
    optimizer: torch.optim.Optimizer,
    cost_net: env.CostNet,
    tasks: Sequence[env.EpisodeBatch],
    config: ReinforceConfig,
    generator: torch.Generator,
    track: Track = iter,
) -> list[float]:
    """Train the policy in place, on one randomly drawn task per update.

    Args:
        tasks: training tasks, each as a batch with one episode.

    Returns:
        Mean predicted cost of the finished episodes of every update, ms; NaN if no episode finished.
    """
    training.set_learning_rate(optimizer, config.learning_rate)
    cost_net = sharder.lean_cost_net(cost_net)
    history = []
    for _ in track(range(config.num_updates)):
        task = tasks[int(torch.randint(len(tasks), (), generator=generator))]
        batch = task.repeat(config.num_episodes)
        episodes = env.rollout(batch, cost_net, sharder.lean_policy(policy), env.choose_sampled(generator))
        finished_B = episodes.finished_B
        if finished_B.any():
            training.descend(optimizer, reinforce_loss(batch, episodes, policy, config.entropy_weight))
        history.append(float(episodes.predicted_ms_B[finished_B].mean()))
    return history


def reinforce_loss(
    batch: env.EpisodeBatch, episodes: env.Episodes, policy: env.Policy, entropy_weight: float
) -> torch.Tensor:
    """Compute the REINFORCE loss with standardised returns and an entropy bonus, over the finished episodes.

    Log-probabilities are over the devices that were legal at each step.
    """
    finished_B = episodes.finished_B
    log_probs_BTD = env.replay_logits_BTD(batch, episodes, policy).log_softmax(dim=-1)
    chosen_BT = log_probs_BTD.gather(-1, episodes.device_BT[..., None]).squeeze(-1)
    advantage_B = torch.zeros_like(episodes.predicted_ms_B)
    # The only reward, given at the end, is minus the predicted overall cost (DreamShard, section 3.3).
    advantage_B[finished_B] = training.standardise_B(-episodes.predicted_ms_B[finished_B])
    counts_BT = episodes.taken_BT & finished_B[:, None]
    gain_BT = advantage_B[:, None] * chosen_BT + entropy_weight * training.entropy(log_probs_BTD)
    return -torch.where(counts_BT, gain_BT, 0.0).sum() / counts_BT.sum()


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
