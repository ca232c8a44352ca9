"""A third learned sharder, declared as those of the package are; as a program, a loop that trains it.

A table works as long as the cost network's one weight says per looked-up number; the policy puts the largest table on
the device with the least work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import MeasuredPlacement
from evenshard.sharders.checkpoint import Checkpoint, Network, Round
from evenshard.sharders.dreamshard.fit import select_placements
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.learned import LEARNED, LearnedSharder
from evenshard.sharders.simple import GreedySharder, random_placement
from evenshard.sharders.training import FitConfig, FittedCostNet
from evenshard.tables.table import Table


class ToyCostNet(Network):
    kind = "toy_cost_net"

    def __init__(self) -> None:
        super().__init__()
        self.ms_per_number = nn.Parameter(torch.ones(()))


class ToyPolicy(Network):
    kind = "toy_policy"

    def __init__(self) -> None:
        super().__init__()
        self.eagerness = nn.Parameter(torch.zeros(()))


@dataclass(frozen=True)
class ToyConfig:
    num_updates: int = 3
    step: float = 0.5


def work(table: Table) -> float:
    return table.pooling_factor * table.embedding_dim


class ToySharder:
    name = "toy"

    def __init__(self, cost_net: ToyCostNet, policy: ToyPolicy, *_: Any) -> None:
        self.ms_per_number = float(cost_net.ms_per_number)
        self.eagerness = float(policy.eagerness)

    def place(self, task: ShardingTask) -> Placement:
        return GreedySharder(self.name, work).place(task)

    def sample(self, tasks: Sequence[ShardingTask], generator: torch.Generator) -> list[Placement | None]:
        rng = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
        return [random_placement(task, rng) for task in tasks]

    def predict_ms(self, task: ShardingTask, placement: Placement) -> float:
        shards = placement.shards()
        return self.ms_per_number * max(sum(work(task.tables[at]) for at in shard) for shard in shards)


def fit_round(
    checkpoint: Checkpoint[ToyCostNet],
    measured: Sequence[MeasuredPlacement],
    config: FitConfig,
    of_round: Round,
    generator: torch.Generator,
    track: Callable[[range], Iterable[int]],
) -> FittedCostNet[ToyCostNet]:
    unscaled = ToySharder(ToyCostNet(), ToyPolicy())
    ratios = [one.cost.max_device_ms / unscaled.predict_ms(one.task, one.placement) for one in measured]
    with torch.no_grad():
        checkpoint.net.ms_per_number.fill_(float(np.median(ratios)))
    return FittedCostNet(replace(checkpoint, round=of_round.number), [0.0], 0.0)


def train_round(
    checkpoint: Checkpoint[ToyPolicy],
    cost_net: ToyCostNet,
    tasks: Sequence[ShardingTask],
    config: ToyConfig,
    of_round: Round,
    generator: torch.Generator,
    track: Callable[[range], Iterable[int]],
) -> tuple[Checkpoint[ToyPolicy], list[float]]:
    history = []
    for _ in track(range(config.num_updates)):
        with torch.no_grad():
            checkpoint.net.eagerness.add_(config.step)
        history.append(float(checkpoint.net.eagerness))
    return replace(checkpoint, round=of_round.number), history


def sharder(cost_net: ToyCostNet, policy: ToyPolicy, normalizer: FeatureNormalizer, num_rollouts: int) -> ToySharder:
    return ToySharder(cost_net, policy)


SHARDER = LearnedSharder(
    "toy",
    ToyCostNet,
    ToyPolicy,
    ToyConfig,
    examples=select_placements,
    fit_round=fit_round,
    train_round=train_round,
    sharder=sharder,
    objective="eagerness",
)

if __name__ == "__main__":
    LEARNED["toy"] = "support.toy_sharder"  # the one line of the package that a third one changes
    from support.loops import run_loop

    run_loop({"loop": {"num_rounds": 2}, "train_policy": {"method": "toy", "settings": {"step": 2.0}}})
