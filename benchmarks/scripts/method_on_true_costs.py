"""DreamShard, AutoShard and evenshard, trained on true costs of 4 x RTX 2080 Ti and on the simulated ones.

    python -m benchmarks.scripts.method_on_true_costs [--truth FOLDER] [--settings 40,mixed-40] > report.md
    python -m benchmarks.scripts.method_on_true_costs --ablation > report.md

Prints markdown: held-out tasks of real tables, 20 to 100 of dim 16 and 20 to 80 of mixed dims, by each method, with the
best rule of thumb, the best placement known, and DreamShard's published times. With --ablation, what DreamShard gains
from more training, other features and other tables. A setting on one hardware takes about two minutes of one core, half
of that without AutoShard; a line of the ablation one minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from benchmarks.references.best_known import BestKnownSharder
from benchmarks.references.others_measurements import BATCH_SIZE, NUM_DEVICES, default_folder, read
from benchmarks.references.true_best import TrueAnnealConfig, best_true
from benchmarks.references.true_costs import FitConfig, TrueCosts, load_true_costs
from benchmarks.scripts.true_costs import HARDWARE, MIXED_DIMS, PUBLISHED_MS, SIZE_LOOKUP
from benchmarks.studies.trainings import (
    AutoShardConfig,
    DreamShardConfig,
    EvenshardConfig,
    measure_random_shards,
    train_autoshard,
    train_dreamshard,
    train_evenshard,
)
from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import PlacementCost
from evenshard.measure.hardware import Measure
from evenshard.measure.simulated.hardware import PlacementJob, SimulatedHardware
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSampling, TaskSplit, sample_tasks
from evenshard.sharders.base import Sharder
from evenshard.sharders.cost_model.sharder import EvenshardSharder
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.random import RandomSharder
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.table import Table
from evenshard.utils.units import bytes_to_gb

TRAIN_TASKS = 50
NUM_ROLLOUTS = 256
NUM_SHARDS = 2000
# Tables: what DreamShard's own placements took in its paper (arXiv 2210.02023, table 1).
DREAMSHARD_MS = {20: 17.6, 40: 32.4, 60: 47.9, 80: 62.7, 100: 77.8}
SETTINGS = ("20", "40", "60", "80", "100", "mixed-20", "mixed-40", "mixed-80")
Measured = TrueCosts | SimulatedHardware


@dataclass(frozen=True)
class Variant:
    """A way to train DreamShard.

    Attributes:
        name: what differs from the paper.
        config: settings of its loop.
        generated: train on generated tables in place of real ones.
        without_reuse: the networks do not see how often a table's rows are looked up again.
    """

    name: str
    config: DreamShardConfig
    generated: bool = False
    without_reuse: bool = False


_PAPER = DreamShardConfig()
_LONGER = replace(_PAPER, placements_per_round=50, cost_updates=1200, policy_updates=100)
VARIANTS = (
    Variant("as published", _PAPER),
    Variant("10 x policy updates", replace(_PAPER, policy_updates=100)),
    Variant("4 x cost updates", replace(_PAPER, cost_updates=1200)),
    Variant("5 x measurements", replace(_PAPER, placements_per_round=50)),
    Variant("all three", _LONGER),
    Variant("as published, without reuse features", _PAPER, without_reuse=True),
    Variant("as published, on generated tables", _PAPER, generated=True),
)


def split_of(tables: Sequence[Table], setting: str, test_tasks: int) -> TaskSplit:
    """Train and test tasks, from disjoint halves of the tables."""
    rng = np.random.default_rng(0)
    dims = MIXED_DIMS if setting.startswith("mixed-") else (16,)
    pool = [replace(table, embedding_dim=int(rng.choice(dims))) for table in tables]
    count = int(setting.removeprefix("mixed-"))
    cap_gb = bytes_to_gb(int(SimulatedHardware(MeasureConfig(HARDWARE)).profile.memory_bytes))
    return sample_tasks(pool, TaskSampling(TRAIN_TASKS, test_tasks, count, NUM_DEVICES, cap_gb, BATCH_SIZE), 0)


def compare(hardware: Measured, split: TaskSplit, setting: str, autoshard: bool) -> None:
    """Prints the rows of one setting on one hardware."""

    def times(place: Callable[[ShardingTask], Placement]) -> list[float]:
        jobs = [(task, place(task)) for task in split.test]
        return [cost.max_device_ms for cost in hardware.measure_many(jobs)]

    rules: tuple[Sharder, ...] = (*expert_sharders(), SIZE_LOOKUP)
    found = {"random": times(RandomSharder(0).place)}
    by_rule = {rule.name: times(rule.place) for rule in rules}
    best_rule = min(by_rule, key=lambda name: fmean(by_rule[name]))
    found[f"best rule ({best_rule})"] = by_rule[best_rule]
    dreamshard = train_dreamshard(split.train, hardware.measure_many, hardware.provenance, _PAPER, 0)
    found["DreamShard, published inference"] = times(dreamshard.sharder().place)
    found[f"DreamShard, {NUM_ROLLOUTS} rollouts"] = times(dreamshard.sharder(NUM_ROLLOUTS).place)
    if autoshard:
        shards = measure_random_shards(hardware, split.train, NUM_SHARDS, 0)
        found["AutoShard"] = times(train_autoshard(split.train, shards, AutoShardConfig(), 0).place)
    evenshard = train_evenshard(
        split.train,
        dreamshard.measured,
        hardware.measure_many,
        hardware.provenance,
        EvenshardConfig(),
        0,
        dreamshard.sharder(),
    )
    sharder = EvenshardSharder(evenshard.model, dreamshard.sharder())
    own = {task.task_id: sharder.place(task) for task in split.test}
    found["evenshard"] = times(lambda task: own[task.task_id])

    def best(task: ShardingTask) -> Placement:
        starts = [own[task.task_id], *(rule.place(task) for rule in rules)]
        if isinstance(hardware, TrueCosts):
            return best_true(hardware, task, starts, TrueAnnealConfig())[0]
        return BestKnownSharder(HARDWARE).improve(task, starts)[0]

    found["best known"] = times(best)
    rule_ms, best_ms = fmean(by_rule[best_rule]), fmean(found["best known"])
    for name, each in found.items():
        mean_ms = fmean(each)
        print(
            f"| {setting} | {hardware.provenance.hardware.split(': ')[1]} | {name} | {mean_ms:.2f} "
            f"| {100 * (mean_ms / rule_ms - 1):+.1f} | {100 * (mean_ms / best_ms - 1):+.1f} |",
            flush=True,
        )


def print_published(setting: str) -> None:
    """Prints DreamShard's own figures, where it has some of this many tables of dim 16."""
    if setting.isdigit():
        count = int(setting)
        rule, theirs = min(PUBLISHED_MS[count][0]), DREAMSHARD_MS[count]
        print(f"| {setting} | published | best rule | {rule:.1f} | +0.0 | - |")
        print(f"| {setting} | published | DreamShard | {theirs:.1f} | {100 * (theirs / rule - 1):+.1f} | - |")


