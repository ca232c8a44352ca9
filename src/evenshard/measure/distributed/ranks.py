"""Process group of the ranks that torchrun starts, with barriers that share errors, and timed collectives.

gloo has no reduce-scatter of its own: torch runs an all-reduce instead, which sends twice as much. Between CPUs this
module uses an all-to-all and a sum, which sends as much as a reduce-scatter.

Between nodes, NCCL uses InfiniBand or RoCE if the process has access to it, else TCP sockets. Within a node, it uses
the peer GPU's memory, else host memory. A measurement over the wrong network looks normal; only NCCL's log shows the
network, with a line for each connection, such as ``Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3/GDRDMA`` or
``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read`` (net.cc, p2p.cc and shm.cc in NVIDIA/nccl's src/transport).

Letter in shapes: N ranks of a group.
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

FINE = ""  # no problem
INPUT_REFUSED = "bad_input"
MEASURING_FAILED = "failed"
# Problems by severity: ranks agree on the last of these that any rank reports.
PROBLEMS = (FINE, OUT_OF_MEMORY, INPUT_REFUSED, MEASURING_FAILED)

_CONNECTION = re.compile(r"\bvia NET/(?P<network>.+?)/\d+(?:\(\d+\))?(?P<direct>/GDRDMA)?")
_IN_NODE = re.compile(r"\bvia (?P<transport>P2P|SHM)/")
UNKNOWN = "network not known, as NCCL_DEBUG is set"
_NETWORK = "NET/"


class PeerLost(MeasurementFailed):
    """Hang, death or broken connection of another process; no further communication is possible."""

    def __init__(self, reason: str, waited_s: float = 0.0) -> None:
        super().__init__(reason)
        self.waited_s = waited_s  # until the loss was detected


class PeerStopped(Exception):
    """Failure that another rank reports at a barrier; all ranks are still connected and in step."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True)
class Splits:
    """Numbers of values that one rank sends to each rank and receives from each rank, including itself."""

    sent: tuple[int, ...]
    received: tuple[int, ...]


def split_samples(batch_size: int, num_ranks: int) -> tuple[int, ...]:
    """Return the number of samples per rank, as even as possible; the first ranks take the remainder."""
    each, odd = divmod(batch_size, num_ranks)
    return tuple(each + (rank < odd) for rank in range(num_ranks))


def compute_splits(device_dims: Sequence[int], batch_size: int, rank: int) -> Splits:
    """Return a rank's splits for the all-to-all of pooled embeddings; swap sent and received for the gradients.

    ``device_dims[d]`` is the sum of the embedding dims of device d's tables.
    """
    samples = split_samples(batch_size, len(device_dims))
    return Splits(
        sent=tuple(count * device_dims[rank] for count in samples),
        received=tuple(samples[rank] * dims for dims in device_dims),
    )


