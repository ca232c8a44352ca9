"""Plain reasons why a task has no placement, with numbers and what to do. Nothing is searched here.

Not every impossible task has a plain reason: tables may fit by the numbers and not in pieces. Sharders that meet a dead
end say so with the other errors below, and ``sharders/packing`` finds out whether there is a way around it.

Legend: T tables, I items, D devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.placement.items import Items, WholeTables
from evenshard.placement.placement import caps_text, legal_mask, tables_text
from evenshard.placement.sharding import REPLICATED, SHARDING_TYPES
from evenshard.placement.storage import FUSED, KEY_VALUE
from evenshard.placement.task import ShardingTask, common_kernels, ruled_out
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.messages import brief
from evenshard.utils.messages import cut as shortened
from evenshard.utils.units import BYTES_PER_GB, gb_text, size_text

MORE_MEMORY = "Raise memory_cap_gb"
# The remedy where memory is short. Only a search can say how much of it: what is missing alone may not be enough.
MORE_ROOM = f"{MORE_MEMORY} or num_devices"


@dataclass(frozen=True)
class Reason:
    """Why no placement of a task can exist, and what to do: two sentences."""

    problem: str
    remedy: str


def reason(task: WholeTables, cut: Collection[int] = ()) -> Reason | None:
    """Why no placement of the task can exist; None without a plain reason.

    The most specific reason: constraints that contradict each other, then tables larger than each device they may live
    on, then tables that overfill the few devices they may live on, then all of them together.

    Args:
        task: the task to place.
        cut: positions of tables that may be cut into parts. Their optimizer state in the task is the least that all
            their parts can have.
    """
    items = Items.of(task)
    for found in (_contradictions(task, items), _too_large(task, items, cut), _overfull(task, items, cut)):
        if (first := next(found, None)) is not None:
            return first
    return None


def require_room(task: ShardingTask, cut: Collection[int] = ()) -> None:
    """Raises InfeasibleTask if no placement of the task can exist for a plain reason; arguments as of ``reason``."""
    if (why := reason(WholeTables.of(task), cut)) is not None:
        raise InfeasibleTask(f"{shortened(task.task_id)}: {why.problem}", why.remedy)


def require_types(task: ShardingTask) -> None:
    """Raises InfeasibleTask if the rules of a table leave it no way to be sharded, or no memory to be kept in."""
    position = next((at for at in range(len(task.tables)) if not task.kernels_of(at)), None)
    if position is not None:
        kernels = task.limits_of(position).kernels or task.kernels
        raise InfeasibleTask(
            f"table {brief(task.tables[position].name)} may only be kept {' or '.join(kernels)}, but the machine has "
            f"no memory for that.",
            f"Give host_memory_gb, or ssd_gb for {KEY_VALUE}, or allow it {FUSED}.",
        )
    if (group := next((one for one in task.together if not common_kernels(task, one)), None)) is not None:
        raise InfeasibleTask(
            f"tables {brief(', '.join(task.tables[at].name for at in group))} stay together, and no kernel is allowed "
            f"for all of them.",
            "Allow them a common one, or drop the rule.",
        )
    position = next((at for at in sorted(task.only_replicated) if FUSED not in task.kernels_of(at)), None)
    if position is not None:
        raise InfeasibleTask(
            f"table {brief(task.tables[position].name)} may only be sharded {' or '.join(REPLICATED)}, and only be "
            f"kept {' or '.join(task.kernels_of(position))}: replicas live in device memory.",
            f"Allow it another type, or {FUSED}.",
        )
    position = next((at for at, types in enumerate(task.types) if not types), None)
    if position is None:
        return
    why = ruled_out(task, position)
    asked = [one for one in SHARDING_TYPES if one in task.limits_of(position).types]
    clauses = dict.fromkeys(why[one] for one in asked)
    raise InfeasibleTask(
        f"table {brief(task.tables[position].name)} may only be sharded {' or '.join(asked)}, but "
        f"{', and '.join(clauses)}.",
        "Allow it another type, or drop one of these rules.",
    )


def no_room(task: ShardingTask, tables: Sequence[int], used_bytes: Sequence[int]) -> InfeasibleTask:
    """The error of a sharder that finds no legal device for a table, or for tables that stay together.

    Args:
        task: the task that is being placed.
        tables: their positions in ``task.tables``.
        used_bytes: memory in use, by device id.
    """
    whole = WholeTables.of(task)
    items = Items.of(whole)
    allowed_D = items.allowed_ID[items.item_of_T[tables[0]]]
    left = max(cap - used for cap, used, may in zip(task.room_bytes, used_bytes, allowed_D, strict=True) if may)
    where = "" if allowed_D.all() else f" of those allowed ({_devices(allowed_D)})"
    problem = f"the freest device{where} has {gb_text(left)} left ({caps_text(task.room_bytes)})."
    remedy = f"{MORE_ROOM}."
    if legal_mask(0, _bytes(whole, tables), left):
        problem = "the devices with room hold tables that must stay apart from it."
        remedy = "Raise num_devices or drop that rule."
    return InfeasibleTask(
        f"{shortened(task.task_id)}: {_subject(whole, tables)} {_needs(whole, tables)}; {problem}", remedy
    )


def no_placement_found(task: ShardingTask, why: str, cut: Collection[int] = ()) -> InfeasibleTask:
    """The error of a sharder that knows no placement at all, with what the task needs and has.

    Args:
        task: the task without a placement.
        why: there is none, or none was found.
        cut: the same as in ``reason``.
    """
    needs = needs_and_room(WholeTables.of(task), cut)
    return InfeasibleTask(f"{shortened(task.task_id)}: {why}: {needs}.", f"{MORE_ROOM}.")


def needs_and_room(task: WholeTables, cut: Collection[int]) -> str:
    """What the tables need, what the devices have and what the largest table needs, as a clause."""
    sizes = task.table_bytes
    room = f"{gb_text(sum(sizes))} of the {task.num_devices} devices' {gb_text(sum(task.room_bytes))}"
    if cut:
        return f"the tables need at least {room} ({caps_text(task.room_bytes)}), however they are cut"
    largest = max(range(len(sizes)), key=lambda position: sizes[position])
    return (
        f"the tables need {room} ({caps_text(task.room_bytes)}), the largest ({tables_text(task.tables, [largest])}) "
        f"{gb_text(sizes[largest])}"
    )


def _contradictions(task: WholeTables, items: Items) -> Iterator[Reason]:
    devices = task.num_devices
    for item in np.flatnonzero(~items.allowed_ID.any(axis=1)).tolist():
        for position in items.members[item]:
            may_go = task.allowed[position]
            if may_go is not None and not any(0 <= device < devices for device in may_go):
                yield Reason(
                    f"{_subject(task, [position])} may live on no device.",
                    f"Allow it at least one of 0 to {devices - 1}.",
                )
        yield Reason(
            f"tables {tables_text(task.tables, items.members[item])} must stay together, but no device is "
            f"allowed for all of them.",
            "Allow them a common device, or drop the rule.",
        )
    for kind, group in enumerate(task.apart, start=1):
        for item in np.flatnonzero(items.needs_IR[:, kind] > 1).tolist():
            both = [position for position in items.members[item] if position in group]
            yield Reason(
                f"tables {tables_text(task.tables, both)} must stay both together and apart.",
                "Drop one of the two rules.",
            )
        for allowed_D, inside in _confinements(items, np.flatnonzero(items.needs_IR[:, kind])):
            if len(inside) > allowed_D.sum():
                tables = [position for position in group if items.item_of_T[position] in inside]
                room, remedy = f"there are {devices} devices", f"Raise num_devices to at least {len(inside)}"
                if not allowed_D.all():
                    room, remedy = f"may only live on {_devices(allowed_D)}", "Allow them more devices"
                yield Reason(
                    f"tables {tables_text(task.tables, tables)} must stay apart, but {room}.",
                    f"{remedy}, or keep fewer apart.",
                )


def _too_large(task: WholeTables, items: Items, cut: Collection[int]) -> Iterator[Reason]:
    needs_I, caps_D = items.needs_IR[:, 0], items.room_DR[:, 0]
    most_I = np.where(items.allowed_ID, caps_D, np.iinfo(np.int64).min).max(axis=1)
    whole_I = np.array([not set(members) & set(cut) for members in items.members])
    too_large = np.flatnonzero(whole_I & ~legal_mask(0, needs_I, most_I))
    if not len(too_large):
        return
    worst = int(too_large[needs_I[too_large].argmax()])
    tables, allowed_D = items.members[worst], items.allowed_ID[worst]
    need, room = int(needs_I[worst]), int(most_I[worst])
    limit, remedy = f"a whole device ({caps_text(task.room_bytes)})", MORE_MEMORY
    if not allowed_D.all():
        limit = f"{_devices(allowed_D)} can hold ({gb_text(room)}), and it may live nowhere else"
        remedy += ", or allow it a larger device"
    subject = _subject(task, tables)
    if len(tables) > 1:
        subject, remedy = f"{subject}, which must stay together,", f"{remedy}, or do not keep them together"
    missing = missing_text(need - room)
    if len(too_large) > 1:
        missing += f"; too large as well: {len(too_large) - 1} more"
    yield Reason(f"{subject} {_needs(task, tables)}, more than {limit}: {missing}.", f"{remedy}.")


def _overfull(task: WholeTables, items: Items, cut: Collection[int]) -> Iterator[Reason]:
    needs_I, caps_D = items.needs_IR[:, 0], items.room_DR[:, 0]
    for allowed_D, inside in _confinements(items, np.arange(len(needs_I))):
        need, room = int(needs_I[inside].sum()), int(caps_D[allowed_D].sum())
        if legal_mask(0, need, room):
            continue
        missing = missing_text(need - room)
        tables = [position for item in inside for position in items.members[item]]
        needs = _needs(task, tables, cut)
        if allowed_D.all():
            subject = "the tables" if len(tables) > 1 else _subject(task, tables)
            yield Reason(
                f"{subject} {needs}, the {task.num_devices} devices have {gb_text(room)} "
                f"({caps_text(task.room_bytes)}): {missing}.",
                f"{MORE_ROOM}.",
            )
        else:
            yield Reason(
                f"{_subject(task, tables)} {needs} and may only live on {_devices(allowed_D)} with {gb_text(room)}: "
                f"{missing}.",
                f"{MORE_MEMORY}, or allow some of them elsewhere.",
            )


def _confinements(
    items: Items, among: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
    """[D] sets of devices, the smallest first, and which of some items may live nowhere else; all devices last."""
    restricted = among[items.restricted_I[among]]
    sets = np.unique(items.allowed_ID[restricted], axis=0) if len(restricted) else items.allowed_ID[:0]
    for allowed_D in sets[sets.sum(axis=1).argsort(kind="stable")]:
        yield allowed_D, among[~(items.allowed_ID[among] & ~allowed_D).any(axis=1)]
    yield np.ones(len(items.room_DR), dtype=bool), among


def _subject(task: WholeTables, tables: Sequence[int]) -> str:
    return f"table{'s' if len(tables) > 1 else ''} {tables_text(task.tables, tables)}"


def _bytes(task: WholeTables, tables: Sequence[int]) -> int:
    return sum(task.table_bytes[position] for position in tables)


def _needs(task: WholeTables, tables: Sequence[int], cut: Collection[int] = ()) -> str:
    """What tables take, with what they take besides weights apart: optimizer state, inputs and outputs."""
    need, weights = _bytes(task, tables), sum(task.tables[position].size_bytes for position in tables)
    parts = (
        f" ({gb_text(weights)} of weights, {gb_text(need - weights)} of state, inputs and outputs)"
        if need > weights
        else ""
    )
    at_least = " at least" if set(tables) & set(cut) else ""
    return f"need{'' if len(tables) > 1 else 's'}{at_least} {gb_text(need)}{parts}"


def _devices(allowed_D: npt.NDArray[np.bool_]) -> str:
    numbers = np.flatnonzero(allowed_D).tolist()
    return f"device{'s' if len(numbers) > 1 else ''} {shortened(', '.join(map(str, numbers)))}"


def missing_text(num_bytes: int) -> str:
    """How many GB are missing, rounded up so that what is asked for is enough; below 0.01 GB in a smaller unit."""
    if num_bytes < BYTES_PER_GB / 100:
        size = size_text(num_bytes)
        return f"{size} are missing" if size.endswith("bytes") else f"{size} is missing"
    return f"{-(-num_bytes * 100 // BYTES_PER_GB) / 100:.2f} GB is missing"
