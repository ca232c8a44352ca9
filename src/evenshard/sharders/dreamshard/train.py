"""DreamShard's training in one call (NeurIPS 2022, Algorithm 1): measure, fit the cost network, train the policy.

The stages run the same rounds through files, one process per step. This keeps everything in memory, for studies that
train dozens of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evenshard.measure.costs import MeasuredPlacement, Provenance
from evenshard.measure.hardware import Measure
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.checkpoint import Round
from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.dreamshard.fit import FitConfig, cost_net_round, new_cost_net, whole_placements
from evenshard.sharders.dreamshard.reinforce import ReinforceConfig, new_policy, policy_round
from evenshard.sharders.dreamshard.sharder import DreamShardPolicy, DreamShardSharder
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.random import random_placement
from evenshard.utils.errors import InfeasibleTask


@dataclass(frozen=True)
class DreamShardConfig:
    """The paper's settings (section 4.1).

    Attributes:
        num_rounds: rounds of measuring and training.
        placements_per_round: placements measured in each.
        cost_updates, minibatch_size: gradient steps of the cost network per round.
        policy_updates, num_episodes: gradient steps of the policy per round, each on so many episodes of one task.
        learning_rate: learning rate of both networks; falls linearly to 0 over the rounds.
        entropy_weight: weight of the policy's entropy bonus.
    """

    num_rounds: int = 10
    placements_per_round: int = 10
    cost_updates: int = 300
    minibatch_size: int = 64
    policy_updates: int = 10
    num_episodes: int = 10
    learning_rate: float = 5e-4
    entropy_weight: float = 1e-3


@dataclass(frozen=True)
class TrainedDreamShard:
    """What the loop leaves behind.

    Attributes:
        cost_net, policy, normalizer: the networks of the last round, and what they see tables through.
        measured: every placement that was measured on the way, in order.
    """

    cost_net: DreamShardCostNet
    policy: DreamShardPolicy
    normalizer: FeatureNormalizer
    measured: tuple[MeasuredPlacement, ...]

    def sharder(self, num_rollouts: int = 0) -> DreamShardSharder:
        """The sharder; 0 rollouts are the published inference."""
        return DreamShardSharder(self.cost_net, self.policy, self.normalizer, num_rollouts)


def train_dreamshard(
    tasks: Sequence[ShardingTask], measure: Measure, provenance: Provenance, config: DreamShardConfig, seed: int
) -> TrainedDreamShard:
    """Trains on ``tasks``; the same seed gives the same networks where the costs are the same.

    Args:
        measure: measures placements, such as ``SimulatedHardware.measure_many``.
        provenance: provenance of the measurements.
    """
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        cost_net = new_cost_net(tasks)
        policy = new_policy(cost_net.normalizer)
    fit = FitConfig(config.cost_updates, config.minibatch_size, config.learning_rate)
    learn = ReinforceConfig(config.policy_updates, config.num_episodes, config.learning_rate, config.entropy_weight)
    measured: list[MeasuredPlacement] = []
    for number in range(1, config.num_rounds + 1):
        chosen = [tasks[int(i)] for i in rng.choice(len(tasks), config.placements_per_round)]
        sharder = DreamShardSharder(cost_net.net, policy.net, policy.normalizer) if number > 1 else None
        jobs = _proposed(chosen, sharder, generator, rng)
        who = "dreamshard" if sharder else "random"
        for (task, placement), cost in zip(jobs, measure(jobs), strict=True):
            name = f"round{number}-{len(measured):05d}"
            measured.append(MeasuredPlacement.whole(name, number, who, task, placement, cost, provenance))
        this_round = Round(number, config.num_rounds)
        cost_net = cost_net_round(cost_net, whole_placements(measured), fit, this_round, generator).checkpoint
        policy, _ = policy_round(policy, cost_net.net, tasks, learn, this_round, generator)
    return TrainedDreamShard(cost_net.net, policy.net, policy.normalizer, tuple(measured))


def _proposed(
    tasks: Sequence[ShardingTask],
    sharder: DreamShardSharder | None,
    generator: torch.Generator,
    rng: np.random.Generator,
) -> list[tuple[ShardingTask, Placement]]:
    """Placements to measure: sampled from the policy; random without one, or where it found no room."""
    sampled = sharder.sample(tasks, generator) if sharder else [None] * len(tasks)
    jobs = []
    for task, placement in zip(tasks, sampled, strict=True):
        try:
            jobs.append((task, placement or random_placement(task, rng)))
        except InfeasibleTask:
            continue
    if not jobs:
        raise InfeasibleTask("None of the train tasks fits its devices. Raise memory_cap_gb or num_devices.")
    return jobs
