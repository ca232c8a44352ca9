"""Which columns of which table live on which device? Splits by columns, and the way from parts back to tables.

Column-wise splits are what TorchRec calls ``column_wise``: every part has all rows, and lookups go to all parts. A part
is therefore a table of its own, as wide as its columns, that is looked up as the whole one is: features, cost networks,
simulator and kernels know parts without knowing it. ``TablePart`` says where a part comes from, ``TableShard`` where
columns live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from evenshard.placement.placement import Placement
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import cut, shown

COLUMN_STEP = 4
"""Kernels read vectors of four weights: the parts of a split table are multiples of it wide."""


@dataclass(frozen=True)
class TablePart:
    """Columns of a table, as a table of their own.

    Attributes:
        table: what is placed; called as the whole table, with its columns where it is a part.
        whole: name of the whole table.
        column_start: the first column.
        column_stop: the column behind the last one.
    """

    table: Table
    whole: str
    column_start: int
    column_stop: int

    @property
    def halves(self) -> tuple[int, ...]:
        """Where to cut it in two."""
        return halves(self.column_start, self.column_stop)


def halves(start: int, stop: int) -> tuple[int, ...]:
    """Where to cut columns in two, as even as multiples of four allow; nothing where they cannot be cut."""
    steps, rest = divmod(stop - start, COLUMN_STEP)
    return () if rest or steps < 2 else (start + (steps + 1) // 2 * COLUMN_STEP,)


Cuts = Mapping[str, tuple[int, ...]]
"""Columns before which a table is cut, ascending, by the table's name."""


def parts_of(tables: Sequence[Table], cuts: Cuts) -> tuple[TablePart, ...]:
    """All parts, table after table, from the first column to the last.

    Raises:
        BadConfig: if a part would be called as another table is.
    """
    parts = tuple(part for table in tables for part in _parts(table, cuts.get(table.name, ())))
    twice = next((name for name, count in Counter(part.table.name for part in parts).items() if count > 1), None)
    if twice is not None:
        raise BadConfig(f"a table is called {shown(twice)}, as a part of a split table would be. Rename it.")
    return parts


def _parts(table: Table, cuts: Sequence[int]) -> tuple[TablePart, ...]:
    if not cuts:
        return (TablePart(table, table.name, 0, table.embedding_dim),)
    edges = (0, *cuts, table.embedding_dim)
    return tuple(
        TablePart(
            replace(table, name=f"{table.name}[{start}:{stop}]", embedding_dim=stop - start), table.name, start, stop
        )
        for start, stop in pairwise(edges)
    )


def shards_of_parts(parts: Sequence[TablePart], placement: Placement) -> tuple[TableShard, ...]:
    """Where the columns live: one shard per part, in their order."""
    return tuple(
        TableShard(part.whole, device, part.column_start, part.column_stop)
        for part, device in zip(parts, placement.device_of_table, strict=True)
    )


@dataclass(frozen=True)
class TableShard:
    """Some columns of a table on a device.

    Attributes:
        table: its name.
        device: device id (TorchRec: rank).
        column_start: the first column.
        column_stop: the column behind the last one.
    """

    table: str
    device: int
    column_start: int
    column_stop: int

    @property
    def num_columns(self) -> int:
        """How many columns the device holds."""
        return self.column_stop - self.column_start


def whole_tables(placement: Placement, tables: Sequence[Table]) -> tuple[TableShard, ...]:
    """One shard per table, in the order of ``tables``.

    Raises:
        BadConfig: if the placement is of another number of tables.
    """
    if len(placement.device_of_table) != len(tables):
        raise BadConfig(
            f"the placement has {len(placement.device_of_table)} tables, but {len(tables)} tables are given. "
            f"Give the tables of its task, in their order."
        )
    return tuple(
        TableShard(table.name, device, 0, table.embedding_dim)
        for table, device in zip(tables, placement.device_of_table, strict=True)
    )


def by_table(
    shards: Sequence[TableShard], tables: Sequence[Table], num_devices: int
) -> dict[str, tuple[TableShard, ...]]:
    """The shards of each table, from its first column to its last, in the order of ``tables``.

    Raises:
        BadConfig: if a column has no device or several, if a part is no multiple of four columns, or if the shards
            name a device or a table that does not exist.
    """
    twice = next((name for name, count in Counter(table.name for table in tables).items() if count > 1), None)
    if twice is not None:
        raise BadConfig(f"two tables are called {shown(twice)}. Give each its own name.")
    parts: dict[str, list[TableShard]] = {table.name: [] for table in tables}
    for shard in shards:
        if shard.table not in parts:
            raise BadConfig(
                f"a shard names the table {shown(shard.table)}, which is not among the tables. Correct its name."
            )
        if not 0 <= shard.device < num_devices:
            raise BadConfig(
                f"table {shown(shard.table)} is on device {shard.device}, but the devices are 0 to {num_devices - 1}. "
                f"Place it again."
            )
        parts[shard.table].append(shard)
    return {table.name: _complete(table, parts[table.name]) for table in tables}


def _complete(table: Table, parts: Sequence[TableShard]) -> tuple[TableShard, ...]:
    ordered = sorted(parts, key=lambda shard: shard.column_start)
    starts = [0, *(shard.column_stop for shard in ordered)]
    stops = [*(shard.column_start for shard in ordered), table.embedding_dim]
    if starts != stops or any(shard.num_columns < 1 for shard in ordered):
        columns = ", ".join(f"{shard.column_start}:{shard.column_stop}" for shard in ordered) or "none"
        raise BadConfig(
            f"the shards of table {shown(table.name)} hold the columns {cut(columns)}; each of its "
            f"{table.embedding_dim} columns must be in exactly one. Correct the shards."
        )
    if len(ordered) > 1 and any(shard.num_columns % COLUMN_STEP for shard in ordered):
        widths = ", ".join(str(shard.num_columns) for shard in ordered)
        raise BadConfig(
            f"table {shown(table.name)} is split into parts of {cut(widths)} columns. "
            f"Make all multiples of {COLUMN_STEP}."
        )
    return tuple(ordered)


def placement_of_shards(shards: Sequence[TableShard], tables: Sequence[Table], num_devices: int) -> Placement:
    """The device of each table. A table in several parts on one device counts as whole.

    Raises:
        BadConfig: if a table has parts on several devices, or as ``by_table`` does.
    """
    device_of_table = []
    for name, parts in by_table(shards, tables, num_devices).items():
        devices = {shard.device for shard in parts}
        if len(devices) > 1:
            raise BadConfig(
                f"table {shown(name)} is split over the devices {sorted(devices)}, and a Placement holds whole tables. "
                f"Use the shards instead, or plan without column-wise splits."
            )
        device_of_table.append(devices.pop())
    return Placement(tuple(device_of_table), num_devices)
