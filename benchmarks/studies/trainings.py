"""Trainings of DreamShard, AutoShard and evenshard, each in one call and in memory, for studies with many trainings.

The stages run the same rounds through files, one process per step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import torch

from evenshard.base.errors import InfeasibleTask
from evenshard.measure.hardware import Hardware
from evenshard.placement.placement import Placement, place_on_one_device
from evenshard.placement.task import ShardingTask, distinct_tables
from evenshard.placement.tasks import sample_shards
from evenshard.price.costs import RANDOM_SHARD, MeasuredPlacement, PlacementCost, Provenance
from evenshard.sharders.autoshard import fit as autoshard_fit
from evenshard.sharders.autoshard.env import AutoShardCostNet
from evenshard.sharders.autoshard.fit import ImpalaConfig
from evenshard.sharders.autoshard.sharder import AutoShardPolicy, AutoShardSharder
from evenshard.sharders.catalog import TrainedSharder
from evenshard.sharders.checkpoint import Round, new_checkpoint
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.fit import CostModelFitConfig, CostModelFitMetrics, cost_model_round
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.dreamshard import fit as dreamshard_fit
from evenshard.sharders.dreamshard.fit import ReinforceConfig
from evenshard.sharders.dreamshard.sharder import DreamShardCostNet, DreamShardPolicy, DreamShardSharder
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.simple import random_placement
from evenshard.sharders.training import FitConfig

Measure = Callable[[Sequence[tuple[ShardingTask, Placement]]], Sequence[PlacementCost]]
log = logging.getLogger(__name__)

# DreamShard (NeurIPS 2022, Algorithm 1): measure, fit the cost network, train the policy ------------------------------


@dataclass(frozen=True)
class DreamShardConfig:
    """Settings of DreamShard's training; defaults are the paper's (section 4.1).

    Attributes:
        num_rounds: rounds of measuring and training.
        placements_per_round: placements measured in each.
        cost_updates, minibatch_size: gradient steps of the cost network per round.
        policy_updates, num_episodes: gradient steps of the policy per round, and episodes of one task in each step.
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
    """Results of DreamShard's loop.

    Attributes:
        cost_net, policy, normalizer: the networks of the last round, and the normalizer of their features.
        measured: all measured placements, in order.
    """

    cost_net: DreamShardCostNet
    policy: DreamShardPolicy
    normalizer: FeatureNormalizer
    measured: tuple[MeasuredPlacement, ...]

    def sharder(self, num_rollouts: int = 0) -> DreamShardSharder:
        """Return the sharder; 0 rollouts are the published inference."""
        return DreamShardSharder(self.cost_net, self.policy, self.normalizer, num_rollouts)


def train_dreamshard(
    tasks: Sequence[ShardingTask], measure: Measure, provenance: Provenance, config: DreamShardConfig, seed: int
) -> TrainedDreamShard:
    """Train on ``tasks``; the same seed gives the same networks if the costs are the same."""
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    normalizer = FeatureNormalizer.fit(distinct_tables(tasks), tasks[0].batch_size)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        cost_net = new_checkpoint(DreamShardCostNet(), normalizer)
        policy = new_checkpoint(DreamShardPolicy(), normalizer)
    fit = FitConfig(config.cost_updates, config.minibatch_size, config.learning_rate)
    learn = ReinforceConfig(config.policy_updates, config.num_episodes, config.learning_rate, config.entropy_weight)
    measured: list[MeasuredPlacement] = []
    for number in range(1, config.num_rounds + 1):
        chosen = [tasks[int(i)] for i in rng.choice(len(tasks), config.placements_per_round)]
        sharder = DreamShardSharder(cost_net.net, policy.net, normalizer) if number > 1 else None
        jobs = _propose(chosen, sharder, generator, rng)
        who = "dreamshard" if sharder else "random"
        for (task, placement), cost in zip(jobs, measure(jobs), strict=True):
            name = f"round{number}-{len(measured):05d}"
            measured.append(MeasuredPlacement(name, number, who, task, placement.parts(task.tables), cost, provenance))
        this_round, known = Round(number, config.num_rounds), dreamshard_fit.select_placements(measured)
        cost_net = dreamshard_fit.cost_net_round(cost_net, known, fit, this_round, generator).checkpoint
        policy, _ = dreamshard_fit.policy_round(policy, cost_net.net, tasks, learn, this_round, generator)
    return TrainedDreamShard(cost_net.net, policy.net, normalizer, tuple(measured))


def _propose(
    tasks: Sequence[ShardingTask],
    sharder: DreamShardSharder | None,
    generator: torch.Generator,
    rng: np.random.Generator,
) -> list[tuple[ShardingTask, Placement]]:
    """Propose placements to measure: sampled from the policy; random without a policy or a feasible sample."""
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


# AutoShard (KDD 2022): fit the cost network to measured shards, then train the policy on its predictions --------------


@dataclass(frozen=True)
class AutoShardConfig:
    """Settings of AutoShard's training.

    Attributes:
        fit: training of the cost network.
        impala: training of the policy.
    """

    fit: FitConfig = field(default_factory=lambda: FitConfig(num_updates=3000, minibatch_size=256, learning_rate=3e-3))
    impala: ImpalaConfig = field(default_factory=ImpalaConfig)


