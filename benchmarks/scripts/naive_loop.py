"""Training the plain way: every state is encoded again from its tables' features, one after the other.

For ``speed.py --naive``: the same updates as DreamShard's training, episode by episode and device by device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.dreamshard.sharder import DreamShardPolicy
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.random import random_placement


class NaiveLoop:
    """Cost and policy updates on some tasks.

    Args:
        minibatch_size: placements of a cost update.
        num_episodes: episodes of a policy update.
    """

    def __init__(
        self,
        tasks: Sequence[ShardingTask],
        cost_net: DreamShardCostNet,
        policy: DreamShardPolicy,
        minibatch_size: int,
        num_episodes: int,
    ) -> None:
        self._tasks, self._cost_net, self._policy = tasks, cost_net, policy
        self._minibatch_size, self._num_episodes = minibatch_size, num_episodes
        normalizer = FeatureNormalizer.fit([table for task in tasks for table in task.tables], tasks[0].batch_size)
        self._features = [normalizer(task.tables, task.batch_size) for task in tasks]
        self._cost_adam, self._policy_adam = (
            torch.optim.Adam(net.parameters(), lr=5e-4, fused=True) for net in (cost_net, policy)
        )
        self._rng = np.random.default_rng(0)

    def seconds_of_updates(self, cost_updates: int, policy_updates: int) -> tuple[float, float]:
        """Mean seconds of one cost update and of one policy update."""
        numbers = self._rng.integers(len(self._tasks), size=50).tolist()
        placements = [(number, random_placement(self._tasks[number], self._rng)) for number in numbers]
        start = time.perf_counter()
        for _ in range(cost_updates):
            self._cost_update(placements)
        middle = time.perf_counter()
        for _ in range(policy_updates):
            self._policy_update()
        return (middle - start) / cost_updates, (time.perf_counter() - middle) / policy_updates

    def _sums(self, net: DreamShardCostNet | DreamShardPolicy, shards: list[list[torch.Tensor]]) -> torch.Tensor:
        rows = [net.encode(torch.stack(shard)).sum(0) if shard else torch.zeros(32) for shard in shards]
        return torch.stack(rows)

    def _cost_update(self, placements: Sequence[tuple[int, Placement]]) -> None:
        errors = []
        for _ in range(self._minibatch_size):
            number, placement = placements[self._rng.integers(len(placements))]
            sums = self._sums(self._cost_net, [[self._features[number][i] for i in s] for s in placement.shards()])
            mask = torch.ones(1, len(sums), dtype=torch.bool)
            errors.append(self._cost_net.device_costs(sums).square().mean())
            errors.append(self._cost_net.overall_cost(sums[None], mask).square().sum())
        self._cost_adam.zero_grad()
        torch.stack(errors).mean().backward()
        self._cost_adam.step()

    def _policy_update(self) -> None:
        number = int(self._rng.integers(len(self._tasks)))
        task, features = self._tasks[number], self._features[number]
        log_probs, returns = [], []
        for _ in range(self._num_episodes):
            shards: list[list[torch.Tensor]] = [[] for _ in range(task.num_devices)]
            for position in range(len(task.tables)):
                with torch.no_grad():
                    costs = self._cost_net.device_costs(self._sums(self._cost_net, shards))
                logits = self._policy.device_logits(self._sums(self._policy, shards), costs)
                device = int(torch.multinomial(logits.detach().softmax(0), 1))
                log_probs.append(logits.log_softmax(0)[device])
                shards[device].append(features[position])
            with torch.no_grad():
                mask = torch.ones(1, task.num_devices, dtype=torch.bool)
                returns.append(-self._cost_net.overall_cost(self._sums(self._cost_net, shards)[None], mask)[0])
        gains = torch.stack(returns)
        gains = ((gains - gains.mean()) / (gains.std() + 1e-8)).repeat_interleave(len(task.tables))
        self._policy_adam.zero_grad()
        (-(gains * torch.stack(log_probs)).mean()).backward()
        self._policy_adam.step()
