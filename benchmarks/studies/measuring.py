"""Measured costs of all answers to a setting's test tasks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from benchmarks.studies.answers import Row, placement_of, rows_of
from benchmarks.studies.meter import Meter
from benchmarks.studies.settings import Ground, Setting
from benchmarks.studies.units import Result, Store, Unit
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import PlacementCost


@dataclass(frozen=True)
class MeasureAnswers(Unit):
    """Measurement of all answers to a setting's test tasks; equal placements of a task are measured once.

    Attributes:
        sources: the units with the answers.
    """

    ground: Ground
    setting: Setting
    sources: tuple[Unit, ...]

    @property
    def name(self) -> str:
        """Return the name for progress and errors."""
        return f"{self.setting.name} measuring"

    def do(self, store: Store) -> Result:
        """Return ``rows``: ms, balance and compute_speedup by task of each sharder and seed; null if infeasible."""
        start = time.perf_counter()
        split = self.ground.split(self.setting)
        rows = rows_of(self.sources, store)
        jobs: dict[tuple[int, Placement], tuple[ShardingTask, Placement]] = {}
        for number, task in enumerate(split.test):
            for row in rows:
                placement = placement_of(row.answers[number], task)
                if placement is not None:
                    jobs[number, placement] = (task, placement)
        with Meter(self.ground.measure, store.journal(self), self.name) as meter:
            costs, noise = meter.costs_and_noise(list(jobs.values()), split.train)
            provenance = meter.provenance
        cost_of = dict(zip(jobs, costs, strict=True))

        def costs_of(row: Row) -> list[PlacementCost | None]:
            placements = [placement_of(one, task) for one, task in zip(row.answers, split.test, strict=True)]
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
    """Compute ms, balance and compute_speedup of a sharder's costs relative to random, by task; null if infeasible."""

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
    """Return the degree of balance of a measured placement, 0 to 1."""
    times_ms = [device.compute_ms for device in cost.devices]
    return min(times_ms) / max(times_ms) if max(times_ms) > 0 else 1.0


def compute_speedup(cost: PlacementCost, reference: PlacementCost) -> float:
    """Return the slowest device's compute time under ``reference`` relative to ``cost`` (AutoShard, 4.1)."""
    slowest_ms = max(device.compute_ms for device in cost.devices)
    return max(device.compute_ms for device in reference.devices) / slowest_ms if slowest_ms > 0 else 1.0
