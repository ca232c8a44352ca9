"""Sharders of a study without training: rules of thumb, planners, and the best of many random placements."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.answers import Answer, answer_with, answers_of
from benchmarks.studies.meter import Meter
from benchmarks.studies.settings import Ground, Setting
from benchmarks.studies.units import Result, Store, Unit
from evenshard.base.errors import InfeasibleTask
from evenshard.placement.placement import Placement, place_on_one_device
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import single_table_task
from evenshard.price.costs import PlacementCost
from evenshard.sharders.catalog import Resources, sharder
from evenshard.sharders.simple import random_placement

# Random placements per task to evaluate the cost networks on: simulated, and on real hardware.
NUM_SAMPLES, NUM_REAL_SAMPLES = 30, 10


@dataclass(frozen=True)
class SingleCosts(Unit):
    """Measurement of every test table alone on a device."""

    ground: Ground
    setting: Setting

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} single tables"

    def do(self, store: Store) -> Result:
        """Return ``ms`` by table, and the total ``seconds``."""
        tasks = self.ground.test(self.setting)
        singles = {table.name: single_table_task(table, task.batch_size) for task in tasks for table in task.tables}
        start = time.perf_counter()
        with Meter(self.ground.measure, store.journal(self), self.name) as meter:
            costs = meter.quick_costs([(task, place_on_one_device(task)) for task in singles.values()])
        times = {name: cost.max_device_ms for name, cost in zip(singles, costs, strict=True)}
        return {"ms": times, "seconds": time.perf_counter() - start}


@dataclass(frozen=True)
class Peers(Unit):
    """Answers of sharders that need no training.

    Attributes:
        sharders: their names.
        single_costs: single-table costs for those that are privileged to know them.
    """

    ground: Ground
    setting: Setting
    sharders: tuple[str, ...]
    single_costs: SingleCosts | None = None

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} {' '.join(self.sharders)}"[:60]

    def do(self, store: Store) -> Result:
        """Return ``answers`` and ``seconds`` by sharder."""
        costs = store.result(self.single_costs)["ms"] if self.single_costs else None
        measure = self.ground.measure
        resources = Resources(self.ground.pool.seed, measure.hardware, measure.link, costs)
        tasks = self.ground.test(self.setting)
        asked = {name: answers_of(sharder(name, resources), tasks) for name in self.sharders}
        return {
            "answers": {name: answers for name, (answers, _) in asked.items()},
            "seconds": {name: seconds for name, (_, seconds) in asked.items()},
        }


@dataclass(frozen=True)
class RandomSearch(Unit):
    """Measurement of random placements of each test task: the best is an answer, some are samples.

    Attributes:
        num_placements: per task: as many as evenshard's training measures, or only the samples.
        answers: True if it is a row of the table.
    """

    ground: Ground
    setting: Setting
    num_placements: int
    answers: bool

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} random search"

    def do(self, store: Store) -> Result:
        """Return ``samples``: the first placements of each task with their measured ms, null if out of memory."""
        tasks, start = self.ground.test(self.setting), time.perf_counter()
        with Meter(self.ground.measure, store.journal(self), self.name) as meter:
            placements = [self._placements(task) for task in tasks]
            costs = [
                meter.quick_costs([(task, one) for one in of_task])
                for task, of_task in zip(tasks, placements, strict=True)
            ]
        num_samples = NUM_SAMPLES if self.ground.is_simulated else NUM_REAL_SAMPLES
        samples = [
            [
                {"placement": list(one.device_of_table), "ms": cost.max_device_ms if cost.fits else None}
                for one, cost in list(zip(of_task, costs_of_task, strict=True))[:num_samples]
            ]
            for of_task, costs_of_task in zip(placements, costs, strict=True)
        ]
        result: Result = {"samples": samples, "answers": {}, "seconds": {}}
        if self.answers:
            result["answers"]["random_search"] = [_best(*both) for both in zip(placements, costs, strict=True)]
            result["seconds"]["random_search"] = (time.perf_counter() - start) / len(tasks)
        return result

    def _placements(self, task: ShardingTask) -> list[Placement]:
        rng = np.random.default_rng([self.ground.pool.seed, 1, zlib.crc32(task.task_id.encode())])
        found = []
        for _ in range(self.num_placements):
            try:
                found.append(random_placement(task, rng))
            except InfeasibleTask:
                continue
        return found


def _best(placements: list[Placement], costs: list[PlacementCost]) -> Answer:
    ran = [number for number, cost in enumerate(costs) if cost.fits]
    if not ran:
        return {"infeasible": "no random placement fits"}
    return answer_with(placements[min(ran, key=lambda number: costs[number].max_device_ms)])
