"""The processes of torchrun, connected: barriers at which they agree, and the collectives that they time.

gloo has no reduce-scatter of its own: torch runs an all-reduce in its place, which sends twice as much. Between CPUs
one is an all-to-all and a sum here, which sends what a reduce-scatter sends.

Between nodes NCCL takes InfiniBand or RoCE where a process may use it, else TCP sockets; within one, the other GPU's
memory or, where that cannot be reached, the host's. It tells only its log: a measurement over the wrong network looks
like any other. The log has a line for each connection, such as
``Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3/GDRDMA`` or ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read``
(net.cc, p2p.cc and shm.cc in NVIDIA/nccl's src/transport).

Legend: N ranks of a group.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from evenshard.base.errors import MeasurementFailed
from evenshard.base.messages import reason_of
from evenshard.base.process import environment
from evenshard.base.units import seconds_to_ms
from evenshard.measure.clock import Stopwatch
from evenshard.price.costs import OUT_OF_MEMORY

FINE = ""
INPUT_REFUSED = "bad_input"
MEASURING_FAILED = "failed"
# A meeting agrees on the last of these that any rank brings.
PROBLEMS = (FINE, OUT_OF_MEMORY, INPUT_REFUSED, MEASURING_FAILED)

_CONNECTION = re.compile(r"\bvia NET/(?P<network>.+?)/\d+(?:\(\d+\))?(?P<direct>/GDRDMA)?")
_IN_NODE = re.compile(r"\bvia (?P<transport>P2P|SHM)/")
UNKNOWN = "network not known, as NCCL_DEBUG is set"
_NETWORK = "NET/"


class PeerLost(MeasurementFailed):
    """Another process hung, died, or broke its connection, after so many seconds: no exchange is possible any more."""

    def __init__(self, reason: str, waited_s: float = 0.0) -> None:
        super().__init__(reason)
        self.waited_s = waited_s


class OthersStopped(Exception):
    """Another rank cannot go on with this placement; it said so at a meeting, and all ranks are in step."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True)
class Splits:
    """Numbers of values that one rank sends to, and receives from, every rank (itself included), by rank."""

    sent: tuple[int, ...]
    received: tuple[int, ...]


def samples_of_ranks(batch_size: int, num_ranks: int) -> tuple[int, ...]:
    """Samples that each rank's dense part trains on: as even as can be, the first ranks take the odd ones."""
    each, odd = divmod(batch_size, num_ranks)
    return tuple(each + (rank < odd) for rank in range(num_ranks))


def pooled_splits(device_dims: Sequence[int], batch_size: int, rank: int) -> Splits:
    """Return a rank's splits of the all-to-all of pooled embeddings; the gradients travel with both sides swapped.

    ``device_dims`` are the sums of the embedding dims of each device's tables.
    """
    samples = samples_of_ranks(batch_size, len(device_dims))
    return Splits(
        sent=tuple(count * device_dims[rank] for count in samples),
        received=tuple(samples[rank] * dims for dims in device_dims),
    )


