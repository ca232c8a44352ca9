"""Infeasibility checks: explain, without a search, why a task has no legal placement and what to change.

A reason holds for every placement. Memory is a lower bound: a table that may be sharded counts with the smallest total
memory of any allowed sharding. In a task of whole tables (``ShardingTask.is_whole``), no table may be cut.

These checks do not find every infeasible task: tables may fit by total size but not as shards. A sharder that finds no
placement raises ``no_device_error`` or ``no_placement_error``; ``legal_parts`` searches for any legal placement.

Legend: I items, D devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import InfeasibleTask
from evenshard.base.messages import brief, names_text
from evenshard.base.messages import cut as shortened
from evenshard.base.units import gb_text, missing_text
from evenshard.placement.parts import COLUMN_STEP, FUSED, KEY_VALUE
from evenshard.placement.placement import caps_text, common_device_mask, device_mask, legal_mask, merge_groups
from evenshard.placement.sharding import REPLICATED, SHARDING_TYPES
from evenshard.placement.task import ShardingTask, common_kernels, impossible_types, width_problem
from evenshard.search.cuts import Cut
from evenshard.search.items import PackedItem, PackedItems
from evenshard.tables.table import Table

MORE_MEMORY = "Raise memory_cap_gb"
# The remedy if memory is short. Only a search can find the amount: adding the missing bytes may not be enough.
MORE_CAPACITY = f"{MORE_MEMORY} or num_devices"


def find_reason(task: ShardingTask, items: PackedItems | None = None) -> InfeasibleTask | None:
    """Return an InfeasibleTask error that explains why no placement can exist; None if no check finds a reason.

    The most specific reason comes first: a table without an allowed sharding type, replicas that exceed a device, rules
    that contradict each other, tables larger than each of their allowed devices, tables that together exceed their few
    allowed devices, then all tables together, and last a table that does not fit however it is cut.
    """
    found = PackedItems.of(task) if items is None else items
    looks = (_without_types, _overfull_by_replicas, _contradictions, _too_large, _overfull, _unfit)
    return next((why for look in looks for why in look(task, found)), None)


def require_feasible_sharding(task: ShardingTask, items: PackedItems | None = None) -> None:
    """Raise InfeasibleTask if a quick check proves that no placement exists."""
    if (why := find_reason(task, items)) is not None:
        raise why


def require_feasible(task: ShardingTask) -> PackedItems:
    """Return the items to pack in a task of whole tables; raise InfeasibleTask if they provably do not fit."""
    assert task.is_whole, "pass task.as_whole to a sharder of whole tables"
    items = PackedItems.of(task)
    if (why := find_reason(task, items)) is not None:
        raise InfeasibleTask(f"{shortened(task.task_id)}: {why.problem}", why.remedy)
    return items


def require_types(task: ShardingTask) -> None:
    """Raise InfeasibleTask if rules leave a table, or tables that stay together, no sharding type or kernel."""
    position = next((at for at in range(len(task.tables)) if not task.kernels_of(at)), None)
    if position is not None:
        kernels = task.limits_of(position).kernels or task.kernels
        raise InfeasibleTask(
            f"table {brief(task.tables[position].name)} allows only kernel {' or '.join(kernels)}, but the machine has "
            f"no memory for this kernel.",
            f"Give host_memory_gb, or ssd_gb for {KEY_VALUE}, or allow {FUSED}.",
        )
    if (group := next((one for one in task.together if not common_kernels(task, one)), None)) is not None:
        raise InfeasibleTask(
            f"tables {brief(', '.join(task.tables[at].name for at in group))} must stay together, but no kernel is "
            f"allowed for all of them.",
            "Allow a kernel that all these tables can use, or drop the rule that keeps them together.",
        )
    position = next((at for at in sorted(task.only_replicated) if FUSED not in task.kernels_of(at)), None)
    if position is not None:
        raise InfeasibleTask(
            f"table {brief(task.tables[position].name)} allows only {' or '.join(REPLICATED)} sharding, but replicas "
            f"need device memory and it allows only kernel {' or '.join(task.kernels_of(position))}.",
            f"Allow another sharding type, or the kernel {FUSED}.",
        )
    for why in _without_types(task):
        raise why


def no_device_error(task: ShardingTask, tables: Sequence[int], used_bytes: Sequence[int]) -> InfeasibleTask:
    """Build the error for tables that fit on no device, given the bytes in use on each device."""
    joined = next(one for one in merge_groups(len(task.tables), task.together) if tables[0] in one)
    everywhere = device_mask(task.num_devices, None)
    allowed_D = everywhere if (own_D := common_device_mask(task, joined)) is None else own_D
    need, named = sum(task.table_bytes[position] for position in tables), [task.tables[position] for position in tables]
    left = max(cap - used for cap, used, may in zip(task.room_bytes, used_bytes, allowed_D, strict=True) if may)
    where = "" if allowed_D.all() else f" of those allowed ({_devices(allowed_D)})"
    problem = f"no device{where} has more than {gb_text(left)} left ({caps_text(task.room_bytes)})."
    remedy = f"{MORE_CAPACITY}."
    if legal_mask(0, need, left):
        problem = f"all devices with enough memory hold tables to keep apart from {'them' if len(named) > 1 else 'it'}."
        remedy = "Raise num_devices, or keep fewer tables apart."
    return InfeasibleTask(f"{shortened(task.task_id)}: {_subject(named)} {_needs(named, need)}, but {problem}", remedy)


def no_placement_error(task: ShardingTask, why: str, items: PackedItems | None = None) -> InfeasibleTask:
    """Build the error for a sharder that found no placement, with required and available memory."""
    if task.may_offload:
        return InfeasibleTask(f"{why}: {_needs_and_memory(task)}.", f"{MORE_CAPACITY}, or host_memory_gb.")
    needs = _needs_and_room(PackedItems.of(task) if items is None else items)
    return InfeasibleTask(f"{why}: {needs}.", f"{MORE_CAPACITY}.")


def _needs_and_memory(task: ShardingTask) -> str:
    machine = task.machine
    rooms = {"devices": sum(task.room_bytes), "hosts": sum(machine.host_bytes), "SSDs": sum(machine.ssd_bytes)}
    have = ", ".join(f"{gb_text(room)} on {what}" for what, room in rooms.items() if room)
    return f"the tables need {gb_text(sum(task.table_bytes))}, the machine has {have or 'no memory for them'}"


def _needs_and_room(items: PackedItems) -> str:
    rooms = items.memory_D.tolist()
    need = sum(_least_bytes(item, items.memory_D) for item in items.items)
    room = f"{gb_text(need)} of the {gb_text(sum(rooms))} on {len(rooms)} devices"
    if any(item.is_free for item in items.items):
        return f"the tables need at least {room} ({caps_text(rooms)}), however they are sharded"
    tables = [one for item in items.items for one in zip(item.table_bytes, item.tables, strict=True)]
    size, largest = max(tables, key=lambda one: one[0])
    return f"the tables need {room} ({caps_text(rooms)}), the largest ({_names([largest])}) needs {gb_text(size)}"


def _without_types(task: ShardingTask, _: PackedItems | None = None) -> Iterator[InfeasibleTask]:
    for position in (at for at, types in enumerate(task.types) if not types):
        table, why = task.tables[position], impossible_types(task, position)
        asked = [one for one in SHARDING_TYPES if one in task.limits_of(position).types]
        clauses = ", and ".join(dict.fromkeys(why[one] for one in asked))
        is_free = len(asked) == len(SHARDING_TYPES)
        limits = "cannot be placed because" if is_free else f"allows only {' or '.join(asked)} sharding, but"
        remedy = "Allow another sharding type, or drop one of these rules."
        if width_problem(task, table.embedding_dim):
            remedy = (
                f"Shard it column_wise over {task.fewest_column_parts(table)} devices or more, or make several tables "
                f"of at most {task.max_columns:,} columns, also in the model."
            )
        yield InfeasibleTask(f"table {brief(table.name)} {limits} {clauses}.", remedy)


def _overfull_by_replicas(task: ShardingTask, items: PackedItems) -> Iterator[InfeasibleTask]:
    if items.memory_D.min() < 0:
        device = int(items.memory_D.argmin())
        need, room = task.room_bytes[device] - int(items.memory_D[device]), task.room_bytes[device]
        names = brief(", ".join(table.name for table in items.replicas))
        yield InfeasibleTask(
            f"replicas of {names}, which allow only {' or '.join(REPLICATED)} sharding, need {gb_text(need)} "
            f"on every device; device {device} has {gb_text(room)}.",
            f"{MORE_MEMORY}, or allow another sharding type.",
        )


def _contradictions(task: ShardingTask, items: PackedItems) -> Iterator[InfeasibleTask]:
    devices, allowed_ID = task.num_devices, items.allowed_ID
    for number in np.flatnonzero(~allowed_ID.any(axis=1)).tolist():
        item = items.items[number]
        for position, table in zip(item.positions, item.tables, strict=True):
            if not device_mask(devices, task.limits_of(position).devices).any():
                yield InfeasibleTask(
                    f"{_subject([table])} has no allowed device.", f"Allow at least one of devices 0 to {devices - 1}."
                )
        yield InfeasibleTask(
            f"tables {_names(item.tables)} must stay together, but no device is allowed for all of them.",
            "Allow a device for all of them, or drop the rule that keeps them together.",
        )
    for kind, group in enumerate(task.apart):
        numbers = [number for number, item in enumerate(items.items) if kind in item.apart]
        for number in numbers:
            both = [position for position in items.items[number].positions if position in group]
            if len(both) > 1:
                yield InfeasibleTask(
                    f"tables {_names([task.tables[position] for position in both])} must stay both together and apart.",
                    "Drop one of the two rules.",
                )
        for allowed_D, inside in _confinements(allowed_ID[numbers]):
            if len(inside) > allowed_D.sum():
                confined = {position for at in inside for position in items.items[numbers[at]].positions}
                names = _names([task.tables[position] for position in group if position in confined])
                room, remedy = f"there are only {devices} devices", f"Raise num_devices to at least {len(inside)}"
                if not allowed_D.all():
                    room, remedy = f"are only allowed on {_devices(allowed_D)}", "Allow more devices"
                yield InfeasibleTask(
                    f"tables {names} must stay apart, but {room}.", f"{remedy}, or keep fewer tables apart."
                )


def _too_large(task: ShardingTask, items: PackedItems) -> Iterator[InfeasibleTask]:
    most_I = np.where(items.allowed_ID, items.memory_D, -1).max(axis=1)
    rooms = zip(items.items, most_I.tolist(), strict=True)
    too_large = [(item, room) for item, room in rooms if not item.is_free and not legal_mask(0, item.size_bytes, room)]
    if not too_large:
        return
    item, room = max(too_large, key=lambda one: one[0].size_bytes)
    limit, remedy = f"a whole device ({caps_text(items.memory_D.tolist())})", MORE_MEMORY
    if not item.allowed_D.all():
        limit = f"{_devices(item.allowed_D)} can hold ({gb_text(room)}), and no other device is allowed"
        remedy += ", or allow a larger device"
    subject = _subject(item.tables)
    if len(item.tables) > 1:
        subject, remedy = f"{subject}, which must stay together,", f"{remedy}, or do not keep them together"
    missing = missing_text(item.size_bytes - room)
    if len(too_large) > 1:
        missing += f"; {len(too_large) - 1} more are too large"
    yield InfeasibleTask(
        f"{subject} {_needs(item.tables, item.size_bytes)}, more than {limit}: {missing}.", f"{remedy}."
    )


def _overfull(task: ShardingTask, items: PackedItems) -> Iterator[InfeasibleTask]:
    needs_I = np.array([_least_bytes(item, items.memory_D) for item in items.items], dtype=np.int64)
    for allowed_D, inside in _confinements(items.allowed_ID):
        need, room = int(needs_I[inside].sum()), int(items.memory_D[allowed_D].sum())
        if legal_mask(0, need, room):
            continue
        missing, confined = missing_text(need - room), [items.items[at] for at in inside]
        tables = [table for item in confined for table in item.tables]
        needs = _needs(tables, need, at_least=any(item.is_free for item in confined))
        if allowed_D.all():
            subject = "the tables" if len(tables) > 1 else _subject(tables)
            yield InfeasibleTask(
                f"{subject} {needs}, the {task.num_devices} devices have {gb_text(room)} "
                f"({caps_text(items.memory_D.tolist())}): {missing}.",
                f"{MORE_CAPACITY}.",
            )
        else:
            yield InfeasibleTask(
                f"{_subject(tables)} {needs}, but may only use {_devices(allowed_D)} with {gb_text(room)}: {missing}.",
                f"{MORE_MEMORY}, or allow more devices.",
            )


def _unfit(task: ShardingTask, items: PackedItems) -> Iterator[InfeasibleTask]:
    for item in items.items:
        if item.is_free and not _fits_alone(task, item, items.memory_D):
            types = ", ".join(one for one in SHARDING_TYPES if one in task.types[item.positions[0]])
            yield InfeasibleTask(
                f"table {brief(item.tables[0].name)} does not fit on its allowed devices, however it is sharded "
                f"({types}): they can hold {_most_of(item, items.memory_D)} "
                f"({caps_text(items.memory_D.tolist())}).",
                f"{MORE_CAPACITY}, or allow more sharding types.",
            )


def _confinements(
    allowed_ID: npt.NDArray[np.bool_],
) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
    """Yield sets of devices, smallest first, each with the items that are allowed only on these devices."""
    sets = np.unique(allowed_ID[~allowed_ID.all(axis=1)], axis=0)
    for allowed_D in sets[sets.sum(axis=1).argsort(kind="stable")]:
        yield allowed_D, np.flatnonzero(~(allowed_ID & ~allowed_D).any(axis=1))
    yield np.ones(allowed_ID.shape[1], dtype=bool), np.arange(len(allowed_ID))


def _least_bytes(item: PackedItem, memory_D: npt.NDArray[np.int64]) -> int:
    """Return a lower bound of an item's memory; each column shard repeats the per-row optimizer state."""
    memory_D = np.where(item.allowed_D, memory_D, -1)
    if item.grid is not None or not item.cuts or any(cut.in_rows for cut in item.cuts):
        return item.least_bytes
    if item.may_be_whole and memory_D.max() >= item.size_bytes:
        return item.least_bytes
    (cut,) = item.cuts
    parts = min(_fewest_parts(cut, memory_D), len(memory_D))
    least = item.size_bytes + cut.part_bytes * (max(parts, item.least_parts) - 1)
    return min([least, *(known.device_bytes for known in item.known if known.fit(memory_D))])