def ablation(costs: TrueCosts, tables: Sequence[Table], seeds: int, test_tasks: int) -> None:
    """Prints what each way to train DreamShard makes of 40 tables of dim 16, against the best rule."""
    split = split_of(tables, "40", test_tasks)
    made = generate_tables(GeneratorConfig(len(tables), (16,), weight_bits=32), BATCH_SIZE, 0)
    made_split = split_of(made, "40", test_tasks)
    rule_ms = min(
        fmean(_ms(costs.measure_many, [(task, rule.place(task)) for task in split.test])) for rule in expert_sharders()
    )
    print(f"Best rule {rule_ms:.2f} ms; {seeds} trainings each.\n")
    print(
        "| DreamShard | published inference | 256 rollouts | the best of those by true cost "
        "| median error of its cost network |\n|---|---:|---:|---:|---:|"
    )
    for variant in VARIANTS:
        rows = list(_ablation_rows(costs, variant, (made_split if variant.generated else split).train, split, seeds))
        greedy, sampled, oracle, error = (fmean(column) for column in zip(*rows, strict=True))
        cells = " | ".join(f"{100 * (ms / rule_ms - 1):+.1f} %" for ms in (greedy, sampled, oracle))
        print(f"| {variant.name} | {cells} | {100 * error:.1f} % |", flush=True)


