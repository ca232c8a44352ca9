"""AutoShard's training: of its cost network on measured shards (section 3.2), and of its policy by IMPALA (3.4).

The tables of one device form a shard. A measurement is of a whole placement, or of a single shard.

The policy's actors have older weights, which V-trace corrects. The published version runs actors in separate processes.
Here one process runs all actors as slots of one batch, so that runs are fast and deterministic. Training is still
off-policy: the actors get the learner's weights only every ``sync_every`` updates.

Legend: N measured placements, S shards, P distinct tables, F features, M shards of a minibatch; U steps of an unroll, B
slots, D devices.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from evenshard.base.errors import InfeasibleTask
from evenshard.base.knobs import knob
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import OK, MeasuredPlacement
from evenshard.sharders import training
from evenshard.sharders.autoshard.env import AutoShardCostNet, BalanceEnv, Observation
from evenshard.sharders.autoshard.sharder import AutoShardPolicy, AutoShardSharder, Memory, PolicyOutput, is_feasible
from evenshard.sharders.catalog import LearnedSharder
from evenshard.sharders.checkpoint import Checkpoint, Round
from evenshard.sharders.dreamshard.env import EpisodeBatch, choose_sampled
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


# Policy ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImpalaConfig:
    """Settings of policy training; defaults are the paper's unless marked."""

    num_updates: int = knob(300, "gradient steps, each on one unroll of every slot (default not from the paper)")
    num_slots: int = knob(16, "slots: episodes that run in parallel (default not from the paper)")
    unroll_length: int = knob(100, "steps of an unroll; episodes continue in the next unroll")
    sync_every: int = knob(2, "updates between copies of the weights to the actors (default not from the paper)")
    learning_rate: float = knob(1e-3, "initial learning rate of Adam; it falls linearly to 0")
    max_gradient_norm: float = knob(
        40.0, "maximum gradient norm. With some seeds, the reward drops halfway through training and recovers"
    )
    entropy_weight: float = knob(1e-3, "weight of the entropy bonus")
    baseline_weight: float = knob(0.5, "weight of the value head's squared error")
    discount: float = knob(1.0, "gamma")
    mask_illegal: bool = knob(
        True,
        "choose only devices with enough memory. If False, as published, full devices may be chosen, and the overflow "
        "is subtracted from the reward",
    )


@dataclass(frozen=True)
class Unroll:
    """Observations and actions of the actors in U successive steps."""

    seen: Observation  # observations of U + 1 steps; the last is the first of the next unroll
    device_UB: torch.Tensor  # the devices chosen
    acting_log_prob_UB: torch.Tensor  # their log-probabilities under the actor, over the legal devices
    reward_UB: torch.Tensor  # reward of the step
    done_UB: torch.Tensor  # True where the episode ended with the step
    memory: Memory  # state of the LSTM before the first step


class Actors:
    """Parallel episodes of the actors; when one ends, another with a random task begins."""

    def __init__(self, env: BalanceEnv, policy: AutoShardPolicy, num_tasks: int, generator: torch.Generator) -> None:
        self._env = env
        self._num_tasks = num_tasks
        self._generator = generator
        self._choose = choose_sampled(generator)
        self._memory = policy.initial_memory(len(env.step_B))
        self._policy = copy.deepcopy(policy)
        everywhere = torch.ones(len(env.step_B), dtype=torch.bool)
        env.restart(everywhere, self._draw_tasks())

    def synchronise(self, learner: AutoShardPolicy) -> None:
        """Copy the learner's weights to the actors."""
        self._policy.load_state_dict(learner.state_dict())

    @torch.no_grad()
    def unroll(self, num_steps: int) -> Unroll:
        """Run ``num_steps`` steps of every parallel episode, from the end of the previous unroll."""
        memory = self._memory
        observations, devices, log_probs, outcomes = [self._env.observe()], [], [], []
        for _ in range(num_steps):
            judgement = self._policy(Observation.stack(observations[-1:]), self._memory)
            self._memory = judgement.memory
            device_B = self._choose(judgement.logits_UBD[0])
            devices.append(device_B)
            log_probs.append(gather_log_probs(judgement, device_B[None])[0])
            outcomes.append(self._env.step(device_B))
            self._env.restart(outcomes[-1].done_B, self._draw_tasks())
            observations.append(self._env.observe())
        return Unroll(
            seen=Observation.stack(observations),
            device_UB=torch.stack(devices),
            acting_log_prob_UB=torch.stack(log_probs),
            reward_UB=torch.stack([outcome.reward_B for outcome in outcomes]),
            done_UB=torch.stack([outcome.done_B for outcome in outcomes]),
            memory=memory,
        )

    def _draw_tasks(self) -> torch.Tensor:
        return torch.randint(self._num_tasks, self._env.step_B.shape, generator=self._generator)


