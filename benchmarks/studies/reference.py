"""The best known placements of a study's tasks, and the measured costs of all answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from benchmarks.references.annealing import AnnealConfig
from benchmarks.studies.answers import Answer, Row, answer_with, ask_all, placement_of, rows_of
from benchmarks.studies.meter import Meter
from benchmarks.studies.settings import Ground, Setting
from benchmarks.studies.units import Result, Store, Unit
from evenshard.measure.costs import PlacementCost
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask


@dataclass(frozen=True)
class BestKnown(Unit):
    """Long annealing from every answer to some of the test tasks, on the true simulated cost.

    Attributes:
        first, last: the test tasks from ``first`` on, before ``last``.
        sources: the units with the answers.
        config: settings of the annealing.
    """

    ground: Ground
    setting: Setting
    first: int
    last: int
    sources: tuple[Unit, ...]
    config: AnnealConfig

    @property
    def name(self) -> str:
        """As progress shows it."""
        return f"{self.setting.name} best known {self.first}-{self.last - 1}"

    def do(self, store: Store) -> Result:
        """``answers`` of best_known from task ``first`` on, and ``seconds`` per task."""
        from benchmarks.references.best_known import BestKnownSharder

        tasks = self.ground.test(self.setting)
        rows = rows_of(self.sources, store, len(tasks))
        sharder = BestKnownSharder(self.ground.measure, self.config)
        answers_to = {task.task_id: [row.answers[n] for row in rows] for n, task in enumerate(tasks)}

        def improve(task: ShardingTask) -> Answer:
            starts = dict.fromkeys(placement_of(answer or {}, task) for answer in answers_to[task.task_id])
            return answer_with(sharder.improve(task, [start for start in starts if start is not None])[0])

        answers, seconds = ask_all(tasks[self.first : self.last], improve)
        return {"first": self.first, "answers": {"best_known": answers}, "seconds": {"best_known": seconds}}


@dataclass(frozen=True)
class MeasureAnswers(Unit):
    """Measures all answers to a setting's test tasks; equal placements of a task once.

    Attributes:
        sources: the units with the answers.
    """

    ground: Ground
    setting: Setting
    sources: tuple[Unit, ...]

    @property
    def name(self) -> str:
        """As progress shows it."""
        return f"{self.setting.name} measuring"

    def do(self, store: Store) -> Result:
        """``rows``: sharder and seed with ms, balance and compute_speedup by task, null where infeasible; ``noise``."""
        start = time.perf_counter()
        split = self.ground.split(self.setting)
        rows = rows_of(self.sources, store, len(split.test))
        jobs: dict[tuple[int, Placement], tuple[ShardingTask, Placement]] = {}
        for number, task in enumerate(split.test):
            for row in rows:
                placement = placement_of(row.answers[number] or {}, task)
                if placement is not None:
                    jobs[number, placement] = (task, placement)
        with Meter(self.ground.measure, store.journal(self), self.name) as meter:
            costs, noise = meter.costs_and_noise(list(jobs.values()), split.train)
            provenance = meter.provenance
        cost_of = dict(zip(jobs, costs, strict=True))

        def costs_of(row: Row) -> list[PlacementCost | None]:
            placements = [placement_of(one or {}, task) for one, task in zip(row.answers, split.test, strict=True)]
            return [None if one is None else cost_of[number, one] for number, one in enumerate(placements)]

        nothing: list[PlacementCost | None] = [None] * len(split.test)
        random = next((costs_of(row) for row in rows if row.sharder == "random"), nothing)
        return {
            "rows": [{"sharder": row.sharder, "seed": row.seed, **figures(costs_of(row), random)} for row in rows],
            "relative_noise_pct": None if noise is None else noise.relative_pct,
            "provenance": {"hardware": provenance.hardware, "driver": provenance.driver, "link": provenance.link,
                           "versions": provenance.versions},
            "seconds": time.perf_counter() - start,
        }  # fmt: skip


def figures(costs: list[PlacementCost | None], random: list[PlacementCost | None]) -> dict[str, Any]:
    """Of one sharder's costs by task, beside those of random: ms, balance and compute_speedup; null where none."""

    ran, reference = ([cost if cost is not None and cost.fits else None for cost in those] for those in (costs, random))
    return {
        "ms": [None if cost is None else cost.max_device_ms for cost in ran],
        "balance": [None if cost is None else measured_balance(cost) for cost in ran],
        "compute_speedup": [
            None if cost is None or other is None else compute_speedup(cost, other)
            for cost, other in zip(ran, reference, strict=True)
        ],
    }


def measured_balance(cost: PlacementCost) -> float:
    """The degree of balance of a measured placement, 0 to 1."""
    times_ms = [device.compute_ms for device in cost.devices]
    return min(times_ms) / max(times_ms) if max(times_ms) > 0 else 1.0


def compute_speedup(cost: PlacementCost, reference: PlacementCost) -> float:
    """How many times as long the slowest device computes under ``reference`` as under ``cost`` (AutoShard, 4.1)."""
    slowest_ms = max(device.compute_ms for device in cost.devices)
    return max(device.compute_ms for device in reference.devices) / slowest_ms if slowest_ms > 0 else 1.0
