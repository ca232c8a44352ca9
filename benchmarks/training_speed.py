"""How fast are rollouts and training, on one core, against a loop that encodes every state anew?

    python benchmarks/training_speed.py [--json out.json] [--skip-naive]

Prints the time of 256 episodes x 50 tables x 8 devices, and of DreamShard's whole training at the paper's settings
(presets/paper.yaml: 10 rounds of 300 cost updates and 10 policy updates on 50-table tasks) without measuring. The
costs that the networks are fitted to are made up here from lookups, since only speed is looked at.

The naive loop does the same number of updates the plain way: one episode after the other, every device of
every state encoded from its tables' features again. It runs for a part of the updates and is scaled up.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from evenshard.cost_nets.dreamshard import DreamShardCostNet
from evenshard.costs import DeviceCost, MeasuredPlacement, PlacementCost, Provenance
from evenshard.env import EpisodeBatch, choose_best, choose_sampled, rollout
from evenshard.features import FeatureNormalizer
from evenshard.generator import GeneratorConfig, generate_tables
from evenshard.learn.fit_cost_net import CostTensors, FitConfig, fit_cost_net
from evenshard.learn.reinforce import ReinforceConfig, train_policy
from evenshard.placement import Placement
from evenshard.sharders.dreamshard import DreamShardPolicy
from evenshard.sharders.random import random_placement
from evenshard.tasks import PlacementTask, TaskSampling, sample_tasks

ROUNDS, COST_UPDATES, MINIBATCH, POLICY_UPDATES, EPISODES, PLACEMENTS = 10, 300, 64, 10, 10, 10
BATCH_SIZE = 65536


def make_tasks(num_devices: int) -> tuple[PlacementTask, ...]:
    """The paper's 50 train tasks of 50 tables."""
    pool = generate_tables(GeneratorConfig(856, (16,), None, 16), BATCH_SIZE, seed=0)
    sampling = TaskSampling(50, 1, 50, num_devices, 5.0, BATCH_SIZE)
    return sample_tasks(pool, sampling, seed=0).train


def made_up(task: PlacementTask, rng: np.random.Generator) -> MeasuredPlacement:
    """A random placement with a made-up cost: milliseconds proportional to lookups."""
    placement = random_placement(task, rng)
    lookups = np.zeros(task.num_devices)
    for table, device in zip(task.tables, placement.device_of_table, strict=True):
        lookups[device] += table.pooling_factor / 10
    cost = PlacementCost(tuple(DeviceCost(x, 1.0, 1.0, 2 * x) for x in lookups.tolist()), "made up")
    return MeasuredPlacement("", 1, "random", task, placement, cost, Provenance("made up", "", "", 0, 0))


def networks() -> tuple[DreamShardCostNet, DreamShardPolicy]:
    torch.manual_seed(0)
    return DreamShardCostNet(), DreamShardPolicy()


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=5e-4, fused=True)


def time_rollout(normalizer: FeatureNormalizer) -> float:
    """Median seconds of 256 episodes x 50 tables x 8 devices."""
    cost_net, policy = networks()
    batch = EpisodeBatch.of(make_tasks(8)[:1], normalizer).repeat(256)
    times = []
    for seed in range(7):
        start = time.perf_counter()
        rollout(batch, cost_net, policy, choose_sampled(torch.Generator().manual_seed(seed)))
        times.append(time.perf_counter() - start)
    return median(times[2:])


def time_training(tasks: Sequence[PlacementTask], normalizer: FeatureNormalizer) -> tuple[float, float]:
    """Seconds of all cost updates and of all policy updates."""
    cost_net, policy = networks()
    cost_adam, policy_adam = adam(cost_net), adam(policy)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    batches = [EpisodeBatch.of([task], normalizer) for task in tasks]
    measured: list[MeasuredPlacement] = []
    cost_s = policy_s = 0.0
    for _ in range(ROUNDS):
        measured += [made_up(tasks[rng.integers(len(tasks))], rng) for _ in range(PLACEMENTS)]
        start = time.perf_counter()
        data = CostTensors.of(measured, normalizer)
        fit_cost_net(cost_net, cost_adam, data, FitConfig(COST_UPDATES, MINIBATCH, 5e-4), generator)
        middle = time.perf_counter()
        reinforce = ReinforceConfig(POLICY_UPDATES, EPISODES, 5e-4, 1e-3)
        train_policy(policy, policy_adam, cost_net, batches, reinforce, generator)
        cost_s, policy_s = cost_s + middle - start, policy_s + time.perf_counter() - middle
    return cost_s, policy_s


