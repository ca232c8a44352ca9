"""Jobs that all ranks of a measurement run together; jobs and answers are sent as JSON.

Any process that reaches the port of torchrun's store can write to it. Therefore a job is plain data of a known kind
that is validated before use, and never code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist

from evenshard.base.documents import load_json
from evenshard.base.errors import BadConfig
from evenshard.base.knobs import MAX_TOTAL_BYTES, RANGES
from evenshard.base.messages import brief
from evenshard.base.typed import record_of
from evenshard.measure.distributed.exchange import Finding, Worker, measure_shard
from evenshard.measure.distributed.ranks import Splits
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import Placement, list_broken_rules, parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.tables.table import Table

WARMUP_PASSES = 1  # the first call of a collective sets up its connections and buffers
# A pass of all-to-alls has many calls, so a disturbance affects few of them. Other collectives need more passes.
TIMED_PASSES, COLLECTIVE_PASSES = 7, 21
# Tiers of ``TimeExchanges``: the ranks that communicate.
EVERYONE, IN_NODE, BETWEEN_NODES = "everyone", "in_node", "between_nodes"


class RankJob(Protocol):
    """Interface of a job that all ranks run at once; implemented by frozen dataclasses of plain values."""

    ANSWER: ClassVar[Any]  # type of a rank's answer

    def check(self, num_ranks: int) -> None:
        """Raise ValueError if this number of ranks cannot run the job."""

    def run(self, worker: Worker) -> Any:
        """Run this rank's part, in step with the other ranks."""


