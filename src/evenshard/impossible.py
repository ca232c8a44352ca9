"""Why can a task have no placement? The plain reasons, with numbers and what to do. Nothing is searched here.

Not every impossible task has a plain reason: tables may fit by the numbers and not in pieces. Sharders that meet a dead
end say so with the other errors below, and ``sharders/packing.py`` finds out whether there is a way around it.

Legend: T tables, I items, D devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.columns import halves
from evenshard.errors import InfeasibleTask
from evenshard.placement import Items, caps_text, gb_text, legal_mask, names_text
from evenshard.tasks import PlacementTask
from evenshard.units import BYTES_PER_GB


def explanation(task: PlacementTask) -> str | None:
    """Why no placement of the task can exist and what would help, in one line; None without a plain reason.

    The most specific reason: constraints that contradict each other, then tables larger than each device they may live
    on, then tables that overfill the few devices they may live on, then all of them together.
    """
    items = Items.of(task)
    return next((reason for find in (_contradictions, _too_large, _overfull) for reason in find(task, items)), None)


def require_room(task: PlacementTask) -> None:
    """Raises InfeasibleTask if no placement of the task can exist for a plain reason."""
    reason = explanation(task)
    if reason is not None:
        raise InfeasibleTask(f"{task.task_id}: {reason}")


def no_room(task: PlacementTask, tables: Sequence[int], used_bytes: Sequence[int]) -> InfeasibleTask:
    """The error of a sharder that finds no legal device for a table, or for tables that stay together.

    Args:
        task: that is placed.
        tables: their positions in ``task.tables``.
        used_bytes: what the devices hold, by device id.
    """
    items = Items.of(task)
    allowed_D = items.allowed_ID[items.item_of_T[tables[0]]]
    left = max(cap - used for cap, used, may in zip(task.caps_bytes, used_bytes, allowed_D, strict=True) if may)
    where = "" if allowed_D.all() else f" of those allowed ({_devices(allowed_D)})"
    problem = (
        f"the freest device{where} has {gb_text(left)} left ({caps_text(task)}). Raise memory_cap_gb or num_devices."
    )
    if legal_mask(0, _bytes(task, tables), left):
        problem = "the devices with room hold tables that must stay apart from it. Raise num_devices or drop that rule."
    return InfeasibleTask(f"{task.task_id}: {_subject(task, tables)} {_needs(task, tables)}; {problem}")


def no_placement_found(task: PlacementTask, why: str) -> InfeasibleTask:
    """The error of a sharder that knows no placement at all, with what the task needs and has."""
    return InfeasibleTask(f"{task.task_id}: {why}: {needs_and_room(task)}. Raise memory_cap_gb or num_devices.")


def needs_and_room(task: PlacementTask) -> str:
    """What the tables need, what the devices have and what the largest table needs, as a clause."""
    sizes = task.table_bytes
    largest = max(range(len(sizes)), key=lambda position: sizes[position])
    return (
        f"the tables need {gb_text(sum(sizes))} of the {task.num_devices} devices' {gb_text(sum(task.caps_bytes))} "
        f"({caps_text(task)}), the largest ({task.tables[largest].name}) {gb_text(sizes[largest])}"
    )


def _contradictions(task: PlacementTask, items: Items) -> Iterator[str]:
    devices = task.num_devices
    allowed = task.constraints.allowed or (None,) * len(task.tables)
    for item in np.flatnonzero(~items.allowed_ID.any(axis=1)).tolist():
        for position in items.members[item]:
            may_go = allowed[position]
            if may_go is not None and not any(0 <= device < devices for device in may_go):
                yield (
                    f"{_subject(task, [position])} may live on no device. Allow it at least one of 0 to {devices - 1}."
                )
        yield (
            f"tables {names_text(task, items.members[item])} must stay together, but no device is allowed for all of "
            f"them. Allow them a common device, or drop the rule."
        )
    for kind, group in enumerate(task.constraints.apart, start=1):
        for item in np.flatnonzero(items.needs_IR[:, kind] > 1).tolist():
            both = [position for position in items.members[item] if position in group]
            yield f"tables {names_text(task, both)} must stay both together and apart. Drop one of the two rules."
        for allowed_D, inside in _confined(items, np.flatnonzero(items.needs_IR[:, kind])):
            if len(inside) > allowed_D.sum():
                tables = [position for position in group if items.item_of_T[position] in inside]
                room, remedy = f"there are {devices} devices", f"Raise num_devices to at least {len(inside)}"
                if not allowed_D.all():
                    room, remedy = f"may only live on {_devices(allowed_D)}", "Allow them more devices"
                yield f"tables {names_text(task, tables)} must stay apart, but {room}. {remedy}, or keep fewer apart."


def _too_large(task: PlacementTask, items: Items) -> Iterator[str]:
    needs_I, caps_D = items.needs_IR[:, 0], items.room_DR[:, 0]
    most_I = np.where(items.allowed_ID, caps_D, np.iinfo(np.int64).min).max(axis=1)
    too_large = np.flatnonzero(~legal_mask(0, needs_I, most_I))
    if not len(too_large):
        return
    worst = int(too_large[needs_I[too_large].argmax()])
    tables, allowed_D = items.members[worst], items.allowed_ID[worst]
    need, room = int(needs_I[worst]), int(most_I[worst])
    if not allowed_D.all():
        limit = f"{_devices(allowed_D)} can hold ({gb_text(room)}), and it may live nowhere else"
        remedy = f"Allow it a device with room for {gb_rounded_up(need)} GB or more"
    elif caps_D.min() < caps_D.max():
        limit, remedy = (
            f"a whole device ({caps_text(task)})",
            f"Give a device room for {gb_rounded_up(need)} GB or more",
        )
    else:
        limit, enough = f"a whole device ({caps_text(task)})", gb_rounded_up(_least_cap(items))
        remedy = f"Raise memory_cap_gb, so that each device has room for {enough} GB or more"
    subject = _subject(task, tables)
    if len(tables) > 1:
        subject, remedy = f"{subject}, which must stay together,", f"{remedy}, or do not keep them together"
    elif _splittable(task, tables[0]):
        remedy += ", or split it by columns (--allow-column-split)"
    missing = f"{gb_rounded_up(need - room)} GB is missing"
    if len(too_large) > 1:
        missing += f"; too large as well: {len(too_large) - 1} more"
    yield f"{subject} {_needs(task, tables)}, more than {limit}: {missing}. {remedy}."


def _overfull(task: PlacementTask, items: Items) -> Iterator[str]:
    needs_I, caps_D = items.needs_IR[:, 0], items.room_DR[:, 0]
    for allowed_D, inside in _confined(items, np.arange(len(needs_I))):
        need, room = int(needs_I[inside].sum()), int(caps_D[allowed_D].sum())
        if legal_mask(0, need, room):
            continue
        missing = f"{gb_rounded_up(need - room)} GB is missing"
        tables = [position for item in inside for position in items.members[item]]
        if allowed_D.all():
            yield (
                f"the tables {_needs(task, tables)}, the {task.num_devices} devices have {gb_text(room)} "
                f"({caps_text(task)}): {missing}. Raise memory_cap_gb, so that each has room for "
                f"{gb_rounded_up(_least_cap(items))} GB or more, or num_devices to {_least_devices(items)} or more."
            )
        else:
            yield (
                f"{_subject(task, tables)} {_needs(task, tables)} and may only live on {_devices(allowed_D)} with "
                f"{gb_text(room)}: {missing}. Allow some of them elsewhere, or raise memory_cap_gb."
            )


def _confined(
    items: Items, among: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
    """[D] sets of devices, the smallest first, and which of some items may live nowhere else; all devices last."""
    restricted = among[items.restricted_I[among]]
    sets = np.unique(items.allowed_ID[restricted], axis=0) if len(restricted) else items.allowed_ID[:0]
    for allowed_D in sets[sets.sum(axis=1).argsort(kind="stable")]:
        yield allowed_D, among[~(items.allowed_ID[among] & ~allowed_D).any(axis=1)]
    yield np.ones(len(items.room_DR), dtype=bool), among


def _least_cap(items: Items) -> int:
    """Bytes that each device must have at least, if all had the same: an equal share, or the largest item."""
    needs_I = items.needs_IR[:, 0]
    return max(-(-int(needs_I.sum()) // len(items.room_DR)), int(needs_I.max()))


def _least_devices(items: Items) -> int:
    """Devices that are needed at least, if those that come are as large as the largest."""
    caps_D = items.room_DR[:, 0]
    missing = int(items.needs_IR[:, 0].sum() - caps_D.sum())
    return len(caps_D) + -(-missing // int(caps_D.max()))


def _splittable(task: PlacementTask, position: int) -> bool:
    return bool(halves(0, task.tables[position].embedding_dim))


def _subject(task: PlacementTask, tables: Sequence[int]) -> str:
    return f"table{'s' if len(tables) > 1 else ''} {names_text(task, tables)}"


def _bytes(task: PlacementTask, tables: Sequence[int]) -> int:
    return sum(task.table_bytes[position] for position in tables)


def _needs(task: PlacementTask, tables: Sequence[int]) -> str:
    """What tables take, with optimizer state apart where there is any."""
    need, weights = _bytes(task, tables), sum(task.tables[position].size_bytes for position in tables)
    parts = f" ({gb_text(weights)} of weights, {gb_text(need - weights)} of optimizer state)" if need > weights else ""
    return f"need{'' if len(tables) > 1 else 's'} {gb_text(need)}{parts}"


def _devices(allowed_D: npt.NDArray[np.bool_]) -> str:
    numbers = np.flatnonzero(allowed_D).tolist()
    return f"device{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def gb_rounded_up(num_bytes: int) -> str:
    """GB with two digits, rounded up: what is asked for is enough."""
    return f"{-(-num_bytes * 100 // BYTES_PER_GB) / 100:.2f}"
