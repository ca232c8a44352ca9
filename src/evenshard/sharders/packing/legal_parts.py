"""Some legal way to shard tables, whatever it costs: quickly where there is room, by a solver where memory is tight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice

from evenshard.placement.parts import FUSED, Storage, TablePart, whole_part
from evenshard.placement.placement import Placement, joined_groups, placement_of_whole
from evenshard.placement.plan import check_sharding
from evenshard.placement.task import ShardingTask, part_bytes
from evenshard.sharders.packing.fill import more_ways, pack_in_order, quick_ways
from evenshard.sharders.packing.items import KnownItems, PackedItems, least_outside
from evenshard.sharders.packing.program import solve_program
from evenshard.sharders.packing.reasons import no_parts_found, require_sharding_room, require_types
from evenshard.utils.errors import InfeasibleTask, MissingPackage
from evenshard.utils.extras import require_package
from evenshard.utils.messages import cut

# Items times devices that the solver is given; it then needs about 0.5 GB.
MAX_PAIRS = 150_000
# Items times devices that are packed in more than the quick ways.
MAX_TRIED_PAIRS = 1_000_000
TIME_LIMIT_S = 10.0
MOST_TRIED_OFFLOADS, MOST_MORE_WAYS = 8, 8


def legal_parts(task: ShardingTask, seed: int = 0, time_limit_s: float = TIME_LIMIT_S) -> tuple[TablePart, ...]:
    """Return some legal parts, those of a table one after the other; the same arguments give the same.

    Args:
        task: the tables to shard.
        seed: seed of random orders.
        time_limit_s: the solver's time; if it ends early, another run may find a placement.

    Raises:
        InfeasibleTask: if there are none, or none were found in time; the message says which of the two.
    """
    require_types(task)
    known: KnownItems = {}
    if (found := quick_parts(task, seed, known)) is not None:
        return found
    items = PackedItems.of(task, known=known)
    if task.may_offload:
        items = PackedItems.wherever_kept(task, known)
    else:
        require_sharding_room(task, items)
    pairs = (len(items.items) + sum(map(len, items.others))) * task.num_devices
    if pairs <= MAX_TRIED_PAIRS and not task.may_offload:
        for way in more_ways(items, seed):
            if (found := _sort_if_legal(task, pack_in_order(items, way))) is not None:
                return found
    if pairs > MAX_PAIRS:
        raise no_parts_found(task, "no placement was found by packing (the task is too large to solve exactly)", items)
    try:
        require_package("scipy")
    except MissingPackage as error:
        raise no_parts_found(task, f"no placement was found by packing ({error})", items) from None
    ended = solve_program(items, time_limit_s)
    if ended.impossible and not _is_rounded(task, items):
        raise no_parts_found(task, "no placement fits", items)
    if (found := _sort_if_legal(task, ended.parts)) is not None:
        return found
    raise no_parts_found(task, f"no placement was found in {time_limit_s:g} s of the solver", items)


def any_placement(task: ShardingTask, seed: int = 0, time_limit_s: float = TIME_LIMIT_S) -> Placement:
    """Some legal placement of whole tables; arguments and errors as of ``legal_parts``."""
    try:
        return placement_of_whole(task, legal_parts(task.as_whole, seed, time_limit_s))
    except InfeasibleTask as error:
        raise InfeasibleTask(f"{cut(task.task_id)}: {error.problem}", error.remedy) from None


def quick_parts(task: ShardingTask, seed: int = 0, known: KnownItems | None = None) -> tuple[TablePart, ...] | None:
    """Some legal parts where packing finds them, in device memory or, where rules allow that, outside of it.

    Args:
        known: items of the same task, whatever memory its devices and hosts have; new ones are added.
    """
    machine = task.machine
    outside = sum(machine.host_bytes) + sum(machine.ssd_bytes) if task.may_offload else 0
    rounded = len(task.tables) * task.num_devices  # a byte of each part
    if sum(table.size_bytes for table in task.tables) > sum(task.room_bytes) + outside + rounded:
        return None  # not even the weights fit
    known = {} if known is None else known
    found = first_fit(task, PackedItems.of(task, known=known))
    return _offloaded_parts(task, seed, known) if found is None and task.may_offload else found


def _offloaded_parts(task: ShardingTask, seed: int, known: KnownItems) -> tuple[TablePart, ...] | None:
    """Offload tables with few lookups for their size first, to the kernel with the least device memory."""
    outside = {
        at: least[0]
        for positions in joined_groups(len(task.tables), task.together)
        if (least := least_outside(task, positions))
        for at in positions
    }
    forced = [at for at in outside if FUSED not in task.kernels_of(at)]
    chosen = sorted(
        (at for at in outside if at not in forced),
        key=lambda at: task.tables[at].pooling_factor / task.tables[at].num_rows,
    )
    fewest = _fewest(task, outside, forced, chosen)
    step = max((len(chosen) - fewest) // MOST_TRIED_OFFLOADS, 1)
    for count in dict.fromkeys((*range(fewest, len(chosen), step), len(chosen))):
        storages = {at: outside[at] for at in (*forced, *chosen[:count]) if at in outside}
        for group in task.together:
            if any(at in storages for at in group):
                storages.update({at: outside[at] for at in group})
        if sum(task.tables[at].size_bytes for at in storages) > sum(task.machine.host_bytes + task.machine.ssd_bytes):
            return None  # the more leave device memory, the more others take
        items = PackedItems.of(task, storages, known)
        ways = chain(quick_ways(items), islice(more_ways(items, seed), MOST_MORE_WAYS))
        for way in ways:
            if (found := _sort_if_legal(task, pack_in_order(items, way))) is not None:
                return found
    return None


def _fewest(task: ShardingTask, outside: Mapping[int, Storage], forced: Sequence[int], chosen: Sequence[int]) -> int:
    """Return how many of ``chosen`` must leave device memory for all bytes to fit."""

    def size(at: int) -> int:
        return part_bytes(task, task.tables[at], whole_part(task.tables[at], storage=outside[at]))

    kept = set(forced)
    taken = sum(size(at) if at in kept else task.table_bytes[at] for at in range(len(task.tables)))
    for count, at in enumerate(chosen):
        if taken <= sum(task.room_bytes):
            return count
        taken += size(at) - task.table_bytes[at]
    return len(chosen)


def first_fit(task: ShardingTask, items: PackedItems | None = None) -> tuple[TablePart, ...] | None:
    """Legal parts where the quick ways find some; the rules of the task do not contradict each other."""
    items = PackedItems.of(task) if items is None else items
    too_much = sum(item.least_bytes for item in items.items) > int(items.room_D.sum())
    if too_much or items.room_D.min() < 0:
        return None
    return next(
        (found for way in quick_ways(items) if (found := _sort_if_legal(task, pack_in_order(items, way))) is not None),
        None,
    )


def _sort_if_legal(task: ShardingTask, parts: list[TablePart] | None) -> tuple[TablePart, ...] | None:
    if parts is None:
        return None
    order = {table.name: number for number, table in enumerate(task.tables)}
    found = tuple(sorted(parts, key=lambda part: (order[part.table], part.columns, part.rows)))
    try:
        check_sharding(task, found)
    except InfeasibleTask:
        return None
    return found


def _is_rounded(task: ShardingTask, items: PackedItems) -> bool:
    """Return whether parts may take less than was counted: inputs are even shares, bytes whole numbers."""
    in_rows = (one for one in items.items if one.grid or any(cut.in_rows for cut in one.cuts))
    return any(task.pipeline or one.tables[0].embedding_dim * one.tables[0].weight_bits % 8 for one in in_rows)
