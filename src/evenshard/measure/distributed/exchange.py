"""The exchange between devices that measure one placement together: real all-to-alls, timed apart from waiting.

Every process of torchrun is one device; its rank is the device id. A device pools its tables for the whole global batch
and sends rank s the pooled embeddings of that one's samples; after the dense part the gradients travel back.

::

    | flush, barrier | forward | barrier | all-to-all | barrier | all-to-all back | barrier | backward |
                         timed     wait       timed                  timed                     timed

What a barrier costs is booked nowhere: the last rank to reach it waits for no other, so the shortest wait is the
barrier's own. Ranks leave a barrier some tens of microseconds apart; that much of waiting stays in the exchanges.

Legend: B samples of the global batch, D values of one device's pooled embeddings of one sample.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from evenshard.measure.clock import CacheFlush, stopwatch
from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import OUT_OF_MEMORY
from evenshard.measure.fbgemm import LoadedShard, OutOfDeviceMemory, ShardKernels
from evenshard.placement.placement import Placement
from evenshard.placement.task import PlacementTask
from evenshard.utils.errors import BadInput, MeasurementFailed
from evenshard.utils.messages import reason_of
from evenshard.utils.units import seconds_to_ms

_Result = TypeVar("_Result")

FINE = ""
INPUT_REFUSED = "bad_input"
MEASURING_FAILED = "failed"
PROBLEMS = (
    FINE,
    OUT_OF_MEMORY,
    INPUT_REFUSED,
    MEASURING_FAILED,
)  # a meeting agrees on the last of these that any rank brings

MAX_ANSWER_BYTES = 64 * 1024**2  # a thousand steps have 100 KB
GRADIENT = 1e-3  # what the dense part sends back; the value does not change how long anything takes


class PeerLost(MeasurementFailed):
    """Another process hung, died, or broke its connection: no exchange is possible any more.

    Args:
        reason: how it became visible.
        waited_s: seconds spent waiting until then.
    """

    def __init__(self, reason: str, waited_s: float = 0.0) -> None:
        super().__init__(reason)
        self.waited_s = waited_s


class OthersStopped(Exception):
    """Another rank cannot go on with this placement; it said so at a meeting, and all ranks are in step."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


# Who gets what -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Splits:
    """How many values one rank sends to, and receives from, every rank (itself included), by rank."""

    sent: tuple[int, ...]
    received: tuple[int, ...]


def samples_of_ranks(batch_size: int, num_ranks: int) -> tuple[int, ...]:
    """Samples that each rank's dense part trains on: as even as can be, the first ranks take the odd ones."""
    each, odd = divmod(batch_size, num_ranks)
    return tuple(each + (rank < odd) for rank in range(num_ranks))


def pooled_splits(device_dims: Sequence[int], batch_size: int, rank: int) -> Splits:
    """The splits of the all-to-all of pooled embeddings; the gradients travel with both sides swapped.

    Args:
        device_dims: sum of the embedding dims of each device's tables.
        batch_size: global batch, samples.
        rank: the rank whose splits these are.
    """
    samples = samples_of_ranks(batch_size, len(device_dims))
    return Splits(
        sent=tuple(count * device_dims[rank] for count in samples),
        received=tuple(samples[rank] * dims for dims in device_dims),
    )


# The process group ---------------------------------------------------------------------------------------------------