class NaiveLoop:
    """The same updates with every state encoded anew, one after the other."""

    def __init__(self, tasks: Sequence[PlacementTask], normalizer: FeatureNormalizer) -> None:
        self.tasks = tasks
        self.features = [normalizer(task.tables, task.batch_size) for task in tasks]
        self.cost_net, self.policy = networks()
        self.cost_adam, self.policy_adam = adam(self.cost_net), adam(self.policy)
        self.rng = np.random.default_rng(0)

    def _sums(self, net: DreamShardCostNet | DreamShardPolicy, shards: list[list[torch.Tensor]]) -> torch.Tensor:
        rows = [net.encode(torch.stack(shard)).sum(0) if shard else torch.zeros(32) for shard in shards]
        return torch.stack(rows)

    def cost_update(self, placements: Sequence[tuple[int, Placement]]) -> None:
        errors = []
        for _ in range(MINIBATCH):
            number, placement = placements[self.rng.integers(len(placements))]
            sums = self._sums(self.cost_net, [[self.features[number][i] for i in s] for s in placement.shards()])
            mask = torch.ones(1, len(sums), dtype=torch.bool)
            errors.append(self.cost_net.device_costs(sums).square().mean())
            errors.append(self.cost_net.overall_cost(sums[None], mask).square().sum())
        self.cost_adam.zero_grad()
        torch.stack(errors).mean().backward()
        self.cost_adam.step()

    def policy_update(self) -> None:
        number = int(self.rng.integers(len(self.tasks)))
        task, features = self.tasks[number], self.features[number]
        log_probs, returns = [], []
        for _ in range(EPISODES):
            shards: list[list[torch.Tensor]] = [[] for _ in range(task.num_devices)]
            for position in range(len(task.tables)):
                with torch.no_grad():
                    costs = self.cost_net.device_costs(self._sums(self.cost_net, shards))
                logits = self.policy.device_logits(self._sums(self.policy, shards), costs)
                device = int(torch.multinomial(logits.detach().softmax(0), 1))
                log_probs.append(logits.log_softmax(0)[device])
                shards[device].append(features[position])
            with torch.no_grad():
                mask = torch.ones(1, task.num_devices, dtype=torch.bool)
                returns.append(-self.cost_net.overall_cost(self._sums(self.cost_net, shards)[None], mask)[0])
        gains = torch.stack(returns)
        gains = ((gains - gains.mean()) / (gains.std() + 1e-8)).repeat_interleave(len(task.tables))
        self.policy_adam.zero_grad()
        (-(gains * torch.stack(log_probs)).mean()).backward()
        self.policy_adam.step()

    def seconds(self, cost_updates: int, policy_updates: int) -> tuple[float, float]:
        """Seconds of all cost updates and of all policy updates, scaled up from a few."""
        numbers = self.rng.integers(len(self.tasks), size=50).tolist()
        placements = [(number, random_placement(self.tasks[number], self.rng)) for number in numbers]
        start = time.perf_counter()
        for _ in range(cost_updates):
            self.cost_update(placements)
        middle = time.perf_counter()
        for _ in range(policy_updates):
            self.policy_update()
        end = time.perf_counter()
        return (
            (middle - start) * ROUNDS * COST_UPDATES / cost_updates,
            (end - middle) * ROUNDS * POLICY_UPDATES / policy_updates,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--skip-naive", action="store_true", help="do not time the naive loop")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tasks = make_tasks(4)
    normalizer = FeatureNormalizer.fit([table for task in tasks for table in task.tables], BATCH_SIZE)
    cost_s, policy_s = time_training(tasks, normalizer)
    cost_net, policy = networks()
    placing = []
    for task in tasks[:10]:
        start = time.perf_counter()
        rollout(EpisodeBatch.of([task], normalizer), cost_net, policy, choose_best)
        placing.append(time.perf_counter() - start)
    result = {
        "rollout_256x50x8_s": time_rollout(normalizer),
        "train_cost_s": cost_s,
        "train_policy_s": policy_s,
        "train_50x4_s": cost_s + policy_s,
        "place_50x4_ms": median(placing) * 1e3,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if not args.skip_naive:
        naive_cost_s, naive_policy_s = NaiveLoop(tasks, normalizer).seconds(cost_updates=30, policy_updates=4)
        result["naive_train_50x4_s"] = naive_cost_s + naive_policy_s
        result["speedup"] = result["naive_train_50x4_s"] / result["train_50x4_s"]
    for name, value in result.items():
        print(f"{name:<24}{value:>10.3f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
