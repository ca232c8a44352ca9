"""The cost of a loop in GPU minutes: kernel time of everything it measures, on a simulated device.

python -m benchmarks.scripts.gpu_minutes presets/paper.yaml --hardware simulated:h200

Building operators, drawing lookups and starting pods come on top; nothing of this was taken on a real GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import Hardware, open_hardware
from evenshard.placement.placement import Placement, alone
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import distinct_tables, load_tasks
from evenshard.sharders.catalog import SHARDERS
from evenshard.sharders.random import RandomSharder
from evenshard.stages import generate_tables
from evenshard.stages.loop import (
    BenchmarkConfig,
    GenerateTablesConfig,
    GenerateTablesInputs,
    GenerateTablesOutputs,
    LoopConfig,
)
from evenshard.tables.files import load_tables
from evenshard.tables.table import Table
from evenshard.utils.params import load_params, section

SAMPLE = 20


def kernel_ms(hardware: Hardware, task: ShardingTask, placement: Placement) -> float:
    """Forward and backward of all devices, one after the other: one pass of a GPU that plays them in turn."""
    return sum(one.fwd_compute_ms + one.bwd_compute_ms for one in hardware.measure(task, placement).devices)


def minutes(path: Path, hardware_name: str) -> dict[str, float]:
    """Kernel minutes of a round, of the evaluation, and of the loop."""
    params = load_params(path)
    measure = section(params, "measure", MeasureConfig, hardware=hardware_name, link="auto")
    loop, round_of = section(params, "loop", LoopConfig), section(params, "benchmark", BenchmarkConfig)
    with tempfile.TemporaryDirectory() as scratch:
        tables, tasks = Path(scratch, "t.parquet"), Path(scratch, "tasks.json")
        generate_tables.run(
            section(params, "generate_tables", GenerateTablesConfig),
            GenerateTablesInputs(),
            GenerateTablesOutputs(tables, tasks),
        )
        split = load_tasks(tasks, load_tables(tables))
    passes = measure.visits * (measure.warmup + measure.repeats)
    hardware = open_hardware(measure)
    sharder = RandomSharder(0)

    def of_task(task: ShardingTask) -> float:
        return kernel_ms(hardware, task, sharder.place(task))

    def of_table(table: Table) -> float:
        task = ShardingTask.whole("alone", (table,), 1, split.test[0].memory_cap_bytes, split.test[0].batch_size)
        return kernel_ms(hardware, task, alone(task))

    of_round = round_of.placements_per_round + measure.controls * measure.control_repeats
    placement_ms = float(np.mean([of_task(task) for task in split.train[:SAMPLE]]))
    held_out_ms = float(np.mean([of_task(task) for task in split.test[:SAMPLE]]))
    num_sharders = sum(one.in_loop for one in SHARDERS)
    singles = distinct_tables(list(split.test))
    single_ms = float(np.mean([of_table(one) for one in singles[: 10 * SAMPLE]]))
    one_round = of_round * placement_ms * passes / 60e3
    judged = (len(split.test) * num_sharders * held_out_ms + len(singles) * single_ms) * passes / 60e3
    return {"a round": one_round, "the evaluation": judged, "the loop": loop.num_rounds * one_round + judged}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("params", type=Path, nargs="+")
    parser.add_argument("--hardware", default="simulated:h200")
    args = parser.parse_args()
    for path in args.params:
        found = minutes(path, args.hardware)
        print(f"{path}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()) + " minutes of kernels")


if __name__ == "__main__":
    main()
