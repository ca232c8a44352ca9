"""Real all-to-alls between devices that measure one placement together; waits are timed separately.

Every process of torchrun is one device, and its rank is the device id. A device pools its tables for the whole global
batch and sends each rank the pooled embeddings of that rank's samples. Later the gradients are sent back.

::

    | flush, barrier | forward | barrier | all-to-all | barrier | all-to-all back | barrier | backward |
                         timed     wait       timed                  timed                     timed

The cost of a barrier is subtracted from the waits: the last rank to reach it does not wait, so the shortest wait is the
cost of the barrier itself. Ranks leave a barrier some tens of microseconds apart, which adds to the all-to-all times.

Letters in array names: B samples of the global batch, D sum of the embedding dims of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

from evenshard.base.errors import BadInput, MeasurementFailed
from evenshard.measure.clock import CacheFlush, Stopwatch
from evenshard.measure.config import MeasureConfig
from evenshard.measure.distributed import ranks as process_group
from evenshard.measure.fbgemm import LoadedShard, OutOfDeviceMemory, ShardKernels
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import OUT_OF_MEMORY

_Result = TypeVar("_Result")

GRADIENT = 1e-3  # constant gradient from the dense part; its value does not change any time


class Exchange:
    """The two all-to-alls of a step: of pooled embeddings, and of their gradients.

    ``received`` is flat: rank after rank, the pooled embeddings that the rank sent for this rank's samples.
    ``gradient`` has the same layout.
    """

    def __init__(self, ranks: process_group.Ranks, splits: process_group.Splits) -> None:
        self._ranks, self._forth = ranks, splits
        self._back = process_group.Splits(sent=splits.received, received=splits.sent)
        self.received = torch.empty(sum(splits.received), device=ranks.device)
        self.gradient = torch.full_like(self.received, GRADIENT)

    def send(self, pooled_BD: torch.Tensor) -> None:
        """Send this device's pooled embeddings and fill ``received``."""
        self._ranks.all_to_all(self.received, pooled_BD.detach().view(-1), self._forth)

    def send_back(self, gradient_BD: torch.Tensor) -> None:
        """Send ``gradient`` and fill the gradient of this device's pooled embeddings."""
        self._ranks.all_to_all(gradient_BD.view(-1), self.gradient, self._back)


@dataclass(frozen=True)
class Step:
    """Times of one training step on one rank, ms; ``wait_ms`` is the time at the barrier before the all-to-all."""

    fwd_compute_ms: float
    wait_ms: float
    fwd_all_to_all_ms: float
    bwd_all_to_all_ms: float
    bwd_compute_ms: float
    input_dist_ms: float = 0.0


@dataclass(frozen=True)
class Finding:
    """Result of one rank: the times of its steps, or a problem."""

    steps: tuple[Step, ...] = ()  # including warm-up
    problem: str = process_group.FINE  # one of ``PROBLEMS``
    reason: str = ""  # of the problem, for the user


class Worker:
    """Settings, connected ranks and kernels of one process, which keeps them between jobs."""

    def __init__(self, config: MeasureConfig, ranks: process_group.Ranks) -> None:
        self.config, self.ranks = config, ranks

    @cached_property
    def kernels(self) -> ShardKernels:
        """Return the kernels of this device."""
        return ShardKernels(self.config, self.ranks.device)

    @cached_property
    def flush(self) -> CacheFlush:
        """Return the flush of this device's L2 cache."""
        return CacheFlush(self.ranks.device, self.config.keep_cache_warm)

    def close(self) -> None:
        """Free the device."""
        if "kernels" in self.__dict__:
            self.kernels.free()


def measure_shard(worker: Worker, task: ShardingTask, placement: Placement) -> Finding:
    """Time this rank's shard in step with the other ranks.

    If a rank runs out of memory, there is no all-to-all: the other ranks then time their shards alone, with all-to-all
    and waiting times of 0.
    """
    finding, worst = run_together(worker, lambda: _run_steps(worker, task, placement, together=True))
    alone = worst == OUT_OF_MEMORY and not finding.problem
    return measure_alone(worker, task, placement) if alone else finding


