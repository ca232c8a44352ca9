"""Plain reasons why tables cannot be sharded legally; what they say holds for every placement.

Memory is counted as if each table could be spread as its types allow: a table that may be cut takes the least that all
its parts can take.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from evenshard.placement import refusal
from evenshard.placement.items import WholeTables
from evenshard.placement.parts import COLUMN_STEP
from evenshard.placement.placement import caps_text
from evenshard.placement.refusal import MORE_MEMORY, MORE_ROOM, Reason
from evenshard.placement.sharding import REPLICATED, SHARDING_TYPES
from evenshard.placement.task import ShardingTask
from evenshard.sharders.packing.cuts import Cut
from evenshard.sharders.packing.fill import most_blocks
from evenshard.sharders.packing.items import PackedItem, PackedItems
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.messages import brief
from evenshard.utils.units import gb_text


def require_sharding_room(task: ShardingTask, items: PackedItems | None = None) -> None:
    """Raises InfeasibleTask if no placement can exist for a plain reason; each table has types left."""
    if (why := _reason(task, PackedItems.of(task) if items is None else items)) is not None:
        raise InfeasibleTask(why.problem, why.remedy)


def _reason(task: ShardingTask, items: PackedItems) -> Reason | None:
    """Why no placement of a task can exist; None without a plain reason.

    The most specific reason: replicas that fill a device, rules that contradict each other, tables too large for where
    they may live, then all of them together.
    """
    if items.room_D.min() < 0:
        device = int(items.room_D.argmin())
        need, room = task.room_bytes[device] - int(items.room_D[device]), task.room_bytes[device]
        names = brief(", ".join(table.name for table in items.replicas))
        return Reason(
            f"replicas of {names}, which may only be sharded {' or '.join(REPLICATED)}, need {gb_text(need)} on "
            f"every device; device {device} has {gb_text(room)}.",
            f"{MORE_MEMORY}, or allow them another type.",
        )
    relaxed, cut = _relax_items(task, items)
    if relaxed is None:
        return None
    if (found := refusal.reason(relaxed, cut)) is not None:
        return found
    for item in items.items:
        if item.is_free and not _fits_alone(task, item, items.room_D):
            types = ", ".join(one for one in SHARDING_TYPES if one in task.types[item.positions[0]])
            return Reason(
                f"table {brief(item.tables[0].name)} does not fit the devices that it may live on, however it may be "
                f"sharded ({types}): they have room for {_most_of(item, items.room_D)} "
                f"({caps_text(relaxed.room_bytes)}).",
                f"{MORE_ROOM}, or allow it more types.",
            )
    return None


def _most_of(item: PackedItem, room_D: npt.NDArray[np.int64]) -> str:
    """What empty devices have room for of an item that may be cut, in words."""
    most = [(max(_most_together(cut, room_D[scope]) for scope in cut.scopes), cut) for cut in item.cuts]
    if not most:
        return f"{gb_text(int(room_D[item.allowed_D].sum()))} of {gb_text(item.least_bytes)}"
    count, cut = max(most, key=lambda one: one[0] / one[1].blocks)
    if cut.in_rows:
        return f"{count:,} of its {cut.blocks:,} rows"
    return f"{COLUMN_STEP * count} of its {COLUMN_STEP * cut.blocks} columns, in parts of at least " + (
        f"{COLUMN_STEP * cut.least_blocks}"
    )


def _most_together(cut: Cut, room_D: npt.NDArray[np.int64]) -> int:
    """Blocks that the devices of a scope have room for, in as many parts as there may be."""
    return int(np.sort(most_blocks(cut, room_D))[::-1][: cut.blocks // cut.least_blocks].sum())


def sharding_needs_and_room(task: ShardingTask, items: PackedItems) -> str:
    """What the tables need, and what the devices have, as a clause."""
    relaxed, cut = _relax_items(task, items)
    assert relaxed is not None, "replicas alone fit or do not"
    return refusal.needs_and_room(relaxed, cut)


def _relax_items(task: ShardingTask, items: PackedItems) -> tuple[WholeTables | None, frozenset[int]]:
    """The items as tables that take the least memory they can, on the same devices, and which of them may be cut."""
    if not items.items:
        return None, frozenset()
    members = [*chain.from_iterable(zip(item.positions, item.tables, strict=True) for item in items.items)]
    at = {position: number for number, (position, _) in enumerate(members)}
    state: list[int] = []
    cut: set[int] = set()
    for item in items.items:
        if item.is_free:
            cut.add(len(state))
            state.append(_least_bytes(item, items.room_D) - item.tables[0].size_bytes)
        else:
            state += [one - table.size_bytes for one, table in zip(item.table_bytes, item.tables, strict=True)]
    tables = tuple(table for _, table in members)
    relaxed = WholeTables(
        task_id=task.task_id,
        tables=tables,
        table_bytes=tuple(table.size_bytes + more for table, more in zip(tables, state, strict=True)),
        room_bytes=tuple(items.room_D.tolist()),
        allowed=tuple(task.limits_of(position).devices for position, _ in members),
        together=tuple(tuple(at[position] for position in group) for group in task.together),
        apart=tuple(tuple(at[position] for position in group) for group in task.apart),
    )
    return relaxed, frozenset(cut)


def _least_bytes(item: PackedItem, room_D: npt.NDArray[np.int64]) -> int:
    """Memory that all parts of an item take at least: where only columns are cut, each has an optimizer's rows."""
    room_D = np.where(item.allowed_D, room_D, -1)
    if item.grid is not None or not item.cuts or any(cut.in_rows for cut in item.cuts):
        return item.least_bytes
    if item.may_be_whole and room_D.max() >= item.size_bytes:
        return item.least_bytes
    (cut,) = item.cuts
    parts = min(_fewest_parts(cut, room_D), len(room_D))
    least = item.size_bytes + cut.part_bytes * (max(parts, item.least_parts) - 1)
    return min([least, *(known.device_bytes for known in item.known if known.fit(room_D))])


def _fewest_parts(cut: Cut, room_D: npt.NDArray[np.int64]) -> int:
    """Parts by columns at least; more than there are devices where they have no room."""
    fewest = len(room_D) + 1
    for scope in cut.scopes:
        enough = (-np.sort(-most_blocks(cut, room_D[scope]))).cumsum() >= cut.blocks
        if enough.any():
            fewest = min(fewest, int(enough.argmax()) + 1)
    return fewest


def _fits_alone(task: ShardingTask, item: PackedItem, room_D: npt.NDArray[np.int64]) -> bool:
    """Whether empty devices have room for an item, as far as its bytes tell."""
    if item.may_be_whole and room_D[item.allowed_D].max() >= item.size_bytes:
        return True
    if any(known.fit(room_D) for known in item.known):
        return True
    if task.pipeline and any(cut.in_rows for cut in item.cuts):  # what other parts than even ones take is not counted
        return int(room_D[item.allowed_D].sum()) >= item.least_bytes
    if any(_most_together(cut, room_D[scope]) >= cut.blocks for cut in item.cuts for scope in cut.scopes):
        return True
    return item.grid is not None and int(room_D[item.allowed_D].sum()) >= item.least_bytes
