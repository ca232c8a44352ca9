"""Sharders without training: random placements and heuristics.

A heuristic gives each table a weight. It places the heaviest table first, always on the device with the least weight so
far. The four human-expert strategies of DreamShard (section 4.1) and single-cost greedy differ only in the weight; the
last uses the measured cost of the table alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import InfeasibleTask
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, cut_rows, even_widths, spans_of_sizes, whole_part
from evenshard.placement.placement import Placement, check_sharding
from evenshard.placement.sharding import TABLE_WISE, TYPES
from evenshard.placement.task import ShardingTask, may_be_cut_by_columns
from evenshard.search.infeasibility import no_device_error, require_feasible
from evenshard.search.items import FreeMemory, PackedItem, PackedItems
from evenshard.tables.table import Table

ATTEMPTS = 20  # random draws before ``random_sharding`` gives up


class RandomSharder:
    """Sharder that draws a random legal device for each table; each task has its own random stream."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def place(self, task: ShardingTask) -> Placement:
        """Return a random legal placement.

        Raises:
            InfeasibleTask: if no device has enough memory for a table.
        """
        return random_placement(task, np.random.default_rng([self._seed, zlib.crc32(task.task_id.encode())]))


def random_placement(task: ShardingTask, rng: np.random.Generator) -> Placement:
    """Place the tables in random order, each on a uniformly drawn device with enough memory.

    Tables that must share a device form one group. Groups with a rule that limits their devices go first.

    Raises:
        InfeasibleTask: if no device has enough memory for a table.
    """
    items = require_feasible(task)
    shuffled = [items.items[number] for number in rng.permutation(len(items.items))]
    shuffled.sort(key=lambda item: bool(item.allowed_D.all()))
    return _place_in_order(task, items, shuffled, lambda item, legal, used_D: int(rng.choice(legal)))


# Chooses a device for a group, given the devices with enough memory, and the used bytes of every device.
Choose = Callable[[PackedItem, npt.NDArray[np.int64], npt.NDArray[np.int64]], int]


def _place_in_order(task: ShardingTask, items: PackedItems, order: Sequence[PackedItem], choose: Choose) -> Placement:
    room, device_of_table = FreeMemory(items), [0] * len(task.tables)
    for item in order:
        legal, used_D = np.flatnonzero(room.of(item) >= item.size_bytes), items.memory_D - room.left_D
        if not len(legal):
            raise no_device_error(task, item.positions, used_D.tolist())
        device = choose(item, legal, used_D)
        room.take(item, {device: item.size_bytes})
        for position in item.positions:
            device_of_table[position] = device
    return Placement(tuple(device_of_table), task.num_devices)


def random_sharding(task: ShardingTask, types: Sequence[str], rng: np.random.Generator) -> tuple[TablePart, ...]:
    """Draw a legal sharded placement; half of the draws use one sharding type for all tables that allow it.

    Args:
        types: sharding types to draw from; a table that supports none of them stays whole.

    Raises:
        InfeasibleTask: if ``ATTEMPTS`` draws exceed memory or break a rule.
    """
    for attempt in range(ATTEMPTS):
        drawn = [str(rng.choice(list(types)))] if rng.random() < 0.5 else types
        parts: list[TablePart] = []
        for position, table in enumerate(task.tables):
            legal = possible_types(task, position)
            possible = [way for way in drawn if way in legal]
            parts += _parts(
                table, str(rng.choice(possible or [TABLE_WISE])), task.machine, rng, task.fewest_column_parts(table)
            )
        try:
            check_sharding(task, parts)
        except InfeasibleTask:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        return tuple(parts)
    raise AssertionError


def possible_types(task: ShardingTask, position: int) -> tuple[str, ...]:
    """Return the sharding types that a table supports, without those that equal a simpler type on this machine."""
    table, limits, machine = task.tables[position], task.limits_of(position), task.machine
    # A search excludes more: types whose parts equal those of another type, and row-wise if a device gets no rows.
    return tuple(
        name
        for name, of in TYPES.items()
        if name in task.types[position]
        and of.is_distinct_on(machine)
        and (not of.cuts_columns or may_be_cut_by_columns(table, limits))
        and (not of.cuts_rows or table.num_rows >= len(of.row_devices(machine, 0)))
    )


