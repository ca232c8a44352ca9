"""Random placements over all sharding types, measured for real on two hosts of two ranks, against their prediction.

    python -m benchmarks.scripts.real_placements --placements 50 --json out.json

The hosts are network namespaces of this machine with a slow link between them; where those are not permitted
(--one-host), ranks of one host that are taken for two nodes. Predicted are exchanges, by the links that
`evenshard calibrate-link` finds there, and kernels, by each kernel call of a placement measured alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
import yaml
from scipy.stats import spearmanr

from benchmarks.scripts.two_hosts import torchrun_on, two_hosts
from evenshard.measure.collectives import Links, exchange_times, volumes_of
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_shardings
from evenshard.measure.costs import DeviceCost, MeasuredPlacement
from evenshard.measure.kernel_calls import EVERY_DEVICE, KernelCall, held_parts
from evenshard.measure.link import link
from evenshard.measure.one_device import OneDeviceInTurn
from evenshard.placement.placement import alone
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.tables.files import load_tables
from evenshard.tables.table import Table

PARTS = ("input_dist", "fwd_exchange", "bwd_exchange", "exchange", "compute", "step")
DEVICES, PER_NODE, SECONDS = 4, 2, 1800.0
SETTINGS: dict[str, Any] = {
    "loop": {"num_rounds": 1},
    "generate_tables": {
        "source": "dlrm_2021", "num_tables": 24, "embedding_dims": [8, 16, 32, 64], "max_rows": 50_000,
        "num_train_tasks": 4, "num_test_tasks": 1, "tables_per_task": 10, "num_devices": DEVICES,
        "memory_cap_gb": 1.0, "batch_size": 2048,
    },
    "benchmark": {"placements_per_round": 0},
    "measure": {"hardware": "cpu", "visits": 2, "warmup": 1, "repeats": 5, "controls": 0},
}  # fmt: skip


def measure(work: Path, count: int, rate: str, one_host: bool) -> None:
    """Calibrates both tiers and measures the placements, into files of ``work``."""
    (work / "params.yaml").write_text(yaml.safe_dump(SETTINGS))
    evenshard = [sys.executable, "-m", "evenshard"]
    files = ["--tables-out", "tables.parquet", "--tasks-out", "tasks.json"]
    subprocess.run([*evenshard, "generate-tables", *files], cwd=work, check=True, capture_output=True)
    link_command = ["-m", "evenshard", "calibrate-link", "--hardware", "cpu", "--max-mb", "4", "--out", "link.yaml"]
    benchmark = ["-m", "evenshard", "benchmark", "--tables", "tables.parquet", "--tasks", "tasks.json", "--sharded",
                 str(count), "--devices-per-node", str(PER_NODE), "--journal", "visits.jsonl", "--out",
                 "costs.parquet"]  # fmt: skip
    with nullcontext() if one_host else two_hosts(rate) as hosts:
        for command in (link_command, benchmark):
            if hosts is None:
                torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
                subprocess.run([*torchrun, str(DEVICES), *command], cwd=work, check=True)
            else:
                torchrun_on(hosts, PER_NODE, command, work, SECONDS)


def links_of(work: Path) -> Links:
    """The calibrated ones; on one host both tiers are the same."""
    if (work / "link.yaml").exists():
        return Links(link(str(work / "link.yaml")), link(str(work / "link.yaml")))
    return Links(link(str(work / "link_intra.yaml")), link(str(work / "link_inter.yaml")))


class CallsAlone:
    """Kernel calls measured one by one, on an otherwise idle rank."""

    def __init__(self) -> None:
        config = MeasureConfig(hardware="cpu", warmup=1, repeats=5, num_batches=2)
        self._hardware = OneDeviceInTurn(config, torch.device("cpu"))
        self._known: dict[tuple[tuple[Table, ...], int], float] = {}

    def ms(self, task: ShardingTask, one: MeasuredPlacement) -> np.ndarray:
        """[D] forward and backward of all calls of each device."""
        calls: dict[tuple[KernelCall, int], list[tuple[Table, int]]] = defaultdict(list)
        for held in held_parts(task, parts_by_table(task, one.parts)):
            devices = range(task.num_devices) if held.device == EVERY_DEVICE else [held.device]
            for device in devices:
                calls[held.call, device] += held.looked_up
        found = np.zeros(task.num_devices)
        for (_, device), looked_up in calls.items():
            found[device] += self._call_ms(tuple(table for table, _ in looked_up), looked_up[0][1])
        return found

    def _call_ms(self, tables: tuple[Table, ...], batch_size: int) -> float:
        if (tables, batch_size) not in self._known:
            task = ShardingTask.whole("alone", tables, 1, 2**40, batch_size)
            self._known[tables, batch_size] = self._hardware.measure(task, alone(task)).devices[0].compute_ms
        return self._known[tables, batch_size]

    def close(self) -> None:
        """Frees the device."""
        self._hardware.close()


def measured_parts(devices: Sequence[DeviceCost]) -> dict[str, float]:
    """Mean over the devices; of a step, the slowest."""
    inputs = fmean(one.input_dist_ms for one in devices)
    forward, backward = (fmean(getattr(one, f"{way}_all_to_all_ms") for one in devices) for way in ("fwd", "bwd"))
    return {
        "input_dist": inputs,
        "fwd_exchange": forward,
        "bwd_exchange": backward,
        "exchange": inputs + forward + backward,
        "compute": fmean(one.compute_ms for one in devices),
        "step": max(one.total_ms for one in devices),
    }


def predicted_parts(one: MeasuredPlacement, links: Links, calls: CallsAlone) -> dict[str, float]:
    """The same, predicted."""
    times = exchange_times(one.task, volumes_of(one.task, parts_by_table(one.task, one.parts)), links)
    compute = calls.ms(one.task, one)
    exchange = times.input_dist + times.forward + times.backward
    return {
        "input_dist": float(times.input_dist.mean()),
        "fwd_exchange": float(times.forward.mean()),
        "bwd_exchange": float(times.backward.mean()),
        "exchange": float(exchange.mean()),
        "compute": float(compute.mean()),
        "step": float((exchange + compute).max()),
    }


def visits_of(journal: Path) -> list[list[dict[str, float]]]:
    """What each visit of each placement measured."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for line in map(json.loads, journal.read_text().splitlines()):
        if "job" in line:
            found[line["job"]].append(measured_parts([DeviceCost(**device) for device in line["devices"]]))
    return list(found.values())


