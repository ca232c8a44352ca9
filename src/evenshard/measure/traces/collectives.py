"""The collectives of a rank's training steps: which all-to-all is which, and how long each kept the rank."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evenshard.measure.traces.kineto import Op, Trace

CollectiveKind = Literal["forward", "backward", "input", "other"]
# All-to-alls of pooled embeddings, of their gradients, and of the batch's ids; then all-reduces and the like.
COLLECTIVES: tuple[CollectiveKind, ...] = ("forward", "backward", "input", "other")

_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_AUTOGRAD = "autograd::engine::evaluate_function"
_OF_EMBEDDINGS = re.compile(r"All2All_(?:Pooled|Seq)|All2Allv?_(?:Req|ScatterWait)|alltoall_fwd", re.IGNORECASE)
_OF_IDS = re.compile(r"all2all_\w*data|kjt|sparse_data_dist|input_dist", re.IGNORECASE)
_GLOO = "gloo:"


@dataclass(frozen=True)
class Collective:
    """One collective on one rank, microseconds.

    Attributes:
        step: number of the training step that started it.
        duration_us: from its start on this rank to its end, so waiting for the last rank is in it.
    """

    kind: CollectiveKind
    step: int | None
    started_us: float
    duration_us: float


def collectives(trace: Trace) -> list[Collective]:
    """The collectives of a trace, of NCCL on GPUs and of gloo on CPUs, in the order in which they were started."""
    found = [
        Collective(_kind(one.op), trace.step_at(one.op.start_us), one.op.start_us, one.duration_us)
        for one in trace.gpu_work
        if one.name.startswith("nccl")
    ]
    return sorted(found or _on_cpu(trace), key=lambda one: one.started_us)


def _on_cpu(trace: Trace) -> Iterator[Collective]:
    """Threads of gloo work off what the training queues, in its order, so that the n-th belongs to the n-th."""
    working = [op for op in trace.ops if op.name.startswith(_GLOO)]
    exchanges = [op for op in working if _ALL_TO_ALL.search(op.name)]
    queued = [op for op in trace.ops if op.name.startswith("c10d::") and _ALL_TO_ALL.search(op.name)]
    starters = dict(zip(map(id, exchanges), queued, strict=True)) if len(exchanges) == len(queued) else {}
    for op in working:
        started = starters.get(id(op), op)
        yield Collective(_kind(started), trace.step_at(started.start_us), started.start_us, op.duration_us)


def _kind(op: Op) -> CollectiveKind:
    around = list(op.around())
    names = [one.name for one in around]
    if not any(map(_ALL_TO_ALL.search, names)):
        return "other"
    if any(name.startswith(_AUTOGRAD) for name in names):
        return "backward"
    if any(map(_OF_EMBEDDINGS.search, names)):
        return "forward"
    types = next((one.input_types for one in around if one.input_types), ())
    is_number = types[:1] in {("float",), ("c10::Half",), ("c10::BFloat16",)}
    return "forward" if is_number and not any(map(_OF_IDS.search, names)) else "input"


@dataclass(frozen=True)
class StepCollectives:
    """What the collectives of a training step took on one rank, microseconds by kind; 0 where it ran none.

    Attributes:
        exchange_us: without waiting where several ranks tell it apart, else with it.
        waiting_us: waiting for the last rank to arrive; None where one rank alone is known.
        kinds: those that the rank ran.
    """

    exchange_us: Mapping[CollectiveKind, float]
    waiting_us: Mapping[CollectiveKind, float] | None
    kinds: frozenset[CollectiveKind]


def apart_from_waiting(
    of_ranks: Mapping[int, Sequence[Collective]], steps: Sequence[int]
) -> dict[int, dict[int, StepCollectives]]:
    """Exchange and waiting of every rank in every step: by rank, then by step.

    The last rank to arrive at a collective does not wait: the shortest time that a rank spends in it is the exchange,
    and what the others spend beyond is waiting. The clocks of ranks need not agree.

    Args:
        of_ranks: the collectives of each rank.
        steps: training steps that every rank has recorded.
    """
    groups: dict[tuple[int, int, CollectiveKind], list[float]] = defaultdict(list)
    for rank, found in of_ranks.items():
        for one in found:
            if one.step is not None:
                groups[rank, one.step, one.kind].append(one.duration_us)
    result: dict[int, dict[int, StepCollectives]] = {rank: {} for rank in of_ranks}
    for step in steps:
        total = {rank: {kind: sum(groups[rank, step, kind]) for kind in COLLECTIVES} for rank in of_ranks}
        least = {kind: _least_us([groups[rank, step, kind] for rank in of_ranks]) for kind in COLLECTIVES}
        for rank in of_ranks:
            apart = len(of_ranks) > 1 and None not in least.values()
            own = {kind: total[rank][kind] if (own := least[kind]) is None else own for kind in COLLECTIVES}
            waiting = {kind: total[rank][kind] - own[kind] for kind in COLLECTIVES}
            kinds = frozenset(kind for kind in COLLECTIVES if groups[rank, step, kind])
            result[rank][step] = StepCollectives(own, waiting if apart else None, kinds)
    return result


def _least_us(of_ranks: Sequence[Sequence[float]]) -> float | None:
    """The exchange's own time; None where ranks have recorded different numbers of collectives."""
    if len({*map(len, of_ranks)}) != 1:
        return None
    return sum((min(same) for same in zip(*of_ranks, strict=True)), 0.0)
