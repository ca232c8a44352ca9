"""The simulated RTX 2080 Ti, and placements by the model that comes with it, judged by what they really cost.

    python -m benchmarks.scripts.true_costs [--truth FOLDER] > report.md

Prints markdown: the errors of the networks that stand for the true costs, DreamShard's table by the simulated device
beside them, `place`'s placements of real tables by true cost, and what column splits do to it. The networks
are fitted once, in a few minutes, and kept in --cache. All the rest takes about six minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch

import evenshard
from benchmarks.references.others_measurements import BATCH_SIZE, NUM_DEVICES, default_folder, read
from benchmarks.references.true_best import TrueAnnealConfig, best_true
from benchmarks.references.true_costs import FitConfig, TrueCosts, load_true_costs
from benchmarks.references.true_costs_errors import load_errors
from evenshard.measure.config import MeasureConfig
from evenshard.measure.simulated.hardware import SimulatedHardware
from evenshard.placement.parts import tables_of_parts
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import BY_COLUMNS, TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import PlacementAnswer
from evenshard.sharders.greedy import GreedySharder, expert_sharders
from evenshard.sharders.random import RandomSharder
from evenshard.tables.table import Table

HARDWARE = "simulated:rtx_2080_ti"
MIXED_DIMS = (4, 8, 16, 32, 64, 128)
STRATEGIES = ("random", "size", "dim", "lookup", "size-lookup")
# The strategy behind the networks' values: size times lookups. ``EXPERTS`` weighs the logarithm of the size.
SIZE_LOOKUP = GreedySharder("size-lookup", lambda table: table.size_bytes * table.pooling_factor)
# Tables: DreamShard's published times of the strategies (arXiv 2210.02023, table 1), and those that NeuroShard's own
# networks give for tasks of the real tables.
PUBLISHED_MS = {
    20: ((23.0, 21.7, 19.9, 18.3, 18.4), (25.7, 24.1, 23.8, 19.8, 22.3)),
    40: ((41.1, 40.3, 37.3, 33.0, 33.2), (44.4, 42.7, 39.9, 33.8, 38.8)),
    60: ((58.1, 59.6, 53.7, 48.7, 49.1), (62.5, 60.7, 58.1, 49.8, 55.5)),
    80: ((74.5, 77.7, 69.9, 64.1, 65.1), (80.5, 82.1, 75.8, 66.3, 72.3)),
    100: ((94.5, 95.4, 84.7, 79.5, 80.8), (95.6, 98.1, 93.1, 81.3, 88.0)),
}
TABLE_TASKS, PLACED_TASKS, SPLIT_TASKS = 100, 30, 10
PLACED_TABLES, SPLIT_TABLES = 40, 26


def draw_task(tables: Sequence[Table], count: int, dims: Sequence[int], seed: Sequence[int]) -> ShardingTask:
    """A task of real tables on four devices; the dims are drawn too. Memory is that of the simulated device."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(tables), count, replace=False).tolist()
    drawn = tuple(replace(tables[number], embedding_dim=int(rng.choice(dims))) for number in chosen)
    return ShardingTask.whole(f"task-{'-'.join(map(str, seed))}", drawn, NUM_DEVICES, memory_bytes(), BATCH_SIZE)


def memory_bytes() -> int:
    """What one simulated device holds."""
    return int(SimulatedHardware(MeasureConfig(HARDWARE)).profile.memory_bytes)


def strategies_table(tables: Sequence[Table], costs: TrueCosts) -> None:
    """DreamShard's table by true and by simulated costs, the same tasks for both."""
    simulated = SimulatedHardware(MeasureConfig(HARDWARE))
    print("| tables | | " + " | ".join((*STRATEGIES, "size-lookup (log10 of the rows)")) + " |")
    print("|---|---|" + "---:|" * 6)
    deviations: list[float] = []
    for count, (paper, networks) in PUBLISHED_MS.items():
        ways: list[Callable[[ShardingTask], Placement]] = [
            RandomSharder(count).place,
            *(expert.place for expert in expert_sharders()[:3]),
            SIZE_LOOKUP.place,
            expert_sharders()[3].place,
        ]
        tasks = [draw_task(tables, count, (16,), (count, number)) for number in range(TABLE_TASKS)]
        jobs = [[(task, place(task)) for task in tasks] for place in ways]
        true, told = (
            [fmean(cost.max_device_ms for cost in hardware.measure_many(of_way)) for of_way in jobs]
            for hardware in (costs, simulated)
        )
        deviations += [one / other - 1 for one, other in zip(told, networks, strict=False)]
        print(f"| {count} | published (DreamShard) | {_cells(paper)} | |")
        print(f"| | NeuroShard's networks | {_cells(networks)} | |")
        print(f"| | true costs here | {_cells(true)} |")
        print(f"| | simulated | {_cells(told)} |")
        print(f"| | simulated / networks | {_cells([a / b for a, b in zip(told, networks, strict=False)], 2)} | |")
        print(f"| | simulated / true, same tasks | {_cells([a / b for a, b in zip(told, true, strict=True)], 2)} |")
    worst = max(deviations, key=abs)
    print(f"\nSimulated against the networks' values: {_pct(deviations)} % on average, at worst {100 * worst:+.1f} %.")