def measure_alone(worker: Worker, task: ShardingTask, placement: Placement) -> Finding:
    """Time this rank's shard without the other ranks."""
    finding = try_steps(lambda: _run_steps(worker, task, placement, together=False))
    if finding.problem != OUT_OF_MEMORY:
        return finding
    worker.kernels.free()
    return try_steps(lambda: _run_steps(worker, task, placement, together=False))


def run_together(worker: Worker, steps: Callable[[], tuple[Step, ...]]) -> tuple[Finding, str]:
    """Run steps on all ranks, again if one is out of memory; return own finding and the worst problem of any rank."""
    finding, worst = Finding(), process_group.FINE
    for _ in range(2):  # memory of earlier placements may cause the first attempt to fail
        try:
            finding = try_steps(steps)
            worst = worker.ranks.agree(finding.problem) if finding.problem else process_group.FINE
        except process_group.PeerStopped as stopped:
            finding, worst = Finding(), stopped.problem
        if worst != OUT_OF_MEMORY:
            break
        worker.kernels.free()
    return finding, worst


def try_steps(run: Callable[[], tuple[Step, ...]]) -> Finding:
    """Run steps, and return their times or their problem."""
    try:
        return Finding(run())
    except OutOfDeviceMemory:
        return Finding(problem=OUT_OF_MEMORY)
    except process_group.PeerLost:
        raise
    except BadInput as error:
        return Finding(problem=process_group.INPUT_REFUSED, reason=str(error))
    except MeasurementFailed as error:
        return Finding(problem=process_group.MEASURING_FAILED, reason=str(error))


def _run_steps(worker: Worker, task: ShardingTask, placement: Placement, together: bool) -> tuple[Step, ...]:
    shards = placement.shards_of(task.tables)
    ranks, own = worker.ranks, shards[worker.ranks.rank]
    with worker.kernels.load_shard(own, task.batch_size) if own else nullcontext() as loaded:
        exchange = None
        if together:
            dims = [sum(table.embedding_dim for table in shard) for shard in shards]
            exchange = Exchange(ranks, process_group.compute_splits(dims, task.batch_size, ranks.rank))
        steps = tuple(
            _run_step(worker, loaded, exchange, number)
            for number in range(worker.config.warmup + worker.config.repeats)
        )
        if together:
            ranks.barrier()  # a rank may have failed in its last backward
        return steps


def _run_step(worker: Worker, loaded: LoadedShard | None, exchange: Exchange | None, number: int) -> Step:
    device, ranks = worker.ranks.device, worker.ranks
    pooled_BD = gradient_BD = torch.empty(0, device=device)
    fwd_ms = bwd_ms = wait_ms = fwd_exchange_ms = bwd_exchange_ms = 0.0
    worker.flush()
    if exchange is not None:
        ranks.barrier()
    if loaded is not None:
        gradient_BD = loaded.gradient
        pooled_BD, fwd_ms = time_work(device, lambda: loaded.forward(number))
    if exchange is not None:
        wait_ms = ranks.barrier()
        fwd_exchange_ms = ranks.time_collectives(lambda: exchange.send(pooled_BD))
        ranks.barrier()
        bwd_exchange_ms = ranks.time_collectives(lambda: exchange.send_back(gradient_BD))
        ranks.barrier()
    if loaded is not None:
        _, bwd_ms = time_work(device, lambda: loaded.backward(pooled_BD))
    return Step(fwd_ms, wait_ms, fwd_exchange_ms, bwd_exchange_ms, bwd_ms)


def time_work(device: torch.device, work: Callable[[], _Result]) -> tuple[_Result, float]:
    """Run the work; return its result and its time on the device, ms."""
    watch = Stopwatch(device)
    watch.mark()
    result = work()
    watch.mark()
    return result, watch.laps_ms()[0]
