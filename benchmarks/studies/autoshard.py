"""AutoShard in a study: its training and its placements, as units."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from benchmarks.studies.answers import answers_of
from benchmarks.studies.meter import Meter
from benchmarks.studies.settings import Ground, Setting
from benchmarks.studies.trainings import AutoShardConfig, measure_random_shards, train_autoshard
from benchmarks.studies.units import Result, Store, Unit
from evenshard.sharders.autoshard.env import AutoShardCostNet
from evenshard.sharders.autoshard.sharder import AutoShardPolicy, AutoShardSharder
from evenshard.sharders.checkpoint import load_checkpoint, new_checkpoint, save_checkpoint
from evenshard.sharders.simple import GreedySharder
from evenshard.tables.table import Table


@dataclass(frozen=True)
class TrainAutoShard(Unit):
    """Training of AutoShard's two networks, from random shards of the train tasks' tables.

    Attributes:
        seed: seed of shards and networks.
        config: settings of the two trainings.
        num_shards: number of shards to measure.
    """

    ground: Ground
    setting: Setting
    seed: int
    config: AutoShardConfig
    num_shards: int

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} autoshard training seed {self.seed}"

    def do(self, store: Store) -> Result:
        """Save the networks; return ``seconds`` and the number of ``measured`` shards."""
        start = time.perf_counter()
        tasks, folder = self.ground.split(self.setting).train, store.models(self)
        with Meter(self.ground.measure, store.journal(self), self.name) as meter:
            measured = measure_random_shards(meter, tasks, self.num_shards, self.seed)
        sharder = train_autoshard(tasks, measured, self.config, self.seed)
        assert isinstance(sharder.cost_net, AutoShardCostNet)
        save_checkpoint(new_checkpoint(sharder.cost_net, sharder.normalizer), folder / "cost_net")
        save_checkpoint(new_checkpoint(sharder.policy, sharder.normalizer), folder / "policy")
        return {"measured": len(measured), "seconds": {"autoshard": time.perf_counter() - start}}


@dataclass(frozen=True)
class PlaceAutoShard(Unit):
    """AutoShard's answers to the test tasks of a setting, and those of greedy on its cost network.

    Attributes:
        sharders: the sharders: autoshard, autoshard_cost_greedy.
    """

    ground: Ground
    setting: Setting
    trained: TrainAutoShard
    sharders: tuple[str, ...]

    @property
    def seed(self) -> int:
        """Return the seed of the training."""
        return self.trained.seed

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} autoshard placing seed {self.seed}"

    def do(self, store: Store) -> Result:
        """Return ``answers`` and ``seconds`` by sharder."""
        folder, tasks = store.models(self.trained), self.ground.test(self.setting)
        cost_net = load_checkpoint(folder / "cost_net", AutoShardCostNet)
        policy = load_checkpoint(folder / "policy", AutoShardPolicy)
        batch_size = self.ground.pool.batch_size

        @torch.no_grad()
        def predicted_ms(table: Table) -> float:
            return float(cost_net.net.shard_cost(cost_net.net.encode(cost_net.normalizer([table], batch_size)))[0])

        known = (
            AutoShardSharder(cost_net.net, policy.net, policy.normalizer),
            GreedySharder("autoshard_cost_greedy", predicted_ms),
        )
        asked = {one.name: answers_of(one, tasks) for one in known if one.name in self.sharders}
        return {
            "answers": {name: answers for name, (answers, _) in asked.items()},
            "seconds": {name: seconds for name, (_, seconds) in asked.items()},
        }