def placements(
    tables: Sequence[Table], costs: TrueCosts, what: str, dims: Sequence[int], tasks: int, anneals: bool
) -> None:
    """Answers to tasks of whole tables, by true cost."""
    ratios, inside, above_best, above_rule, best_to_rule = [], [], [], [], []
    for number in range(tasks):
        task = draw_task(tables, PLACED_TABLES, dims, (1, number, len(dims)))
        answer = place_as_user(task)
        experts = [expert.place(task) for expert in (*expert_sharders(), SIZE_LOOKUP)]
        own = Placement(answer.device_of_table, NUM_DEVICES)
        own_ms, *expert_ms = (
            cost.step_ms(task.pipeline) for cost in costs.measure_many([(task, one) for one in (own, *experts)])
        )
        best_ms = float("nan")
        if anneals:
            _, best_ms = best_true(costs, task, [own, *experts], TrueAnnealConfig(), task.pipeline)
        ratios.append(answer.predicted_ms / own_ms)
        inside.append(answer.low_ms <= own_ms <= answer.high_ms)
        above_best.append(own_ms / best_ms - 1)
        above_rule.append(own_ms / min(expert_ms) - 1)
        best_to_rule.append(min(expert_ms) / best_ms - 1)
    from_best = f"{_pct(above_best)} ({100 * max(above_best):.1f}) | {_pct(best_to_rule)}" if anneals else "- | -"
    print(
        f"| {what} | {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {sum(inside)} of {len(inside)} "
        f"| {from_best} | {_pct(above_rule)} |",
        flush=True,
    )


def column_splits(tables: Sequence[Table], costs: TrueCosts) -> None:
    """Answers with column splits against those without."""
    true, told, split = [], [], []
    for number in range(SPLIT_TASKS):
        task = draw_task(tables, SPLIT_TABLES, MIXED_DIMS, (2, number))
        whole, cut = (place_as_user(task, allowed) for allowed in (False, True))
        true.append(true_ms(costs, cut) / true_ms(costs, whole) - 1)
        told.append(cut.predicted_ms / whole.predicted_ms - 1)
        split.append(len(cut.parts) - len(task.tables))
        print(f"| {number} | {split[-1]} | {100 * told[-1]:+.1f} | {100 * true[-1]:+.1f} |", flush=True)
    print(f"| mean | {fmean(split):.1f} | {_pct(told)} | {_pct(true)} |")
    print(f"| worst | {max(split)} | {100 * max(told):+.1f} | {100 * max(true):+.1f} |")


def place_as_user(task: ShardingTask, allow_column_split: bool = False) -> PlacementAnswer:
    """What a user gets, in the memory that the other sharders have: weights alone count."""
    ways = BY_COLUMNS if allow_column_split else (TABLE_WISE,)
    return evenshard.place(
        task.tables,
        task.num_devices,
        hardware=HARDWARE,
        reserved_gb=0.0,
        batch_size=task.batch_size,
        optimizer="sgd",
        training_pipeline="",
        sharding_types=ways,
    )


def true_ms(costs: TrueCosts, answer: PlacementAnswer) -> float:
    """What an answer really costs."""
    task = replace(answer.request.task(), tables=tables_of_parts(answer.parts, answer.request.tables))
    cost = costs.measure(task, Placement(tuple(part.device for part in answer.parts), NUM_DEVICES))
    return cost.step_ms(task.pipeline)


def _cells(values: Sequence[float], digits: int = 1) -> str:
    return " | ".join(f"{value:.{digits}f}" for value in values)


def _pct(values: Sequence[float]) -> str:
    return f"{100 * fmean(values):+.1f}"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--truth", type=Path, default=default_folder(), help="folder of the measurements")
    parser.add_argument("--cache", type=Path, default=Path("work/true_costs"), help="folder that keeps the networks")
    parser.add_argument("--placements", type=int, metavar="N", help="only so many placements, without the best found")
    args = parser.parse_args()
    torch.set_num_threads(1)
    measured, costs = read(args.truth), load_true_costs(args.truth, args.cache, FitConfig())
    if args.placements is None:
        print_networks(args.truth, args.cache)
        print(f"\n## DreamShard's table: {TABLE_TASKS} tasks of real tables, dim 16, ms\n")
        strategies_table(measured.tables, costs)
    print_placements(measured.tables, costs, args.placements or PLACED_TASKS, anneals=args.placements is None)
    if args.placements is None:
        print(
            f"\n## Column splits: {SPLIT_TASKS} tasks of {SPLIT_TABLES} tables, dims 4 to 128, against whole tables\n"
        )
        print("| task | more parts | predicted, % | true, % |\n|---|---:|---:|---:|")
        column_splits(measured.tables, costs)


def print_networks(truth: Path, cache: Path) -> None:
    """The title, and how far the networks are off."""
    print("# Placements on 4 x RTX 2080 Ti by true cost\n\n## The networks that stand for the true costs\n")
    print("| measurements | median error, % | 90th percentile, % | bias, % |\n|---|---:|---:|---:|")
    for name, error in load_errors(truth, cache, FitConfig()).items():
        print(f"| {name} | {error.median_pct:.2f} | {error.p90_pct:.1f} | {error.bias_pct:+.2f} |", flush=True)


def print_placements(tables: Sequence[Table], costs: TrueCosts, tasks: int, anneals: bool) -> None:
    """What `place` answers, by true cost."""
    print("\n## Placements by the device model\n")
    print(f"{tasks} tasks of {PLACED_TABLES} tables.\n")
    print(
        "| dims | predicted / true | true cost inside the 90 % interval | above the best found, % (worst) "
        "| best rule above the best found, % | against the best rule, % |\n|---|---|---|---|---:|---:|"
    )
    placements(tables, costs, "4 to 128", MIXED_DIMS, tasks, anneals)
    placements(tables, costs, "16", (16,), tasks, anneals)


if __name__ == "__main__":
    main()
