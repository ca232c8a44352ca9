"""Timer of the loads of plans on a GPU, as an oracle that no planner uses.

    python -m benchmarks.shardbench.device_errors loads loads.jsonl.gz --gpu h100     # here
    python -m benchmarks.shardbench.time_loads loads.jsonl.gz FOLDER --budget-s 300   # on the GPU

Loads are timed one after the other on one GPU, with the L2 flushed before each step. All kernels of a step are launched
while the GPU still spins, so that times are the GPU's and not those of the host. Replicas have a dense call and the
optimizer's pass over its gradients. Communication is not part of a load.

Needs only torch, NumPy and FBGEMM.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.scripts.gpu_kernels import CHECKED_LEARNING_RATE, reference_step
from benchmarks.shardbench.dense_calls import dense_operator
from benchmarks.shardbench.loads import Load, LoadCall, key_of, read_loads
from evenshard.base.errors import EvenshardError
from evenshard.base.units import seconds_to_ms
from evenshard.measure.clock import CacheFlush, Stopwatch
from evenshard.measure.config import MeasureConfig
from evenshard.measure.fbgemm import (
    LEARNING_RATE,
    LoadedShard,
    OutOfDeviceMemory,
    ShardKernels,
    join_batches,
    kernel_provenance,
)
from evenshard.placement.memory import SGD
from evenshard.tables.table import SEQUENCE, SUM, Table

WARMUP, REPEATS, LEAST_REPEATS = 2, 5, 3
# Time that the GPU spins while the host launches a step: ms, and ms for each call. Repeats that were launched later do
# not count; if too few are left, it spins twice as long.
SPIN_MS, SPIN_MS_PER_CALL, MOST_SPIN_MS = 1.5, 1.5, 30.0
CYCLES_PER_MS = 2_000_000  # at 2 GHz, about the clock of an H100


@dataclass(frozen=True)
class CallOnDevice:
    """A call loaded on its device.

    Attributes:
        shard: the operator, its batches, and the gradient of its outputs.
        optimizer: of the dense gradients of replicas.
    """

    shard: LoadedShard
    optimizer: torch.optim.Optimizer | None


class Timer:
    """Timer of loads on one device; it writes each result to the file immediately."""

    def __init__(self, device: torch.device, folder: Path, seed: int = 0) -> None:
        config = MeasureConfig(hardware=device.type, optimizer=SGD, num_batches=2, seed=seed)
        self.device = device
        self._kernels = ShardKernels(config, device)
        self._flush = CacheFlush(device, keep_warm=False)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "kernel_times.jsonl").open("a", encoding="utf-8")
        origin = kernel_provenance(config, device, "none")
        self._write(hardware=origin.hardware, driver=origin.driver, versions=origin.versions, seed=seed)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def time(self, load: Load) -> bool:
        """Time a load, and return True if it fits on the device; else write a line that it does not."""
        times = self._times_if_fits(load)
        if times is None:  # memory of earlier loads may cause the failure: retry with all memory free
            times = self._times_if_fits(load)
        if times is None:
            self._write(key=key_of(load), out_of_memory=True)
            return False
        if times:
            names = ("forward_ms", "backward_ms", "dense_ms", "host_ms")
            columns = zip(names, zip(*times, strict=True), strict=True)
            self._write(key=key_of(load), **{name: [round(one, 5) for one in column] for name, column in columns})
        return True

    def kernels(self, load: Load) -> None:
        """Write the time of each kernel of a load in a step, us."""
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
        with self._loaded_calls(load) as calls:
            self._step(calls, 0, 0.0)
            with profiler.profile(activities=activities) as recorder:
                self._step(calls, 1, 0.0)
        found = {
            one.key[:120]: [one.count, round(one.self_device_time_total, 1)]
            for one in recorder.key_averages()
            if one.self_device_time_total and "spin" not in one.key
        }
        self._write(key=key_of(load), kernels_us=found)

    def _times_if_fits(self, load: Load) -> list[tuple[float, ...]] | None:
        """Return forward, backward, dense and host ms of each repeat; none if the host is too slow.

        None, with all memory free again, if the device cannot hold it.
        """
        try:
            with self._loaded_calls(load) as calls:
                spin_ms = SPIN_MS + SPIN_MS_PER_CALL * len(calls)
                return repeats_in_time(lambda number, spin_ms: self._step(calls, number, spin_ms), spin_ms)
        except OutOfDeviceMemory:
            pass  # inside this block the exception's frames would keep the allocated memory alive
        self._kernels.free()
        return None

    @contextmanager
    def _loaded_calls(self, load: Load) -> Iterator[list[CallOnDevice]]:
        with self._kernels.watch_failures([table for call in load for table in call.held_tables]):
            yield [self._call_on_device(call) for call in load]

    def _call_on_device(self, call: LoadCall) -> CallOnDevice:
        optimizer = None
        if call.is_dense:
            operator = dense_operator(self._kernels, call.held_tables, call.pooling, call.feature_tables())
            optimizer = torch.optim.SGD([operator.weights], lr=LEARNING_RATE)
        else:
            operator = self._kernels.operator(call.held_tables, call.pooling, call.feature_tables())
            if self.device.type == "cuda":
                operator.init_embedding_weights_uniform(-0.01, 0.01)
        batches = join_batches([self._kernels.table_batches(*one) for one in call.drawn_tables()])
        outputs = len(batches[0][0]) if call.held_tables[0].is_sequence else call.batch_size
        gradient = 1e-3 * torch.randn(outputs, call.num_columns, device=self.device)
        return CallOnDevice(LoadedShard(operator, batches, gradient), optimizer)

    def _step(self, calls: Sequence[CallOnDevice], number: int, spin_ms: float) -> tuple[float, ...]:
        """Return forward, backward and dense ms, and the ms that the host took to launch all of them."""
        optimizers = [one.optimizer for one in calls if one.optimizer is not None]
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._flush()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda._sleep(int(spin_ms * CYCLES_PER_MS))  # type: ignore[no-untyped-call]
        started = time.perf_counter()
        watch = Stopwatch(self.device)
        watch.mark()
        outputs = [one.shard.forward(number) for one in calls]
        watch.mark()
        torch.autograd.backward(outputs, [one.shard.gradient for one in calls])
        watch.mark()
        for optimizer in optimizers:
            optimizer.step()
        watch.mark()
        launched = time.perf_counter() if self.device.type == "cuda" else started
        host_ms = seconds_to_ms(launched - started)
        return *watch.laps_ms(), host_ms

    def _write(self, **values: Any) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


def repeats_in_time(step: Callable[[int, float], tuple[float, ...]], spin_ms: float) -> list[tuple[float, ...]]:
    """Return the repeats of a step that the host launched while the GPU still spun; none if it is too slow."""
    while spin_ms < MOST_SPIN_MS:
        times = [step(number, spin_ms) for number in range(WARMUP + REPEATS)][WARMUP:]
        in_time = [one for one in times if one[-1] < spin_ms]
        if len(in_time) >= LEAST_REPEATS:
            return in_time
        spin_ms *= 2
    return []


def dense_error(device: torch.device) -> float:
    """Return the largest relative error of a dense call's outputs and gradients against double precision."""
    kernels = ShardKernels(MeasureConfig(hardware=device.type, optimizer=SGD, num_batches=1), device)
    batch_size, worst = 512, 0.0
    for pooling in (SUM, SEQUENCE):
        tables = [Table(f"t{at}", 1000 * (at + 1), 64, 5.0, pooling=pooling) for at in range(3)]
        operator = dense_operator(kernels, tables, pooling, [0, 1, 2])
        batches = join_batches([kernels.table_batches(table, batch_size) for table in tables])
        output = operator(*batches[0])
        loaded = LoadedShard(operator, batches, torch.randn_like(output))
        before = [one.detach().clone().double() for one in operator.split_embedding_weights()]
        loaded.backward(output)
        gradients = torch.split(operator.weights.grad.double(), [one.numel() for one in before])
        expected, updated = reference_step(loaded, before, batch_size, pooling, SGD)
        pairs = [(output.detach().double(), expected)]
        for old, new, gradient in zip(before, updated, gradients, strict=True):
            pairs.append((-CHECKED_LEARNING_RATE * gradient.view_as(old), new - old))
        worst = max(worst, *(float((one - two).norm() / two.norm()) for one, two in pairs))
    return worst