class Ranks:
    """All processes, connected: gloo for what the hosts agree on and for data of CPUs, NCCL for data of GPUs.

    Every method that needs the others raises PeerLost if one of them does not take part within ``timeout_s``.

    Attributes:
        rank: rank of this process.
        size: processes altogether.
        device: device of this process.
        backend: backend of the exchanges, "gloo" or "nccl".
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        """Joins the process group, and exchanges a little so that all connections stand before anything is timed."""
        self.rank, self.size, self.device = rank, size, device
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self._timeout_s = timeout_s
        # NCCL's watchdog must not take this process down before it has said which rank is lost.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        with self._answered():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s),
            )
        little = torch.zeros(size, device=device)
        self.all_to_all_ms(torch.empty_like(little), little, Splits((1,) * size, (1,) * size))

    def meet(self, problem: str = FINE) -> str:
        """A barrier at which the ranks agree: returns the worst problem that any of them brings.

        A rank that cannot go on comes to the barrier that the others wait at next, and brings its problem.
        """
        if problem == FINE and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the host's barrier says nothing about work that is only queued
        worst = torch.tensor([PROBLEMS.index(problem)])
        with self._answered():
            dist.all_reduce(worst, dist.ReduceOp.MAX)
        return PROBLEMS[int(worst)]

    def go_on_together(self) -> float:
        """A barrier of ranks that are fine; returns the time spent at it, ms.

        Raises:
            OthersStopped: if a rank brings a problem.
        """
        came = time.perf_counter()
        worst = self.meet()
        waited_ms = seconds_to_ms(time.perf_counter() - came)
        if worst != FINE:
            raise OthersStopped(worst)
        return waited_ms

    def all_to_all_ms(self, received: torch.Tensor, sent: torch.Tensor, splits: Splits) -> float:
        """One all-to-all of flat tensors on the device; returns its duration on this rank, ms."""
        watch = stopwatch(self.device)
        with self._answered():
            watch.mark()
            dist.all_to_all_single(received, sent, list(splits.received), list(splits.sent))
            watch.mark()
            self._wait_for_device()
        return watch.laps_ms()[0]

    def gather(self, own: bytes) -> list[bytes]:
        """The ``own`` of each rank, on rank 0; an empty list elsewhere. Bytes, as objects would come as pickles."""
        with self._answered():
            length = torch.tensor([len(own)])
            lengths = [torch.zeros_like(length) for _ in range(self.size)]
            dist.all_gather(lengths, length)
            longest = max(map(int, lengths))
            if longest > MAX_ANSWER_BYTES:
                raise RuntimeError(f"an answer has {longest:,} bytes, more than {MAX_ANSWER_BYTES:,}")
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
            everyones = [torch.empty_like(padded) for _ in lengths] if self.rank == 0 else None
            dist.gather(padded, everyones)
        return [bytes(one[:size].numpy()) for one, size in zip(everyones or [], lengths, strict=False)]

    def _wait_for_device(self) -> None:
        """The host's own deadline for an exchange of GPUs: waiting for an event would never end if a rank is lost."""
        if self.device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self.device)
        deadline = time.monotonic() + self._timeout_s
        while not stream.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.backend} did not end an exchange within {self._timeout_s:g} s")

    @contextmanager
    def _answered(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # all that torch.distributed raises when a rank is lost
            raise PeerLost(reason_of(error), time.monotonic() - began) from error


def leave_group(orderly: bool) -> None:
    """Frees the process group, if there is one; without order, no other rank is waited for."""
    if not dist.is_initialized():
        return
    if not orderly and dist.group.WORLD is not None:
        dist.group.WORLD.abort()
    dist.destroy_process_group()


class Exchange:
    """The two all-to-alls of one placement.

    Attributes:
        received: flat; this rank's samples of every rank's pooled embeddings: rank after rank, each [own samples, D].
        gradient: flat, laid out like ``received``: what the dense part sends back.
    """

    def __init__(self, ranks: Ranks, splits: Splits) -> None:
        self._ranks, self._forth = ranks, splits
        self._back = Splits(sent=splits.received, received=splits.sent)
        self.received = torch.empty(sum(splits.received), device=ranks.device)
        self.gradient = torch.full_like(self.received, GRADIENT)

    def forward_ms(self, pooled_BD: torch.Tensor) -> float:
        """Sends this device's pooled embeddings and fills ``received``; its duration, ms."""
        return self._ranks.all_to_all_ms(self.received, pooled_BD.detach().view(-1), self._forth)

    def backward_ms(self, gradient_BD: torch.Tensor) -> float:
        """Sends ``gradient`` and fills the gradient of this device's pooled embeddings; its duration, ms."""
        return self._ranks.all_to_all_ms(gradient_BD.view(-1), self.gradient, self._back)


# One placement -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Times of one training step on one rank, ms; ``wait_ms`` is the barrier between forward and exchange."""

    fwd_compute_ms: float
    wait_ms: float
    fwd_all_to_all_ms: float
    bwd_all_to_all_ms: float
    bwd_compute_ms: float


@dataclass(frozen=True)
class Finding:
    """What one rank has to say about its shard.

    Attributes:
        steps: warm-up steps first; empty if there is a problem.
        problem: one of PROBLEMS.
        reason: reason for a problem, for people.
    """

    steps: tuple[Step, ...] = ()
    problem: str = FINE
    reason: str = ""


class Worker:
    """One process and its device: what it keeps from one job to the next."""

    def __init__(self, config: MeasureConfig, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks

    @cached_property
    def kernels(self) -> ShardKernels:
        """Of this device."""
        return ShardKernels(self.config, self.ranks.device)

    @cached_property
    def flush(self) -> CacheFlush:
        """Of this device's L2."""
        return CacheFlush(self.ranks.device, self.config.keep_cache_warm)

    def close(self) -> None:
        """Frees the device."""
        if "kernels" in self.__dict__:
            self.kernels.free()


def measure_shard(worker: Worker, task: PlacementTask, placement: Placement) -> Finding:
    """Runs this rank's shard in step with the others.

    If a rank runs out of memory there is no exchange: the others then run their shards alone, with all-to-all and
    waiting times of 0.
    """
    finding = Finding()
    for _ in range(2):  # what earlier shards left behind may have been in the way of the first attempt
        finding, worst = _together(worker, task, placement)
        if worst != OUT_OF_MEMORY:
            return finding
        worker.kernels.free()
    return finding if finding.problem else measure_alone(worker, task, placement)


def measure_alone(worker: Worker, task: PlacementTask, placement: Placement) -> Finding:
    """Runs this rank's shard without the others."""
    finding = _attempt(lambda: _steps(worker, task, placement, together=False))
    if finding.problem != OUT_OF_MEMORY:
        return finding
    worker.kernels.free()
    return _attempt(lambda: _steps(worker, task, placement, together=False))


def _together(worker: Worker, task: PlacementTask, placement: Placement) -> tuple[Finding, str]:
    """This rank's finding, and the worst problem of any rank: all of them leave here in step."""
    try:
        finding = _attempt(lambda: _steps(worker, task, placement, together=True))
    except OthersStopped as stopped:
        return Finding(), stopped.problem
    if finding.problem == FINE:
        return finding, FINE
    return finding, worker.ranks.meet(finding.problem)


def _attempt(run: Callable[[], tuple[Step, ...]]) -> Finding:
    try:
        return Finding(run())
    except OutOfDeviceMemory:
        return Finding(problem=OUT_OF_MEMORY)
    except PeerLost:
        raise
    except BadInput as error:
        return Finding(problem=INPUT_REFUSED, reason=str(error))
    except MeasurementFailed as error:
        return Finding(problem=MEASURING_FAILED, reason=str(error))


def _steps(worker: Worker, task: PlacementTask, placement: Placement, together: bool) -> tuple[Step, ...]:
    shards = [[task.tables[position] for position in shard] for shard in placement.shards()]
    ranks, own = worker.ranks, shards[worker.ranks.rank]
    with _loaded(worker, own, task.batch_size) as loaded:
        exchange = None
        if together:
            dims = [sum(table.embedding_dim for table in shard) for shard in shards]
            exchange = Exchange(ranks, pooled_splits(dims, task.batch_size, ranks.rank))
        steps = tuple(
            _step(worker, loaded, exchange, number) for number in range(worker.config.warmup + worker.config.repeats)
        )
        if together:
            ranks.go_on_together()  # a rank may have failed in its last backward
        return steps


def _loaded(worker: Worker, shard: Sequence[Any], batch_size: int) -> AbstractContextManager[LoadedShard | None]:
    """The shard on its device; None for a rank that holds no table."""
    return worker.kernels.loaded(shard, batch_size) if shard else nullcontext()


def _step(worker: Worker, loaded: LoadedShard | None, exchange: Exchange | None, number: int) -> Step:
    device, ranks = worker.ranks.device, worker.ranks
    pooled_BD = gradient_BD = torch.empty(0, device=device)
    fwd_ms = bwd_ms = wait_ms = fwd_exchange_ms = bwd_exchange_ms = 0.0
    worker.flush()
    if exchange is not None:
        ranks.go_on_together()
    if loaded is not None:
        gradient_BD = loaded.gradient
        pooled_BD, fwd_ms = _timed(device, lambda: loaded.forward(number))
    if exchange is not None:
        wait_ms = ranks.go_on_together()
        fwd_exchange_ms = exchange.forward_ms(pooled_BD)
        ranks.go_on_together()
        bwd_exchange_ms = exchange.backward_ms(gradient_BD)
        ranks.go_on_together()
    if loaded is not None:
        _, bwd_ms = _timed(device, lambda: loaded.backward(pooled_BD))
    return Step(fwd_ms, wait_ms, fwd_exchange_ms, bwd_exchange_ms, bwd_ms)


def _timed(device: torch.device, work: Callable[[], _Result]) -> tuple[_Result, float]:
    """What the work returns, and how long the device took for it, ms."""
    watch = stopwatch(device)
    watch.mark()
    result = work()
    watch.mark()
    return result, watch.laps_ms()[0]
