"""AutoShard as a learned sharder of the loop."""

from __future__ import annotations

from evenshard.sharders.autoshard.cost_net import AutoShardCostNet
from evenshard.sharders.autoshard.fit import cost_net_round, shards
from evenshard.sharders.autoshard.impala import ImpalaConfig, policy_round
from evenshard.sharders.autoshard.sharder import AutoShardPolicy, AutoShardSharder
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.learned import LearnedSharder


def _sharder(
    cost_net: AutoShardCostNet, policy: AutoShardPolicy, normalizer: FeatureNormalizer, num_rollouts: int
) -> AutoShardSharder:
    """Take the most probable placement alone, as published, whatever ``num_rollouts`` says."""
    return AutoShardSharder(cost_net, policy, normalizer)


SHARDER = LearnedSharder(
    AutoShardSharder.name,
    AutoShardCostNet,
    AutoShardPolicy,
    ImpalaConfig,
    examples=shards,
    fit_round=cost_net_round,
    train_round=policy_round,
    sharder=_sharder,
    objective="reward",
)
