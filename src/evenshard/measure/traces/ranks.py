"""Comparison of the ranks of a training run: time of each phase of a step, and the rank that delays the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from evenshard.base.errors import BadFile, BadInput
from evenshard.measure.traces.collectives import (
    COLLECTIVES,
    Collective,
    CollectiveKind,
    StepCollectives,
    find_collectives,
    split_waiting,
)
from evenshard.measure.traces.fused_calls import DENSE, FusedCall, list_fused_calls, missing_calls_error
from evenshard.measure.traces.kineto import HOW_TO_RECORD, Trace, read_traces
from evenshard.price.costs import interquartile_range
from evenshard.price.step_time import Phases, step_ms

_US_PER_MS = 1000.0
_OF_EMBEDDINGS: tuple[CollectiveKind, ...] = ("forward", "backward")


@dataclass(frozen=True)
class RankTimes:
    """Times of one rank in one training step, ms: medians over the steps of its trace.

    On a GPU, the forward or backward of a fused module lasts from the start of its first kernel to the end of its last.
    On the CPU, it is the time of the module's operators. Times of several modules are added up. data_parallel tables,
    which a dense optimizer updates, are left out. A time that the trace does not contain is None.
    """

    rank: int
    gpu: str
    num_steps: int
    step_ms: float
    forward_ms: float | None  # time of the fused modules; 0 on a rank without any
    backward_ms: float | None
    forward_spread_ms: float  # interquartile range over the steps
    backward_spread_ms: float
    exchange_ms: Mapping[CollectiveKind, float | None]  # communication by kind, without the wait if it is known
    waiting_ms: Mapping[CollectiveKind, float | None] | None  # wait for the last rank to arrive; None if unknown
    all_waiting_ms: float | None  # time in which any of its collectives waits; None if unknown
    num_tables: int | None  # of all its fused modules; None in a trace without shapes
    batch_size: int | None  # global batch, samples
    sum_of_dims: int | None  # of all its tables

    @property
    def phases_ms(self) -> tuple[float | None, ...]:
        """Return the times of a step's embedding work in the order of ``Phases``."""
        exchange = self.exchange_ms
        return exchange["input"], self.forward_ms, exchange["forward"], exchange["backward"], self.backward_ms

    @property
    def compute_ms(self) -> float:
        """Sum the forward and backward times that are known."""
        return _sum_known((self.forward_ms, self.backward_ms))


@dataclass(frozen=True)
class Balance:
    """Upper bounds of the time per step that perfect balance of the tables would save, ms; None if unknown."""

    forward_ms: float | None  # slowest rank minus the mean
    backward_ms: float | None
    exchanges_ms: float | None  # communication of the rank with the largest sum of dims minus the mean

    @property
    def total_ms(self) -> float:
        """Sum the three times that are known."""
        return _sum_known((self.forward_ms, self.backward_ms, self.exchanges_ms))