def measure_random_shards(
    hardware: Hardware, tasks: Sequence[ShardingTask], count: int, seed: int
) -> list[MeasuredPlacement]:
    """Measure random shards of the tasks' tables, each alone on a device."""
    like = tasks[0]
    shards = sample_shards(
        distinct_tables(tasks), count, like.batch_size, like.memory_cap_bytes, np.random.default_rng([seed, 3])
    )
    placements = [place_on_one_device(shard) for shard in shards]
    return [
        MeasuredPlacement(
            shard.task_id,
            0,
            RANDOM_SHARD,
            shard,
            placement.parts(shard.tables),
            hardware.measure(shard, placement),
            hardware.provenance,
        )
        for shard, placement in zip(shards, placements, strict=True)
    ]


def train_autoshard(
    tasks: Sequence[ShardingTask], measured: Sequence[MeasuredPlacement], config: AutoShardConfig, seed: int
) -> AutoShardSharder:
    """Train both networks; the same arguments give the same sharder."""
    normalizer = FeatureNormalizer.fit(distinct_tables(tasks), tasks[0].batch_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cost_net = new_checkpoint(AutoShardCostNet(), normalizer)
        policy = new_checkpoint(AutoShardPolicy(), normalizer)
    only = Round(1, 1)
    fitted = autoshard_fit.cost_net_round(cost_net, measured, config.fit, only, generator)
    if fitted.losses:
        log.info("cost network fitted, relative error %.3f", fmean(fitted.losses[-20:]) ** 0.5)
    _, rewards = autoshard_fit.policy_round(policy, cost_net.net, tasks, config.impala, only, generator)
    if rewards:
        log.info("policy trained, reward %.3f", fmean(rewards[-10:]))
    return AutoShardSharder(cost_net.net, policy.net, normalizer)


# evenshard: fit the cost model to DreamShard's measurements, to random shards, and to its own first answers -----------
#
# Tasks of one size have devices of one kind: with 25 tables each, no device of a random placement has few rows, so the
# cost model never sees their shorter sort. Random shards of all sizes cover them. A search exploits the errors of a
# model, so some of its own placements are measured to correct them.


@dataclass(frozen=True)
class EvenshardConfig:
    """Additional measurements of evenshard's training, and the fit of its model.

    Attributes:
        num_shards: random shards, each measured alone on a device.
        own_placements: train tasks that a first model places; the placements are measured.
        own_rounds: repetitions, each with the model that has learned from the previous rounds.
        fit: training of each model; its seed is the training's.
        search: search of the models' placements.
    """

    num_shards: int = 100
    own_placements: int = 20
    own_rounds: int = 1
    fit: CostModelFitConfig = field(default_factory=CostModelFitConfig)
    search: SearchConfig = field(default_factory=lambda: SearchConfig(scores_per_table=1_000))


@dataclass(frozen=True)
class TrainedEvenshard:
    """Results of evenshard's training.

    Attributes:
        model: the cost model.
        metrics: metrics of its last fit.
        measured: additional measurements, in order.
    """

    model: CostModel
    metrics: CostModelFitMetrics
    measured: tuple[MeasuredPlacement, ...]


def train_evenshard(
    tasks: Sequence[ShardingTask],
    known: Sequence[MeasuredPlacement],
    measure: Measure,
    provenance: Provenance,
    config: EvenshardConfig,
    seed: int,
    policy: TrainedSharder | None = None,
) -> TrainedEvenshard:
    """Train on ``tasks``; the same seed gives the same model if the costs are the same."""
    rng, fit = np.random.default_rng([seed, 7]), replace(config.fit, seed=seed)
    round_number = 1 + max((one.round for one in known), default=0)
    added: list[MeasuredPlacement] = []

    def add(jobs: Sequence[tuple[ShardingTask, Placement]], who: str) -> None:
        for (task, placement), cost in zip(jobs, measure(jobs), strict=True):
            name = f"{who}-{len(added):05d}"
            added.append(
                MeasuredPlacement(name, round_number, who, task, placement.parts(task.tables), cost, provenance)
            )

    if config.num_shards:
        shards = _sample_shards(tasks, config.num_shards, rng)
        add([(shard, place_on_one_device(shard)) for shard in shards], RANDOM_SHARD)
    model, metrics = cost_model_round([*known, *added], fit)
    for _ in range(config.own_rounds if config.own_placements else 0):
        sharder = EvenshardSharder(model, policy, replace(config.search, seed=seed))
        chosen = rng.choice(len(tasks), size=min(config.own_placements, len(tasks)), replace=False)
        before = len(added)
        add(_place(sharder, [tasks[int(number)] for number in chosen]), sharder.name)
        model, metrics = cost_model_round([*known, *added], fit, model, added[before:])
    return TrainedEvenshard(model, metrics, tuple(added))


def _sample_shards(tasks: Sequence[ShardingTask], count: int, rng: np.random.Generator) -> list[ShardingTask]:
    """Sample shards of the tasks' tables, in proportion to the tasks of each batch size, as reuse depends on it."""
    with_batch: dict[int, list[ShardingTask]] = {}
    for task in tasks:
        with_batch.setdefault(task.batch_size, []).append(task)
    shards: list[ShardingTask] = []
    seen = 0
    for batch_size, own in with_batch.items():
        seen += len(own)
        due = round(count * seen / len(tasks)) - len(shards)
        shards.extend(sample_shards(distinct_tables(own), due, batch_size, own[0].memory_cap_bytes, rng))
    return shards


def _place(sharder: EvenshardSharder, tasks: Sequence[ShardingTask]) -> list[tuple[ShardingTask, Placement]]:
    jobs = []
    for task in tasks:
        try:
            jobs.append((task, sharder.place(task)))
        except InfeasibleTask:  # has no placement to measure
            continue
    return jobs
