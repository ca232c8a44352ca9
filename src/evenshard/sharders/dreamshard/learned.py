"""DreamShard as a learned sharder of the loop."""

from __future__ import annotations

from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.dreamshard.fit import cost_net_round, whole_placements
from evenshard.sharders.dreamshard.reinforce import ReinforceConfig, policy_round
from evenshard.sharders.dreamshard.sharder import DreamShardPolicy, DreamShardSharder
from evenshard.sharders.learned import LearnedSharder

SHARDER = LearnedSharder(
    DreamShardSharder.name,
    DreamShardCostNet,
    DreamShardPolicy,
    ReinforceConfig,
    examples=whole_placements,
    fit_round=cost_net_round,
    train_round=policy_round,
    sharder=DreamShardSharder,
    objective="predicted_ms",
)