def _parts(table: Table, way: str, machine: Nodes, rng: np.random.Generator, fewest: int = 2) -> list[TablePart]:
    nodes = rng.permutation(machine.num_nodes).tolist()
    of, columns = TYPES[way], [Span(0, table.embedding_dim)]
    most = of.most_column_parts(machine)
    if of.is_replicated:
        return [whole_part(table, tuple(range(machine.num_devices)))]
    if of.cuts_rows:
        places = of.places(machine)
        order = nodes if len(places) == len(nodes) else rng.permutation(len(places)).tolist()
        cut = _cut(table, fewest, most, rng) if of.cuts_columns else columns
        return [part for span, at in zip(cut, order, strict=False) for part in cut_rows(table, places[at], span)]
    sets = of.homes(machine)
    homes = sets[nodes[0] if len(sets) == len(nodes) else int(rng.integers(len(sets)))]
    cut = _cut(table, fewest, most, rng) if of.cuts_columns else columns
    chosen = rng.permutation(homes)[: len(cut)].tolist()
    return [part for span, device in zip(cut, chosen, strict=True) for part in cut_rows(table, [device], span)]


def _cut(table: Table, fewest: int, most: int, rng: np.random.Generator) -> list[Span]:
    count = int(rng.integers(max(fewest, 2), min(most, table.embedding_dim // COLUMN_STEP) + 1))
    return spans_of_sizes(even_widths(table.embedding_dim, count))


Weight = Callable[[Table], float]


def _lookup_weight(table: Table) -> float:
    return table.embedding_dim * table.pooling_factor


# The human-expert strategies of the papers, by the weight of a table.
EXPERTS: dict[str, Weight] = {
    "size_greedy": lambda table: table.size_bytes,
    "dim_greedy": lambda table: table.embedding_dim,
    "lookup_greedy": _lookup_weight,
    "size_lookup_greedy": lambda table: _lookup_weight(table) * math.log10(table.num_rows),
}
SINGLE_COST = "single_cost_greedy"


class GreedySharder:
    """Greedy sharder: heaviest table first, to the least loaded device (LPT).

    Tables that must share a device form one group with the sum of their weights. Groups with a device rule go first.
    """

    def __init__(self, name: str, weight: Weight) -> None:
        self.name = name
        self._weight = weight

    def place(self, task: ShardingTask) -> Placement:
        """Return the greedy placement.

        Raises:
            InfeasibleTask: if no device has enough memory for a table.
        """
        items, load_D = require_feasible(task), np.zeros(task.num_devices)
        weight_of = {item.positions: sum(map(self._weight, item.tables)) for item in items.items}

        def choose(item: PackedItem, legal: npt.NDArray[np.int64], used_D: npt.NDArray[np.int64]) -> int:
            lightest = legal[load_D[legal] == load_D[legal].min()]
            device = int(lightest[used_D[lightest].argmin()])
            load_D[device] += weight_of[item.positions]
            return device

        def urgency(item: PackedItem) -> tuple[bool, float, int]:
            return not item.allowed_D.all(), weight_of[item.positions], item.size_bytes

        return _place_in_order(task, items, sorted(items.items, key=urgency, reverse=True), choose)


def expert_sharder(name: str) -> GreedySharder:
    """Return a human-expert strategy by name."""
    return GreedySharder(name, EXPERTS[name])


def expert_sharders() -> tuple[GreedySharder, ...]:
    """Return the human-expert strategies of the papers."""
    return tuple(map(expert_sharder, EXPERTS))


def single_cost_sharder(cost_ms_of_table: Mapping[str, float]) -> GreedySharder:
    """Build a greedy sharder that weighs each table by its measured cost, which must be known for every table."""
    return GreedySharder(SINGLE_COST, lambda table: cost_ms_of_table[table.name])
