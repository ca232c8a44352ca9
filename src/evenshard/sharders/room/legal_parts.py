"""Some legal way to shard tables, whatever it costs: quickly where there is room, by a solver where memory is tight."""

from __future__ import annotations

from evenshard.placement.feasibility import MORE_ROOM
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import ShardingTask, check_sharding
from evenshard.sharders.room.fill import more_ways, packed, quick_ways
from evenshard.sharders.room.items import PackedItems
from evenshard.sharders.room.program import solved
from evenshard.sharders.room.reasons import require_sharding_room, require_types, sharding_needs_and_room
from evenshard.utils.errors import InfeasibleTask, MissingPackage
from evenshard.utils.extras import require_package

MAX_PAIRS = 150_000
"""Items times devices that the solver is given; it then needs about 1 GB."""
MAX_TRIED_PAIRS = 1_000_000
"""Items times devices that are packed in more than the quick ways."""
TIME_LIMIT_S = 10.0


def legal_parts(task: ShardingTask, seed: int = 0, time_limit_s: float = TIME_LIMIT_S) -> tuple[TablePart, ...]:
    """Some legal parts, those of a table one after the other; the same arguments give the same.

    Args:
        task: the tables to shard.
        seed: seed of random orders and of the solver.
        time_limit_s: the solver's own seconds, which count its steps; each is one to three seconds of one core.

    Raises:
        InfeasibleTask: if there are none, or none were found in time; the message says which of the two.
    """
    require_types(task)
    items = PackedItems.of(task)
    if (found := first_fit(task, items)) is not None:
        return found
    require_sharding_room(task, items)
    pairs = len(items.items) * task.num_devices
    if pairs <= MAX_TRIED_PAIRS:
        for way in more_ways(items, seed):
            if (found := _checked(task, packed(items, way))) is not None:
                return found
    if pairs > MAX_PAIRS:
        raise _none(task, items, "no placement was found by packing (the task is too large to solve exactly)")
    try:
        require_package("ortools")
    except MissingPackage as error:
        raise _none(task, items, f"no placement was found by packing ({error})") from None
    ended = solved(items, seed, time_limit_s)
    if ended.impossible:
        raise _none(task, items, "no placement fits")
    if (found := _checked(task, ended.parts)) is not None:
        return found
    raise _none(task, items, f"no placement was found in {time_limit_s:g} s of the solver")


def first_fit(task: ShardingTask, items: PackedItems | None = None) -> tuple[TablePart, ...] | None:
    """Legal parts where the quick ways find some; the rules of the task do not contradict each other."""
    items = PackedItems.of(task) if items is None else items
    too_much = sum(item.least_bytes for item in items.items) > int(items.room_D.sum())
    if too_much or items.room_D.min() < 0:
        return None
    return next((found for way in quick_ways(items) if (found := _checked(task, packed(items, way))) is not None), None)


def _checked(task: ShardingTask, parts: list[TablePart] | None) -> tuple[TablePart, ...] | None:
    """The parts in the order of their tables, if they are legal."""
    if parts is None:
        return None
    order = {table.name: number for number, table in enumerate(task.tables)}
    found = tuple(sorted(parts, key=lambda part: (order[part.table], part.columns, part.rows)))
    try:
        check_sharding(task, found)
    except InfeasibleTask:
        return None
    return found


def _none(task: ShardingTask, items: PackedItems, why: str) -> InfeasibleTask:
    return InfeasibleTask(f"{why}: {sharding_needs_and_room(task, items)}.", f"{MORE_ROOM}.")
