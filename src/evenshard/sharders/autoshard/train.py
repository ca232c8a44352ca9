"""AutoShard from measured shards to a sharder: fit the cost network, then train the policy on its predictions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
import torch

from evenshard.measure.costs import RANDOM_SHARD, MeasuredPlacement
from evenshard.measure.hardware import Hardware
from evenshard.placement.placement import alone
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import distinct_tables, sample_shards
from evenshard.sharders.autoshard.cost_net import AutoShardCostNet
from evenshard.sharders.autoshard.fit import cost_net_round
from evenshard.sharders.autoshard.impala import ImpalaConfig, policy_round
from evenshard.sharders.autoshard.sharder import AutoShardPolicy, AutoShardSharder
from evenshard.sharders.checkpoint import Round, new_checkpoint
from evenshard.sharders.dreamshard.fit import FitConfig
from evenshard.sharders.features import FeatureNormalizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AutoShardConfig:
    """How to train AutoShard.

    Attributes:
        fit: training of the cost network.
        impala: training of the policy.
    """

    fit: FitConfig = field(default_factory=lambda: FitConfig(num_updates=3000, minibatch_size=256, learning_rate=3e-3))
    impala: ImpalaConfig = field(default_factory=ImpalaConfig)


def measure_random_shards(
    hardware: Hardware, tasks: Sequence[ShardingTask], count: int, seed: int
) -> list[MeasuredPlacement]:
    """Random shards of the tasks' tables, each measured alone on a device."""
    like = tasks[0]
    shards = sample_shards(
        distinct_tables(tasks), count, like.batch_size, like.memory_cap_bytes, np.random.default_rng([seed, 3])
    )
    placements = [alone(shard) for shard in shards]
    return [
        MeasuredPlacement.whole(
            shard.task_id, 0, RANDOM_SHARD, shard, placement, hardware.measure(shard, placement), hardware.provenance
        )
        for shard, placement in zip(shards, placements, strict=True)
    ]


def train_autoshard(
    tasks: Sequence[ShardingTask],
    measured: Sequence[MeasuredPlacement],
    config: AutoShardConfig,
    seed: int,
    track: Callable[[range], Iterable[int]] = iter,
) -> AutoShardSharder:
    """Trains both networks; the same arguments give the same sharder.

    Args:
        tasks: train tasks that share a batch size. Those that plainly do not fit their devices are left out.
        measured: shards of their tables, see ``measure_random_shards``; whole placements do as well.
        seed: seed of initial weights, minibatches and actors.
        track: wraps the ranges of updates, for a progress bar.

    Raises:
        InfeasibleTask: if none of the tasks fits its devices.
    """
    normalizer = FeatureNormalizer.fit(distinct_tables(tasks), tasks[0].batch_size)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cost_net = new_checkpoint(AutoShardCostNet(), normalizer)
        policy = new_checkpoint(AutoShardPolicy(), normalizer)
    only = Round(1, 1)
    fitted = cost_net_round(cost_net, measured, config.fit, only, generator, track)
    if fitted.losses:
        log.info("cost network fitted, relative error %.3f", fmean(fitted.losses[-20:]) ** 0.5)
    _, rewards = policy_round(policy, cost_net.net, tasks, config.impala, only, generator, track)
    if rewards:
        log.info("policy trained, reward %.3f", fmean(rewards[-10:]))
    return AutoShardSharder(cost_net.net, policy.net, normalizer)
