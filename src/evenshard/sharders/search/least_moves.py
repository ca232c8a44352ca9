"""The placement that moves least, where not everything can stay: an integer program over the places of every unit.

Each unit is at home, whole on a device, in rows on a node or on all devices, replicated, or cut by columns over
neighbouring devices; what it moves is counted, memory and tables that stay apart are constraints. Other cuts are left
aside: they could move less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from evenshard.placement.plan import check_sharding
from evenshard.sharders.search.moves import Moves
from evenshard.sharders.search.space import Options
from evenshard.sharders.search.state import Choice, firsts_of, parts_of
from evenshard.utils.errors import InfeasibleTask

if TYPE_CHECKING:
    from evenshard.sharders.search.construction import Construction

MOVES_TIME_LIMIT_S = 20.0
MOST_VARIABLES = 200_000
_SLACK = 1e-5
"""Part of a device's room that is left free: the solver keeps constraints up to its rounding."""


def least_moves(options: Options, construction: Construction, moves: Moves) -> list[Choice] | None:
    """Choices that move least; None where none are found.

    Args:
        options: units and ways.
        construction: knows which units stay apart.
        moves: what each choice moves.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    candidates = [(unit, choice) for unit in range(len(options.units)) for choice in _choices(options, moves, unit)]
    if len(candidates) > MOST_VARIABLES or len({unit for unit, _ in candidates}) < len(options.units):
        return None
    rooms = _Rooms(options)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    apart: dict[tuple[int, int], int] = {}
    for number, (unit, choice) in enumerate(candidates):
        for row, value in rooms.taken(unit, choice):
            rows.append(row)
            columns.append(number)
            values.append(value)
        if options.units[unit].ways[choice.way].span == 1:
            for group in construction.groups_of(unit):
                for place in choice.places:
                    rows.append(rooms.count + apart.setdefault((group, place), len(apart)))
                    columns.append(number)
                    values.append(1.0)
    shape = (rooms.count + len(apart), len(candidates))
    limits = np.concatenate([np.full(rooms.count, 1 - _SLACK), np.ones(len(apart))])
    of_unit = coo_array(
        (np.ones(len(candidates)), ([unit for unit, _ in candidates], range(len(candidates)))),
        shape=(len(options.units), len(candidates)),
    )
    moved = np.array([moves.bytes_of(unit, choice) for unit, choice in candidates], dtype=np.float64)
    solved = milp(
        moved / max(moves.all_bytes, 1),
        integrality=np.ones(len(candidates)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(of_unit.tocsr(), 1, 1),
            LinearConstraint(coo_array((values, (rows, columns)), shape=shape).tocsr(), -np.inf, limits),
        ],
        options={"time_limit": MOVES_TIME_LIMIT_S},
    )
    if solved.x is None:
        return None
    chosen = {candidates[number][0]: candidates[number][1] for number in np.flatnonzero(solved.x > 0.5).tolist()}
    choices = [chosen[unit] for unit in range(len(options.units))]
    try:
        check_sharding(options.task, parts_of(options, choices))
    except InfeasibleTask:
        return None
    return choices


def _choices(options: Options, moves: Moves, unit: int) -> Iterator[Choice]:
    """The places of a unit that are thought of, each once."""
    own = options.units[unit]
    home = moves.homes[unit]
    if home is not None:
        yield home
    for number, way in enumerate(own.ways):
        count = options.task.num_devices // way.span
        spread = [tuple((first + step) % count for step in range(len(way.pieces))) for first in range(count)]
        near = moves.nearest(unit, number)
        found = dict.fromkeys([*([near] if near is not None else []), *(Choice(number, one) for one in spread)])
        for choice in found:
            if choice != home and len(set(choice.places)) == len(choice.places) and moves.is_allowed(unit, choice):
                yield choice


class _Rooms:
    """The memory of devices, then of hosts, then their SSDs, as rows of constraints in parts of what there is."""

    def __init__(self, options: Options) -> None:
        self._options = options
        machine = options.task.machine
        nodes = machine.num_nodes
        hosts, ssds = machine.host_bytes or (0,) * nodes, machine.ssd_bytes or (0,) * nodes
        self._rooms = np.maximum(np.array([*options.task.room_bytes, *hosts, *ssds], dtype=np.float64), 1.0)
        self.count = len(self._rooms)

    def taken(self, unit: int, choice: Choice) -> Iterator[tuple[int, float]]:
        """Rows, and what of each a choice takes."""
        machine = self._options.task.machine
        way = self._options.units[unit].ways[choice.way]
        for piece, first in zip(way.pieces, firsts_of(way, choice), strict=True):
            sums = np.zeros(self.count)
            for device in range(first, first + way.span):
                sums[device] += piece.size_bytes
                sums[machine.num_devices + machine.node_of(device)] += piece.host_bytes
                sums[machine.num_devices + machine.num_nodes + machine.node_of(device)] += piece.ssd_bytes
            for row in np.flatnonzero(sums).tolist():
                yield row, float(sums[row] / self._rooms[row])
