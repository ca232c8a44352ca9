"""The quality and speed of the models that come with evenshard, on tables they have never seen.

    python -m benchmarks.scripts.bundled_models [--profile h200] > report.md

Prints markdown for each profile: the error of predicted against simulated costs of random placements, of the experts'
and of evenshard's own answers; how many costs lay inside the 90 % interval; evenshard's answer against the best expert
and against the best placement that long annealing on the simulated cost itself finds. Deterministic but for the
seconds. Results: benchmarks/bundled_models_202611.md.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean, median

import numpy as np
import torch

from benchmarks.references.best_known import BestKnownSharder
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated.hardware import SimulatedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSampling, sample_tasks
from evenshard.sharders.convex_search.sharder import EvenshardSharder
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.models import PlacementModel, bundled_models, load_model
from evenshard.sharders.random import random_placement
from evenshard.tables.catalog import load_catalog
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.utils.errors import InfeasibleTask

BATCH_SIZE = 65536
CATALOG = (
    *(("mlperf_dlrm_v2", devices) for devices in (4, 8, 16)),
    *(("nvidia_tiny", 8), ("nvidia_small", 8), ("nvidia_medium", 16), ("criteo_1tb", 8), ("criteo_kaggle", 4)),
)
DIMS = (4, 8, 16, 32, 64, 128, 256)
POOLS = ((16, BATCH_SIZE, True), (32, BATCH_SIZE, False), (32, 8192, False), (16, 2048, False), (16, 200_000, True))
"""Weight bits, batch size, and whether the reuse is known."""
SETTINGS = ((20, 2, 3), (40, 4, 3), (80, 8, 2), (200, 16, 1), (1000, 64, 1))
"""Tables, devices, tasks; the largest at the usual batch size only."""
MOST_ANNEALED = 16
"""Devices beyond which long annealing would take too long; and it is done at the usual batch size only."""
NUM_RANDOM = 3
KINDS = ("random", "experts", "own")


@dataclass
class Figures:
    """What was found about the tasks of one row.

    Attributes:
        errors: relative, predicted against simulated, by kind of placement.
        inside: whether the interval held the cost, likewise.
        to_expert, to_best_known: own answer over the other, minus 1; the latter is empty where none was searched.
        seconds: time of the search.
        own_ms: cost of the own answer.
    """

    errors: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    inside: dict[str, list[bool]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    to_expert: list[float] = field(default_factory=list)
    to_best_known: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    own_ms: list[float] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Takes in another row."""
        for kind in KINDS:
            self.errors[kind] += other.errors[kind]
            self.inside[kind] += other.inside[kind]
        for name in ("to_expert", "to_best_known", "seconds", "own_ms"):
            getattr(self, name).extend(getattr(other, name))

    def cells(self) -> list[str]:
        """Of the row in the table."""
        errors = [_pct(median(map(abs, self.errors[kind]))) if self.errors[kind] else "-" for kind in KINDS]
        inside = [f"{100 * fmean(self.inside[kind]):.0f}" if self.inside[kind] else "-" for kind in KINDS]
        return [
            *errors,
            "/".join(inside),
            _signed(self.to_expert),
            _signed(self.to_best_known),
            f"{fmean(self.own_ms):.3f}",
            f"{fmean(self.seconds):.2f}",
        ]


