"""Find some legal placement, regardless of cost: by packing, or by a solver if memory is tight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import MissingPackage
from evenshard.base.installation import require_package
from evenshard.placement.parts import FUSED, Storage, TablePart, whole_part
from evenshard.placement.placement import is_legal_sharding, merge_groups
from evenshard.placement.task import ShardingTask, part_bytes
from evenshard.search.cuts import Cut, Devices, Grid
from evenshard.search.infeasibility import no_placement_error, require_feasible_sharding, require_types
from evenshard.search.items import FreeMemory, KnownItems, PackedItem, PackedItems, least_outside

# Most items times devices for the solver, which then needs about 0.5 GB.
MAX_PAIRS = 150_000
TIME_LIMIT_S = 10.0  # default time limit of the solver
MOST_TRIED_OFFLOADS = 8  # numbers of offloaded tables to try, evenly spaced


def legal_parts(task: ShardingTask, time_limit_s: float = TIME_LIMIT_S) -> tuple[TablePart, ...]:
    """Return the parts of some legal placement, ordered by table; deterministic.

    Args:
        time_limit_s: the solver's time; if it ends early, another run may find a placement.

    Raises:
        InfeasibleTask: if there is no legal placement, or none was found in time; the message says which.
    """
    require_types(task)
    known: KnownItems = {}
    if (found := quick_parts(task, known)) is not None:
        return found
    items = PackedItems.of(task, known=known)
    if task.may_offload:
        items = PackedItems.with_all_storages(task, known)
    else:
        require_feasible_sharding(task, items)
    if (len(items.items) + sum(map(len, items.others))) * task.num_devices > MAX_PAIRS:
        raise no_placement_error(task, "packing found no placement, and the task is too large for the solver", items)
    try:
        require_package("scipy")
    except MissingPackage as error:
        raise no_placement_error(task, f"packing found no placement ({error})", items) from None
    from evenshard.search.integer_program import solve_program

    ended = solve_program(items, time_limit_s)
    if ended.impossible and not _is_rounded(task, items):
        raise no_placement_error(task, "no placement fits", items)
    if (found := _sort_if_legal(task, ended.parts)) is not None:
        return found
    raise no_placement_error(task, f"the solver found no placement in {time_limit_s:g} s", items)


def quick_parts(task: ShardingTask, known: KnownItems | None = None) -> tuple[TablePart, ...] | None:
    """Return a legal placement found by greedy packing, offloading tables if allowed; None if none is found.

    ``known`` caches items of the same task; new items are added.
    """
    machine = task.machine
    outside = sum(machine.host_bytes) + sum(machine.ssd_bytes) if task.may_offload else 0
    rounded = len(task.tables) * task.num_devices  # one byte per part
    if sum(table.size_bytes for table in task.tables) > sum(task.room_bytes) + outside + rounded:
        return None  # not even the weights fit
    known = {} if known is None else known
    items = PackedItems.of(task, known=known)
    too_much = sum(item.least_bytes for item in items.items) > int(items.memory_D.sum())
    found = None if too_much or items.memory_D.min() < 0 else _pack(task, items)
    return _offloaded_parts(task, known) if found is None and task.may_offload else found


def _offloaded_parts(task: ShardingTask, known: KnownItems) -> tuple[TablePart, ...] | None:
    """Offload the tables with the fewest lookups per row first, to the storage that needs the least device memory."""
    outside = {
        at: least[0]
        for positions in merge_groups(len(task.tables), task.together)
        if (least := least_outside(task, positions))
        for at in positions
    }
    forced = [at for at in outside if FUSED not in task.kernels_of(at)]
    chosen = sorted(
        (at for at in outside if at not in forced),
        key=lambda at: task.tables[at].pooling_factor / task.tables[at].num_rows,
    )
    fewest = _offloads(task, outside, forced, chosen)
    step = max((len(chosen) - fewest) // MOST_TRIED_OFFLOADS, 1)
    for count in dict.fromkeys((*range(fewest, len(chosen), step), len(chosen))):
        storages = {at: outside[at] for at in (*forced, *chosen[:count])}
        for group in task.together:
            if any(at in storages for at in group):
                storages.update({at: outside[at] for at in group})
        if sum(task.tables[at].size_bytes for at in storages) > sum(task.machine.host_bytes + task.machine.ssd_bytes):
            return None  # more offloaded tables take even more host memory
        if (found := _pack(task, PackedItems.of(task, storages, known))) is not None:
            return found
    return None


def _offloads(task: ShardingTask, outside: Mapping[int, Storage], forced: Sequence[int], chosen: Sequence[int]) -> int:
    """Return how many tables of ``chosen``, in this order, must be offloaded so that tables fit in total memory."""

    def size(at: int) -> int:
        return part_bytes(task, task.tables[at], whole_part(task.tables[at], storage=outside[at]))

    kept = set(forced)
    taken = sum(size(at) if at in kept else task.table_bytes[at] for at in range(len(task.tables)))
    for count, at in enumerate(chosen):
        if taken <= sum(task.room_bytes):
            return count
        taken += size(at) - task.table_bytes[at]
    return len(chosen)


def _pack(task: ShardingTask, items: PackedItems) -> tuple[TablePart, ...] | None:
    packed = (_sort_if_legal(task, pack_in_order(items, *order)) for order in packing_orders(items))
    return next((parts for parts in packed if parts is not None), None)


def _sort_if_legal(task: ShardingTask, parts: list[TablePart] | None) -> tuple[TablePart, ...] | None:
    if parts is None:
        return None
    order = {table.name: number for number, table in enumerate(task.tables)}
    found = tuple(sorted(parts, key=lambda part: (order[part.table], part.columns, part.rows)))
    return found if is_legal_sharding(task, found) else None


def _is_rounded(task: ShardingTask, items: PackedItems) -> bool:
    """Return True if the linear model may overestimate the memory of row parts."""
    in_rows = filter(_has_rows, items.items)
    return any(task.pipeline or one.tables[0].embedding_dim * one.tables[0].weight_bits % 8 for one in in_rows)


def packing_orders(items: PackedItems) -> Iterator[tuple[Sequence[int], bool]]:
    """Yield orders of packing, the least flexible items first, each once for worst fit and once for best fit (True)."""
    all_items = items.items
    bytes_I = np.array([item.size_bytes for item in all_items], dtype=np.int64)
    choices_I = np.array([int(item.allowed_D.sum()) for item in all_items])
    apart_I = np.array([len(item.apart) for item in all_items])
    parts_I = np.array([max((cut.part_bytes for cut in item.cuts), default=0) for item in all_items])
    # How flexible an item is: 0 whole, 1 column cuts, 2 row cuts (which fit any free memory).
    freedom_I = np.array([2 if _has_rows(item) else bool(item.cuts) for item in all_items])
    for last_I in (apart_I, parts_I):
        order = np.lexsort((-bytes_I, -last_I, freedom_I, choices_I)).tolist()
        yield order, False
        yield order, True


def _has_rows(item: PackedItem) -> bool:
    return item.grid is not None or any(cut.in_rows for cut in item.cuts)


def pack_in_order(items: PackedItems, order: Sequence[int], tightest: bool) -> list[TablePart] | None:
    """Pack all items in order and return their parts; None if an item does not fit.

    Args:
        tightest: True for best fit: use the fullest devices that have room, and fill them with column parts; False for
            worst fit: use the emptiest devices, and even parts.
    """
    room, found = FreeMemory(items), items.replica_parts()
    for number in order:
        item = items.items[number]
        used = _place(item, room.of(item), tightest)
        if used is None:
            return None
        parts, bytes_of = used
        found += item.with_storage(parts)
        room.take(item, bytes_of)
    return found


_Placed = tuple[list[TablePart], Mapping[int, int]]


def _place(item: PackedItem, left_D: npt.NDArray[np.int64], tightest: bool) -> _Placed | None:
    """Place an item on devices where it fits; None if impossible. ``left_D`` is free memory, -1 if forbidden."""
    if item.may_be_whole and left_D.max() >= item.size_bytes:
        roomy_D = np.where(left_D >= item.size_bytes, left_D, np.iinfo(np.int64).max if tightest else -1)
        device = int(roomy_D.argmin() if tightest else roomy_D.argmax())
        return item.whole(device), {device: item.size_bytes}
    for cut in item.cuts:
        for scope in sorted(cut.scopes, key=lambda scope: -int(left_D[scope].clip(min=0).sum())):
            most_D = cut.most_blocks(left_D[scope])
            blocks = _cut_rows(cut, most_D) if cut.in_rows else _use_fewest(cut, most_D, tightest)
            if blocks is not None:
                return _lay_out(item, cut, scope, blocks)
    if item.grid is not None and (found := _cut_grid(item, left_D)) is not None:
        return found
    known = next((one for one in item.known if one.fit(left_D)), None)
    return None if known is None else (list(known.parts), {at: one.device for at, one in known.taken.items()})


def _lay_out(item: PackedItem, cut: Cut, scope: Devices, blocks: npt.NDArray[np.int64]) -> _Placed:
    held = {int(scope[at]): int(blocks[at]) for at in np.flatnonzero(blocks)}
    bytes_of = {device: cut.part_bytes + count * cut.block_bytes for device, count in held.items()}
    return cut.parts(item.tables[0], held), bytes_of


def _use_fewest(cut: Cut | Grid, most: npt.NDArray[np.int64], first_fit: bool) -> npt.NDArray[np.int64] | None:
    """Return the blocks on each device or node; as few as possible, but at least two, hold all columns."""
    roomy = (-most).argsort(kind="stable")
    enough = most[roomy].cumsum() >= cut.blocks
    if not enough.any():
        return None
    count = max(int(enough.argmax()) + 1, 2)
    chosen = roomy[:count]
    rest = cut.blocks - count * cut.least_blocks
    if len(chosen) < count or not most[chosen[-1]] or rest < 0:
        return None
    found = np.zeros_like(most)
    found[chosen] = cut.least_blocks + _spread(rest, most[chosen] - cut.least_blocks, first_fit)
    return found


def _spread(count: int, most: npt.NDArray[np.int64], first_fit: bool) -> npt.NDArray[np.int64]:
    """Distribute blocks: fill devices or nodes one by one if ``first_fit``, else evenly within memory."""
    if first_fit:
        before = np.concatenate([[0], most.cumsum()[:-1]])
        return np.asarray((count - before).clip(0, most))
    found = np.zeros_like(most)
    for number, at in enumerate(most.argsort(kind="stable").tolist()):
        found[at] = min(-(-(count - int(found.sum())) // (len(most) - number)), int(most[at]))
    return found


def _cut_rows(cut: Cut, most_D: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Distribute rows evenly, else in proportion to free memory, at least one row per device; None if impossible."""
    even_D = np.zeros_like(most_D)
    even = cut.even_rows
    in_turn = np.arange(len(most_D)) if len(even) == cut.fills else (-most_D).argsort(kind="stable")
    holders = in_turn[: len(even)]
    even_D[holders] = even.step
    even_D[holders[-1]] -= int(even_D.sum()) - cut.blocks
    if len(holders) == len(even) and (even_D <= most_D).all():
        return even_D
    if len(most_D) < cut.fills or cut.blocks < len(most_D) or not most_D.all():
        return None
    rows = _divide_in_proportion(cut.blocks - len(most_D), most_D - 1)
    return None if rows is None else 1 + rows


def _divide_in_proportion(count: int, most: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    total = int(most.sum())
    if total < count:
        return None
    found = (most * (count / max(total, 1) * (1 - 1e-12))).astype(np.int64)  # rounding must not exceed the total
    return np.asarray(found + _spread(count - int(found.sum()), most - found, first_fit=True))


def _cut_grid(item: PackedItem, left_D: npt.NDArray[np.int64]) -> _Placed | None:
    """Cut columns evenly over the fewest nodes, and each part's rows over the node's devices."""
    grid = item.grid
    assert grid is not None
    most = np.array([grid.most_blocks(left_D[node]) for node in grid.nodes])
    if (blocks := _use_fewest(grid, most, first_fit=False)) is None:
        return None
    bytes_of = {
        device: line.part.device + int(count) * line.block.device
        for node, count in zip(grid.nodes, blocks, strict=True)
        for device, (_, line) in zip(node.tolist(), grid.even, strict=False)
        if count
    }
    return grid.even_parts(item.tables[0], blocks.tolist()), bytes_of
