"""Packing as a mixed-integer program: HiGHS (SciPy) finds legal parts or proves that none exist.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.search.cuts import Cut, Grid, MemoryUse
from evenshard.search.items import PackedItem, PackedItems

Terms = Iterable[tuple[int, float]]
# HiGHS checks limits to 1e-6 and ignores coefficients below 1e-9, so larger numbers are scaled down to this.
_LARGEST = 1e4
_SOLVER_ERROR = 4  # status of SciPy's milp


class Solution(NamedTuple):
    """Solver result: variable values if a solution was found, and whether infeasibility was proved."""

    values: Sequence[int] = ()
    is_infeasible: bool = False


@dataclass
class IntegerProgram:
    """Integer program: non-negative integer variables and linear constraints."""

    most: list[int] = field(default_factory=list)  # the largest value of each variable
    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _weights: list[float] = field(default_factory=list)
    _limits: list[tuple[float, float]] = field(default_factory=list)

    def variable(self, most: int = 1) -> int:
        """Add an integer variable with upper bound ``most`` and return its index."""
        self.most.append(most)
        return len(self.most) - 1

    def limit(self, terms: Terms, most: float = np.inf, least: float = -np.inf) -> None:
        """Add a constraint: the sum of all terms is from ``least`` to ``most``."""
        terms = list(terms)
        finite = [abs(limit) for limit in (most, least) if np.isfinite(limit)]
        scale = max([_LARGEST, *finite, *(abs(weight) for _, weight in terms)]) / _LARGEST
        self._rows += [len(self._limits)] * len(terms)
        self._columns += [variable for variable, _ in terms]
        self._weights += [weight / scale for _, weight in terms]
        self._limits.append((least / scale, most / scale))

    def equate(self, terms: Terms, others: Terms = (), constant: float = 0) -> None:
        """Add the constraint sum(terms) = sum(others) + constant."""
        self.limit([*terms, *((variable, -weight) for variable, weight in others)], constant, constant)

    def solve(self, time_limit_s: float, costs: Sequence[float] | None = None) -> Solution:
        """Minimize the cost, or find any feasible solution if ``costs`` is None."""
        if not self.most:
            return Solution(is_infeasible=any(least > 0 or most < 0 for least, most in self._limits))
        shape = len(self._limits), len(self.most)
        weights = coo_array((self._weights, (self._rows, self._columns)), shape=shape).tocsr()
        for presolve in (True, False):
            ended = milp(
                np.zeros(len(self.most)) if costs is None else np.asarray(costs, dtype=np.float64),
                integrality=np.ones(len(self.most)),
                bounds=Bounds(0, self.most),
                constraints=LinearConstraint(weights, *zip(*self._limits, strict=True)),
                options={"time_limit": time_limit_s, "presolve": presolve},
            )
            if ended.status != _SOLVER_ERROR:  # for some programs, HiGHS cannot undo its own presolve
                break
        if ended.x is None:
            return Solution(is_infeasible=ended.status == 2)
        return Solution(np.rint(ended.x).astype(np.int64).tolist())


class Solved(NamedTuple):
    """Packing result: the parts of all items if found, and whether infeasibility was proved."""

    parts: list[TablePart] | None = None
    impossible: bool = False


_Parts = Sequence[TablePart] | Callable[[Sequence[int]], Sequence[TablePart]]


@dataclass
class _Model:
    """Integer program being built; ``taken`` has the variables that use a device, host or SSD, with bytes per unit."""

    machine: Nodes
    even_grids: bool
    program: IntegerProgram = field(default_factory=IntegerProgram)
    taken: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=dict)
    holders: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    found: dict[int, tuple[PackedItem, _Parts]] = field(default_factory=dict)

    def add_sharding(self, item: PackedItem, parts: _Parts) -> int:
        variable = self.program.variable()
        self.found[variable] = item, parts
        return variable

    def blocks(self, cut: Cut | Grid, sharding: int) -> tuple[int, int]:
        """Add two variables for a table on a device or node: its number of blocks, and 1 if it has any blocks."""
        count, held = self.program.variable(cut.widest), self.program.variable()
        self.program.limit([(count, 1), (held, -cut.widest)], most=0)
        self.program.limit([(count, 1), (held, -cut.least_blocks)], least=0)
        self.program.limit([(held, 1), (sharding, -1)], most=0)
        return count, held

    def take(self, device: int, variable: int, taken: MemoryUse) -> None:
        node = self.machine.node_of(device)
        for place, size in zip((("device", device), ("host", node), ("ssd", node)), taken, strict=True):
            if size:
                self.taken.setdefault(place, []).append((variable, size))

    def hold(self, item: PackedItem, device: int, variable: int) -> None:
        for group in item.apart:
            self.holders.setdefault((group, device), []).append(variable)

    def limit(self, items: PackedItems) -> None:
        machine = self.machine
        rooms = {"device": items.memory_D.tolist(), "host": machine.host_bytes, "ssd": machine.ssd_bytes}
        for (what, number), takes in self.taken.items():
            self.program.limit(takes, most=rooms[what][number] if rooms[what] else 0)
        for present in self.holders.values():
            self.program.limit(_ones(present), most=1)


def solve_program(items: PackedItems, time_limit_s: float) -> Solved:
    """Solve the packing of all items within the time limit."""
    found = _solve(items, time_limit_s, even_grids=True)
    if found.impossible and any(one.grid is not None for own in _storage_variants(items) for one in own):
        return Solved(impossible=_solve(items, time_limit_s, even_grids=False).impossible)
    return found


def _storage_variants(items: PackedItems) -> Sequence[tuple[PackedItem, ...]]:
    others = items.others or ((),) * len(items.items)
    return [(item, *more) for item, more in zip(items.items, others, strict=True)]


def _solve(items: PackedItems, time_limit_s: float, even_grids: bool) -> Solved:
    model = _Model(items.machine, even_grids)
    for own in _storage_variants(items):
        model.program.limit(_ones(one for item in own for one in _shardings(model, item)), most=1, least=1)
    model.limit(items)
    values, is_infeasible = model.program.solve(time_limit_s)
    if is_infeasible or len(values) < len(model.program.most):
        return Solved(impossible=is_infeasible)
    chosen = (found for variable, found in model.found.items() if values[variable])
    found = [item.with_storage(parts(values) if callable(parts) else parts) for item, parts in chosen]
    return Solved(list(chain(items.replica_parts(), *found)))


def _shardings(model: _Model, item: PackedItem) -> list[int]:
    may_go = np.flatnonzero(item.allowed_D).tolist()
    found = []
    for device in may_go if item.may_be_whole else ():
        found.append(whole := model.add_sharding(item, item.whole(device)))
        model.take(device, whole, item.outside._replace(device=item.size_bytes))
        model.hold(item, device, whole)
    for known in item.known:
        found.append(one := model.add_sharding(item, known.parts))
        for device, taken in known.taken.items():
            model.take(device, one, taken)
            model.hold(item, device, one)
    found += [_add_cut(model, item, cut) for cut in item.cuts]
    if item.grid is not None:
        found.append(_add_grid(model, item, item.grid) if model.even_grids else _add_bytes(model, item, item.grid))
    return found


def _add_cut(model: _Model, item: PackedItem, cut: Cut) -> int:
    program = model.program
    counts: dict[int, int] = {}
    sharding = model.add_sharding(item, lambda values: cut.parts(item.tables[0], _blocks_of(counts, values)))
    scopes = [program.variable() for _ in cut.scopes] if len(cut.scopes) > 1 else [sharding]
    if len(scopes) > 1:
        program.equate(_ones(scopes), [(sharding, 1)])
    holds = []
    for chosen, scope in zip(scopes, cut.scopes, strict=True):
        own = []
        for device in scope.tolist():
            counts[device], held = model.blocks(cut, chosen)
            model.take(device, counts[device], cut.line.block)
            model.take(device, held, cut.line.part)
            model.hold(item, device, held)
            own.append((counts[device], held))
        if cut.in_rows:
            _fill_with_rows(program, cut, own, chosen)
        holds += [held for _, held in own]
    program.equate(_ones(counts.values()), [(sharding, cut.blocks)])
    program.limit([*_ones(holds), (sharding, -item.least_parts)], least=0)
    return sharding


def _fill_with_rows(program: IntegerProgram, cut: Cut, own: Sequence[tuple[int, int]], chosen: int) -> None:
    """Require, if ``chosen`` is 1, rows on every device, or equal row blocks with only the last devices empty."""
    on_all, even = program.variable(int(len(own) >= cut.fills)), cut.even_rows
    program.limit([(on_all, 1), (chosen, -1)], most=0)
    for count, _ in own:
        program.limit([(count, 1), (chosen, -even.step), (on_all, even.step - cut.widest)], most=0)
    program.equate(_ones(held for _, held in own), [(chosen, len(even)), (on_all, len(own) - len(even))])


def _add_grid(model: _Model, item: PackedItem, grid: Grid) -> int:
    """Add a grid option: columns over at least two nodes, each node's rows divided evenly over its devices."""
    counts: list[int] = []
    holds = []
    sharding = model.add_sharding(
        item, lambda values: grid.even_parts(item.tables[0], [values[count] for count in counts])
    )
    for node in grid.nodes:
        count, held = model.blocks(grid, sharding)
        for (_, line), device in zip(grid.even, node.tolist(), strict=False):
            model.take(device, held, line.part)
            model.take(device, count, line.block)
            model.hold(item, device, held)
        counts.append(count)
        holds.append(held)
    model.program.equate(_ones(counts), [(sharding, grid.blocks)])
    model.program.limit([*_ones(holds), (sharding, -2)], least=0)
    return sharding


def _add_bytes(model: _Model, item: PackedItem, grid: Grid) -> int:
    sharding, total = model.add_sharding(item, ()), grid.blocks * grid.num_rows
    counts = {device: model.program.variable(total) for device in np.flatnonzero(item.allowed_D).tolist()}
    model.program.equate(_ones(counts.values()), [(sharding, total)])
    for device, count in counts.items():
        model.take(device, count, MemoryUse(grid.block_bytes))
    return sharding


def _ones(variables: Iterable[int]) -> list[tuple[int, float]]:
    return [(variable, 1) for variable in variables]


def _blocks_of(counts: dict[int, int], values: Sequence[int]) -> dict[int, int]:
    return {device: values[count] for device, count in counts.items() if values[count]}
