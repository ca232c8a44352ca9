"""The seven ways to shard a table, and the ONLY rule of which parts make one.

::

    table_wise          one part                                        on one device
    column_wise         parts by columns                                on one device each
    table_column_wise   parts by columns                                on devices of one node
    row_wise            parts by rows                                   on all devices
    table_row_wise      parts by rows                                   on the devices of one node
    grid_shard          parts by columns, each in parts by rows         each on the devices of one node
    data_parallel       one part                                        a replica on every device

The type of a table is read off its parts, so that no record can contradict them. Parts of one table never share a
device: they are one wider part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evenshard.placement.machine import Machine
from evenshard.placement.optimizer_state import SGD, state_bytes
from evenshard.placement.parts import COLUMN_STEP, Span, TablePart, part_table
from evenshard.tables.table import DATA_TYPES, Table
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief
from evenshard.utils.units import bytes_to_gb

TABLE_WISE, COLUMN_WISE, ROW_WISE = "table_wise", "column_wise", "row_wise"
TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD = "table_row_wise", "table_column_wise", "grid_shard"
DATA_PARALLEL = "data_parallel"
SHARDING_TYPES = (
    TABLE_WISE,
    COLUMN_WISE,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_COLUMN_WISE,
    GRID_SHARD,
    DATA_PARALLEL,
)
"""TorchRec's words."""
BY_COLUMNS = (TABLE_WISE, COLUMN_WISE)
SEQUENCE_TYPES = (TABLE_WISE, COLUMN_WISE, ROW_WISE, DATA_PARALLEL)
"""What TorchRec can do with the tables of an ``EmbeddingCollection``."""
IN_ROWS = (ROW_WISE, TABLE_ROW_WISE, GRID_SHARD)
"""Types whose devices hold partial sums of all samples' bags."""


@dataclass(frozen=True)
class Communication:
    """Data types in which embeddings and their gradients travel (TorchRec: qcomms).

    Attributes:
        forward: of outputs.
        backward: of their gradients.
    """

    forward: str = "fp32"
    backward: str = "fp32"

    @property
    def forward_bytes(self) -> float:
        """Of one value."""
        return DATA_TYPES[self.forward] / 8

    @property
    def backward_bytes(self) -> float:
        """Of one value."""
        return DATA_TYPES[self.backward] / 8


@dataclass(frozen=True)
class TableLimits:
    """Rules of one table.

    Attributes:
        types: the ways it may be sharded.
        devices: the devices that it may live on; None for any. Where it lives on several, all must be among them.
        min_columns: columns of the narrowest part of a table that is cut.
    """

    types: frozenset[str] = frozenset(SHARDING_TYPES)
    devices: frozenset[int] | None = None
    min_columns: int = COLUMN_STEP


NO_LIMITS = TableLimits()


@dataclass(frozen=True)
class ShardingTask:
    """Tables to shard over the devices of a machine, in any of the seven ways.

    Attributes:
        tables: whole, with distinct names.
        machine: their devices and links.
        room_bytes: what each device may hold, by device id.
        batch_size: global batch, samples.
        optimizer: one of ``optimizer_state.NUMBERS``.
        communication: data types on the way.
        limits: rules of each table; empty for none.
        together: groups of tables, by position, that live on one device, whole.
        apart: groups of tables, by position, of which a device holds one at most.
    """

    tables: tuple[Table, ...]
    machine: Machine
    room_bytes: tuple[int, ...]
    batch_size: int
    optimizer: str = SGD
    communication: Communication = field(default_factory=Communication)
    limits: tuple[TableLimits, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, ...], ...] = ()

    @property
    def num_devices(self) -> int:
        """Of the machine."""
        return self.machine.num_devices

    @property
    def local_batch(self) -> float:
        """Samples of a device."""
        return self.batch_size / self.num_devices

    def limits_of(self, position: int) -> TableLimits:
        """Rules of a table."""
        return self.limits[position] if self.limits else NO_LIMITS


def part_bytes(task: ShardingTask, table: Table, part: TablePart) -> int:
    """Memory of a part on each of its devices: weights and optimizer state."""
    own = part_table(part, table)
    return own.size_bytes + state_bytes(own, task.optimizer)


