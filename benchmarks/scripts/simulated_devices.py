"""Simulated devices beside published times, and their speed.

    python -m benchmarks.scripts.simulated_devices [--tasks 50] > report.md

Prints markdown: the placement strategies of DreamShard's paper on a simulated RTX 2080 Ti beside the published table,
NVIDIA's synthetic models on a simulated A100 beside their training steps, where the time goes on each device, and
the speed. Deterministic but for the speed. Results: benchmarks/simulated_devices_202611.md.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from evenshard.measure.collectives import all_to_all_ms
from evenshard.measure.config import MeasureConfig
from evenshard.measure.link import link
from evenshard.measure.simulated.device_model import gradient_ns, index_ns, lookup_ns, sort_ns
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.measure.simulated.hardware import PlacementJob, SimulatedHardware
from evenshard.measure.simulated.shard_work import WorkCounter
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.placement.tasks import TaskSampling, sample_tasks
from evenshard.sharders.base import Sharder
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.random import RandomSharder
from evenshard.tables.catalog import load_catalog
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.utils.errors import InfeasibleTask

BATCH_SIZE = 65536
STRATEGIES = ("random", "size", "dim", "lookup", "size-lookup")
MIXED_DIMS = (4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Setting:
    """Tasks of one row of the paper's table.

    Attributes:
        name: name in the publication.
        num_tables: tables of each task.
        num_devices: devices of each task.
        dims: dims of the tables.
        memory_cap_gb: memory of each device.
        published_ms: published times of the strategies, in the order of ``STRATEGIES``.
    """

    name: str
    num_tables: int
    num_devices: int
    dims: tuple[int, ...]
    memory_cap_gb: float
    published_ms: tuple[float, ...]


def _dlrm(num_tables: int, num_devices: int, *published_ms: float) -> Setting:
    return Setting(f"DLRM-{num_tables}({num_devices})", num_tables, num_devices, (16,), 5.0, published_ms)


def _prod(num_tables: int, num_devices: int, *published_ms: float) -> Setting:
    return Setting(f"Prod-{num_tables}({num_devices})", num_tables, num_devices, MIXED_DIMS, 10.0, published_ms)


# DreamShard, table 1 (test tasks), ms.
SETTINGS = (
    _dlrm(20, 4, 23.0, 21.7, 19.9, 18.3, 18.4),
    _dlrm(40, 4, 41.1, 40.3, 37.3, 33.0, 33.2),
    _dlrm(60, 4, 58.1, 59.6, 53.7, 48.7, 49.1),
    _dlrm(80, 4, 74.5, 77.7, 69.9, 64.1, 65.1),
    _dlrm(100, 4, 94.5, 95.4, 84.7, 79.5, 80.8),
    _dlrm(40, 8, 15.2, 14.5, 13.2, 9.5, 9.5),
    _dlrm(80, 8, 25.2, 25.6, 20.8, 16.7, 16.9),
    _dlrm(120, 8, 33.5, 35.0, 29.2, 23.7, 24.5),
    _dlrm(160, 8, 41.1, 42.4, 36.4, 30.8, 31.6),
    _dlrm(200, 8, 50.7, 50.8, 44.8, 38.0, 38.6),
    _prod(20, 2, 42.8, 46.1, 39.5, 45.9, 45.7),
    _prod(40, 4, 38.3, 43.6, 33.5, 37.4, 40.1),
    _prod(80, 8, 47.7, 53.9, 41.9, 46.1, 49.6),
)


def strategies_ms(setting: Setting, num_tasks: int, hardware: SimulatedHardware) -> tuple[list[float], list[float]]:
    """Costs of the strategies over the tasks that all of them solve.

    Returns:
        The mean of each strategy, ms; and for lookup greedy the mean forward, all-to-all forward, all-to-all backward
        and backward time of the slowest device, ms, followed by the number of tasks solved.
    """
    pool = generate_tables(GeneratorConfig(856, setting.dims, weight_bits=16), BATCH_SIZE, seed=0)
    sampling = TaskSampling(1, num_tasks, setting.num_tables, setting.num_devices, setting.memory_cap_gb, BATCH_SIZE)
    sharders: list[Sharder] = [RandomSharder(seed=0), *expert_sharders()]
    costs = []
    for task in sample_tasks(pool, sampling, seed=0).test:
        try:
            jobs = [(task, sharder.place(task)) for sharder in sharders]
        except InfeasibleTask:
            continue
        costs.append(hardware.measure_many(jobs))
    means = [fmean(cost.max_device_ms for cost in of_strategy) for of_strategy in zip(*costs, strict=True)]
    slowest = [max(of_task[3].devices, key=lambda device: device.total_ms) for of_task in costs]
    parts = [
        fmean(getattr(device, name) for device in slowest)
        for name in ("fwd_compute_ms", "fwd_all_to_all_ms", "bwd_all_to_all_ms", "bwd_compute_ms")
    ]
    return means, [*parts, float(len(costs))]


def print_strategies(num_tasks: int) -> None:
    hardware = SimulatedHardware(MeasureConfig(hardware="simulated:rtx_2080_ti"))
    print("## Placement strategies, simulated | published, ms\n")
    print("| tasks | " + " | ".join(STRATEGIES) + " | tasks solved | fwd, all-to-all (both), bwd of lookup greedy |")
    print("|---|" + "---:|" * (len(STRATEGIES) + 2))
    orders = []
    for setting in SETTINGS:
        means, (fwd, fwd_all, bwd_all, bwd, solved) = strategies_ms(setting, num_tasks, hardware)
        cells = [f"{mean:.2f} \\| {said}" for mean, said in zip(means, setting.published_ms, strict=True)]
        parts = f"{fwd:.2f}, {fwd_all + bwd_all:.2f}, {bwd:.2f}"
        print(f"| {setting.name} | " + " | ".join(cells) + f" | {solved:.0f} | {parts} |")
        orders.append((setting, means))
    print("\nRelative to lookup greedy, simulated | published:\n")
    print("| tasks | " + " | ".join(STRATEGIES) + " | rank correlation |")
    print("|---|" + "---:|" * (len(STRATEGIES) + 1))
    for setting, means in orders:
        cells = [
            f"{mean / means[3]:.2f} \\| {said / setting.published_ms[3]:.2f}"
            for mean, said in zip(means, setting.published_ms, strict=True)
        ]
        print(f"| {setting.name} | " + " | ".join(cells) + f" | {rank_correlation(means, setting.published_ms):.2f} |")


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, of two orders without ties."""
    differences = np.argsort(np.argsort(first)) - np.argsort(np.argsort(second))
    count = len(first)
    return 1 - 6 * float(np.square(differences).sum()) / (count * (count**2 - 1))


