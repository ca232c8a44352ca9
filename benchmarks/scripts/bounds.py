"""Gap between evenshard's plans and the lower bound, for the cells of ShardBench's last run.

python -m benchmarks.scripts.bounds
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from benchmarks.shardbench.cases import BenchMachine, batch_size_of, tables_called
from evenshard.base.process import one_thread
from evenshard.planner.pricing import part_costs
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.space import SearchSpace
from evenshard.sharders.model import DeviceModel

RUN = Path(__file__).parents[1] / "shardbench_202611.csv"


@one_thread()
def main() -> None:
    """Print a line for each cell, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=RUN, help="CSV of ShardBench")
    args = parser.parse_args()
    with args.run.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["planner"] == "evenshard" and row["device_ms"]]
    print("| model | devices | evenshard, ms | lower bound, ms | above it, at most |")
    print("|---|---|---:|---:|---:|")
    found = []
    for row in rows:
        devices, answer_ms = int(row["devices"]), float(row["device_ms"])
        batch_size = batch_size_of(row["model"], devices)
        tables = tables_called(row["model"], batch_size)
        request = BenchMachine.of(row["gpu"], devices, batch_size).request(tables)
        costs = part_costs(request, DeviceModel(request.hardware))
        bound_ms = min(lower_bound_ms(SearchSpace(costs), answer_ms), answer_ms)
        above = answer_ms / bound_ms - 1
        found.append((devices, len(tables), above))
        print(
            f"| {row['model']} | {devices} x {row['gpu']} | {answer_ms:.3f} | {bound_ms:.3f} | {100 * above:.1f} % |",
            flush=True,
        )
    devices_R, tables_R, above_R = np.array(found).T
    for name, is_one_R in (
        ("8 devices", devices_R == 8),
        ("16 devices", devices_R == 16),
        ("64 devices and more", devices_R >= 64),
        ("200 tables and more", tables_R >= 200),
    ):
        if is_one_R.any():
            own = 100 * above_R[is_one_R]
            print(f"\n{name}: {len(own)} cells, median {np.median(own):.1f} %, at most {own.max():.1f} %.")


if __name__ == "__main__":
    main()
