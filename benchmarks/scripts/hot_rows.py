"""How well a loop's model places unseen tables on a CPU, with hot rows side by side and scattered, told and not told.

    python -m benchmarks.scripts.hot_rows --model work/round_3 --json hot_rows.json

Tables of both kinds are drawn with the same histograms (``dlrm_2021``, another seed than the loop's). Every rule of
thumb, DreamShard as the loop trained it and ``evenshard.place``, with and without ``row_shares``, place the same tasks;
each device of each placement is timed on real kernels, with the rows where they are. Whole tables only, as in the loop.

Intervals are those of the model alone: exchanges are modelled by the same link on both sides, so its error cannot show.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import evenshard
from evenshard.measure.campaign import Job, measure_jobs
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import open_hardware
from evenshard.measure.journal import Journal
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSampling, sample_tasks
from evenshard.planner.answer import PlacementAnswer
from evenshard.sharders.catalog import HEURISTICS, Resources, sharder
from evenshard.sharders.learned import load_sharder
from evenshard.sharders.search.search import QUICK
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table
from evenshard.utils.text_table import text_table
from evenshard.utils.units import bytes_to_gb

BATCH_SIZE, DEVICES, TABLES, MAX_ROWS, SEED = 512, 4, 30, 300_000, 100
PIPELINE = "sparse_dist"
DREAMSHARD, TOLD, UNTOLD = "dreamshard", "told", "not told"
KINDS = {"side by side": 1.0, "scattered": 0.0}


class Asked(NamedTuple):
    """A placement to time, of a task of one kind, by one sharder; of evenshard with its answer."""

    kind: str
    sharder: str
    task: ShardingTask
    placement: Placement
    answer: PlacementAnswer | None = None


def tasks_of(together: float, count: int, seed: int) -> tuple[ShardingTask, ...]:
    """Tasks of unseen tables, of which such a share has hot rows side by side."""
    config = GeneratorConfig(2 * count * TABLES, max_rows=MAX_ROWS, hot_rows_together=together)
    sampling = TaskSampling(1, count, TABLES, DEVICES, 0.6, BATCH_SIZE)
    return sample_tasks(generate_tables(config, BATCH_SIZE, seed), sampling, seed).test


def _answer(task: ShardingTask, tables: tuple[Table, ...], model: Path) -> PlacementAnswer:
    asked: dict[str, Any] = {"model": model, "batch_size": BATCH_SIZE, "sharding_types": [TABLE_WISE], "effort": QUICK}
    return evenshard.place(tables, DEVICES, bytes_to_gb(task.memory_cap_bytes), reserved_gb=0.0, **asked)


def placements(kind: str, task: ShardingTask, model: Path, seed: int) -> Iterator[Asked]:
    """The placements of a task by every sharder."""
    for name in HEURISTICS:
        yield Asked(kind, name, task, sharder(name, Resources(seed)).place(task))
    learned = load_sharder(model / "cost_net", model / "policy", 256)
    yield Asked(kind, DREAMSHARD, task, learned.place(task))
    untold = tuple(replace(table, row_shares=None) for table in task.tables)
    for name, tables in ((TOLD, task.tables), (UNTOLD, untold)):
        answer = _answer(task, tables, model)
        device_of = {part.table: part.device for part in answer.parts}
        placed = Placement(tuple(device_of[table.name] for table in task.tables), DEVICES)
        yield Asked(kind, name, task, placed, answer)


def measure_all(asked: list[Asked], visits: int) -> list[dict[str, Any]]:
    """A row for each placement: what a step took, and what was predicted of it, as shares of that, by evenshard."""
    config = MeasureConfig("cpu", visits=visits, repeats=4)
    jobs = [
        Job.whole(f"{number}", one.task, one.placement, 0, one.sharder, f"{one.kind} {one.task.task_id}")
        for number, one in enumerate(asked)
    ]
    order = np.random.default_rng(0).permutation(len(jobs)).tolist()
    with (
        TemporaryDirectory() as folder,
        closing(open_hardware(config)) as hardware,
        Journal(Path(folder) / "visits.jsonl") as journal,
    ):
        found = measure_jobs(hardware, [jobs[number] for number in order], config, journal)
    rows = []
    for number, one in sorted(zip(order, found, strict=True), key=lambda pair: pair[0]):
        asker = asked[number]
        step_ms = one.cost.step_ms(PIPELINE)
        row = {"kind": asker.kind, "task": asker.task.task_id, "sharder": asker.sharder, "ms": step_ms}
        if asker.answer is not None:
            answer = asker.answer
            ends = {"low": answer.model_low_ms, "predicted": answer.predicted_ms, "high": answer.model_high_ms}
            row |= {name: ms / step_ms for name, ms in ends.items()}
        rows.append(row)
    return rows


def table_of(rows: list[dict[str, Any]]) -> str:
    """Of each kind: means, gains with their 95 % intervals, and how predictions and intervals relate to the truth."""
    cells = [("hot rows", "best rule, ms", DREAMSHARD, TOLD, UNTOLD, "told / best rule, %", "told / dreamshard, %")]
    cells_of_times = [("hot rows", "tables", "predicted / true: least", "median", "largest", "interval, %", "inside")]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_sharder = defaultdict(list)
        for row in rows:
            if row["kind"] == kind:
                of_sharder[row["sharder"]].append(row)
        ms_of = {name: np.array([row["ms"] for row in own]) for name, own in of_sharder.items()}
        best = min(HEURISTICS, key=lambda name: float(ms_of[name].mean()))
        shown = [f"{ms_of[name].mean():.2f}" for name in (best, DREAMSHARD, TOLD, UNTOLD)]
        cells.append((kind, *shown, *(_gain(ms_of[TOLD], ms_of[name]) for name in (best, DREAMSHARD))))
        for name in (TOLD, UNTOLD):
            ratios = np.array([row["predicted"] for row in of_sharder[name]])
            inside = sum(row["low"] <= 1 <= row["high"] for row in of_sharder[name])
            three = [f"{one:.2f}" for one in (ratios.min(), np.median(ratios), ratios.max())]
            below, above = (
                100 * float(np.median([row[end] / row["predicted"] for row in of_sharder[name]]) - 1)
                for end in ("low", "high")
            )
            cells_of_times.append((kind, name, *three, f"{below:.0f} / {above:+.0f}", f"{inside} of {len(ratios)}"))
    return "\n\n".join([text_table(cells, "<>>>>>>"), text_table(cells_of_times, "<<>>>>>")])


def _gain(own_N: FloatArray, other_N: FloatArray) -> str:
    half = 1.96 * (own_N - other_N).std(ddof=1) / len(own_N) ** 0.5
    return f"{100 * (own_N.mean() / other_N.mean() - 1):+.1f} +- {100 * half / other_N.mean():.1f}"


def main() -> None:
    """Places, times, and prints both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of a loop's round, such as work/round_3")
    parser.add_argument("--tasks", type=int, default=16, help="of each kind")
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    asked = [
        one
        for kind, together in KINDS.items()
        for task in tasks_of(together, args.tasks, args.seed)
        for one in placements(kind, task, args.model, args.seed)
    ]
    rows = measure_all(asked, args.visits)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table_of(rows))


if __name__ == "__main__":
    main()
