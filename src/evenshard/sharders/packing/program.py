"""Packing as an integer program: what CP-SAT finds, or proves not to exist.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.renaming import kinds_of
from evenshard.sharders.packing.cuts import Cut, Grid, Taken
from evenshard.sharders.packing.items import PackedItem, PackedItems


@dataclass(frozen=True)
class Solved:
    """How the solver ended.

    Attributes:
        parts: of all items on their devices; None where none were found.
        impossible: there are none: that is proven.
    """

    parts: list[TablePart] | None = None
    impossible: bool = False


# Knowledge of grids in a program: nothing; those of even rows; their bytes alone, wherever each of them goes.
NO_GRIDS, EVEN_GRIDS, ANY_GRIDS = "none", "even", "any"


@dataclass(frozen=True)
class _Choice:
    """Variables of an item.

    Attributes:
        item: the item, kept somewhere.
        whole: 1 where it lives whole, by device.
        blocks: for each cut, how many blocks each device holds.
        known: 1 where it lives so, for each of the ways whose parts are known.
        grid: fours of columns on each node, of a grid of even rows; empty without one.
        is_grid: 1 where it is a grid of which no more than its bytes is known.
    """

    item: PackedItem
    whole: dict[int, Any]
    blocks: tuple[dict[int, Any], ...]
    known: tuple[Any, ...]
    grid: tuple[Any, ...]
    is_grid: Any = None


@dataclass
class _Model:
    """The program while it is made.

    Attributes:
        model: of CP-SAT.
        machine: hosts of the devices.
        taken: what is taken of devices, hosts and SSDs: variables, each with its bytes.
        holders: variables that put a table of a group on a device, by group and device.
    """

    model: Any
    machine: Machine
    taken: dict[tuple[str, int], list[tuple[Any, int]]] = field(default_factory=dict)
    holders: dict[tuple[int, int], list[Any]] = field(default_factory=dict)

    def bool(self) -> Any:
        return self.model.new_bool_var("")

    def count(self, most: int) -> Any:
        return self.model.new_int_var(0, most, "")

    def blocks(self, cut: Cut | Grid, way: Any) -> tuple[Any, Any]:
        """How many blocks a place holds, and 1 where it holds any: none unless the way is taken."""
        count, held = self.count(cut.widest), self.bool()
        self.model.add(count <= cut.widest * held)
        self.model.add(count >= cut.least_blocks * held)
        self.model.add_implication(held, way)
        return count, held

    def take(self, device: int, variable: Any, taken: Taken) -> None:
        """Takes memory of a device and of its host: this much, times the value of a variable."""
        node = self.machine.node_of(device)
        for place, size in zip((("device", device), ("host", node), ("ssd", node)), taken, strict=True):
            if size:
                self.taken.setdefault(place, []).append((variable, size))

    def hold(self, item: PackedItem, device: int, variable: Any) -> None:
        """A variable puts an item on a device."""
        for group in item.apart:
            self.holders.setdefault((group, device), []).append(variable)

    def limit(self, items: PackedItems) -> None:
        """Nothing holds more than it has, nor two of a group."""
        machine = self.machine
        rooms = {"device": items.room_D.tolist(), "host": machine.host_bytes, "ssd": machine.ssd_bytes}
        for (what, number), takes in self.taken.items():
            self.model.add(_sum(takes) <= (rooms[what][number] if rooms[what] else 0))
        for present in self.holders.values():
            self.model.add(sum(present) <= 1)


def solve_program(items: PackedItems, seed: int, time_limit_s: float) -> Solved:
    """What the solver finds. Grids are much for it: whether there is another way, it finds out with them aside.

    Args:
        items: what is packed.
        seed: seed of the solver.
        time_limit_s: the solver's own seconds, which count its steps; each is one to three seconds of one core.
    """
    found = _solve(items, seed, time_limit_s, NO_GRIDS)
    if found.impossible and any(one.grid is not None for own in _storage_variants(items) for one in own):
        found = _solve(items, seed, time_limit_s, EVEN_GRIDS)
        if found.impossible:
            return _solve(items, seed, time_limit_s, ANY_GRIDS)
    return found


def _storage_variants(items: PackedItems) -> Sequence[tuple[PackedItem, ...]]:
    """Each item, wherever it may be kept."""
    others = items.others or ((),) * len(items.items)
    return [(item, *more) for item, more in zip(items.items, others, strict=True)]


def _solve(items: PackedItems, seed: int, time_limit_s: float, grids: str) -> Solved:
    from ortools.sat.python import cp_model

    program = _Model(cp_model.CpModel(), items.machine)
    order = sorted(
        _storage_variants(items), key=lambda own: (bool(own[0].cuts), -len(own[0].apart), -own[0].size_bytes)
    )
    named = not any(one.is_free for own in order for one in own)
    kinds = _device_kinds(items, grids)
    rank_D = [kinds[:device].count(kind) if named else 0 for device, kind in enumerate(kinds)]
    choices = []
    for number, own in enumerate(order):
        ways: list[Any] = []
        for item in own:
            may_go = [device for device in np.flatnonzero(item.allowed_D).tolist() if rank_D[device] <= number]
            choices.append(_choice(program, item, may_go, grids, ways))
        program.model.add_exactly_one(ways)
    program.limit(items)
    if not named:
        _name_devices(program.model, choices, kinds)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = time_limit_s
    status = solver.solve(program.model)
    assert status != cp_model.MODEL_INVALID, "the integer program is wrong"
    if status == cp_model.INFEASIBLE:
        return Solved(impossible=True)
    if status == cp_model.UNKNOWN or any(one.is_grid is not None and solver.value(one.is_grid) for one in choices):
        return Solved()
    parts = (part for one in choices for part in one.item.with_storage(_parts(solver, one)))
    return Solved([*items.replica_parts(), *parts])


def _choice(program: _Model, item: PackedItem, may_go: list[int], grids: str, ways: list[Any]) -> _Choice:
    """Adds the variables of an item, what they take, and a variable to ``ways`` for each way in which it may live."""
    whole = {device: program.bool() for device in may_go} if item.may_be_whole else {}
    for device, variable in whole.items():
        program.take(device, variable, item.outside._replace(device=item.size_bytes))
        program.hold(item, device, variable)
    blocks, known = [], []
    for cut in item.cuts:
        ways.append(way := program.bool())
        blocks.append(_blocks(program, item, cut, way))
    for one in item.known:
        known.append(way := program.bool())
        for device, taken in one.taken.items():
            program.take(device, way, taken)
            program.hold(item, device, way)
    ways += [*whole.values(), *known]
    if item.grid is None or grids == NO_GRIDS:
        return _Choice(item, whole, tuple(blocks), tuple(known), ())
    ways.append(way := program.bool())
    if grids == EVEN_GRIDS:
        return _Choice(item, whole, tuple(blocks), tuple(known), _even_grid(program, item, item.grid, way))
    total = item.grid.blocks * item.grid.num_rows
    counts = {device: program.count(total) for device in may_go}
    program.model.add(sum(counts.values()) == total * way)
    for device, count in counts.items():
        program.take(device, count, Taken(item.grid.block_bytes))
    return _Choice(item, whole, tuple(blocks), tuple(known), (), way)


def _even_grid(program: _Model, item: PackedItem, grid: Grid, way: Any) -> tuple[Any, ...]:
    """Fours of columns on each node, on two at least, where rows are cut evenly over the devices of a node."""
    counts, holds = [], []
    for node in grid.nodes:
        count, held = program.blocks(grid, way)
        for (_, line), device in zip(grid.even, node.tolist(), strict=False):
            program.take(device, held, line.part)
            program.take(device, count, line.block)
            program.hold(item, device, held)
        counts.append(count)
        holds.append(held)
    program.model.add(sum(counts) == grid.blocks * way)
    program.model.add(sum(holds) >= 2 * way)
    return tuple(counts)


def _blocks(program: _Model, item: PackedItem, cut: Cut, way: Any) -> dict[int, Any]:
    """How many blocks each device holds; none unless an item is cut in this way."""
    model = program.model
    held: dict[int, Any] = {}
    holds: dict[int, Any] = {}
    scopes = [program.bool() for _ in cut.scopes] if len(cut.scopes) > 1 else [way]
    if len(scopes) > 1:
        model.add(sum(scopes) == way)
    for chosen, scope in zip(scopes, cut.scopes, strict=True):
        for device in scope.tolist():
            held[device], holds[device] = program.blocks(cut, chosen)
            program.take(device, held[device], cut.line.block)
            program.take(device, holds[device], cut.line.part)
            program.hold(item, device, holds[device])
        if cut.in_rows:
            own = [(held[device], holds[device]) for device in scope.tolist()]
            _add_filled(model, cut, own, chosen)
    model.add(sum(held.values()) == cut.blocks * way)
    model.add(sum(holds.values()) >= item.least_parts * way)
    return held


def _add_filled(model: Any, cut: Cut, own: list[tuple[Any, Any]], chosen: Any) -> None:
    """Rows are on every device; or as many to each as an even share is, which may leave the last ones without."""
    on_all, even = model.new_bool_var(""), cut.even_rows
    if len(own) < cut.fills:
        model.add(on_all == 0)
    for count, holds in own:
        model.add(holds == 1).only_enforce_if(chosen, on_all)
        model.add(count <= even.step).only_enforce_if(chosen, ~on_all)
    model.add(sum(holds for _, holds in own) == len(even)).only_enforce_if(chosen, ~on_all)


def _device_kinds(items: PackedItems, grids: str) -> list[int]:
    """A number for each device; those that share one can swap names."""
    every = [item for own in _storage_variants(items) for item in own]
    uneven = any(len(set(known.taken.values())) > 1 for item in every for known in item.known)
    if uneven or (grids == EVEN_GRIDS and any(item.grid is not None for item in every)):
        return list(range(len(items.room_D)))
    in_nodes = any(len(cut.scopes) > 1 for item in every for cut in item.cuts) or bool(items.others)
    allowed_ID = np.array([item.allowed_D for item in items.items])
    return kinds_of(
        (room, allowed_ID[:, device].tobytes(), items.machine.node_of(device) if in_nodes else -1)
        for device, room in enumerate(items.room_D.tolist())
    )


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


def _parts(solver: Any, choice: _Choice) -> Sequence[TablePart]:
    """Where the solver puts an item; nothing where it is kept elsewhere."""
    item = choice.item
    for device, variable in choice.whole.items():
        if solver.boolean_value(variable):
            return item.whole(device)
    for variable, known in zip(choice.known, item.known, strict=True):
        if solver.boolean_value(variable):
            return known.parts
    for cut, held in zip(item.cuts, choice.blocks, strict=True):
        if counts := {device: count for device, variable in held.items() if (count := solver.value(variable))}:
            return cut.parts(item.tables[0], counts)
    return item.grid.even_parts(item.tables[0], list(map(solver.value, choice.grid))) if item.grid else []
