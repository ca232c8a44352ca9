"""Training of DreamShard's policy by REINFORCE on predicted costs, without measurements (section 3.3, Algorithm 1).

Legend: B episodes, T steps, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from evenshard.base.knobs import knob
from evenshard.placement.task import ShardingTask
from evenshard.sharders.checkpoint import Checkpoint, Round
from evenshard.sharders.dreamshard import env
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardPolicy, lean_cost_net, lean_policy
from evenshard.sharders.training import Track, descend, entropy, set_learning_rate, standardise_B


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
    set_learning_rate(optimizer, config.learning_rate)
    cost_net = lean_cost_net(cost_net)
    history = []
    for _ in track(range(config.num_updates)):
        task = tasks[int(torch.randint(len(tasks), (), generator=generator))]
        batch = task.repeat(config.num_episodes)
        episodes = env.rollout(batch, cost_net, lean_policy(policy), env.choose_sampled(generator))
        finished_B = episodes.finished_B
        if finished_B.any():
            descend(optimizer, reinforce_loss(batch, episodes, policy, config.entropy_weight))
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
    advantage_B[finished_B] = standardise_B(-episodes.predicted_ms_B[finished_B])
    counts_BT = episodes.taken_BT & finished_B[:, None]
    gain_BT = advantage_B[:, None] * chosen_BT + entropy_weight * entropy(log_probs_BTD)
    return -torch.where(counts_BT, gain_BT, 0.0).sum() / counts_BT.sum()