def used_bytes(task: ShardingTask, parts: Sequence[TablePart]) -> list[int]:
    """What the parts take of each device."""
    by_name = {table.name: table for table in task.tables}
    used = [0] * task.num_devices
    for part in parts:
        size = part_bytes(task, by_name[part.table], part)
        for device in part.devices:
            used[device] += size
    return used


# Types ---------------------------------------------------------------------------------------------------------------


def sharding_type(parts: Sequence[TablePart], table: Table, machine: Machine) -> str:
    """The way that a table is sharded, read off its parts, all of which are given.

    Columns that live on one node of several are called column_wise: what they do is the same.

    Raises:
        BadConfig: if the parts make none of the seven.
    """
    if problem := sharding_problem(parts, table, machine):
        raise BadConfig(f"table {brief(table.name)} {problem}")
    if len(parts) == 1:
        if len(parts[0].devices) == machine.num_devices > 1:
            return DATA_PARALLEL
        return TABLE_WISE
    rows = {part.rows for part in parts}
    columns = {part.columns for part in parts}
    if len(rows) == 1:
        return COLUMN_WISE
    if len(columns) > 1:
        return GRID_SHARD
    nodes = {machine.node_of(part.device) for part in parts}
    if len(nodes) == 1 and machine.num_nodes > 1:
        return TABLE_ROW_WISE
    return ROW_WISE


def is_replicated(parts: Sequence[TablePart]) -> bool:
    """Whether devices hold a table of their own each."""
    return len(parts[0].devices) > 1


def sharding_problem(parts: Sequence[TablePart], table: Table, machine: Machine) -> str | None:
    """Says in one sentence, that the name of a table begins, why its parts make none of the types; None if they do."""
    rows_of: dict[Span, list[TablePart]] = {}
    for part in parts:
        rows_of.setdefault(part.columns, []).append(part)
    spans = sorted(rows_of)
    if problem := _tiles_problem("columns", spans, table.embedding_dim):
        return problem
    for of_columns in rows_of.values():
        if problem := _tiles_problem("rows", sorted(part.rows for part in of_columns), table.num_rows):
            return problem
    in_rows = len(parts) > len(rows_of)
    for part in parts:
        if not part.devices:
            return "has a part on no device. Place each part."
        if len(part.devices) > 1:
            if len(parts) > 1:
                return (
                    f"is cut, and a part of it is on the devices {brief(part.devices)}. Replicate it as a whole, or "
                    f"place each part on one device."
                )
            if sorted(part.devices) != list(range(machine.num_devices)):
                return (
                    f"is on the devices {brief(part.devices)}. A replica lives on every one of the "
                    f"{machine.num_devices}; else place it on one."
                )
            return None
    homes = [part.device for part in parts]
    if len(set(homes)) < len(homes):
        twice = next(home for home in homes if homes.count(home) > 1)
        return f"has several parts on device {twice}. Make them one wider part."
    if len(spans) > 1 and any(span.size % COLUMN_STEP for span in spans):
        widths = brief(", ".join(str(span.size) for span in spans))
        return f"is split into parts of {widths} columns. Make all multiples of {COLUMN_STEP}."
    if not in_rows:
        return None
    for of_columns in rows_of.values():
        nodes = {machine.node_of(part.device) for part in of_columns}
        if len(nodes) > 1 and (len(spans) > 1 or not _on_all_devices(of_columns, table, machine)):
            where = brief(sorted(part.device for part in of_columns))
            return (
                f"is cut by rows over the devices {where}. Use all {machine.num_devices} devices, or those of one node."
            )
    return None


def _on_all_devices(parts: Sequence[TablePart], table: Table, machine: Machine) -> bool:
    """Whether rows are on every device; some have none where there are too few rows."""
    return len(parts) == machine.num_devices or len(parts) == table.num_rows or _last_are_short(parts, table)


