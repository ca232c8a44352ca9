"""A search that knows what fewer types and less effort answer, so that more of either never answers worse.

A search has so many changes to try, whatever types it may use: the more there are, the more starts share the changes.
So tables that are whole or cut by columns at most are searched for by themselves too, and whole tables alone, unless a
bound rules out that they are better: by the same search that answers a request for these types alone. Of what less
memory answers, a search knows nothing; but one of its starts is the same in every memory, and hardly needs any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from evenshard.measure.price.step import PartCosts
from evenshard.placement.parts import TablePart, whole_tables
from evenshard.placement.sharding import COLUMNS_ALONE, TABLE_WISE
from evenshard.placement.task import ShardingTask, memory_of_part
from evenshard.sharders.bounds.lower_bound import lower_bound_ms
from evenshard.sharders.packing.legal_parts import TIME_LIMIT_S, first_fit, legal_parts
from evenshard.sharders.search.search import (
    PlanSearch,
    PlanSearchEffort,
    PlanSearchResult,
    Progress,
    stops_before,
)
from evenshard.sharders.search.space import SMALL, SearchSpace
from evenshard.utils.errors import InfeasibleTask

# Types that each further search leaves to tables; a table that may have none of them keeps its types.
FEWER_TYPES = ({TABLE_WISE, *COLUMNS_ALONE}, {TABLE_WISE})
# Tables times devices up to which fewer types are searched by themselves: of larger tasks, each search takes long.
MOST_NESTED = 8_192
# Memory of all devices in that of all tables, whole.
LITTLE_MEMORY = 1.1
PACKING_S = 2.0

# Legal placements of a task, found within so many seconds; raises InfeasibleTask where there are none at all.
Starts = Callable[[ShardingTask, float | None], Sequence[Sequence[TablePart]]]


def search_with_fewer_types(
    costs: PartCosts,
    effort: PlanSearchEffort,
    seed: int,
    starts: Starts,
    progress: Progress | None = None,
    packing_s: float = TIME_LIMIT_S,
) -> tuple[PlanSearch, PlanSearchResult]:
    """The search of a task, and what it found: nothing slower than for fewer types, or with less effort.

    (But for what the solver finds after ``PACKING_S`` alone; for fewer types not in large tasks; and for neither where
    there is a limit on the time.)

    Args:
        costs: of the task.
        effort: of each search; a limit on the time is that of all of them.
        seed: of the kicks.
        starts: finds placements to begin with.
        progress: called with the best cost so far.
        packing_s: of the solver, where no search finds room.

    Raises:
        InfeasibleTask: if none was found.
    """
    started, fewer = time.monotonic(), with_fewer_types(costs.task)
    known = starts(costs.task, effort.time_limit_s)
    stops = stops_before(effort)
    search = PlanSearch(costs, _with_time_left(effort, started), seed, progress, stops=stops)
    result: PlanSearchResult | None = None
    with suppress(InfeasibleTask):  # where something may find room all the same
        result = search.run(known)
    below: Sequence[PlanSearchResult] = ()
    left = _with_time_left(effort, started)
    if fewer is not None:
        efforts = [*(replace(effort, share=share) for share in stops), left]
        below = _search_fewer(costs.of_task(fewer), efforts, seed, starts, result)
        if below and below[-1].is_interrupted:
            search.interrupt()
    if result is None:
        legal = _legal(costs.task, seed, packing_s, (below[-1].best.parts,) if below else known)
        if costs.task.may_offload and not search.space.offloads:  # it only seemed that all of them fit
            search = PlanSearch(costs, left, seed, progress, offloads=True, stops=stops)
        result = search.run(legal)
    packed, ended = _pack_by_columns(costs.task), []
    for at, one in enumerate(result.by_effort):
        one = search.with_known(one, packed, float("inf"))
        ended.append(search.with_known(one, (below[at].best.parts,) if at < len(below) else known))
    return search, PlanSearchResult.of_efforts(ended)


def _search_fewer(
    costs: PartCosts, efforts: Sequence[PlanSearchEffort], seed: int, starts: Starts, result: PlanSearchResult | None
) -> Sequence[PlanSearchResult]:
    """Search with fewer types, as far as that may beat the search with all types."""
    bound_ms, found_ms = 0.0, [float("inf")] * len(efforts)
    if result is not None:
        if result.is_interrupted or efforts[-1].time_limit_s == 0.0:
            return ()
        found_ms = [one.best.predicted_ms for one in result.by_effort]
        bound_ms = lower_bound_ms(SearchSpace(costs, costs.task.may_offload), max(found_ms))
    num_open = sum(bound_ms < one for one in found_ms)  # the first ones: more effort has found nothing slower
    with suppress(InfeasibleTask):
        if num_open:
            _, found = search_with_fewer_types(costs, efforts[num_open - 1], seed, starts, packing_s=PACKING_S)
            return found.by_effort
    return ()


def _pack_by_columns(task: ShardingTask) -> Sequence[Sequence[TablePart]]:
    if any(types - FEWER_TYPES[0] for types in task.types) or len(task.tables) * task.num_devices > SMALL:
        return ()
    wholes = zip(task.tables, whole_tables(task.tables), strict=True)
    needed = sum(memory_of_part(task, table, whole).device_bytes for table, whole in wholes)
    most = int(LITTLE_MEMORY * needed / task.num_devices)
    parts = first_fit(replace(task, room_bytes=tuple(min(room, most) for room in task.room_bytes)))
    return () if parts is None else (parts,)


def _legal(
    task: ShardingTask, seed: int, packing_s: float, known: Sequence[Sequence[TablePart]]
) -> Sequence[Sequence[TablePart]]:
    """Return the known placements where no legal one is found."""
    try:
        return (legal_parts(task, seed, packing_s),)
    except InfeasibleTask:
        if not known:
            raise
        return known


def _with_time_left(effort: PlanSearchEffort, started: float) -> PlanSearchEffort:
    if effort.time_limit_s is None:
        return effort
    return replace(effort, time_limit_s=max(effort.time_limit_s - (time.monotonic() - started), 0.0))


def with_fewer_types(task: ShardingTask) -> ShardingTask | None:
    """The task with fewer types, as many as there are; None where there are none, or it is large."""
    if len(task.tables) * task.num_devices > MOST_NESTED:
        return None
    limits = tuple(task.limits_of(at) for at in range(len(task.tables)))
    for types in FEWER_TYPES:
        fewer = replace(task, limits=tuple(replace(own, types=own.types & types or own.types) for own in limits))
        if fewer.limits != limits and fewer.types != task.types and all(fewer.types):
            return fewer
    return None