def judge(model: PlacementModel, hardware: SimulatedHardware, task: ShardingTask) -> Figures:
    """One task: all placements are simulated and compared with their predictions.

    Raises:
        InfeasibleTask: if the tables do not fit.
    """
    found = Figures()
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    own = EvenshardSharder(model.cost_model, model.policy).place(task)
    found.seconds.append(time.perf_counter() - start)
    placements: list[tuple[str, Placement]] = [("own", own)]
    for kind, place in (
        *(("random", lambda: random_placement(task, rng)) for _ in range(NUM_RANDOM)),
        *(("experts", lambda expert=expert: expert.place(task)) for expert in expert_sharders()),
    ):
        try:
            placements.append((kind, place()))
        except InfeasibleTask:
            continue
    costs = hardware.measure_many([(task, placement) for _, placement in placements])
    mean_N, low_N, high_N = model.cost_model.placement_ms(task, [placement for _, placement in placements])
    rows = zip(placements, costs, mean_N.tolist(), low_N.tolist(), high_N.tolist(), strict=True)
    for (kind, _), cost, mean_ms, low_ms, high_ms in rows:
        if cost.fits:
            found.errors[kind].append(mean_ms / cost.max_device_ms - 1)
            found.inside[kind].append(low_ms <= cost.max_device_ms <= high_ms)
    found.own_ms.append(costs[0].max_device_ms)
    experts_ms = [one.max_device_ms for (kind, _), one in zip(placements, costs, strict=True) if kind == "experts"]
    if best_ms := min((one for one in experts_ms if math.isfinite(one)), default=0.0):
        found.to_expert.append(costs[0].max_device_ms / best_ms - 1)
    if task.num_devices <= MOST_ANNEALED and task.batch_size == BATCH_SIZE:
        best_known = BestKnownSharder(MeasureConfig(f"simulated:{hardware.provenance.hardware.split(': ')[1]}"))
        found.to_best_known.append(costs[0].max_device_ms / best_known.improve(task, [own])[1] - 1)
    return found


def rows(memory_bytes: int) -> Iterator[tuple[str, list[ShardingTask]]]:
    """The tasks, row by row."""
    for name, devices in CATALOG:
        tables = load_catalog(name, BATCH_SIZE)
        yield f"{name}, {devices} devices", [ShardingTask.whole(name, tables, devices, memory_bytes, BATCH_SIZE)]
    for bits, batch_size, counted in POOLS:
        pool = generate_tables(GeneratorConfig(2000, DIMS, weight_bits=bits), batch_size, seed=5)
        if not counted:
            pool = tuple(replace(table, reuse_bins=None) for table in pool)
        for num_tables, devices, count in SETTINGS if batch_size == BATCH_SIZE else SETTINGS[:-1]:
            sampling = TaskSampling(1, count, num_tables, devices, memory_bytes / 1024**3, batch_size)
            what = f"batch {batch_size:,}, FP{bits}, reuse {'known' if counted else 'unknown'}"
            yield f"{num_tables}x{devices}, {what}", list(sample_tasks(pool, sampling, 0).test)


def report(profile: str) -> None:
    """Prints the section of one profile."""
    model = load_model(None, f"simulated:{profile}")
    hardware = SimulatedHardware(MeasureConfig(f"simulated:{profile}"))
    print(f"\n## {profile}\n\nModel {model.digest[:12]}, {model.trained_on.num_measured:,} simulated placements.\n")
    print(
        "| tasks | random, % | experts, % | own, % | inside, % | own to best expert, % | own to best known, % "
        "| own, ms | search, s |"
    )
    print("|---|---:|---:|---:|---|---:|---:|---:|---:|")
    everything, outside = Figures(), set()
    for name, tasks in rows(int(hardware.profile.memory_bytes)):
        found = Figures()
        try:
            for task in tasks:
                outside.update(model.trained_on.outside(task))
                found.add(judge(model, hardware, task))
        except InfeasibleTask:
            print(f"| {name} | do not fit | {' | '.join('-' * 7)} |")
            continue
        everything.add(found)
        print(f"| {name} | {' | '.join(found.cells())} |", flush=True)
    print(f"| all | {' | '.join(everything.cells())} |")
    own = sorted(map(abs, everything.errors["own"]))
    print(f"\nNine in ten of its own answers are within {_pct(own[int(0.9 * len(own))])} %.")
    print(f"Outside of the training data: {'; '.join(sorted(outside)) or 'nothing'}.")


def _pct(value: float) -> str:
    return f"{100 * value:.2f}"


def _signed(values: list[float]) -> str:
    return f"{100 * fmean(values):+.1f}" if values else "-"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", choices=bundled_models(), action="append", help="repeatable (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for profile in args.profile or bundled_models():
        report(profile)


if __name__ == "__main__":
    main()
