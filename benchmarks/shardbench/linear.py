"""A linear model of counts: costs of plans by constants fitted to published measurements.

    python -m benchmarks.shardbench.linear [--truth FOLDER]

Fits the constants of ``linear.yaml`` again and writes them; the measurements are not part of the repository.
A device's kernels take a constant for each count of ``COUNTS``, fitted by non-negative least squares to shards on an
RTX 2080 Ti. Another GPU takes ``scale`` times as long, the geometric mean over its public points. Each collective
takes a latency, plus the bytes of its busiest device divided by a bandwidth within nodes or between nodes. The
counts are those of the device model; its constants are not used.

Legend: N shards, D devices, C counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import yaml
from scipy.optimize import nnls

from benchmarks.references.others_measurements import BATCH_SIZE, default_folder, read
from benchmarks.references.rows import read_rows, run_script
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import (
    GRADIENT_BYTES,
    all_reduce_bytes,
    all_to_all_bytes,
    node_reduce_scatter_bytes,
    reduce_scatter_bytes,
    volumes_of,
)
from evenshard.price.gpu_profile import gpu_profile
from evenshard.price.kernel_calls import EVERY_DEVICE, KernelCall, Lookup, list_held_parts
from evenshard.price.link_model import BYTES_PER_VALUE
from evenshard.price.shard_work import WorkCounter
from evenshard.tables.reuse import FloatArray
from evenshard.tables.table import Table

CONSTANTS = Path(__file__).with_name("linear.yaml")
FITTED_TO = "rtx_2080_ti"
# Counts of a kernel call, explained in ``ShardWork``; ``hottest`` is the largest of the call's tables. The number
# of tables is no count: at one batch size it follows from the bags, and on an H100 ten tables take as long as one table
# with the same bags.
SUMS = ("bags", "lookups", "uniques", "row_bytes", "output_bytes")
COUNTS = ("calls", *SUMS, "hottest")
# One of this many shards is held out of the fit.
HELD_OUT = 5
# Times that a weight of a replica moves through memory: its gradient is cleared, written and read, the weight updated.
DENSE_PASSES = 4
BYTES_PER_NS_TO_MS = 1e-6


def call_counts_C(counter: WorkCounter, lookups: Sequence[Lookup]) -> FloatArray:
    """Return the counts of one kernel call, [C]."""
    bags_N = sorted({one.bags for one in lookups})
    work = counter.work_of([([one.table for one in lookups if one.bags == bags], bags) for bags in bags_N])
    return np.array([1.0, *(getattr(work, name).sum() for name in SUMS), work.hottest.max()])


@cache
def constants() -> dict[str, Any]:
    """Read the fitted constants."""
    found: dict[str, Any] = yaml.safe_load(CONSTANTS.read_text())
    return found


class LinearModel:
    """Costs of plans on one kind of GPU."""

    def __init__(self, gpu: str) -> None:
        known = constants()
        self._per_count_C = np.array([known["ns"][name] for name in COUNTS]) * 1e-6 * known["gpus"][gpu]["scale"]
        self._link = known["gpus"][gpu]
        self._hbm_gb_s = gpu_profile(gpu).hbm_gb_s
        self._counter = WorkCounter(gpu_profile(FITTED_TO))

    def step_ms(self, task: ShardingTask, parts: Sequence[TablePart]) -> float:
        """Predict a training step, ms: the slowest device's kernels and bytes, and the latencies of all collectives."""
        by_table = parts_by_table(task, parts)
        calls: dict[tuple[KernelCall, int], list[Lookup]] = {}
        for held in list_held_parts(task, by_table):
            calls.setdefault((held.call, held.device), []).extend(held.lookups)
        compute_D = np.zeros(task.num_devices)
        for (_, device), lookups in calls.items():
            ms = float(call_counts_C(self._counter, lookups) @ self._per_count_C)
            compute_D[slice(None) if device == EVERY_DEVICE else device] += ms
        volumes = volumes_of(task, by_table)
        replicated_bytes = GRADIENT_BYTES * float(volumes.replicated_values)
        compute_D += DENSE_PASSES * replicated_bytes / self._hbm_gb_s * BYTES_PER_NS_TO_MS
        machine, batch = task.machine, task.batch_size * BYTES_PER_VALUE
        outputs = (
            all_to_all_bytes(machine, volumes.sent * batch / task.num_devices),
            reduce_scatter_bytes(machine, volumes.summed * batch),
            *node_reduce_scatter_bytes(machine, volumes.summed_in_node * batch),
        )
        moved = [
            all_to_all_bytes(machine, volumes.input_bytes * task.local_batch),
            *outputs,
            *(one.back for one in outputs),
            all_reduce_bytes(machine, np.full(task.num_devices, replicated_bytes)),
        ]
        link = self._link
        bytes_ms_D = sum(one.intra / link["intra_gb_s"] + one.inter / link["inter_gb_s"] for one in moved)
        latency_ms = 4 * len(volumes.collectives) * link["latency_us"] / 1000 if task.num_devices > 1 else 0.0
        return float((compute_D + bytes_ms_D * BYTES_PER_NS_TO_MS).max()) + latency_ms


# The fit --------------------------------------------------------------------------------------------------------------