def _last_are_short(parts: Sequence[TablePart], table: Table) -> bool:
    """Whether equal blocks of rows end before the last devices, as TorchRec's do: ceil(rows / devices) each."""
    block = max(part.rows.size for part in parts)
    return len(parts) == -(-table.num_rows // block)


def _tiles_problem(what: str, spans: Sequence[Span], size: int) -> str | None:
    starts, stops = [0, *(span.stop for span in spans)], [*(span.start for span in spans), size]
    if starts == stops and all(span.size >= 1 for span in spans):
        return None
    held = brief(", ".join(map(str, spans)) or "none")
    return (
        f"has parts with the {what} {held}; each of its {size} {what} must be in exactly one. Correct the parts, or "
        f"give the tables that they are of."
    )


# Legality ------------------------------------------------------------------------------------------------------------


def parts_by_table(task: ShardingTask, parts: Sequence[TablePart]) -> dict[str, tuple[TablePart, ...]]:
    """The parts of each table by columns, then rows; table after table in the order of the task.

    Raises:
        BadConfig: if a part is of no table, on no device of the machine, or a table's parts make none of the types.
    """
    found: dict[str, list[TablePart]] = {table.name: [] for table in task.tables}
    for part in parts:
        if part.table not in found:
            raise BadConfig(
                f"a part is of the table {brief(part.table)}, which is not among the tables. Correct its name."
            )
        wrong = next((device for device in part.devices if not 0 <= device < task.num_devices), None)
        if wrong is not None:
            raise BadConfig(
                f"table {brief(part.table)} is on device {wrong}, but the devices are 0 to {task.num_devices - 1}. "
                f"Place it again."
            )
        found[part.table].append(part)
    for table in task.tables:
        found[table.name].sort(key=lambda part: (part.columns, part.rows))
        if problem := sharding_problem(found[table.name], table, task.machine):
            raise BadConfig(f"table {brief(table.name)} {problem}")
    return {name: tuple(of_table) for name, of_table in found.items()}


def check_sharding(task: ShardingTask, parts: Sequence[TablePart]) -> None:
    """Raises InfeasibleTask if the parts break the task's memory or rules; BadConfig if they are ill-formed."""
    by_table = parts_by_table(task, parts)
    if (broken := broken_rule(task, by_table)) is not None:
        raise InfeasibleTask(f"{broken}. Place it again.")
    check_memory(task, parts)


def check_memory(task: ShardingTask, parts: Sequence[TablePart]) -> None:
    """Raises InfeasibleTask if a device would hold more than its room; rules are left aside."""
    for device, (used, room) in enumerate(zip(used_bytes(task, parts), task.room_bytes, strict=True)):
        if used > room:
            raise InfeasibleTask(
                f"device {device} would hold {bytes_to_gb(used):.2f} GB, but has {bytes_to_gb(room):.2f}. Raise "
                f"memory_cap_gb or num_devices."
            )


def broken_rule(task: ShardingTask, by_table: dict[str, tuple[TablePart, ...]]) -> str | None:
    """The first rule that parts break, memory left aside, as a clause; None if they break none."""
    devices_of = [{device for part in by_table[table.name] for device in part.devices} for table in task.tables]
    for position, table in enumerate(task.tables):
        limits, parts = task.limits_of(position), by_table[table.name]
        way = sharding_type(parts, table, task.machine)
        ways = {way, TABLE_COLUMN_WISE} if _in_one_node(way, parts, task.machine) else {way}
        if not ways & limits.types:
            return f"table {brief(table.name)} is sharded {way}, allowed are {', '.join(sorted(limits.types))}"
        if limits.devices is not None and (wrong := devices_of[position] - limits.devices):
            return f"table {brief(table.name)} is on device {min(wrong)}, allowed are {brief(sorted(limits.devices))}"
        narrowest = min(part.columns.size for part in parts)
        if narrowest < min(limits.min_columns, table.embedding_dim):
            return (
                f"table {brief(table.name)} has a part of {narrowest} columns, at least {limits.min_columns} are asked"
            )
    for group in task.together:
        if len({tuple(sorted(devices_of[position])) for position in group}) > 1:
            return f"tables {_names(task, group)} are not together"
    for group in task.apart:
        if len(set().union(*(devices_of[position] for position in group))) < sum(len(devices_of[p]) for p in group):
            return f"tables {_names(task, group)} are not apart"
    return None


def _in_one_node(way: str, parts: Sequence[TablePart], machine: Machine) -> bool:
    return way in BY_COLUMNS and len({machine.node_of(part.device) for part in parts}) == 1


def _names(task: ShardingTask, group: Sequence[int]) -> str:
    return brief(", ".join(task.tables[position].name for position in group))
