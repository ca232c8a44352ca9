"""Any legal placement of whole tables: packed as the parts of ``room/`` are; costs do not matter here."""

from __future__ import annotations

from itertools import chain

from evenshard.placement.feasibility import no_placement_found, require_room
from evenshard.placement.items import Items
from evenshard.placement.machine import Machine
from evenshard.placement.placement import Placement, check_placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.room import items as room
from evenshard.sharders.room.fill import more_ways, packed, quick_ways
from evenshard.sharders.room.legal_parts import MAX_PAIRS, TIME_LIMIT_S
from evenshard.sharders.room.program import solved
from evenshard.utils.errors import MissingPackage
from evenshard.utils.extras import require_package


def any_placement(task: ShardingTask, seed: int = 0, time_limit_s: float = TIME_LIMIT_S) -> Placement:
    """Some legal placement; the same arguments give the same one.

    Args:
        task: the task to place.
        seed, time_limit_s: the same as in ``legal_parts``.

    Raises:
        InfeasibleTask: if there is none, or none was found in time; the message says which of the two.
    """
    require_room(task)
    items = whole_items(task)
    ways = chain(quick_ways(items), more_ways(items, seed))
    parts = next((found for way in ways if (found := packed(items, way)) is not None), None)
    if parts is None:
        if len(items.items) * task.num_devices > MAX_PAIRS:
            why = "no placement was found by packing (the task is too large to solve exactly)"
            raise no_placement_found(task, why)
        try:
            require_package("ortools")
        except MissingPackage as error:
            raise no_placement_found(task, f"no placement was found by packing ({error})") from None
        ended = solved(items, seed, time_limit_s)
        if ended.parts is None:
            why = f"no placement was found in {time_limit_s:g} s of the solver"
            raise no_placement_found(task, "no placement fits" if ended.impossible else why)
        parts = ended.parts
    device_of = {part.table: part.device for part in parts}
    placement = Placement(tuple(device_of[table.name] for table in task.tables), task.num_devices)
    check_placement(task, placement)
    return placement


def whole_items(task: ShardingTask) -> room.PackedItems:
    """The items of a task, none of which is cut."""
    items = Items.of(task)
    found = []
    for members, needs_R, allowed_D in zip(items.members, items.needs_IR, items.allowed_ID, strict=True):
        tables, size = tuple(task.tables[position] for position in members), int(needs_R[0])
        table_bytes = tuple(task.table_bytes[position] for position in members)
        apart = tuple(needs_R[1:].nonzero()[0].tolist())
        found.append(room.PackedItem(members, tables, table_bytes, size, allowed_D, apart, may_be_whole=True))
    return room.PackedItems(tuple(found), (), items.room_DR[:, 0], Machine.one_node(task.num_devices))