class Ranks:
    """All processes, connected: gloo for data of CPUs and agreement of the hosts, NCCL for data of GPUs.

    Every method that needs the others raises PeerLost if one of them does not take part within ``timeout_s``.
    ``networks`` are those that any rank's connections take, on rank 0 alone; see ``networks_in``.
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        """Joins the process group, and exchanges a little so that all connections stand before anything is timed."""
        self.rank, self.size, self.device = rank, size, device
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self._timeout_s = timeout_s
        self._nodes: dict[int, dist.ProcessGroup] = {}
        # NCCL's watchdog must not take this process down before it has said which rank is lost.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        with nccl_log() as log:
            with self._detect_lost_peer():
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                    store=store,
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=timeout_s),
                )
            little = torch.zeros(size, device=device)
            self.all_to_all_ms(torch.empty_like(little), little, Splits((1,) * size, (1,) * size))
            own = networks_in(log) if self.backend == "nccl" else set()
        self.networks = {
            one for of_rank in self.gather(json.dumps(sorted(own)).encode()) for one in json.loads(of_rank)
        }

    def meet(self, problem: str = FINE) -> str:
        """A barrier at which the ranks agree: returns the worst problem that any of them brings.

        A rank that cannot go on comes to the barrier that the others wait at next, and brings its problem.
        """
        if problem == FINE and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the host's barrier says nothing about work that is only queued
        worst = torch.tensor([PROBLEMS.index(problem)])
        with self._detect_lost_peer():
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

    def timed_ms(self, exchanges: Callable[[], None]) -> float:
        """Duration of collectives, one after the other, on this rank, ms."""
        watch = Stopwatch(self.device)
        with self._detect_lost_peer():
            watch.mark()
            exchanges()
            watch.mark()
            self._wait_for_device()
        return watch.laps_ms()[0]

    def all_to_all_ms(
        self, received: torch.Tensor, sent: torch.Tensor, splits: Splits, group: dist.ProcessGroup | None = None
    ) -> float:
        """One all-to-all of flat tensors on the device; returns its duration on this rank, ms."""
        return self.timed_ms(lambda: self.all_to_all(received, sent, splits, group))

    def all_to_all(
        self, received: torch.Tensor, sent: torch.Tensor, splits: Splits, group: dist.ProcessGroup | None = None
    ) -> None:
        """Exchanges flat tensors among the ranks of a group, or of all if None. Its callers time it."""
        dist.all_to_all_single(received, sent, list(splits.received), list(splits.sent), group=group)

    def reduce_scatter(self, own: torch.Tensor, buffer: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Fill ``own`` with the sum over a group of this rank's part of a flat buffer, [N * own]."""
        if self.backend == "nccl":
            dist.reduce_scatter(own, list(buffer.view(-1, own.numel())), group=group)
            return
        received = torch.empty_like(buffer)
        dist.all_to_all_single(received, buffer, group=group)
        torch.sum(received.view(-1, own.numel()), dim=0, out=own)

    def all_gather(self, buffer: torch.Tensor, own: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Fills a flat buffer, [N * own], with those of every rank of a group."""
        dist.all_gather(list(buffer.view(-1, own.numel())), own, group=group)

    def all_reduce(self, summed: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Sums up a tensor over the ranks of a group, in place; None for all."""
        dist.all_reduce(summed, group=group)

    def node_group(self, devices_per_node: int) -> dist.ProcessGroup:
        """The group of this rank's node; all ranks ask for it at the same time."""
        if devices_per_node not in self._nodes:
            with self._detect_lost_peer():
                for first in range(0, self.size, devices_per_node):  # every rank takes part in making every group
                    members = range(first, first + devices_per_node)
                    group = dist.new_group(list(members), timeout=timedelta(seconds=self._timeout_s))
                    if self.rank in members:
                        self._nodes[devices_per_node] = group
        return self._nodes[devices_per_node]

    def gather(self, own: bytes) -> list[bytes]:
        """The ``own`` of each rank, on rank 0; an empty list elsewhere. Bytes, as objects would come as pickles."""
        with self._detect_lost_peer():
            length = torch.tensor([len(own)])
            lengths = [torch.zeros_like(length) for _ in range(self.size)]
            dist.all_gather(lengths, length)
            padded = torch.zeros(max(map(int, lengths)), dtype=torch.uint8)
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
            everyones = [torch.empty_like(padded) for _ in lengths] if self.rank == 0 else None
            dist.gather(padded, everyones)
        return [bytes(one[:size].numpy()) for one, size in zip(everyones or [], lengths, strict=False)]

    def _wait_for_device(self) -> None:
        """Wait with a deadline, because an event never completes if a rank is lost."""
        if self.device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self.device)
        deadline = time.monotonic() + self._timeout_s
        while not stream.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.backend} did not end an exchange within {self._timeout_s:g} s")

    @contextmanager
    def _detect_lost_peer(self) -> Iterator[None]:
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


@contextmanager
def nccl_log() -> Iterator[Path | None]:
    """A file that gets NCCL's lines about connections that this process makes inside.

    NCCL reads its settings once in a process. Where the user has set NCCL_DEBUG, its log stays theirs: None.
    """
    if "NCCL_DEBUG" in os.environ:
        yield None
        return
    handle, name = tempfile.mkstemp(prefix="evenshard-nccl-")
    os.close(handle)
    settings = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET,P2P,SHM", "NCCL_DEBUG_FILE": name}
    try:
        with environment(settings):
            yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def networks_in(log: Path | None) -> set[str]:
    """Return the transports of a process: NET/IB/GDRDMA, NET/IB or NET/Socket between nodes, P2P or SHM within one."""
    if log is None:
        return {UNKNOWN}
    text = log.read_text(errors="replace")
    found = {f"{_NETWORK}{one['network']}{one['direct'] or ''}" for one in _CONNECTION.finditer(text)}
    return found | {one["transport"] for one in _IN_NODE.finditer(text)}


def link_of(backend: str, networks: Iterable[str]) -> str:
    """Return the link as a provenance names it: the backend and the networks of all ranks, such as nccl (NET/IB)."""
    named = ", ".join(sorted(set(networks)))
    return f"{backend} ({named})" if named else backend


def transport_problem(expected: str, backend: str, networks: Iterable[str]) -> str | None:
    """Say why exchanges do not all take the network that was asked for, such as ib or socket; None if they do."""
    found = {one for one in networks if one.startswith(_NETWORK) or one == UNKNOWN}
    if not expected or (found and all(one.split("/")[1:2] == [expected] for one in map(str.lower, found))):
        return None
    if backend != "nccl":
        return f"exchanges of CPUs go through {backend}, not NET/{expected}. Leave --expect-transport out."
    if UNKNOWN in found:
        return "NCCL_DEBUG is set, so evenshard does not see which network NCCL takes. Unset it."
    taken = f"NCCL takes {', '.join(sorted(found))}" if found else "no connection of NCCL's leaves its node"
    return (
        f"{taken}, where NET/{expected} is expected. Give the pods the network's devices (k8s/trainjob-rdma does), or "
        f"leave --expect-transport out."
    )