def time_loads(timer: Timer, loads: Sequence[Load], budget_s: float, profiled: int) -> None:
    """Time loads in order until the time budget is used, and the kernels of every ``profiled``-th load."""
    deadline, failed = time.monotonic() + budget_s, 0
    for number, load in enumerate(loads):
        if time.monotonic() > deadline:
            print(f"out of time after {number} of {len(loads)} loads, {failed} failed", flush=True)
            return
        try:
            if timer.time(load) and profiled and number % profiled == 0:
                timer.kernels(load)
        except (EvenshardError, OutOfDeviceMemory, RuntimeError) as error:  # one load must not end a run
            failed += 1
            print(f"load {key_of(load)}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
    print(f"all {len(loads)} loads, {failed} failed", flush=True)


def main() -> None:
    """Time the loads of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget-s", type=float, default=300.0)
    parser.add_argument("--profiled", type=int, default=10, help="profile the kernels of every N-th load; 0 for none")
    parser.add_argument("--seed", type=int, default=0, help="seed of the lookups")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    device = torch.device(args.device)
    error = dense_error(device)
    assert error < 1e-5, f"FBGEMM's dense kernels are off by {error:.2g}"
    print(f"correct: largest relative error of dense calls {error:.1e}", flush=True)
    with closing(Timer(device, args.folder, args.seed)) as timer:
        time_loads(timer, read_loads(args.loads), args.budget_s, args.profiled)


if __name__ == "__main__":
    main()