class Ranks:
    """All ranks, connected by gloo for CPU data and barriers, and by NCCL for GPU data.

    Every method that involves other ranks raises PeerLost if a rank does not take part within ``timeout_s``.
    ``networks`` names the networks that all connections use, on rank 0 only; see ``networks_in``.
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        """Join the process group and communicate once, so that all connections exist before anything is timed."""
        self.rank, self.size, self.device = rank, size, device
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self._timeout_s = timeout_s
        self._nodes: dict[int, dist.ProcessGroup] = {}
        # NCCL's watchdog must not end this process before it has reported the lost rank.
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
            splits = Splits((1,) * size, (1,) * size)
            self.time_collectives(lambda: self.all_to_all(torch.empty_like(little), little, splits))
            own = networks_in(log) if self.backend == "nccl" else set()
        self.networks = {
            network for of_rank in self.gather(json.dumps(sorted(own)).encode()) for network in json.loads(of_rank)
        }

    def agree(self, problem: str = FINE) -> str:
        """Wait at a barrier and return the worst problem that any rank reports.

        A rank that cannot continue calls this instead of its next ``barrier``, where the other ranks wait.
        """
        if problem == FINE and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the host's barrier does not wait for queued work
        worst = torch.tensor([PROBLEMS.index(problem)])
        with self._detect_lost_peer():
            dist.all_reduce(worst, dist.ReduceOp.MAX)
        return PROBLEMS[int(worst)]

    def barrier(self) -> float:
        """Wait at a barrier, report no problem, and return the time spent there, ms.

        Raises:
            PeerStopped: if a rank reports a problem.
        """
        came = time.perf_counter()
        worst = self.agree()
        waited_ms = seconds_to_ms(time.perf_counter() - came)
        if worst != FINE:
            raise PeerStopped(worst)
        return waited_ms

    def time_collectives(self, run: Callable[[], None]) -> float:
        """Run collectives in sequence and return their duration on this rank, ms."""
        watch = Stopwatch(self.device)
        with self._detect_lost_peer():
            watch.mark()
            run()
            watch.mark()
            if self.device.type == "cuda":  # wait until the timeout: a collective with a lost rank never completes
                stream = torch.cuda.current_stream(self.device)
                deadline = time.monotonic() + self._timeout_s
                while not stream.query():
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{self.backend} did not finish a collective within {self._timeout_s:g} s")
        return watch.laps_ms()[0]

    def all_to_all(
        self, received: torch.Tensor, sent: torch.Tensor, splits: Splits, group: dist.ProcessGroup | None = None
    ) -> None:
        """Run an all-to-all of flat tensors in a group, or among all ranks if None; callers time it."""
        dist.all_to_all_single(received, sent, list(splits.received), list(splits.sent), group=group)

    def reduce_scatter(self, own: torch.Tensor, buffer: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Sum flat buffers, with a block per rank of the group, and fill ``own`` with this rank's block of the sum."""
        if self.backend == "nccl":
            dist.reduce_scatter(own, list(buffer.view(-1, own.numel())), group=group)
            return
        received = torch.empty_like(buffer)
        dist.all_to_all_single(received, buffer, group=group)
        torch.sum(received.view(-1, own.numel()), dim=0, out=own)

    def node_group(self, devices_per_node: int) -> dist.ProcessGroup:
        """Return the group of this rank's node; all ranks must call this at the same time."""
        if devices_per_node not in self._nodes:
            with self._detect_lost_peer():
                for first in range(0, self.size, devices_per_node):  # every rank takes part in creating every group
                    members = range(first, first + devices_per_node)
                    group = dist.new_group(list(members), timeout=timedelta(seconds=self._timeout_s))
                    if self.rank in members:
                        self._nodes[devices_per_node] = group
        return self._nodes[devices_per_node]

    def gather(self, own: bytes) -> list[bytes]:
        """Return the bytes of all ranks on rank 0, and [] on other ranks; bytes are sent to avoid unpickling."""
        with self._detect_lost_peer():
            length = torch.tensor([len(own)])
            lengths = [torch.zeros_like(length) for _ in range(self.size)]
            dist.all_gather(lengths, length)
            padded = torch.zeros(max(map(int, lengths)), dtype=torch.uint8)
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
            everyones = [torch.empty_like(padded) for _ in lengths] if self.rank == 0 else None
            dist.gather(padded, everyones)
        return [bytes(sent[:size].numpy()) for sent, size in zip(everyones or [], lengths, strict=False)]

    @contextmanager
    def _detect_lost_peer(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:  # the only error of torch.distributed when a rank is lost
            raise PeerLost(reason_of(error), time.monotonic() - began) from error


def leave_group(orderly: bool) -> None:
    """Destroy the process group, if there is one; without ``orderly``, do not wait for other ranks."""
    if not dist.is_initialized():
        return
    if not orderly and dist.group.WORLD is not None:
        dist.group.WORLD.abort()
    dist.destroy_process_group()


@contextmanager
def nccl_log() -> Iterator[Path | None]:
    """Yield a file with NCCL's log of the connections made inside the block.

    Yield None if the user has set NCCL_DEBUG, because NCCL then writes its log where the user wants it.
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
    """Return the networks in NCCL's log: NET/IB/GDRDMA, NET/IB or NET/Socket between nodes, P2P or SHM within one."""
    if log is None:
        return {UNKNOWN}
    text = log.read_text(errors="replace")
    found = {f"{_NETWORK}{match['network']}{match['direct'] or ''}" for match in _CONNECTION.finditer(text)}
    return found | {match["transport"] for match in _IN_NODE.finditer(text)}


def link_of(backend: str, networks: Iterable[str]) -> str:
    """Return the link's name in the provenance: backend and networks, such as nccl (NET/IB)."""
    named = ", ".join(sorted(set(networks)))
    return f"{backend} ({named})" if named else backend


def transport_problem(expected: str, backend: str, networks: Iterable[str]) -> str | None:
    """Return None if all connections use the expected network, such as ib or socket; else describe the problem."""
    found = {network for network in networks if network.startswith(_NETWORK) or network == UNKNOWN}
    if not expected or (found and all(network.split("/")[1:2] == [expected] for network in map(str.lower, found))):
        return None
    if backend != "nccl":
        return f"CPUs communicate through {backend}, not NET/{expected}. Remove --expect-transport."
    if UNKNOWN in found:
        return "NCCL_DEBUG is set, so evenshard cannot read which network NCCL uses. Unset NCCL_DEBUG."
    taken = f"NCCL uses {', '.join(sorted(found))}" if found else "no NCCL connection leaves its node"
    return (
        f"{taken}, but NET/{expected} is expected. Give the pods the network devices (as k8s/trainjob-rdma does), or "
        f"remove --expect-transport."
    )
