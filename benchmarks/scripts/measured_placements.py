"""Whole tables placed by rules of thumb, TorchRec's planner and evenshard, to be timed on a real GPU, and what it said.

    python -m benchmarks.scripts.measured_placements plan --tables tables.parquet --tasks tasks.json plan.json
    python -m evenshard.measure plan.json --hardware cuda --journal placements.jsonl       # on the GPU
    python -m benchmarks.scripts.measured_placements table data/hardware=h100/collection=placements

The devices of a placement are timed in turn on one GPU; the exchanges between them are those of the link's model. All
sides place whole tables. evenshard places by the device model, which has seen none of these tasks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

import evenshard
from evenshard.measure.campaign import Job
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.plan import save_measure_plan
from evenshard.placement.placement import Placement
from evenshard.placement.sharding import TABLE_WISE
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import load_tasks
from evenshard.sharders.catalog import Resources, label_of, sharder
from evenshard.tables.files import load_tables
from evenshard.utils.text_table import text_table
from evenshard.utils.units import bytes_to_gb

OPTIMIZER, LINK, OURS = "rowwise_adagrad", "nvlink_h100", "evenshard"
OTHERS = (
    "random",
    "size_greedy",
    "dim_greedy",
    "lookup_greedy",
    "size_lookup_greedy",
    "torchrec_planner",
    "torchrec_planner_perf",
)


def jobs_of(task: ShardingTask, number: int, hardware: str) -> list[Job]:
    """The placements of a task by all sharders."""
    resources = Resources(number, MeasureConfig(hardware, LINK, OPTIMIZER))
    placements = {name: sharder(name, resources).place(task) for name in OTHERS}
    answer = evenshard.place(
        list(task.tables),
        task.num_devices,
        bytes_to_gb(task.memory_cap_bytes),
        hardware=hardware,
        sharding_types=[TABLE_WISE],
        batch_size=task.batch_size,
        optimizer=OPTIMIZER,
        intra=LINK,
    )
    device_of = {part.table: part.devices[0] for part in answer.parts}
    placements[OURS] = Placement(tuple(device_of[table.name] for table in task.tables), task.num_devices)
    return [
        Job.whole(f"{task.task_id}-{name}", task, placement, 0, name, task.task_id)
        for name, placement in placements.items()
    ]


def table_of(folder: Path) -> str:
    """Means over tasks, and in how many of them evenshard's placement is the faster."""
    by_task: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for one in load_costs(folder / "costs.parquet", load_tables(folder / "tables.parquet")):
        compute_ms = max(device.compute_ms for device in one.cost.devices)
        by_task[one.task.task_id][one.proposed_by] = one.cost.max_device_ms, compute_ms
    names = list(dict.fromkeys(name for of in by_task.values() for name in of))
    lines = [["placed by", "step, ms", "longer than evenshard's, %", "evenshard is faster", "compute alone, ms"]]
    times_TS2 = np.array([[of[name] for name in names] for of in by_task.values()])
    ours_T = times_TS2[:, names.index(OURS), 0]
    for number, name in enumerate(names):
        step_T, compute_T = times_TS2[:, number].T
        wins = f"{(ours_T < step_T).sum()} of {len(ours_T)}" if name != OURS else "-"
        longer = f"{100 * (step_T.mean() / ours_T.mean() - 1):.1f}"
        lines.append([label_of(name), f"{step_T.mean():.2f}", longer, wins, f"{compute_T.mean():.2f}"])
    return text_table(lines, "<>>>>", "  ")


def main() -> None:
    """Writes a plan, or prints what was timed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="place, and write what is to be timed")
    plan.add_argument("out", type=Path)
    plan.add_argument("--tables", type=Path, required=True)
    plan.add_argument("--tasks", type=Path, required=True)
    plan.add_argument("--count", type=int, default=24, help="test tasks")
    plan.add_argument("--hardware", default="simulated:h100", help="device model that evenshard places by")
    commands.add_parser("table", help="print what was timed").add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.command == "table":
        print(table_of(args.folder))
        return
    tasks = load_tasks(args.tasks, load_tables(args.tables)).test[: args.count]
    jobs = [job for number, task in enumerate(tasks) for job in jobs_of(task, number, args.hardware)]
    config = MeasureConfig("cuda", LINK, OPTIMIZER, num_batches=2, warmup=2, repeats=5, visits=1, controls=0)
    save_measure_plan(jobs, config, args.out)


if __name__ == "__main__":
    main()
