"""Rules of thumb: each table has a weight, and the heaviest table goes to the device with the least weight so far.

The four human-expert strategies of DreamShard (section 4.1) differ only in the weight. So does
single-cost greedy, which weighs a table by its own measured cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from evenshard.placement.placement import Items, Placement
from evenshard.placement.task import ShardingTask
from evenshard.sharders.packing.reasons import no_room, require_room
from evenshard.tables.table import Table

Weight = Callable[[Table], float]


def _lookup_weight(table: Table) -> float:
    return table.embedding_dim * table.pooling_factor


# The human-expert strategies of the papers, by what they weigh.
EXPERTS: dict[str, Weight] = {
    "size_greedy": lambda table: table.size_bytes,
    "dim_greedy": lambda table: table.embedding_dim,
    "lookup_greedy": _lookup_weight,
    "size_lookup_greedy": lambda table: _lookup_weight(table) * math.log10(table.num_rows),
}
SINGLE_COST = "single_cost_greedy"


class GreedySharder:
    """Longest-processing-time-first on a weight of the tables; ties go to the larger table and the emptier device.

    Tables that stay together are placed as one, which weighs as much as they do; what may not go everywhere goes first.
    """

    def __init__(self, name: str, weight: Weight) -> None:
        self.name = name
        self._weight = weight

    def place(self, task: ShardingTask) -> Placement:
        """The greedy placement.

        Raises:
            InfeasibleTask: if a table finds no room.
        """
        require_room(task)
        items = Items.of(task)
        weights = [sum(self._weight(task.tables[position]) for position in tables) for tables in items.members]
        sizes, restricted = items.needs_IR[:, 0].tolist(), items.restricted_I.tolist()
        load_D, used_DR = np.zeros(task.num_devices), np.zeros_like(items.room_DR)
        device_of_item = [0] * len(weights)
        heaviest_first = sorted(range(len(weights)), key=lambda i: (restricted[i], weights[i], sizes[i]), reverse=True)
        for item in heaviest_first:
            legal = np.flatnonzero(items.legal_D(item, used_DR))
            if not len(legal):
                raise no_room(task, items.members[item], used_DR[:, 0].tolist())
            lightest = legal[load_D[legal] == load_D[legal].min()]
            device = int(lightest[used_DR[lightest, 0].argmin()])
            device_of_item[item] = device
            load_D[device] += weights[item]
            used_DR[device] += items.needs_IR[item]
        return items.placement(device_of_item)


def expert_sharder(name: str) -> GreedySharder:
    """One of the human-expert strategies."""
    return GreedySharder(name, EXPERTS[name])


def expert_sharders() -> tuple[GreedySharder, ...]:
    """The human-expert strategies of the papers."""
    return tuple(map(expert_sharder, EXPERTS))


def single_cost_sharder(cost_ms_of_table: Mapping[str, float]) -> GreedySharder:
    """Greedy on each table's own cost. Privileged: every table of the task has to be measured beforehand."""
    return GreedySharder(SINGLE_COST, lambda table: cost_ms_of_table[table.name])