def fit(truth: Path) -> dict[str, Any]:
    """Fit the constants to the measurements in a folder."""
    measured, counter = read(truth), WorkCounter(gpu_profile(FITTED_TO))
    counts_NC = np.array([call_counts_C(counter, [Lookup(one, BATCH_SIZE) for one in of]) for of in measured.shards])
    held_out_N = np.arange(len(counts_NC)) % HELD_OUT == 0
    relative_NC = counts_NC / measured.shard_ms[:, None]
    scale_C = relative_NC.max(axis=0)
    ms_C = nnls(relative_NC[~held_out_N] / scale_C, np.ones((~held_out_N).sum()))[0] / scale_C
    errors = 100 * np.abs(relative_NC[held_out_N] @ ms_C - 1)
    return {
        "ns": {name: float(f"{1e6 * ms:.4g}") for name, ms in zip(COUNTS, ms_C, strict=True)},
        "shards": {"fitted": int((~held_out_N).sum()), "held_out": int(held_out_N.sum())},
        "held_out_error_percent": {
            "median": round(float(np.median(errors)), 1),
            "p90": round(float(np.percentile(errors, 90)), 1),
        },
        "gpus": {name: _gpu(name, truth, ms_C) for name in GPUS},
    }


# By profile: names in the file of points; name in the file of collectives, or a similar GPU's; bandwidth
# relative to that GPU's links; bus bandwidth of the network adapters, GB/s, from gpu_points.csv (32 x A100, 32 x H100).
GPUS = {
    "v100": (("V100-16GB", "V100-32GB"), "a100_sxm", 150 / 300, 24.0),
    "a100_80gb": (("A100-40GB PG509", "A100-80GB"), "a100_sxm", 1.0, 24.0),
    "h100": (("H100 80GB HBM3",), "h100_sxm", 1.0, 48.0),
    "h200": (("H200",), "h200_sxm", 1.0, 48.0),
    "b200": (("H100 80GB HBM3",), "b200_sxm", 1.0, 48.0),
}
# The time of a call with fewer lookups is only that of its launches.
LEAST_LOOKUPS = 10**5
# The time of shorter collectives is only latency.
LEAST_BYTES = 2**16


def _gpu(name: str, truth: Path, ms_C: FloatArray) -> dict[str, Any]:
    points, collectives, faster, inter_gb_s = GPUS[name]
    ratios = list(_ratios(points, truth, ms_C))
    bytes_ms = list(_collectives(collectives, truth))
    rows_N2 = np.array([(1 / ms, moved / ms) for moved, ms in bytes_ms])
    latency_ms, ms_per_byte = nnls(rows_N2 / rows_N2.max(axis=0), np.ones(len(rows_N2)))[0] / rows_N2.max(axis=0)
    errors = [100 * abs((latency_ms + moved * ms_per_byte) / ms - 1) for moved, ms in bytes_ms]
    return {
        "scale": round(geometric_mean(ratios), 4),
        "scale_from": {"points": len(ratios), "least": round(min(ratios), 4), "most": round(max(ratios), 4)},
        "latency_us": round(float(1000 * latency_ms), 1),
        "intra_gb_s": round(float(faster * 1e-6 / ms_per_byte), 1),
        "inter_gb_s": inter_gb_s,
        "collectives_error_percent": round(float(np.median(errors)), 1),
    }


def _ratios(gpus: Iterable[str], truth: Path, ms_C: FloatArray) -> Iterable[float]:
    """Yield measured over predicted times of whole forward and backward calls."""
    counter = WorkCounter(gpu_profile(FITTED_TO))
    for row in read_rows(truth / "gpu_points.csv"):
        if row["gpu"] not in gpus or not (row["what"].startswith("fwd") and row["fwd_us"] and row["bwd_us"]):
            continue
        tables, batch, pooling = int(float(row["T"])), int(float(row["B"])), float(row["L"])
        if tables * batch * pooling < LEAST_LOOKUPS:
            continue
        dim = 4 * round(float(row["D"]) / 4)
        lookups = [Lookup(Table(str(n), int(row["E"]), dim, pooling), batch) for n in range(tables)]
        real_ms = (float(row["fwd_us"]) + float(row["bwd_us"])) / 1000
        yield real_ms / float(call_counts_C(counter, lookups) @ ms_C)


def _collectives(gpu: str, truth: Path) -> Iterable[tuple[float, float]]:
    """Yield the bytes in a device's busiest direction, and ms."""
    for row in read_rows(truth / "nccl.csv"):
        if row["gpu"] == gpu and int(row["bytes"]) >= LEAST_BYTES:
            devices, twice = int(row["num_gpus"]), 1 + (row["collective"] == "all_reduce")
            yield twice * int(row["bytes"]) * (devices - 1) / devices, float(row["ms"])


def main() -> None:
    """Fit the constants and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--truth", type=Path, default=default_folder(), help="folder of the measurements")
    fitted = fit(parser.parse_args().truth)
    text = yaml.safe_dump(fitted, sort_keys=False)
    CONSTANTS.write_text(f"# Written by python -m benchmarks.shardbench.linear\n{text}")


if __name__ == "__main__":
    run_script(main)