def study(work: Path) -> dict[str, Any]:
    """Error and rank correlation of every part of a step, and how well two visits of a placement agree."""
    measured = load_shardings(work / "costs.parquet", load_tables(work / "tables.parquet"))
    links = links_of(work)
    with closing(CallsAlone()) as calls:
        pairs = [(measured_parts(one.cost.devices), predicted_parts(one, links, calls)) for one in measured]
    visits = [of for of in visits_of(work / "visits.jsonl") if len(of) == SETTINGS["measure"]["visits"]]
    result: dict[str, Any] = {"placements": len(measured), "parts": {}, "types": {}}
    for part in PARTS:
        real = np.array([one[part] for one, _ in pairs])
        predicted = np.array([one[part] for _, one in pairs])
        factor = float(np.exp(np.median(np.log(real / np.maximum(predicted, 1e-6)))))
        first, second = (np.array([of[number][part] for of in visits]) for number in (0, 1))
        result["parts"][part] = {
            "measured_ms": float(median(real)),
            "predicted_ms": float(median(predicted)),
            "median_error_percent": float(100 * np.median(np.abs(predicted / real - 1))),
            "factor": factor,
            "median_error_after_factor_percent": float(100 * np.median(np.abs(factor * predicted / real - 1))),
            "rank_correlation": float(spearmanr(real, predicted).statistic),
            "visits_differ_percent": float(100 * np.median(np.abs(second / first - 1))),
            "visits_rank_correlation": float(spearmanr(first, second).statistic),
        }
    by_type: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one, (real_parts, predicted_of) in zip(measured, pairs, strict=True):
        by_table = parts_by_table(one.task, one.parts)
        ways = [sharding_type(by_table[table.name], table, one.task.machine) for table in one.task.tables]
        most = max(set(ways), key=ways.count)
        name = most if ways.count(most) > 0.6 * len(ways) else "mixed"
        by_type[name].append((real_parts["exchange"], predicted_of["exchange"]))
    for name, of_type in sorted(by_type.items()):
        result["types"][name] = {
            "placements": len(of_type),
            "measured_exchange_ms": median(real for real, _ in of_type),
            "predicted_exchange_ms": median(predicted for _, predicted in of_type),
        }
    result["links"] = {tier: getattr(links, tier).source for tier in ("intra", "inter")}
    return result


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--placements", type=int, default=50)
    parser.add_argument("--rate", default="400mbit", help="of the link between the hosts, a direction")
    parser.add_argument("--one-host", action="store_true", help="without network namespaces")
    parser.add_argument("--json", type=Path, required=True, help="the result")
    parser.add_argument("--work", type=Path, help="folder that keeps what was measured; read where it has costs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = (args.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "costs.parquet").exists():
            measure(work, args.placements, args.rate, args.one_host)
        result = study(work)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
