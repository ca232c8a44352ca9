"""The parts of an answer where they live, with what they cost, and how tables are sharded, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart, part_table
from evenshard.placement.sharding import (
    EVERYWHERE,
    ROWS_ALONE,
    SHARDING_TYPES,
    TABLE_WISE,
    TYPES,
)
from evenshard.planner.answer import PlacementAnswer
from evenshard.tables.table import Table
from evenshard.utils.messages import count_text, names_text, printable
from evenshard.utils.units import size_text


@dataclass(frozen=True)
class PlacedPart:
    """A table, or some of its rows and columns, where it lives.

    Attributes:
        part: the part and its devices.
        table: the part as a table of its own.
        way: the sharding type of its table.
        size_bytes: memory that it takes of each of its devices.
        alone_ms: no device that holds it is predicted to take less.
        adds_ms: time that its device would save without it.
        share: share of the device's time, 0 to 1; of the slowest one of a replica's.
    """

    part: TablePart
    table: Table
    way: str
    size_bytes: int
    alone_ms: float
    adds_ms: float
    share: float

    @property
    def where(self) -> str:
        """Its device, or that it is on all."""
        return "all" if len(self.part.devices) > 1 else str(self.part.device)


@dataclass(frozen=True)
class SpreadTable:
    """A table that is not whole on one device.

    Attributes:
        name: its name.
        way: its sharding type.
        parts: its parts, by columns, then rows.
    """

    name: str
    way: str
    parts: tuple[PlacedPart, ...]

    @property
    def columns(self) -> dict[Span, tuple[PlacedPart, ...]]:
        """The parts of each cut by columns, by their rows."""
        found: dict[Span, tuple[PlacedPart, ...]] = {}
        for one in self.parts:
            found[one.part.columns] = (*found.get(one.part.columns, ()), one)
        return found


def placed_parts(answer: PlacementAnswer) -> tuple[PlacedPart, ...]:
    """All parts, in their order."""
    total_ms = [device.predicted_total_ms for device in answer.devices]
    tables = {table.name: table for table in answer.request.tables}
    columns = (answer.parts, answer.part_bytes, answer.alone_ms, answer.adds_ms)
    found = []
    for part, size_bytes, alone_ms, adds_ms in zip(*columns, strict=True):
        share = min(max(adds_ms / max(*(total_ms[device] for device in part.devices), 1e-12), 0.0), 1.0)
        table, way = part_table(part, tables[part.table]), answer.type_of_table[part.table]
        found.append(PlacedPart(part, table, way, size_bytes, alone_ms, adds_ms, share))
    return tuple(found)


def costliest(parts: Sequence[PlacedPart], count: int) -> list[PlacedPart]:
    """The part of each table that adds most to its device; those that add most first."""
    by_table: dict[str, PlacedPart] = {}
    for one in parts:
        if one.part.table not in by_table or one.adds_ms > by_table[one.part.table].adds_ms:
            by_table[one.part.table] = one
    return sorted(by_table.values(), key=lambda one: (-one.adds_ms, one.part.table))[:count]


def sharded_tables(answer: PlacementAnswer) -> tuple[SpreadTable, ...]:
    """The tables that are cut or replicated, in their order."""
    parts: dict[str, tuple[PlacedPart, ...]] = {}
    for one in placed_parts(answer):
        if one.way != TABLE_WISE:
            parts[one.part.table] = (*parts.get(one.part.table, ()), one)
    return tuple(SpreadTable(name, of_table[0].way, of_table) for name, of_table in parts.items())


# Tables whose parts a line lists, and parts that it lists.
MAX_CUT, MAX_LISTED_PARTS = 4, 4


def sharding_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Each sharding type in use, and how many tables are sharded so, which, and where."""
    cut: dict[str, list[SpreadTable]] = {}
    for table in sharded_tables(answer):
        cut.setdefault(table.way, []).append(table)
    whole = sum(way == TABLE_WISE for way in answer.type_of_table.values())
    found = [(TABLE_WISE, f"{count_text(whole, 'table')}, each on one device")] if whole else []
    for way in SHARDING_TYPES:
        if tables := cut.get(way):
            found.append((way, f"{count_text(len(tables), 'table')}{_which(answer, way, tables)}"))
    return found


def _which(answer: PlacementAnswer, way: str, tables: Sequence[SpreadTable]) -> str:
    machine = answer.request.nodes
    if TYPES[way].is_replicated:
        names = [table.name for table in tables]
        held = zip(answer.parts, answer.part_memory, strict=True)
        size = sum(one.weights + one.optimizer_state for part, one in held if part.table in names)
        return f", {size_text(size)} of weights and optimizer state on every device: {names_text(names)}"
    if way in ROWS_ALONE and TYPES[way].scope == EVERYWHERE:
        return f", rows over all {machine.num_devices:,} devices: {names_text([table.name for table in tables])}"
    if way in ROWS_ALONE:
        names = [f"{table.name} {where_text(table, machine).removeprefix('by rows ')}" for table in tables]
        return f", rows over the {machine.devices_per_node:,} devices of a node: {names_text(names)}"
    shown = "; ".join(f"{printable(table.name)} {where_text(table, machine)}" for table in tables[:MAX_CUT])
    more = len(tables) - MAX_CUT
    return f": {shown}{f'; {more:,} more' if more > 0 else ''}"


def where_text(table: SpreadTable, machine: Machine) -> str:
    """The cuts of a table and their devices or nodes."""
    columns = table.columns
    if len(columns) > MAX_LISTED_PARTS:
        devices = {device for one in table.parts for device in one.part.devices}
        return f"in {len(columns):,} parts by columns on {len(devices):,} devices"
    return ", ".join(
        f"{f'{span} ' if len(columns) > 1 else ''}{_home(parts, machine)}" for span, parts in columns.items()
    )


def _home(parts: Sequence[PlacedPart], machine: Machine) -> str:
    if len(parts) == 1:
        return f"on {parts[0].where}"
    nodes = sorted({machine.node_of(one.part.device) for one in parts})
    where = f"node {nodes[0]}" if len(nodes) == 1 < machine.num_nodes else f"{len(parts):,} devices"
    return f"by rows on {where}"