@dataclass(frozen=True)
class ObservedTraining:
    """A training run as observed in its traces."""

    ranks: tuple[RankTimes, ...]  # the ranks with a trace, in order
    world_size: int
    step_ms: float  # time of a training step, median of the ranks
    waits_for: int | None  # the rank that waits least, which arrives last; None for one rank, or if unknown
    balance: Balance | None  # None for one rank
    optimizer: str  # FBGEMM's name of the fused optimizer
    memory_bytes: int  # memory of the smallest GPU; 0 if unknown
    backend: str
    started_at: float  # start of the first trace, seconds since 1970 UTC
    notes: tuple[str, ...]  # missing parts of the traces, one or two sentences each

    @property
    def batch_size(self) -> int | None:
        """Return the global batch size, samples; None if unknown."""
        return next((rank.batch_size for rank in self.ranks if rank.batch_size is not None), None)

    @property
    def phases(self) -> Phases:
        """Return the times of each rank's embedding work in a step, ms; 0 if unknown."""
        return Phases(*np.array([[time_ms or 0.0 for time_ms in rank.phases_ms] for rank in self.ranks]).T)

    def rest_ms(self, pipeline: str = "") -> float | None:
        """Return the time of a step beside its embedding work, ms: dense layers, their all-reduce, and the host.

        Args:
            pipeline: training pipeline of the job; the default pipeline if empty.

        Returns:
            None if a trace lacks a part of the embedding work.
        """
        return None if self.unseen else max(self.step_ms - float(step_ms(self.phases, pipeline)), 0.0)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Name the times that a prediction has but a rank's trace lacks, such as "rank 0's backward"."""
        found = []
        for rank in self.ranks:
            times = [("forward", rank.forward_ms), ("backward", rank.backward_ms)]
            if self.world_size > 1:
                times += [(f"{kind} communication", rank.exchange_ms[kind]) for kind in _OF_EMBEDDINGS]
            found += [f"rank {rank.rank}'s {name}" for name, time_ms in times if time_ms is None]
        return tuple(found)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Return the ranks without a trace."""
        return tuple(sorted({*range(self.world_size)} - {rank.rank for rank in self.ranks}))


def observe(paths: Sequence[Path]) -> ObservedTraining:
    """Read the traces of a training run and return its observed times.

    Raises:
        BadInput: if a file cannot be read, has no training step or fused module, or is from another training run.
    """
    traced = read_ranks(paths)
    if not any(one.placed_calls for one in traced):
        raise missing_calls_error(paths[0])
    steps = sorted(set.intersection(*({number for number, _, _ in one.trace.steps} for one in traced)))
    if not steps:
        raise BadInput(
            "the traces have no training step (ProfilerStep#...) in common. Record all ranks with the same schedule."
        )
    spans = {
        one.trace.rank: {number: (start, end) for number, start, end in one.trace.steps if number in {*steps}}
        for one in traced
    }
    shared = split_waiting({one.trace.rank: one.collectives for one in traced}, spans)
    ranks = tuple(_rank(one, shared[one.trace.rank], steps) for one in traced)
    waiting = {one.rank: one.all_waiting_ms for one in ranks if one.all_waiting_ms is not None}
    traces = [one.trace for one in traced]
    return ObservedTraining(
        ranks=ranks,
        world_size=traces[0].world_size,
        step_ms=median(one.step_ms for one in ranks),
        waits_for=min(waiting, key=waiting.__getitem__) if waiting and max(waiting.values()) > 0 else None,
        balance=_balance(ranks, traced, steps) if len(ranks) > 1 else None,
        optimizer=next(call.optimizer for one in traced for call in one.placed_calls),
        memory_bytes=min(trace.memory_bytes for trace in traces),
        backend=traces[0].backend,
        started_at=min(trace.started_at for trace in traces),
        notes=tuple(_notes(traces, ranks)),
    )


@dataclass(frozen=True)
class TracedRank:
    """Fused calls and collectives of a rank's trace; to save memory, ``trace`` has no events."""

    trace: Trace
    calls: Sequence[FusedCall]
    collectives: Sequence[Collective]

    @property
    def placed_calls(self) -> Sequence[FusedCall]:
        """Return the calls, except those of data_parallel tables."""
        return [call for call in self.calls if call.optimizer != DENSE]


def read_ranks(paths: Sequence[Path]) -> list[TracedRank]:
    """Read the traces of one training run, in the order of ranks, with only one trace in memory at a time.

    Raises:
        BadInput: if a file cannot be read or has no training step, or the traces are not one per rank of one run.
    """
    by_rank: dict[int, TracedRank] = {}
    for trace in (trace for path in paths for trace in read_traces(path)):
        if not trace.steps:
            problem = "it has no training step (ProfilerStep#...)"
            raise BadFile(trace.source, problem, f"Call prof.step() after each step. {HOW_TO_RECORD}.")
        if trace.gpu and not trace.gpu_work:
            problem = f"it is from a GPU ({trace.gpu}), but has no GPU kernels"
            what = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], the default of torch.profiler"
            raise BadFile(trace.source, problem, f"{what}. {HOW_TO_RECORD}.")
        if trace.rank in by_rank:
            problem = f"it is from rank {trace.rank}, like {by_rank[trace.rank].trace.source}"
            raise BadFile(trace.source, problem, "Pass one trace per rank, all from the same training run.")
        without_events = replace(trace, ops=(), gpu_work=())
        by_rank[trace.rank] = TracedRank(without_events, list_fused_calls(trace), find_collectives(trace))
        first = next(iter(by_rank.values())).trace
        if trace.world_size != first.world_size:
            problem = f"its run has {trace.world_size} ranks, but the run of {first.source} has {first.world_size}"
            raise BadFile(trace.source, problem, "Pass the traces of one training run.")
    return [by_rank[rank] for rank in sorted(by_rank)]


