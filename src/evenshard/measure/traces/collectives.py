"""Collectives of a rank's training steps, with kind and duration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from evenshard.measure.traces.kineto import Op, Trace

CollectiveKind = Literal["forward", "backward", "input", "other"]
# Output dist of embeddings and gradients, input dist of ids, and other collectives such as dense all-reduces.
COLLECTIVES: tuple[CollectiveKind, ...] = ("forward", "backward", "input", "other")

_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_AUTOGRAD = "autograd::engine::evaluate_function"
# TorchRec's autograd functions and labels: all-to-all for table-wise and column-wise, reduce-scatter for row-wise.
_OF_EMBEDDINGS = re.compile(
    r"All2All_(?:Pooled|Seq)|All2Allv?_(?:Req|ScatterWait)|alltoall_fwd|(?:ReduceScatter(?:Base|V)?|AllGatherBase)_"
    r"|## (?:all2all_(?:pooled|sequence)|reduce_scatter|all_gather)|torchrec::(?:reduce_scatter|all_gather)",
    re.IGNORECASE,
)
# Labels of the input dist: all-to-alls of lengths and indices.
_OF_IDS = re.compile(r"all2all_\w*data|kjt|sparse_data_dist|input_dist", re.IGNORECASE)
# gloo runs a collective in its own thread: the operator that queued it, by the name there.
_GLOO = "gloo:"
_QUEUED = {
    "gloo:all_to_all": "c10d::alltoall",
    "gloo:all_gather": "c10d::_?allgather",
    "gloo:reduce_scatter": "c10d::_?reduce_scatter",
    "gloo:all_reduce": "c10d::allreduce",
}


@dataclass(frozen=True)
class Collective:
    """One collective on one rank, in the step that queued it; times are microseconds.

    The duration includes the wait for the last rank.
    """

    kind: CollectiveKind
    step: int | None
    queued_us: float
    started_us: float
    duration_us: float


def find_collectives(trace: Trace) -> list[Collective]:
    """Return the collectives of a trace (NCCL on GPUs, gloo on CPUs) in the order in which they were queued."""
    found = [
        _collective(trace, kernel.op, kernel.start_us, kernel.duration_us)
        for kernel in trace.gpu_work
        if kernel.name.startswith("nccl")
    ]
    return sorted(found or _find_gloo_collectives(trace), key=lambda collective: collective.queued_us)


def _collective(trace: Trace, queued: Op, start_us: float, duration_us: float) -> Collective:
    return Collective(_kind(queued), trace.step_at(queued.start_us), queued.start_us, start_us, duration_us)


def _find_gloo_collectives(trace: Trace) -> Iterator[Collective]:
    """Yield gloo's collectives, matching queued and executed ones of the same name by their order.

    Collectives queued before the recording began are left out. Collectives that end after the recording may be missing,
    so there may be more queued than executed ones.
    """
    working: dict[str, list[Op]] = defaultdict(list)
    for op in trace.ops:
        if op.name.startswith(_GLOO):
            working[op.name].append(op)
    for name, ops in working.items():
        names = [_QUEUED.get(name, name)]
        if name == "gloo:all_reduce" and "gloo:reduce_scatter" not in working:  # implements reduce_scatter
            names.append(_QUEUED["gloo:reduce_scatter"])
        queued = [op for op in trace.ops if re.match("|".join(names), op.name)]
        for op, starter in zip(ops, queued if len(queued) >= len(ops) else ops, strict=False):
            yield _collective(trace, starter, op.start_us, op.duration_us)


def _kind(op: Op) -> CollectiveKind:
    around = list(op.around())
    names = [operator.name for operator in around]
    is_exchange = any(map(_OF_EMBEDDINGS.search, names))
    if op.name.startswith(_GLOO) or not (is_exchange or any(map(_ALL_TO_ALL.search, names))):
        return "other"
    if any(name.startswith(_AUTOGRAD) for name in names):
        return "backward"
    if is_exchange:
        return "forward"
    # Outputs and gradients are floating-point values, ids and lengths are integers.
    types = next((operator.input_types for operator in around if operator.input_types), ())
    is_number = types[:1] in {("float",), ("c10::Half",), ("c10::BFloat16",)}
    return "forward" if is_number and not any(map(_OF_IDS.search, names)) else "input"


@dataclass(frozen=True)
class StepCollectives:
    """Times of the collectives of a training step on one rank, microseconds by kind; 0 if there are none of a kind."""

    exchange_us: Mapping[CollectiveKind, float]  # communication; includes the wait if only one rank is known
    waiting_us: Mapping[CollectiveKind, float] | None  # for the last rank to arrive; None if only one rank is known
    all_waiting_us: float | None  # time in which any collective waits, at most the step; None for one rank


def split_waiting(
    of_ranks: Mapping[int, Sequence[Collective]], steps: Mapping[int, Mapping[int, tuple[float, float]]]
) -> dict[int, dict[int, StepCollectives]]:
    """Split the time of collectives into communication and wait; returns times by rank, then by step.

    The last rank to arrive at a collective does not wait, so the shortest time of any rank is the communication, and
    longer times of other ranks include waiting. The clocks of the ranks need not agree. ``steps`` contains start and
    end of the training steps that all ranks have recorded, by rank, then by step.
    """
    groups: dict[tuple[int, int, CollectiveKind], list[Collective]] = defaultdict(list)
    for rank, found in of_ranks.items():
        for collective in found:
            if collective.step is not None:
                groups[rank, collective.step, collective.kind].append(collective)
    result: dict[int, dict[int, StepCollectives]] = {rank: {} for rank in of_ranks}
    of_steps = product(next(iter(steps.values())), COLLECTIVES)
    least = {(step, kind): _find_shortest([groups[rank, step, kind] for rank in of_ranks]) for step, kind in of_steps}
    for rank in of_ranks:
        waits = sorted(
            (collective.started_us, collective.started_us + collective.duration_us - own_us)
            for (step, kind), known in least.items()
            if known is not None
            for collective, own_us in zip(groups[rank, step, kind], known, strict=True)
        )
        for step, span in steps[rank].items():
            total = {kind: sum(found.duration_us for found in groups[rank, step, kind]) for kind in COLLECTIVES}
            apart = len(of_ranks) > 1 and all(least[step, kind] is not None for kind in COLLECTIVES)
            own = {kind: total[kind] if (times := least[step, kind]) is None else sum(times) for kind in COLLECTIVES}
            waiting = {kind: total[kind] - own[kind] for kind in COLLECTIVES}
            in_step = _covered_us(waits, *span)
            result[rank][step] = StepCollectives(own, waiting, in_step) if apart else StepCollectives(own, None, None)
    return result


def _find_shortest(of_ranks: Sequence[Sequence[Collective]]) -> list[float] | None:
    """Return the shortest time of each collective; None if the ranks recorded different numbers of them."""
    if len({*map(len, of_ranks)}) != 1:
        return None
    return [min(collective.duration_us for collective in same) for same in zip(*of_ranks, strict=True)]


def _covered_us(ordered: Sequence[tuple[float, float]], start_us: float, end_us: float) -> float:
    covered = 0.0
    for begin, end in ordered:
        if (shown := min(end, end_us)) > (begin := max(begin, start_us)):
            covered, start_us = covered + shown - begin, shown
    return covered