def print_nvidia() -> None:
    hardware = SimulatedHardware(MeasureConfig(hardware="simulated:a100_80gb"))
    print("\n## NVIDIA's synthetic models on one A100 80GB, batch 65536\n")
    print("| model | tables | weights GB | lookups M | forward ms | backward ms | both | published whole step ms |")
    print("|---|" + "---:|" * 7)
    for name, published in (("nvidia_tiny", 24.433), ("nvidia_small", 67.355)):
        tables = load_catalog(name, batch_size=BATCH_SIZE)
        task = ShardingTask.whole(name, tables, 1, 10**13, BATCH_SIZE)
        device = hardware.measure(task, Placement((0,) * len(tables), 1)).devices[0]
        size = sum(table.size_bytes for table in tables) / 1024**3
        lookups = sum(table.pooling_factor for table in tables) * BATCH_SIZE / 1e6
        fwd, bwd = device.fwd_compute_ms, device.bwd_compute_ms
        print(
            f"| {name} | {len(tables)} | {size:.1f} | {lookups:.1f} | {fwd:.2f} | {bwd:.2f} | {fwd + bwd:.2f} | "
            f"{published} |"
        )


def print_parts() -> None:
    """Where the time goes on each device: 5 tables of the DLRM pool, which is a device's share in DLRM-20(4)."""
    print("\n## Where the compute time goes: 5 DLRM tables of dim 16 and FP16, batch 65536, mean of 80 shards, ms\n")
    print("| device | forward | of it lookup | backward | of it indices | sort | gradients | backward / forward |")
    print("|---|" + "---:|" * 7)
    pool = generate_tables(GeneratorConfig(400, (16,), weight_bits=16), BATCH_SIZE, seed=0)
    for name in ("rtx_2080_ti", "v100", "a100_80gb", "h200"):
        profile, hardware = gpu_profile(name), SimulatedHardware(MeasureConfig(hardware=f"simulated:{name}"))
        counter = WorkCounter(profile)
        work = counter.shard_work(counter.columns(pool, BATCH_SIZE), np.arange(400) // 5, 80)
        costs = hardware.measure_many(
            [
                (ShardingTask.whole("five", pool[first : first + 5], 1, 10**13, BATCH_SIZE), Placement((0,) * 5, 1))
                for first in range(0, 400, 5)
            ]
        )
        fwd = fmean(cost.devices[0].fwd_compute_ms for cost in costs)
        bwd = fmean(cost.devices[0].bwd_compute_ms for cost in costs)
        kernels = [
            fmean((kernel(profile, work) / 1e6).tolist()) for kernel in (lookup_ns, index_ns, sort_ns, gradient_ns)
        ]
        print(
            f"| {name} | {fwd:.3f} | {kernels[0]:.3f} | {bwd:.3f} | "
            + " | ".join(f"{ms:.3f}" for ms in kernels[1:])
            + f" | {bwd / fwd:.1f} |"
        )


def print_speed() -> None:
    print("\n## Speed: 10,000 placements of 50 tables on 8 devices, one core\n")
    print("| | noise 0, s | noise 2 %, s |")
    print("|---|---:|---:|")
    pool = generate_tables(GeneratorConfig(856, MIXED_DIMS, weight_bits=16), BATCH_SIZE, seed=0)
    tasks = sample_tasks(pool, TaskSampling(50, 1, 50, 8, 100.0, BATCH_SIZE), seed=0).train
    rng = np.random.default_rng(0)
    jobs = [(tasks[i % 50], Placement(tuple(rng.integers(0, 8, 50).tolist()), 8)) for i in range(10_000)]

    def seconds(noise: float, one_by_one: bool, of_jobs: Sequence[PlacementJob]) -> float:
        hardware = SimulatedHardware(MeasureConfig(hardware="simulated:h200", noise=noise))
        start = time.perf_counter()
        if one_by_one:
            for job in of_jobs:
                hardware.measure(*job)
        else:
            hardware.measure_many(of_jobs)
        return time.perf_counter() - start

    for label, one_by_one in (("all at once", False), ("one by one", True)):
        print(f"| {label} | " + " | ".join(f"{seconds(noise, one_by_one, jobs):.2f}" for noise in (0.0, 0.02)) + " |")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nPeak memory of the process, with torch: {peak_mb:.0f} MB.")


def print_links() -> None:
    """What another link would make of the exchange in DLRM-20(4)."""
    dims = [80] * 4
    print("\n5 tables of dim 16 on each of 4 devices, one all-to-all: ", end="")
    names = ("pcie3_host", "nvlink_v100")
    print(", ".join(f"{name} {all_to_all_ms(link(name), dims, BATCH_SIZE)[0]:.2f} ms" for name in names) + ".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=50, help="of each setting of the placement strategies")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print_strategies(args.tasks)
    print_links()
    print_nvidia()
    print_parts()
    print_speed()


if __name__ == "__main__":
    main()