def _rank(traced: TracedRank, shared: Mapping[int, StepCollectives], steps: Sequence[int]) -> RankTimes:
    trace, calls = traced.trace, traced.placed_calls
    forward = _per_step(calls, steps, "forward")
    backward = _per_step(calls, steps, "backward")
    seen = {one.kind for one in traced.collectives if one.step in steps}
    waits = [waits for step in steps if (waits := shared[step].waiting_us) is not None]
    in_step = [waited for step in steps if (waited := shared[step].all_waiting_us) is not None]

    def by_kind(of_steps: Sequence[Mapping[CollectiveKind, float]]) -> dict[CollectiveKind, float | None]:
        return {
            kind: median(one[kind] for one in of_steps) / _US_PER_MS if kind in seen else None for kind in COLLECTIVES
        }

    last = [call for call in calls if call.step == steps[-1]]
    batches = {call.batch_size for call in last}
    return RankTimes(
        rank=trace.rank,
        gpu=trace.gpu,
        num_steps=len(steps),
        step_ms=median(end - start for number, start, end in trace.steps if number in set(steps)) / _US_PER_MS,
        forward_ms=_median_or_none(forward, calls),
        backward_ms=_median_or_none(backward, calls),
        forward_spread_ms=interquartile_range(forward),
        backward_spread_ms=interquartile_range(backward),
        exchange_ms=by_kind([shared[step].exchange_us for step in steps]),
        waiting_ms=by_kind(waits) if waits else None,
        all_waiting_ms=median(in_step) / _US_PER_MS if in_step and seen else None,
        num_tables=_sum([call.num_tables for call in last]),
        batch_size=batches.pop() if len(batches) == 1 else None,
        sum_of_dims=_sum([call.sum_of_dims for call in last]),
    )


def _per_step(calls: Sequence[FusedCall], steps: Sequence[int], which: str) -> list[float]:
    spans = dict.fromkeys(steps, 0.0)
    for call in calls:
        if call.step in spans:
            name = f"{which}_span_us" if call.gpu else f"{which}_host_us"
            spans[call.step] += getattr(call, name) / _US_PER_MS
    return list(spans.values())


def _median_or_none(of_steps: Sequence[float], calls: Sequence[FusedCall]) -> float | None:
    return None if calls and not any(of_steps) else median(of_steps)


def _sum_known(times: Iterable[float | None]) -> float:
    return sum(time_ms for time_ms in times if time_ms is not None)


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _balance(ranks: Sequence[RankTimes], traced: Sequence[TracedRank], steps: Sequence[int]) -> Balance:
    def above_mean(which: str, seen: Sequence[float | None]) -> float | None:
        if None in seen:
            return None
        of_ranks = [_per_step(one.placed_calls, steps, which) for one in traced]
        above: list[float] = [max(of_step) - fmean(of_step) for of_step in zip(*of_ranks, strict=True)]
        return median(above)

    dims = [one.sum_of_dims for one in ranks if one.sum_of_dims is not None]
    exchanges = [ms for kind in _OF_EMBEDDINGS if (ms := ranks[0].exchange_ms[kind]) is not None]
    exchanges_ms = None
    # The rank with the most values to send sets the time; in balance it sends the mean.
    if exchanges and len(dims) == len(ranks):
        widest = max(dims)
        exchanges_ms = (1 - fmean(dims) / widest if widest else 0.0) * sum(exchanges)
    return Balance(
        above_mean("forward", [one.forward_ms for one in ranks]),
        above_mean("backward", [one.backward_ms for one in ranks]),
        exchanges_ms,
    )


def _notes(traces: Sequence[Trace], ranks: Sequence[RankTimes]) -> list[str]:
    notes = []
    missing = sorted({*range(traces[0].world_size)} - {rank.rank for rank in ranks})
    if missing and len(ranks) == 1:
        notes.append(
            f"Only one of {traces[0].world_size} ranks has a trace, so communication includes waiting for other ranks. "
            f"{HOW_TO_RECORD}, and pass all traces."
        )
    elif missing:
        some = f"{', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}"
        notes.append(
            f"Ranks without a trace: {some} of {traces[0].world_size}. The step may wait for one of them. "
            f"{HOW_TO_RECORD}."
        )
    elif len(ranks) > 1 and any(rank.waiting_ms is None for rank in ranks):
        notes.append("The ranks recorded different collectives, so communication includes waiting for other ranks.")
    if not all(trace.has_shapes for trace in traces):
        notes.append(f"Batch size, number of tables and dims are unknown without record_shapes=True. {HOW_TO_RECORD}.")
    if not any(trace.gpu for trace in traces):
        notes.append("The training ran on CPUs, so times are those of operators instead of GPU kernels.")
    return notes