@dataclass(frozen=True)
class PlacementJob:
    """Job that measures a placement; rank r measures device r.

    The job does not contain placement rules or memory limits.
    """

    tables: tuple[Table, ...]
    machine: Nodes
    batch_size: int
    parts: tuple[TablePart, ...]
    ANSWER: ClassVar[Any] = Finding

    @property
    def task(self) -> ShardingTask:
        """Return the sharding task of the tables, with memory for any placement."""
        devices = self.machine.num_devices
        return ShardingTask(self.tables, self.machine, (MAX_TOTAL_BYTES // devices,) * devices, self.batch_size)

    def check(self, num_ranks: int) -> None:
        """Check the job; see ``RankJob``."""
        if not self.tables:
            raise ValueError("a placement has no tables")
        for table in self.tables:
            if problem := table.problem():
                raise ValueError(f"table {brief(table.name)}: {problem}")
        if self.machine.num_devices != num_ranks:
            raise ValueError(f"a placement on {self.machine.num_devices} devices cannot run on {num_ranks} ranks")
        if problem := self.machine.problem() or RANGES["batch_size"].problem(self.batch_size):
            raise ValueError(problem)
        try:
            parts_by_table(self.task, self.parts)
        except BadConfig as error:
            raise ValueError(str(error)) from None

    def run(self, worker: Worker) -> Finding:
        """Run this rank's part; see ``RankJob``."""
        raise NotImplementedError


@dataclass(frozen=True)
class MeasurePlacement(PlacementJob):
    """Job that measures a placement of whole tables by ``measure_shard``."""

    @property
    def task(self) -> ShardingTask:
        """Return the task, with whole tables."""
        return super().task.as_whole

    def check(self, num_ranks: int) -> None:
        """Check the job; see ``RankJob``."""
        super().check(num_ranks)
        for broken in list_broken_rules(self.task, parts_by_table(self.task, self.parts)):
            raise ValueError(broken)

    def run(self, worker: Worker) -> Finding:
        """Run this rank's part; see ``RankJob``."""
        device_of = {part.table: part.device for part in self.parts}
        devices = tuple(device_of[table.name] for table in self.tables)
        return measure_shard(worker, self.task, Placement(devices, self.machine.num_devices))


@dataclass(frozen=True)
class TimeExchanges:
    """Job that times the same all-to-alls on every rank; a rank's answer is the median duration of each, ms."""

    exchanges: tuple[tuple[int, ...], ...]  # for each all-to-all, by sending rank: values sent to each peer
    # A rank's peers: ``EVERYONE``, all ranks with itself; ``IN_NODE``, its node with itself, on all nodes at once; or
    # ``BETWEEN_NODES``, the ranks of other nodes.
    tier: str = EVERYONE
    devices_per_node: int = 0  # number of ranks per node
    ANSWER: ClassVar[Any] = tuple[float, ...]

    def check(self, num_ranks: int) -> None:
        """Check the job; see ``RankJob``."""
        if self.tier != EVERYONE and (self.devices_per_node < 1 or num_ranks % self.devices_per_node):
            raise ValueError(f"{num_ranks} ranks cannot be divided into nodes of {brief(self.devices_per_node)}")
        for values in self.exchanges:
            if len(values) != num_ranks or min(values) < 0:
                raise ValueError(f"{brief(values)} must have a nonnegative count for each of {num_ranks} ranks")

    def run(self, worker: Worker) -> tuple[float, ...]:
        """Run this rank's part; see ``RankJob``."""
        ranks = worker.ranks
        group, members = None, range(ranks.size)
        if self.tier == IN_NODE:
            group = ranks.node_group(self.devices_per_node)
            first = ranks.rank - ranks.rank % self.devices_per_node
            members = range(first, first + self.devices_per_node)
        own_node = ranks.rank // self.devices_per_node if self.tier == BETWEEN_NODES else -1
        peers = [own_node < 0 or rank // self.devices_per_node != own_node for rank in members]
        most_sent = len(members) * max(values[ranks.rank] for values in self.exchanges)
        most_received = max(map(sum, self.exchanges))
        sent, received = torch.zeros(most_sent, device=ranks.device), torch.zeros(most_received, device=ranks.device)

        def run_pass() -> Iterator[float]:
            for values in self.exchanges:
                splits = Splits(
                    tuple(is_peer * values[ranks.rank] for is_peer in peers),
                    tuple(is_peer * values[rank] for is_peer, rank in zip(peers, members, strict=True)),
                )
                own, others = sent[: sum(splits.sent)], received[: sum(splits.received)]
                ranks.barrier()
                yield ranks.time_collectives(partial(ranks.all_to_all, others, own, splits, group))

        return _compute_medians(run_pass, TIMED_PASSES)


@dataclass(frozen=True)
class TimeCollectives:
    """Job that times all-gather, reduce-scatter and all-reduce in all groups of ranks at once.

    The answer contains median durations, ms: all-gather at every size, then reduce-scatter, then all-reduce.
    """

    values: tuple[int, ...]  # sizes: values that each rank contributes to the all-gather
    ranks_per_group: int
    ANSWER: ClassVar[Any] = tuple[float, ...]

    def check(self, num_ranks: int) -> None:
        """Check the job; see ``RankJob``."""
        if self.ranks_per_group < 1 or num_ranks % self.ranks_per_group:
            raise ValueError(f"{num_ranks} ranks cannot be divided into groups of {brief(self.ranks_per_group)}")
        if not self.values or min(self.values) < 1:
            raise ValueError(f"{brief(self.values)} are not valid sizes")

    def run(self, worker: Worker) -> tuple[float, ...]:
        """Run this rank's part; see ``RankJob``."""
        ranks, size = worker.ranks, self.ranks_per_group
        group = None if size == ranks.size else ranks.node_group(size)
        part, whole = (torch.zeros(most, device=ranks.device) for most in (max(self.values), size * max(self.values)))
        calls: list[Callable[[torch.Tensor, torch.Tensor], None]] = [
            lambda own, buffer: dist.all_gather(list(buffer.view(-1, own.numel())), own, group=group),
            lambda own, buffer: ranks.reduce_scatter(own, buffer, group),
            lambda own, buffer: dist.all_reduce(buffer, group=group),
        ]

        def run_pass() -> Iterator[float]:
            for call in calls:
                for values in self.values:
                    timed = partial(call, part[:values], whole[: size * values])
                    ranks.barrier()
                    yield ranks.time_collectives(timed)

        return _compute_medians(run_pass, COLLECTIVE_PASSES)


def _compute_medians(run_pass: Callable[[], Iterator[float]], timed_passes: int) -> tuple[float, ...]:
    passes = [list(run_pass()) for _ in range(WARMUP_PASSES + timed_passes)]
    medians: list[float] = np.median(passes[WARMUP_PASSES:], axis=0).tolist()
    return tuple(medians)


Kinds = Mapping[str, type[RankJob]]
JOBS: Kinds = {kind.__name__: kind for kind in (MeasurePlacement, TimeExchanges, TimeCollectives)}


@dataclass(frozen=True)
class _Envelope:
    job: str
    settings: dict[str, Any]


def encode_job(job: RankJob | None) -> str:
    """Encode a job for the store; None means that there are no more jobs."""
    if job is None:
        return "null"
    return json.dumps(asdict(_Envelope(type(job).__name__, asdict(job))))  # type: ignore[call-overload]


def decode_job(content: str | bytes, kinds: Kinds, num_ranks: int) -> RankJob | None:
    """Decode and check a job of ``encode_job``.

    Raises:
        ValueError: if the content is not a job, or ``num_ranks`` ranks cannot run it. The message is one line.
    """
    plain = load_json(content)
    if plain is None:
        return None
    envelope = record_of(_Envelope, plain)
    if envelope.job not in kinds:
        raise ValueError(f"{brief(envelope.job)} is not a known job")
    try:
        job = record_of(kinds[envelope.job], envelope.settings)
    except BadConfig as error:  # an impossible task
        raise ValueError(str(error)) from None
    job.check(num_ranks)
    return job


def encode_answer(answer: Any) -> bytes:
    """Encode a rank's answer for rank 0."""
    return json.dumps(asdict(answer) if is_dataclass(answer) else answer).encode()  # type: ignore[arg-type]


def decode_answer(content: bytes, job: RankJob) -> Any:
    """Decode an answer of ``encode_answer``.

    Raises:
        ValueError: if it is not an answer to this job. The message is one line.
    """
    return record_of(job.ANSWER, load_json(content))
