"""Units of DreamShard and evenshard: one trains with a seed, another places the tasks of a setting."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.studies.answers import Answer, answer_with, answers_of, ask_all, placement_of
from benchmarks.studies.meter import Meter
from benchmarks.studies.settings import Ground, Setting
from benchmarks.studies.trainings import DreamShardConfig, EvenshardConfig, train_dreamshard, train_evenshard
from benchmarks.studies.units import Result, Store, Unit
from benchmarks.studies.untrained_sharders import RandomSearch
from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.catalog import Resources, TrainedSharder, load_sharder, sharder
from evenshard.sharders.checkpoint import new_checkpoint, save_checkpoint
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.price import predict_whole
from evenshard.sharders.cost_model.sharder import EvenshardSharder, SearchConfig, SearchResult

# Of the product's default (docs/decisions/0008).
NUM_ROLLOUTS = 256
# Placements that ``evenshard_measured`` measures per task.
NUM_MEASURED = 10


@dataclass(frozen=True)
class TrainNetworks(Unit):
    """Training of DreamShard's loop on the train tasks of a setting, and of evenshard after it.

    Attributes:
        seed: seed of both.
        config: settings of the loop.
        evenshard: settings of evenshard's own training.
    """

    ground: Ground
    setting: Setting
    seed: int
    config: DreamShardConfig
    evenshard: EvenshardConfig

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} dreamshard training seed {self.seed}"

    def do(self, store: Store) -> Result:
        """Save the networks; return ``seconds`` of each part and the number of ``measured`` placements."""
        start = time.perf_counter()
        tasks, folder = self.ground.split(self.setting).train, store.models(self)
        with Meter(self.ground.measure, store.journal(self), self.name) as meter:
            trained = train_dreamshard(tasks, meter.costs, meter.provenance, self.config, self.seed)
            loop_s = time.perf_counter() - start
            more = train_evenshard(
                tasks, trained.measured, meter.costs, meter.provenance, self.evenshard, self.seed, trained.sharder()
            )
            more_s = time.perf_counter() - start - loop_s
        save_checkpoint(new_checkpoint(trained.cost_net, trained.normalizer), folder / "cost_net")
        save_checkpoint(new_checkpoint(trained.policy, trained.normalizer), folder / "policy")
        more.model.save(folder / "convex")
        return {
            "measured": {"dreamshard": len(trained.measured), "evenshard": len(more.measured)},
            "held_out_pct_error": more.metrics.held_out_pct_error,
            "seconds": {"dreamshard": loop_s, "evenshard": more_s},
        }

    def networks(self, store: Store) -> tuple[Callable[[int], TrainedSharder], CostModel]:
        """Return DreamShard's sharder for a number of rollouts, and the cost model."""
        folder = store.models(self)
        return partial(load_sharder, folder / "cost_net", folder / "policy"), CostModel.load(folder / "convex")


@dataclass(frozen=True)
class PlaceLearned(Unit):
    """Answers of DreamShard and evenshard to the test tasks, and predictions of their cost networks for the samples.

    Attributes:
        setting: the setting under test; the networks may come from another one.
        trained: the training.
        sharders: the sharders to ask.
        samples: placements that both cost networks predict.
        search: search of evenshard, but for its seed.
        suffix: suffix of their names in the table, such as "_transferred".
        num_rollouts: rollouts of dreamshard.
    """

    ground: Ground
    setting: Setting
    trained: TrainNetworks
    sharders: tuple[str, ...]
    samples: RandomSearch
    search: SearchConfig
    suffix: str = ""
    num_rollouts: int = NUM_ROLLOUTS

    @property
    def seed(self) -> int:
        """Return the seed of the training."""
        return self.trained.seed

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} placing{self.suffix} seed {self.seed}"

    def do(self, store: Store) -> Result:
        """Return ``answers`` and ``seconds`` by sharder, and ``predictions`` of the samples by task and sample."""
        dreamshard_of, model = self.trained.networks(store)
        tasks = self.ground.test(self.setting)
        answers: dict[str, list[Answer]] = {}
        seconds: dict[str, float] = {}
        for name in self.sharders:
            if not name.startswith("evenshard"):
                dreamshard = dreamshard_of(0 if name == "dreamshard_argmax" else self.num_rollouts)
                search, measure = replace(self.search, seed=self.seed), self.ground.measure
                resources = Resources(
                    self.seed, measure.hardware, measure.link, policy=dreamshard, cost_model=model, search=search
                )
                asked = sharder(name.removesuffix("_argmax"), resources)
                answers[name + self.suffix], seconds[name + self.suffix] = answers_of(asked, tasks)
        if any(name.startswith("evenshard") for name in self.sharders):
            searched = self._search_measured(store, model, dreamshard_of(0), tasks)
            answers |= {name + self.suffix: one for name, (one, _) in searched.items()}
            seconds |= {name + self.suffix: one for name, (_, one) in searched.items()}
        predictions = [
            _predictions(task, samples, dreamshard_of(0), model)
            for task, samples in zip(tasks, store.result(self.samples)["samples"], strict=True)
        ]
        return {"answers": answers, "seconds": seconds, "predictions": predictions}

    def _search_measured(
        self, store: Store, model: CostModel, dreamshard: TrainedSharder, tasks: tuple[ShardingTask, ...]
    ) -> dict[str, tuple[list[Answer], float]]:
        """Return the answers of evenshard without and with measuring, and the seconds per task."""
        evenshard = EvenshardSharder(model, dreamshard, replace(self.search, seed=self.seed))
        found: dict[str, SearchResult] = {}

        def search(task: ShardingTask) -> Answer:
            found[task.task_id] = evenshard.search(task)
            best, bound_ms = found[task.task_id].best, found[task.task_id].lower_bound_ms
            more = {name: getattr(best, name) for name in ("predicted_ms", "low_ms", "high_ms")}
            return answer_with(found[task.task_id].candidates[0], **more, lower_bound_ms=bound_ms)

        searched = {"evenshard": ask_all(tasks, search)}
        if "evenshard_measured" in self.sharders:
            with Meter(self.ground.measure, store.journal(self), self.name) as meter:

                def measure(task: ShardingTask) -> Answer:
                    candidates = (found.get(task.task_id) or evenshard.search(task)).candidates[:NUM_MEASURED]
                    costs = meter.quick_costs([(task, one) for one in candidates])
                    best, cost = min(zip(candidates, costs, strict=True), key=lambda pair: pair[1].max_device_ms)
                    if not cost.fits:
                        raise InfeasibleTask(f"{task.task_id}: all {len(candidates)} candidates run out of memory.")
                    return answer_with(best)

                answers, seconds = ask_all(tasks, measure)
            searched["evenshard_measured"] = (answers, searched["evenshard"][1] + seconds)
        return {name: one for name, one in searched.items() if name in self.sharders}


def _predictions(
    task: ShardingTask, samples: list[dict[str, Any]], dreamshard: TrainedSharder, model: CostModel
) -> dict[str, list[float]]:
    """Predict the samples of one task by the networks, ms."""
    found = [placement_of(sample, task) for sample in samples]
    placements: list[Placement] = [placement for placement in found if placement is not None]
    if not placements:
        return {"dreamshard": [], "convex": [], "convex_low": [], "convex_high": []}
    predicted = predict_whole(model, [(task, placement) for placement in placements])
    return {
        "dreamshard": [dreamshard.predict_ms(task, placement) for placement in placements],
        "convex": [one.predicted_ms for one in predicted],
        "convex_low": [one.low_ms for one in predicted],
        "convex_high": [one.high_ms for one in predicted],
    }