def _fewest_parts(cut: Cut, memory_D: npt.NDArray[np.int64]) -> int:
    """Return the fewest parts in which the table fits on the devices; more than their number if impossible."""
    fewest = len(memory_D) + 1
    for scope in cut.scopes:
        enough = (-np.sort(-cut.most_blocks(memory_D[scope]))).cumsum() >= cut.blocks
        if enough.any():
            fewest = min(fewest, int(enough.argmax()) + 1)
    return fewest


def _fits_alone(task: ShardingTask, item: PackedItem, memory_D: npt.NDArray[np.int64]) -> bool:
    if item.may_be_whole and memory_D[item.allowed_D].max() >= item.size_bytes:
        return True
    if any(known.fit(memory_D) for known in item.known):
        return True
    if task.pipeline and any(cut.in_rows for cut in item.cuts):  # the memory of uneven parts is not counted
        return int(memory_D[item.allowed_D].sum()) >= item.least_bytes
    if any(_most_together(cut, memory_D[scope]) >= cut.blocks for cut in item.cuts for scope in cut.scopes):
        return True
    return item.grid is not None and int(memory_D[item.allowed_D].sum()) >= item.least_bytes


def _most_of(item: PackedItem, memory_D: npt.NDArray[np.int64]) -> str:
    most = [(max(_most_together(cut, memory_D[scope]) for scope in cut.scopes), cut) for cut in item.cuts]
    if not most:
        return f"{gb_text(int(memory_D[item.allowed_D].sum()))} of {gb_text(item.least_bytes)}"
    count, cut = max(most, key=lambda one: one[0] / one[1].blocks)
    if cut.in_rows:
        return f"{count:,} of its {cut.blocks:,} rows"
    columns, all_columns, least = (COLUMN_STEP * blocks for blocks in (count, cut.blocks, cut.least_blocks))
    return f"{columns} of its {all_columns} columns, in shards of at least {least}"


def _most_together(cut: Cut, memory_D: npt.NDArray[np.int64]) -> int:
    return int(np.sort(cut.most_blocks(memory_D))[::-1][: cut.blocks // cut.least_blocks].sum())


def _names(tables: Sequence[Table]) -> str:
    return names_text([table.name for table in tables], write=shortened)


def _subject(tables: Sequence[Table]) -> str:
    return f"table{'s' if len(tables) > 1 else ''} {_names(tables)}"


def _needs(tables: Sequence[Table], need: int, at_least: bool = False) -> str:
    weights = sum(table.size_bytes for table in tables)
    text = f"need{'' if len(tables) > 1 else 's'}{' at least' if at_least else ''} {gb_text(need)}"
    if need <= weights:
        return text
    return f"{text} ({gb_text(weights)} of weights, {gb_text(need - weights)} of state, inputs and outputs)"


def _devices(allowed_D: npt.NDArray[np.bool_]) -> str:
    numbers = np.flatnonzero(allowed_D).tolist()
    return f"device{'s' if len(numbers) > 1 else ''} {shortened(', '.join(map(str, numbers)))}"
