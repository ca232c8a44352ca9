"""The choice of tables to split by columns: those that fit nowhere, then those whose halves make a step faster.

A half has half the dims and all the lookups: splitting never saves work, it only spreads it. Candidates are the
costliest part of the slowest device, of all devices that are about as slow, and the costliest parts of all together:
halving one table alone does not help where several are too much for a device (NeuroShard, MLSys 2023, halves the
largest and the costliest of a beam's tables). Each is tried with a short search. Where halves do not fit, any cuts that
do are the start (``capacity.py``). Parts of one table that end up on one device are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from evenshard.placement.feasibility import reason
from evenshard.placement.items import Items
from evenshard.placement.parts import TablePart, column_parts, whole_tables
from evenshard.placement.placement import Placement
from evenshard.placement.task import PlacementTask
from evenshard.planner.capacity import any_parts
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.convex_search.fast_cost_model import FastCostModel
from evenshard.sharders.convex_search.local_search import SearchEffort
from evenshard.sharders.convex_search.sharder import EvenshardSharder, SearchResult
from evenshard.utils.errors import InfeasibleTask

_LEAST_GAIN = 0.005
"""A round of cuts that saves less of a step is the last one."""
_LEAST_GAIN_OF_ALL = 0.03
"""Cuts that save less of a step, all together, are left out: a model is not sure of so small a difference between
tables and their halves. On measured costs of 4 x RTX 2080 Ti, cuts that promised 1 % cost 1 %."""
MAX_ROUNDS = 8
MAX_FORCED = 32
"""Parts that are halved, the largest first, until a packing is found."""
TRIAL: dict[str, Any] = {
    "effort": SearchEffort(num_chains=2, scores_per_table=300),
    "max_splits": 0,
    "packing_time_limit_s": 0.5,
}
"""Settings of a search that only tries a split out."""
SLOW_SHARES = (0.98, 0.8)
"""Where many devices are about as slow as the slowest, a part of each of them must be halved."""
LEAST_WAYS = 4
TRIED_PAIRS = 2**17
"""Tables times devices of all trials of a round; more would take too long."""


@dataclass(frozen=True)
class Found:
    """A placement of parts."""

    parts: tuple[TablePart, ...]
    task: PlacementTask
    result: SearchResult

    @property
    def predicted_ms(self) -> float:
        """Of the best placement."""
        return self.result.best.predicted_ms


def whole_search(
    request: PlacementRequest,
    sharder: EvenshardSharder,
    parts: tuple[TablePart, ...] | None = None,
    known: Sequence[Placement] = (),
) -> Found:
    """The best placement of these parts; without any, of whole tables.

    Args:
        request: the request.
        sharder: searches.
        parts: parts of its tables.
        known: legal placements of the parts; the answer is not worse than any of them.

    Raises:
        InfeasibleTask: if there is no legal one, or none was found.
    """
    parts = whole_tables(request.tables) if parts is None else parts
    task = request.task(parts)
    return Found(parts, task, sharder.search(task, known))


def split_search(request: PlacementRequest, sharder: EvenshardSharder, quick: EvenshardSharder) -> Found:
    """The best placement of the tables, split where that helps.

    Where it does not, whole tables are placed as if splits were not allowed.

    Args:
        sharder: answers in the end.
        quick: tries splits.

    Raises:
        InfeasibleTask: if there is no legal one however they are split.
    """
    first = found = _any_found(request, quick)
    for _ in range(MAX_ROUNDS):
        trials = [found, *_trials(request, found, quick)]
        best = min(trials, key=lambda trial: trial.predicted_ms)
        if best.predicted_ms > found.predicted_ms * (1 - _LEAST_GAIN):
            break
        found = best
    if found.predicted_ms > first.predicted_ms * (1 - _LEAST_GAIN_OF_ALL):
        found = first
    if len(found.parts) == len(request.tables):
        return whole_search(request, sharder)
    return _joined(request, sharder, whole_search(request, sharder, found.parts, [found.result.best.placement]))


def _any_found(request: PlacementRequest, quick: EvenshardSharder) -> Found:
    """A placement with as few cuts as it takes: parts that fit nowhere are halved, then the largest ones.

    Halves are what makes a step fast. Where none of them fit, any cuts will do.
    """
    parts = _needed_parts(request)
    try:
        return whole_search(request, quick, parts)
    except InfeasibleTask:
        other_parts, placement = any_parts(request)
    for _ in range(MAX_FORCED):
        task = request.task(parts)
        by_size = sorted(range(len(parts)), key=lambda number: -task.table_bytes[number])
        largest = next((parts[number] for number in by_size if _may_halve(request, parts[number])), None)
        if largest is None or reason(task) is not None:
            break
        parts = _halved(parts, [largest])
        try:
            return whole_search(request, quick, parts)
        except InfeasibleTask:
            continue
    return whole_search(request, quick, other_parts, [placement])


def _needed_parts(request: PlacementRequest) -> tuple[TablePart, ...]:
    """Parts that are larger than every device they may live on are halved until they fit, or cannot be halved."""
    parts = whole_tables(request.tables)
    while True:
        task = request.task(parts)
        items = Items.of(task)
        too_big = []
        for members, allowed_D in zip(items.members, items.allowed_ID, strict=True):
            part, rooms = parts[members[0]], items.room_DR[allowed_D, 0]
            if len(rooms) and task.table_bytes[members[0]] > rooms.max() and _may_halve(request, part):
                too_big.append(part)
        if not too_big:
            return parts
        parts = _halved(parts, too_big)


def _trials(request: PlacementRequest, found: Found, quick: EvenshardSharder) -> list[Found]:
    """Placements with more cuts, the most promising first, as many as the time for a round allows."""
    task, best = found.task, found.result.best
    cost_model = FastCostModel(quick.model, task)
    alone_ms = (cost_model.device_ms(cost_model.empty_H + cost_model.columns_TH) + cost_model.wait_T).tolist()
    by_cost = sorted(zip(alone_ms, found.parts, strict=True), key=lambda pair: -pair[0])
    costliest = [part for _, part in by_cost if _may_halve(request, part)]
    device_ms = [device.predicted_total_ms for device in best.devices]
    slowest_ms = max(device_ms)
    home = dict(zip(found.parts, best.placement.device_of_table, strict=True))
    on_slowest = [part for part in costliest if device_ms[home[part]] == slowest_ms]
    first_on = {home[part]: part for part in reversed(costliest)}
    groups = [
        on_slowest[:1],
        *([part for d, part in first_on.items() if device_ms[d] > slowest_ms * share] for share in SLOW_SHARES),
        costliest[:2],
        costliest[:4],
        on_slowest[1:2],
        costliest[:8],
    ]
    ways = dict.fromkeys(map(frozenset, filter(None, groups)))
    trials = []
    for group in list(ways)[: max(LEAST_WAYS, TRIED_PAIRS // (len(task.tables) * task.num_devices))]:
        try:
            trials.append(whole_search(request, quick, _halved(found.parts, group)))
        except InfeasibleTask:  # halves of what must live apart need more devices than there are
            continue
    return trials


def _may_halve(request: PlacementRequest, part: TablePart) -> bool:
    return bool(part.halves()) and part.table in request.splittable


def _halved(parts: Sequence[TablePart], chosen: Collection[TablePart]) -> tuple[TablePart, ...]:
    """The parts, and in place of each chosen one its halves."""
    return tuple(one for part in parts for one in (part.halves() if part in chosen else (part,)))


def _joined(request: PlacementRequest, sharder: EvenshardSharder, found: Found) -> Found:
    """With one part of a table on a device at most; what is joined for that is searched once more."""
    while True:
        widths: dict[tuple[str, int], int] = {}
        for part, device in zip(found.parts, found.result.best.placement.device_of_table, strict=True):
            home = (part.table, device)
            widths[home] = widths.get(home, 0) + part.columns.size
        if len(widths) == len(found.parts):
            return found
        parts: list[TablePart] = []
        for table in request.tables:
            stops = [*accumulate(width for (name, _), width in widths.items() if name == table.name)]
            parts += column_parts(table, stops[:-1])
        same = Placement(tuple(device for _, device in widths), request.num_devices)
        found = whole_search(request, sharder, tuple(parts), [same])
