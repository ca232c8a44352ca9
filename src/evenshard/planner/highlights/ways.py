"""How tables are sharded, in words: the types in use, and the devices of cut and replicated tables."""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.placement.machine import Machine
from evenshard.placement.sharding import (
    EVERYWHERE,
    ROWS_ALONE,
    SHARDING_TYPES,
    TABLE_WISE,
    TYPES,
)
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.highlights.placed import PlacedPart, SpreadTable, sharded_tables
from evenshard.utils.messages import names_text, printable
from evenshard.utils.units import size_text

MAX_CUT, MAX_LISTED_PARTS = 4, 4
"""Tables whose parts a line lists, and parts that it lists."""


def sharding_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Each sharding type in use, and how many tables are sharded so, which, and where."""
    cut: dict[str, list[SpreadTable]] = {}
    for table in sharded_tables(answer):
        cut.setdefault(table.way, []).append(table)
    whole = sum(way == TABLE_WISE for way in answer.type_of_table.values())
    found = [(TABLE_WISE, f"{_count(whole)}, each on one device")] if whole else []
    for way in SHARDING_TYPES:
        if tables := cut.get(way):
            found.append((way, f"{_count(len(tables))}{_which(answer, way, tables)}"))
    return found


def _count(tables: int) -> str:
    return f"{tables:,} table{'s' * (tables != 1)}"


def _which(answer: PlacementAnswer, way: str, tables: Sequence[SpreadTable]) -> str:
    machine = answer.request.nodes
    if TYPES[way].is_replicated:
        size = size_text(sum(table.parts[0].size_bytes for table in tables))
        return f", {size} on every device: {names_text([table.name for table in tables])}"
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