def _ablation_rows(
    costs: TrueCosts, variant: Variant, train: Sequence[ShardingTask], split: TaskSplit, seeds: int
) -> Iterator[tuple[float, float, float, float]]:
    """Mean ms of the three ways to choose, and the median error, of each training."""
    true_of: dict[str, ShardingTask] = {}

    def as_networks_see(task: ShardingTask) -> ShardingTask:
        """The task as the networks see it."""
        if not variant.without_reuse:
            return task
        true_of[task.task_id] = task
        return replace(task, tables=tuple(replace(table, reuse_bins=None) for table in task.tables))

    def measure(jobs: Sequence[PlacementJob]) -> list[PlacementCost]:
        return costs.measure_many([(true_of.get(task.task_id, task), placement) for task, placement in jobs])

    tasks, tests = [as_networks_see(task) for task in train], [as_networks_see(task) for task in split.test]
    for seed in range(seeds):
        trained = train_dreamshard(tasks, measure, costs.provenance, variant.config, seed)
        greedy, sampled, oracle, errors = [], [], [], []
        generator = torch.Generator().manual_seed(seed)
        for task in tests:
            sharder = trained.sharder(NUM_ROLLOUTS)
            greedy += _ms(measure, [(task, trained.sharder().place(task))])
            sampled += _ms(measure, [(task, sharder.place(task))])
            rollouts = [one for one in sharder.sample_one(task, NUM_ROLLOUTS, generator) if one is not None]
            oracle.append(min(_ms(measure, [(task, one) for one in rollouts])))
            some = [RandomSharder(number).place(task) for number in range(5)]
            true = _ms(measure, [(task, one) for one in some])
            errors += [abs(sharder.predicted_ms(task, one) / ms - 1) for one, ms in zip(some, true, strict=True)]
        yield fmean(greedy), fmean(sampled), fmean(oracle), float(np.median(errors))


def _ms(measure: Measure, jobs: Sequence[PlacementJob]) -> list[float]:
    return [cost.max_device_ms for cost in measure(jobs)]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--truth", type=Path, default=default_folder(), help="folder of the measurements")
    parser.add_argument("--cache", type=Path, default=Path("work/true_costs"), help="folder that keeps the networks")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="tables of dim 16, or mixed-<tables>")
    parser.add_argument("--hardware", choices=("true", "simulated", "both"), default="both")
    parser.add_argument("--test-tasks", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each line of the ablation")
    parser.add_argument("--skip-autoshard", action="store_true")
    parser.add_argument("--ablation", action="store_true", help="DreamShard's trainings instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables = read(args.truth).tables
    costs = load_true_costs(args.truth, args.cache, FitConfig())
    if args.ablation:
        ablation(costs, tables, args.seeds, args.test_tasks)
        return
    print("| tables | costs | | mean, ms | against the best rule, % | above the best known, % |")
    print("|---|---|---|---:|---:|---:|")
    for setting in args.settings.split(","):
        split = split_of(tables, setting, args.test_tasks)
        if args.hardware != "simulated":
            compare(costs, split, setting, not args.skip_autoshard)
        if args.hardware != "true":
            compare(SimulatedHardware(MeasureConfig(HARDWARE)), split, setting, not args.skip_autoshard)
        print_published(setting)


if __name__ == "__main__":
    main()
