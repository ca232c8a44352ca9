"""Packing as an integer program: what CP-SAT finds, or proves not to exist.

Legend: D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from evenshard.placement.parts import TablePart
from evenshard.sharders.room.items import Cut, PackedItem, PackedItems


@dataclass(frozen=True)
class Solved:
    """How the solver ended.

    Attributes:
        parts: of all items on their devices; None where none were found.
        impossible: there are none: that is proven.
    """

    parts: list[TablePart] | None = None
    impossible: bool = False


@dataclass(frozen=True)
class _Choice:
    """Variables of an item.

    Attributes:
        item: the item.
        whole: 1 where it lives whole, by device.
        blocks: for each cut, how many blocks each device holds.
        grid: fours of columns of a row that each device holds, in whatever nodes; empty without a grid.
    """

    item: PackedItem
    whole: dict[int, Any]
    blocks: tuple[dict[int, Any], ...]
    grid: dict[int, Any]


def solved(items: PackedItems, seed: int, time_limit_s: float) -> Solved:
    """What the solver finds. A grid is too much for it: that there are other ways or not, it finds out with that aside.

    Args:
        items: what is packed.
        seed: seed of the solver.
        time_limit_s: the solver's own seconds, which count its steps; each is one to three seconds of one core.
    """
    found = _solved(items, seed, time_limit_s, with_grids=False)
    if found.impossible and any(item.grid is not None for item in items.items):
        return _solved(items, seed, time_limit_s, with_grids=True)
    return found


def _solved(items: PackedItems, seed: int, time_limit_s: float, with_grids: bool) -> Solved:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    used: list[list[tuple[Any, int]]] = [[] for _ in items.room_D]
    holders: dict[tuple[int, int], list[Any]] = {}
    order = sorted(items.items, key=lambda item: (bool(item.cuts), -len(item.apart), -item.size_bytes))
    named = not any(item.cuts or item.grid is not None for item in order)
    kinds = _device_kinds(items)
    rank_D = [kinds[:device].count(kind) if named else 0 for device, kind in enumerate(kinds)]
    choices = []
    for number, item in enumerate(order):
        may_go = [device for device in np.flatnonzero(item.allowed_D).tolist() if rank_D[device] <= number]
        choices.append(_choice(model, item, may_go, used, holders, with_grids))
    for takes, room in zip(used, items.room_D.tolist(), strict=True):
        model.add(_sum(takes) <= room)
    for present in holders.values():
        model.add(sum(present) <= 1)
    if not named:
        _name_devices(model, choices, kinds)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = time_limit_s
    status = solver.solve(model)
    assert status != cp_model.MODEL_INVALID, "the integer program is wrong"
    if status == cp_model.INFEASIBLE:
        return Solved(impossible=True)
    if status == cp_model.UNKNOWN:
        return Solved()
    parts = items.replica_parts()
    for choice in choices:
        if (own := _parts(solver, choice)) is None:
            return Solved()
        parts += own
    return Solved(parts)


def _choice(
    model: Any,
    item: PackedItem,
    may_go: list[int],
    used: list[list[tuple[Any, int]]],
    holders: dict[tuple[int, int], list[Any]],
    with_grids: bool,
) -> _Choice:
    """Adds the variables of an item, what they take of each device, and that it lives in one way."""
    whole = {device: model.new_bool_var("") for device in may_go} if item.may_be_whole else {}
    ways, here = list(whole.values()), dict(whole.items())
    present: dict[int, list[Any]] = {device: [variable] for device, variable in here.items()}
    for device, variable in whole.items():
        used[device].append((variable, item.size_bytes))
    blocks = []
    for cut in item.cuts:
        way = model.new_bool_var("")
        ways.append(way)
        held, holds = _blocks(model, item, cut, way)
        for device, count in held.items():
            used[device] += [(count, cut.block_bytes), (holds[device], cut.part_bytes)]
            present.setdefault(device, []).append(holds[device])
        blocks.append(held)
    grid: dict[int, Any] = {}
    if item.grid is not None and with_grids:
        way, total = model.new_bool_var(""), item.grid.blocks * item.grid.num_rows
        ways.append(way)
        grid = {device: model.new_int_var(0, total, "") for device in may_go}
        model.add(sum(grid.values()) == total * way)
        for device, count in grid.items():
            used[device].append((count, item.grid.block_bytes))
    model.add_exactly_one(ways)
    for group in item.apart:
        for device, variables in present.items():
            holders.setdefault((group, device), []).extend(variables)
    return _Choice(item, whole, tuple(blocks), grid)


def _blocks(model: Any, item: PackedItem, cut: Cut, way: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """How many blocks each device holds, and whether it holds any; none unless an item is cut in this way."""
    held: dict[int, Any] = {}
    holds: dict[int, Any] = {}
    scopes = [model.new_bool_var("") for _ in cut.scopes] if len(cut.scopes) > 1 else [way]
    if len(scopes) > 1:
        model.add(sum(scopes) == way)
    for chosen, scope in zip(scopes, cut.scopes, strict=True):
        for device in scope.tolist():
            held[device], holds[device] = model.new_int_var(0, cut.blocks, ""), model.new_bool_var("")
            model.add(held[device] <= cut.blocks * holds[device])
            model.add(held[device] >= cut.least_blocks * holds[device])
            model.add_implication(holds[device], chosen)
        if cut.in_rows:
            own = [(held[device], holds[device]) for device in scope.tolist()]
            _add_filled(model, cut, own, chosen)
    model.add(sum(held.values()) == cut.blocks * way)
    model.add(sum(holds.values()) >= item.least_parts * way)
    return held, holds


def _add_filled(model: Any, cut: Cut, own: list[tuple[Any, Any]], chosen: Any) -> None:
    """Rows are on every device; or as many to each as an even share is, which may leave the last ones without."""
    on_all = model.new_bool_var("")
    if len(own) < cut.fills:
        model.add(on_all == 0)
    for count, holds in own:
        model.add(holds == 1).only_enforce_if(chosen, on_all)
        model.add(count <= cut.even_rows).only_enforce_if(chosen, ~on_all)
    model.add(sum(holds for _, holds in own) == cut.even_holders).only_enforce_if(chosen, ~on_all)


def _device_kinds(items: PackedItems) -> list[int]:
    """A number for each device; those that share one can swap names."""
    in_nodes = any(len(cut.scopes) > 1 for item in items.items for cut in item.cuts)
    node_of = {
        device: number
        for item in items.items
        for cut in item.cuts
        if in_nodes and len(cut.scopes) > 1
        for number, scope in enumerate(cut.scopes)
        for device in scope.tolist()
    }
    kinds: dict[tuple[int, bytes, int], int] = {}
    allowed_ID = np.array([item.allowed_D for item in items.items])
    signs = [
        (room, allowed_ID[:, device].tobytes(), node_of.get(device, -1))
        for device, room in enumerate(items.room_D.tolist())
    ]
    return [kinds.setdefault(sign, len(kinds)) for sign in signs]


def _name_devices(model: Any, choices: list[_Choice], kinds: list[int]) -> None:
    """Devices of one kind are named by how much of the largest item they hold: the solver sees each placement once."""
    choice = max((one for one in choices if one.blocks), key=lambda one: one.item.size_bytes, default=None)
    if choice is None:
        return
    item = choice.item
    holds: list[list[tuple[Any, int]]] = [[] for _ in kinds]
    for device, variable in choice.whole.items():
        holds[device].append((variable, item.size_bytes))
    for cut, held in zip(item.cuts, choice.blocks, strict=True):
        for device, count in held.items():
            holds[device].append((count, cut.block_bytes))
    for kind in set(kinds):
        alike = [device for device, one in enumerate(kinds) if one == kind and holds[device]]
        for more, less in pairwise(alike):
            model.add(_sum(holds[more]) >= _sum(holds[less]))


def _sum(terms: list[tuple[Any, int]]) -> Any:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum([variable for variable, _ in terms], [weight for _, weight in terms])


def _parts(solver: Any, choice: _Choice) -> list[TablePart] | None:
    """Where the solver puts an item; None for a grid, of which it knows no more than the bytes."""
    for device, variable in choice.whole.items():
        if solver.boolean_value(variable):
            return choice.item.whole(device)
    for cut, held in zip(choice.item.cuts, choice.blocks, strict=True):
        counts = {device: solver.value(count) for device, count in held.items()}
        if any(counts.values()):
            return cut.parts(choice.item.tables[0], {device: count for device, count in counts.items() if count})
    return None
