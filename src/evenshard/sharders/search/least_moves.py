"""The placement that moves least, where not everything can stay: an integer program over the places of every group.

Each group is at home, whole on a device, in rows on a node or on all devices, replicated, or cut by columns over
neighbouring devices; what it moves is counted, memory and tables that stay apart are constraints. Other cuts are left
aside: they could move less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from evenshard.placement.plan import check_sharding
from evenshard.sharders.packing.program import IntegerProgram
from evenshard.sharders.search.choices import firsts_of, parts_of
from evenshard.sharders.search.moves import Moves
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.space import SearchSpace
from evenshard.utils.errors import InfeasibleTask

if TYPE_CHECKING:
    from evenshard.sharders.search.construction import Construction

MOVES_TIME_LIMIT_S = 20.0
MOST_VARIABLES = 200_000
# Part of a device's room that is left free: the solver keeps constraints up to its rounding.
_SLACK = 1e-5


def least_moves(space: SearchSpace, construction: Construction, moves: Moves) -> list[Choice] | None:
    """Return the choices that move least, or None if none are found.

    Args:
        space: groups and options.
        construction: knows which groups stay apart.
        moves: what each choice moves.
    """
    candidates = [(group, choice) for group in range(len(space.groups)) for choice in _choices(space, moves, group)]
    if len(candidates) > MOST_VARIABLES or len({group for group, _ in candidates}) < len(space.groups):
        return None
    rooms = _Rooms(space)
    program = IntegerProgram()
    of_group: list[list[int]] = [[] for _ in space.groups]
    taken: list[list[tuple[int, float]]] = [[] for _ in range(rooms.count)]
    apart: dict[tuple[int, int], list[int]] = {}
    for group, choice in candidates:
        of_group[group].append(variable := program.variable())
        for row, value in rooms.shares_of(group, choice):
            taken[row].append((variable, value))
        if space.groups[group].options[choice.option].span == 1:
            for rule in space.groups[group].apart:
                for place in choice.places:
                    apart.setdefault((rule, place), []).append(variable)
    for own in of_group:
        program.equate(((variable, 1) for variable in own), constant=1)
    for terms in taken:
        program.limit(terms, most=1 - _SLACK)
    for present in apart.values():
        program.limit(((variable, 1) for variable in present), most=1)
    moved = [moves.bytes_of(group, choice) / max(moves.all_bytes, 1) for group, choice in candidates]
    values, _ = program.solve(MOVES_TIME_LIMIT_S, moved)
    chosen = {candidates[number][0]: candidates[number][1] for number, value in enumerate(values) if value}
    if len(chosen) < len(space.groups):
        return None
    choices = [chosen[group] for group in range(len(space.groups))]
    try:
        check_sharding(space.task, parts_of(space, choices))
    except InfeasibleTask:
        return None
    return choices


def _choices(space: SearchSpace, moves: Moves, group: int) -> Iterator[Choice]:
    own = space.groups[group]
    home = moves.homes[group]
    if home is not None:
        yield home
    for number, option in enumerate(own.options):
        count = space.task.num_devices // option.span
        spread = [tuple((first + step) % count for step in range(len(option.pieces))) for first in range(count)]
        near = moves.nearest(group, number)
        found = dict.fromkeys([*([near] if near is not None else []), *(Choice(number, one) for one in spread)])
        for choice in found:
            if choice != home and len(set(choice.places)) == len(choice.places) and moves.is_allowed(group, choice):
                yield choice


class _Rooms:
    """Memory of devices, hosts and SSDs as rows of constraints, in parts of their total."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        machine = space.task.machine
        nodes = machine.num_nodes
        hosts, ssds = machine.host_bytes or (0,) * nodes, machine.ssd_bytes or (0,) * nodes
        self._rooms = np.maximum(np.array([*space.task.room_bytes, *hosts, *ssds], dtype=np.float64), 1.0)
        self.count = len(self._rooms)

    def shares_of(self, group: int, choice: Choice) -> Iterator[tuple[int, float]]:
        machine = self._space.task.machine
        option = self._space.groups[group].options[choice.option]
        for piece, first in zip(option.pieces, firsts_of(option, choice), strict=True):
            sums = np.zeros(self.count)
            for device in range(first, first + option.span):
                sums[device] += piece.size_bytes
                sums[machine.num_devices + machine.node_of(device)] += piece.host_bytes
                sums[machine.num_devices + machine.num_nodes + machine.node_of(device)] += piece.ssd_bytes
            for row in np.flatnonzero(sums).tolist():
                yield row, float(sums[row] / self._rooms[row])
