"""Stand-ins for AutoShard's networks that its tests share."""

from __future__ import annotations

import torch
from torch import nn

from evenshard.placement.task import ShardingTask
from evenshard.sharders.autoshard.env import AutoShardCostNet
from evenshard.sharders.autoshard.sharder import AutoShardPolicy
from evenshard.sharders.features import FeatureNormalizer
from support.builders import BATCH_SIZE, seeded, sized, some_tables, task

TABLES = some_tables(14)
NORMALIZER = FeatureNormalizer.fit(TABLES, BATCH_SIZE)
# 35 units of 39: several devices are full before the end, and some ways there end without room.
TIGHT = task(sized(8, 7, 6, 5, 4, 3, 2), devices=3, cap=4 * 13, task_id="tight")
MIXED: list[ShardingTask] = [
    task(TABLES[:9], devices=3, task_id="a"),
    TIGHT,
    task(TABLES[4:10], devices=5, task_id="b"),
    task(TABLES[13:], devices=4, task_id="c"),
]


class AdditiveShardModel:
    """A shard costs the work of its tables, in ms; reads ``PLAIN_FEATURES``. 32 numbers, of which one is used."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        representations = torch.zeros(len(features), 32)
        representations[:, 0] = features[:, 0].square() * features[:, 2].square()
        return representations

    def shard_cost(self, sums: torch.Tensor) -> torch.Tensor:
        return sums[..., 0]


def shard_net(seed: int = 0, scale_ms: float = 1.0) -> AutoShardCostNet:
    """An untrained cost network whose costs are above 0, most of them."""
    net = seeded(AutoShardCostNet, seed, scale_ms)
    last = net.cost_head[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.abs_()
        last.bias.abs_()
    return net


def balance_policy(seed: int = 0, scale_ms: float = 1.0) -> AutoShardPolicy:
    """An untrained policy with opinions: its logits differ by units between devices and between steps."""
    net = seeded(AutoShardPolicy, seed, scale_ms)
    with torch.no_grad():
        for weight in (*net.head.parameters(), *net.head_of_device.parameters(), *net.lstm.parameters()):
            weight.mul_(3.0)
    return net


def slow_logits(policy: AutoShardPolicy, state_S: torch.Tensor, device_DS: torch.Tensor) -> torch.Tensor:
    """[D] logits as the paper writes the head: one layer on the concatenation of s, a and s * a, device by device."""
    weight = torch.cat([policy.head_of_state.weight, policy.head_of_device.weight], dim=1)
    logits = []
    for device_S in device_DS:
        inputs = torch.cat([state_S, device_S, state_S * device_S])
        logits.append(policy.head(nn.functional.linear(inputs, weight, policy.head_of_state.bias)).squeeze(-1))
    return torch.stack(logits)