def gather_log_probs(judgement: PolicyOutput, device_UB: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities of the chosen devices, [U, B], given the policy's output (``judgement``)."""
    log_probs_UBD = judgement.logits_UBD[: len(device_UB)].log_softmax(dim=-1)
    return log_probs_UBD.gather(-1, device_UB[..., None]).squeeze(-1)


@dataclass(frozen=True)
class VTrace:
    """V-trace value targets and policy-gradient advantages."""

    target_UB: torch.Tensor  # targets of the value head
    # Weights of the log-probabilities in the policy gradient, including the importance weights.
    advantage_UB: torch.Tensor


@torch.no_grad()
def v_trace(
    log_ratio_UB: torch.Tensor,
    reward_UB: torch.Tensor,
    discount_UB: torch.Tensor,
    value_UB: torch.Tensor,
    bootstrap_B: torch.Tensor,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace:
    """Compute targets and advantages of off-policy steps, without gradients (IMPALA, arXiv 1802.01561, 4.1).

    With log-ratios of 0 the targets are the n-step returns that end in the bootstrap value.

    Args:
        log_ratio_UB: log-probability of the choice under the learner, minus that under the actor.
        reward_UB: reward of the step.
        discount_UB: gamma, or 0 where the episode ended with the step.
        value_UB: the learner's value before the step.
        bootstrap_B: the learner's value after the last step.
        clip_rho: highest importance weight of a step's own error; sets the values' fixed point.
        clip_c: highest importance weight of later errors; sets the speed of convergence.
    """
    ratio_UB = log_ratio_UB.exp()
    rho_UB, c_UB = ratio_UB.clamp(max=clip_rho), ratio_UB.clamp(max=clip_c)
    next_value_UB = torch.cat([value_UB[1:], bootstrap_B[None]])
    surprise_UB = rho_UB * (reward_UB + discount_UB * next_value_UB - value_UB)
    correction_B = torch.zeros_like(bootstrap_B)
    target_UB = torch.empty_like(value_UB)
    for step in reversed(range(len(value_UB))):
        correction_B = surprise_UB[step] + discount_UB[step] * c_UB[step] * correction_B
        target_UB[step] = value_UB[step] + correction_B
    next_target_UB = torch.cat([target_UB[1:], bootstrap_B[None]])
    return VTrace(target_UB, rho_UB * (reward_UB + discount_UB * next_target_UB - value_UB))


def impala_loss(policy: AutoShardPolicy, unroll: Unroll, config: ImpalaConfig) -> torch.Tensor:
    """Compute the IMPALA loss: policy gradient, value error and entropy bonus, summed over steps and episodes."""
    judgement: PolicyOutput = policy(unroll.seen, unroll.memory)
    log_prob_UB = gather_log_probs(judgement, unroll.device_UB)
    value_UB = judgement.value_UB[:-1]
    traced = v_trace(
        log_ratio_UB=log_prob_UB - unroll.acting_log_prob_UB,
        reward_UB=unroll.reward_UB,
        discount_UB=config.discount * (~unroll.done_UB).float(),
        value_UB=value_UB,
        bootstrap_B=judgement.value_UB[-1],
    )
    log_probs_UBD = judgement.logits_UBD[:-1].log_softmax(dim=-1)
    gain = (traced.advantage_UB * log_prob_UB).sum()
    value_error = 0.5 * (traced.target_UB - value_UB).square().sum()
    return config.baseline_weight * value_error - gain - config.entropy_weight * training.entropy(log_probs_UBD).sum()


def policy_round(
    checkpoint: Checkpoint[AutoShardPolicy],
    cost_net: AutoShardCostNet,
    tasks: Sequence[ShardingTask],
    config: ImpalaConfig,
    of_round: Round,
    generator: torch.Generator,
    track: Track = iter,
) -> tuple[Checkpoint[AutoShardPolicy], list[float]]:
    """Train the policy in place for one round on the feasible training tasks.

    Returns:
        The policy for the next round, and the mean reward of every update; NaN if no episode ended.

    Raises:
        InfeasibleTask: if none of the tasks fits its devices.
    """
    if checkpoint.is_new:
        checkpoint.net.cost_scale_ms.copy_(cost_net.cost_scale_ms)
    feasible = [task for task in tasks if is_feasible(task)]
    if not feasible:
        raise InfeasibleTask("No train task fits its devices. Raise memory_cap_gb or num_devices.")
    batch = EpisodeBatch.of(feasible, checkpoint.normalizer)
    env = BalanceEnv(batch, cost_net, config.num_slots, config.mask_illegal)
    net, optimizer = checkpoint.net, checkpoint.optimizer
    rewards = train_impala(net, optimizer, env, len(feasible), config, generator, track)
    return replace(checkpoint, round=of_round.number), rewards


def train_impala(
    policy: AutoShardPolicy,
    optimizer: torch.optim.Optimizer,
    env: BalanceEnv,
    num_tasks: int,
    config: ImpalaConfig,
    generator: torch.Generator,
    track: Track = iter,
) -> list[float]:
    """Train the policy in place, in an environment with the training tasks.

    Returns:
        Mean reward of the episodes that ended in each update; NaN if no episode ended.
    """
    actors = Actors(env, policy, num_tasks, generator)
    history = []
    for update in track(range(config.num_updates)):
        training.set_learning_rate(optimizer, config.learning_rate * (1 - update / config.num_updates))
        if update % config.sync_every == 0:
            actors.synchronise(policy)
        unroll = actors.unroll(config.unroll_length)
        training.descend(optimizer, impala_loss(policy, unroll, config), config.max_gradient_norm)
        rewards = unroll.reward_UB[unroll.done_UB].tolist()
        history.append(fmean(rewards) if rewards else float("nan"))
    return history


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
