"""The rules of thumb: give each table a weight, and put the heaviest table on the device with the least weight so far.

The four human-expert strategies of DreamShard (section 4.1) differ only in the weight. So does
single-cost greedy, which weighs a table by its own measured cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from evenshard.placement import Placement, legal_mask, no_room, require_room
from evenshard.tables import Table
from evenshard.tasks import PlacementTask

Weight = Callable[[Table], float]


class GreedySharder:
    """Longest-processing-time-first on a weight of the tables; ties go to the larger table and the emptier device."""

    def __init__(self, name: str, weight: Weight) -> None:
        self.name = name
        self._weight = weight

    def place(self, task: PlacementTask) -> Placement:
        """The greedy placement.

        Raises:
            InfeasibleTask: if a table finds no room.
        """
        require_room(task)
        weights = [self._weight(table) for table in task.tables]
        sizes = [table.size_bytes for table in task.tables]
        load = np.zeros(task.num_devices)
        used_bytes = np.zeros(task.num_devices, dtype=np.int64)
        device_of_table = [0] * len(task.tables)
        heaviest_first = sorted(range(len(task.tables)), key=lambda i: (weights[i], sizes[i]), reverse=True)
        for position in heaviest_first:
            legal = np.flatnonzero(legal_mask(used_bytes, sizes[position], task.memory_cap_bytes))
            if not len(legal):
                raise no_room(task, position, used_bytes.tolist())
            device = int(min(legal, key=lambda d: (load[d], used_bytes[d])))
            device_of_table[position] = device
            load[device] += weights[position]
            used_bytes[device] += sizes[position]
        return Placement(tuple(device_of_table), task.num_devices)


def _lookup_weight(table: Table) -> float:
    return table.embedding_dim * table.pooling_factor


def expert_sharders() -> tuple[GreedySharder, ...]:
    """The human-expert strategies of the papers."""
    return (
        GreedySharder("size_greedy", lambda table: table.size_bytes),
        GreedySharder("dim_greedy", lambda table: table.embedding_dim),
        GreedySharder("lookup_greedy", _lookup_weight),
        GreedySharder("size_lookup_greedy", lambda table: _lookup_weight(table) * math.log10(table.num_rows)),
    )


def single_cost_sharder(cost_ms_of_table: Mapping[str, float]) -> GreedySharder:
    """Greedy on each table's own cost. Privileged: somebody has to measure every table of the task beforehand."""
    return GreedySharder("single_cost_greedy", lambda table: cost_ms_of_table[table.name])
