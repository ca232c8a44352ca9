"""Step times of plans from kernels timed on a GPU: an oracle that no planner uses.

Kernels are timed; communication is modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.references.rows import read_rows
from benchmarks.shardbench.loads import Load, key_of, loads_of
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.price.collectives import Links, exchange_times, volumes_of
from evenshard.price.device_model import KERNELS
from evenshard.price.step_time import Phases, step_ms

US_PER_MS = 1e3
# Entries of torch.profiler that are not kernels; the flush writes signed chars. Other kernels are those of indices.
OPERATORS = ("aten::", "fbgemm::", "autograd::", "cuda", "Optimizer", "Activity Buffer")
FLUSH = "FillFunctor<signed char>"
CLASSES = {
    "bounds_check_indices_kernel": "bounds_check",
    "_forward_": "lookup",
    "RadixSort": "sort",
    "_per_row": "gradient",
}
KERNEL_TIMES = Path(__file__).resolve().parents[2] / "data" / "kernels"
PLANS = KERNEL_TIMES / "shardbench_plans.jsonl.gz"  # journal of the timed plans


class KernelTimes:
    """Times of loads on a GPU.

    Attributes:
        runs: forward and backward ms of each load, by its key, one for each run that timed it; the optimizer's pass
            over dense gradients is part of the latter.
        kernels_ms: the sums of a load's kernels by class, where torch.profiler saw them.
    """

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self.runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.kernels_ms: dict[str, dict[str, float]] = {}
        for line in lines:
            if "kernels_us" in line:
                self.kernels_ms[line["key"]] = _kernels_ms(line["kernels_us"])
            if "forward_ms" in line:
                forward, backward, dense = (median(line[name]) for name in ("forward_ms", "backward_ms", "dense_ms"))
                self.runs[line["key"]].append((forward, backward + dense))

    def load_ms(self, load: Load) -> tuple[float, float] | None:
        """Return forward and backward ms of a load, means of all runs; None if it was not timed."""
        if not load:
            return 0.0, 0.0
        runs = self.runs.get(key_of(load))
        return None if runs is None else (fmean(one for one, _ in runs), fmean(one for _, one in runs))

    def step_ms(self, task: ShardingTask, parts: Sequence[TablePart], links: Links) -> float | None:
        """Return the step time of a plan, with modelled communication; None if a device's load was not timed."""
        if not self.runs:
            return None
        timed = [found for load in loads_of(task, parts) if (found := self.load_ms(load)) is not None]
        if len(timed) < task.num_devices:
            return None
        forward_D, backward_D = np.array(timed).T
        exchanges = exchange_times(task, volumes_of(task, parts_by_table(task, parts)), links)
        phases = Phases(exchanges.input_dist, forward_D, exchanges.forward, exchanges.backward, backward_D)
        return round(float(step_ms(phases, task.pipeline)), 4)


def _kernels_ms(kernels_us: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Sum the kernels by class, without the flush before them; operators of the host are excluded."""
    found = dict.fromkeys(KERNELS, 0.0)
    for name, (_, us) in kernels_us.items():
        if not name.startswith(OPERATORS) and FLUSH not in name:
            found[next((of for part, of in CLASSES.items() if part in name), "index")] += us / US_PER_MS
    return found


@cache
def kernel_times_of(gpu: str) -> KernelTimes:
    """Return the times of a GPU; empty if it has no file. `dvc pull data.dvc` fetches the files."""
    return KernelTimes(read_rows(KERNEL_TIMES / f"shardbench_{gpu}.jsonl.gz", least=0))
