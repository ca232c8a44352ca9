"""A random placement of parts: every table sharded in a random way, its parts on random devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenshard.placement.machine import Machine
from evenshard.placement.parts import COLUMN_STEP, Span, TablePart
from evenshard.placement.plan import check_sharding
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    EVERYWHERE,
    GRID_SHARD,
    NODE,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    TYPES,
)
from evenshard.placement.task import ShardingTask, ruled_out
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask

ATTEMPTS = 20
"""Placements that are drawn until one fits."""


def random_sharding(task: ShardingTask, types: Sequence[str], rng: np.random.Generator) -> tuple[TablePart, ...]:
    """A placement that fits: half of them shard every table alike where that is possible, the others as it comes.

    Args:
        types: to draw from; a table that can be none of them is placed whole.

    Raises:
        InfeasibleTask: if none of several draws fits.
    """
    for attempt in range(ATTEMPTS):
        drawn = [str(rng.choice(list(types)))] if rng.random() < 0.5 else types
        parts: list[TablePart] = []
        for position, table in enumerate(task.tables):
            possible = [way for way in drawn if way in possible_types(task, position)]
            parts += _parts(table, str(rng.choice(possible or [TABLE_WISE])), task.machine, rng)
        try:
            check_sharding(task, parts)
        except InfeasibleTask:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        return tuple(parts)
    raise AssertionError


def possible_types(task: ShardingTask, position: int) -> tuple[str, ...]:
    """The sharding types that a table can legally have on the machine, each of them a type of its own there."""
    table, machine = task.tables[position], task.machine
    found = [TABLE_WISE]
    if machine.num_devices > 1:
        found.append(DATA_PARALLEL)
        if _widths(table) > 1:
            found.append(COLUMN_WISE)
        if table.num_rows >= machine.num_devices:
            found.append(ROW_WISE)
    if machine.num_nodes > 1 and machine.devices_per_node > 1:
        if _widths(table) > 1:
            found.append(TABLE_COLUMN_WISE)
        if table.num_rows >= machine.devices_per_node:
            found.append(TABLE_ROW_WISE)
            if _widths(table) > 1:
                found.append(GRID_SHARD)
    never = ruled_out(task, position)
    return tuple(way for way in found if way not in never)


def _parts(table: Table, way: str, machine: Machine, rng: np.random.Generator) -> list[TablePart]:
    rows, columns = Span(0, table.num_rows), Span(0, table.embedding_dim)
    everyone = list(range(machine.num_devices))
    nodes = rng.permutation(machine.num_nodes).tolist()
    of = TYPES[way]
    if of.is_replicated:
        return [TablePart(table.name, rows, columns, tuple(everyone))]
    if of.scope == EVERYWHERE:
        return _by_rows(table, columns, everyone)
    if of.scope == NODE:
        cut = _cut(table, machine.num_nodes, rng) if of.cuts_columns else [columns]
        return [
            part
            for span, node in zip(cut, nodes, strict=False)
            for part in _by_rows(table, span, list(machine.devices_of_node(node)))
        ]
    homes = list(machine.devices_of_node(nodes[0])) if of.on_one_node else everyone
    cut = _cut(table, len(homes), rng) if of.cuts_columns else [columns]
    chosen = rng.permutation(homes)[: len(cut)].tolist()
    return [TablePart(table.name, rows, span, (device,)) for span, device in zip(cut, chosen, strict=True)]


def _by_rows(table: Table, columns: Span, devices: Sequence[int]) -> list[TablePart]:
    """As even as can be."""
    edges = [table.num_rows * at // len(devices) for at in range(len(devices) + 1)]
    return [
        TablePart(table.name, Span(edges[at], edges[at + 1]), columns, (device,)) for at, device in enumerate(devices)
    ]


def _widths(table: Table) -> int:
    """Parts that its columns can be cut into at most; 1 where they cannot be cut."""
    return 1 if table.embedding_dim % COLUMN_STEP else table.embedding_dim // COLUMN_STEP


def _cut(table: Table, most: int, rng: np.random.Generator) -> list[Span]:
    """Its columns in 2 to ``most`` parts, as even as can be."""
    count = int(rng.integers(2, min(most, _widths(table)) + 1))
    edges = [_widths(table) * at // count * COLUMN_STEP for at in range(count + 1)]
    return [Span(edges[at], edges[at + 1]) for at in range(count)]
