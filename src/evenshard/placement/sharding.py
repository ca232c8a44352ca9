"""The seven ways to shard a table, and the ONLY rule of which parts make one.

::

    table_wise          one part                                        on one device
    column_wise         parts by columns                                on one device each
    table_column_wise   parts by columns                                on devices of one node
    row_wise            parts by rows                                   on all devices
    table_row_wise      parts by rows                                   on all devices of one node
    grid_shard          parts by columns, each in parts by rows         each on all devices of one node
    data_parallel       one part                                        a replica on every device

The type of a table is read off its parts, so that no record can contradict them. Parts of one table never share a
device: they are one wider part. Where a table has fewer rows than all devices need, the last devices have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from evenshard.placement.machine import Machine
from evenshard.placement.memory import PartMemory, part_memory
from evenshard.placement.optimizer_state import SGD
from evenshard.placement.parts import COLUMN_STEP, Span, TablePart
from evenshard.placement.storage import FUSED, HOST_KERNELS, KEY_VALUE, ON_DEVICE
from evenshard.tables.table import DATA_TYPES, MEAN, Table
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief, cut, printable
from evenshard.utils.units import gb_text

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
ROWS_ALONE = (ROW_WISE, TABLE_ROW_WISE)
"""Types that cut rows and no columns: TorchRec takes means right of a collection whose tables all have one of these."""
REPLICATED_DATA_TYPES = ("fp32", "fp16", "bf16")
"""Weights that a dense kernel can train; replicas have no other."""


@dataclass(frozen=True)
class Communication:
    """Data types in which embeddings and their gradients travel (TorchRec: qcomms).

    Attributes:
        forward: of outputs.
        backward: of their gradients.
    """

    forward: str = "fp32"
    backward: str = "fp32"

    @staticmethod
    def of(data_types: Sequence[str]) -> Communication:
        """No data type for FP32, one for both ways, or one for each.

        Raises:
            BadConfig: if there are more, or one is unknown.
        """
        unknown = next((one for one in data_types if one not in DATA_TYPES), None)
        if unknown is not None or len(data_types) > 2:
            raise BadConfig(
                f"communication is {brief(', '.join(data_types))}. Use {', '.join(DATA_TYPES)}: one, or forward "
                f"and backward."
            )
        return Communication(data_types[0], data_types[-1]) if data_types else Communication()

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
        kernels: where its weights may be kept; None for wherever those of all tables may.
    """

    types: frozenset[str] = frozenset(SHARDING_TYPES)
    devices: frozenset[int] | None = None
    min_columns: int = COLUMN_STEP
    kernels: frozenset[str] | None = None


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
        table_optimizers: the same of tables that have one of their own, by name: their state is counted.
        communication: data types on the way.
        limits: rules of each table; empty for none.
        together: groups of tables, by position, that live on one device, whole.
        apart: groups of tables, by position, of which a device holds one at most.
        pipeline: training pipeline, one of ``memory.BATCHES``; empty to count weights and optimizer state alone.
        kernels: where weights may be kept, of ``storage.COMPUTE_KERNELS``.
        means_of_rows: takes rows of MEAN tables for right beside all types, to price what TorchRec would train wrongly.
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
    pipeline: str = ""
    kernels: tuple[str, ...] = (FUSED,)
    table_optimizers: Mapping[str, str] = field(default_factory=dict)
    means_of_rows: bool = False

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

    def optimizer_of(self, name: str) -> str:
        """The optimizer of a table."""
        return self.table_optimizers.get(name, self.optimizer)

    @cached_property
    def types(self) -> tuple[frozenset[str], ...]:
        """The ways that each table may be sharded; none where its rules contradict each other."""
        return tuple(self.limits_of(at).types - ruled_out(self, at).keys() for at in range(len(self.tables)))

    def kernels_of(self, position: int) -> tuple[str, ...]:
        """Where a table's weights may be kept, and the machine has memory for it."""
        limits = self.limits_of(position).kernels
        missing = {
            *(() if self.machine.host_bytes else HOST_KERNELS),
            *(() if self.machine.ssd_bytes else (KEY_VALUE,)),
        }
        return tuple(one for one in (self.kernels if limits is None else sorted(limits)) if one not in missing)

    @cached_property
    def in_rows(self) -> frozenset[int]:
        """Tables, by position, of collections whose tables may all be cut by rows alone."""
        types_of = [self.limits_of(at).types for at in range(len(self.tables))]
        free = {table.collection for table, types in zip(self.tables, types_of, strict=True) if types - {*ROWS_ALONE}}
        return frozenset(at for at, table in enumerate(self.tables) if table.collection not in free)

    @cached_property
    def may_offload(self) -> bool:
        """Whether a table may be kept outside of device memory."""
        return any(set(self.kernels_of(position)) != {FUSED} for position in range(len(self.tables)))

    @cached_property
    def kept_together(self) -> frozenset[int]:
        """Tables, by position, that share their device with certain others."""
        return frozenset(position for group in self.together for position in group)

    @cached_property
    def kept_apart(self) -> frozenset[int]:
        """Tables, by position, that share no device with certain others."""
        return frozenset(position for group in self.apart for position in group)


def common_kernels(task: ShardingTask, positions: Sequence[int]) -> tuple[str, ...]:
    """Where the weights of tables may be kept that are kept alike, as those that stay together are."""
    first, *others = (task.kernels_of(position) for position in positions)
    return tuple(one for one in first if all(one in kernels for kernels in others))


def memory_of_part(task: ShardingTask, table: Table, part: TablePart) -> PartMemory:
    """What a part takes on each of its devices."""
    return part_memory(
        part,
        table,
        num_devices=task.num_devices,
        batch_size=task.batch_size,
        optimizer=task.optimizer_of(table.name),
        pipeline=task.pipeline,
    )


def part_bytes(task: ShardingTask, table: Table, part: TablePart) -> int:
    """Memory of a part on each of its devices."""
    return memory_of_part(task, table, part).device_bytes


def used_bytes(task: ShardingTask, parts: Sequence[TablePart]) -> list[int]:
    """What the parts take of each device."""
    return _summed(task, parts, "device_bytes", range(task.num_devices))


def used_host_bytes(task: ShardingTask, parts: Sequence[TablePart]) -> list[int]:
    """What the parts take of each host's memory."""
    return _of_nodes(task, _summed(task, parts, "host_bytes", range(task.num_devices)))


def used_ssd_bytes(task: ShardingTask, parts: Sequence[TablePart]) -> list[int]:
    """What the parts take of each host's SSDs."""
    return _of_nodes(task, _summed(task, parts, "ssd_weights", range(task.num_devices)))


def _of_nodes(task: ShardingTask, of_devices: Sequence[int]) -> list[int]:
    size = task.machine.devices_per_node
    return [sum(of_devices[first : first + size]) for first in range(0, len(of_devices), size)]


def _summed(task: ShardingTask, parts: Sequence[TablePart], what: str, devices: range) -> list[int]:
    """One kind of memory of each device."""
    by_name = {table.name: table for table in task.tables}
    used, of_every_device = [0] * len(devices), 0
    for part in parts:
        size = getattr(memory_of_part(task, by_name[part.table], part), what)
        if len(part.devices) == task.num_devices:
            of_every_device += size
            continue
        for device in part.devices:
            used[device] += size
    return [own + of_every_device for own in used]


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


def sharding_problem(parts: Sequence[TablePart], table: Table, machine: Machine) -> str | None:
    """Says in one sentence, that the name of a table begins, why its parts make none of the types; None if they do."""
    if problem := tiling_problem(parts, table):
        return problem
    rows_of = _by_columns(parts)
    spans = sorted(rows_of)
    in_rows = len(parts) > len(rows_of)
    if len(kept := {part.storage for part in parts}) > 1:
        return f"has parts that are kept in several ways ({', '.join(sorted(map(str, kept)))}). Keep all of them alike."
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
            if part.storage != ON_DEVICE:
                return f"is replicated, and kept as {part.storage}. Replicas are kept in device memory ({FUSED})."
            return None
    homes = [part.device for part in parts]
    if len(set(homes)) < len(homes):
        twice = next(home for home in homes if homes.count(home) > 1)
        return f"has several parts on device {twice}. Make them one wider part."
    if len(spans) > 1 and any(span.size % COLUMN_STEP for span in spans):
        widths = cut(", ".join(str(span.size) for span in spans))
        return f"is split into parts of {widths} columns. Make all multiples of {COLUMN_STEP}."
    if not in_rows:
        return None
    for of_columns in rows_of.values():
        nodes = {machine.node_of(part.device) for part in of_columns}
        on_one_node = len(nodes) == 1 and _fills(of_columns, table, machine.devices_per_node)
        if not on_one_node and (len(spans) > 1 or not _fills(of_columns, table, machine.num_devices)):
            where = brief(sorted(part.device for part in of_columns))
            everywhere = "" if len(spans) > 1 else f"all {machine.num_devices} devices, or "
            return f"is cut by rows over the devices {where}. Use {everywhere}all devices of one node."
    return None


def _fills(parts: Sequence[TablePart], table: Table, num_devices: int) -> bool:
    """Whether rows are on every one of so many devices; or equal blocks end before the last ones, as TorchRec's may."""
    if len(parts) == num_devices:
        return True
    block = -(-table.num_rows // num_devices)
    return len(parts) == -(-table.num_rows // block) and max(part.rows.size for part in parts) == block


def tiling_problem(parts: Sequence[TablePart], table: Table) -> str | None:
    """Says likewise why the parts are not the whole table, each row and column of it once; None if they are."""
    rows_of = _by_columns(parts)
    if problem := _tiles_problem("columns", sorted(rows_of), table.embedding_dim):
        return problem
    for of_columns in rows_of.values():
        if problem := _tiles_problem("rows", sorted(part.rows for part in of_columns), table.num_rows):
            return problem
    return None


def _by_columns(parts: Sequence[TablePart]) -> dict[Span, list[TablePart]]:
    found: dict[Span, list[TablePart]] = {}
    for part in parts:
        found.setdefault(part.columns, []).append(part)
    return found


def _tiles_problem(what: str, spans: Sequence[Span], size: int) -> str | None:
    starts, stops = [0, *(span.stop for span in spans)], [*(span.start for span in spans), size]
    if starts == stops and all(span.size >= 1 for span in spans):
        return None
    held = cut(", ".join(map(str, spans)) or "none")
    return (
        f"has parts with the {what} {held}; each of its {size} {what} must be in exactly one. Correct the parts, or "
        f"give the tables that they are of."
    )


def ways_of(parts: Sequence[TablePart], table: Table, machine: Machine) -> frozenset[str]:
    """All the ways that the parts of a table are a case of: a whole table is one part by columns on one node, too."""
    way = sharding_type(parts, table, machine)
    if machine.num_devices == 1:
        return frozenset(SHARDING_TYPES)
    if way in BY_COLUMNS and len({machine.node_of(part.device) for part in parts}) == 1:
        return frozenset({way, TABLE_COLUMN_WISE})
    if way == ROW_WISE and machine.num_nodes == 1:
        return frozenset({way, TABLE_ROW_WISE})
    if way == TABLE_ROW_WISE and _fills(parts, table, machine.num_devices):
        return frozenset({way, ROW_WISE})
    return frozenset({way})


def may_be_cut_by_columns(table: Table, limits: TableLimits) -> bool:
    """Whether there are two parts that are wide enough."""
    narrowest = -(-limits.min_columns // COLUMN_STEP) * COLUMN_STEP
    return table.embedding_dim % COLUMN_STEP == 0 and table.embedding_dim >= 2 * max(narrowest, COLUMN_STEP)


def ruled_out(task: ShardingTask, position: int) -> dict[str, str]:
    """Ways that no legal placement shards a table in, whatever its limits say, each with the reason as a clause."""
    if task.num_devices == 1:  # all ways are the same
        return {}
    table, limits, machine = task.tables[position], task.limits_of(position), task.machine
    found: dict[str, str] = {}

    def rule_out(types: Sequence[str], why: str) -> None:
        for one in types:
            found.setdefault(one, why)

    on_all = (ROW_WISE, DATA_PARALLEL, *((TABLE_ROW_WISE,) if machine.num_nodes == 1 else ()))
    if table.is_sequence:
        rule_out([one for one in SHARDING_TYPES if one not in SEQUENCE_TYPES], "its lookups are not pooled")
        rule_out((COLUMN_WISE,), "TorchRec cuts all sequences of a collection into one width, or none")
    if table.pooling == MEAN:
        rule_out((GRID_SHARD,), "TorchRec takes no means in a grid")
        if table.is_weighted:
            rule_out(ROWS_ALONE, "TorchRec takes no means of weighted rows")
        elif position not in task.in_rows and not task.means_of_rows:
            rule_out(ROWS_ALONE, "TorchRec takes means of rows wrongly beside tables that are not cut by rows")
    if position in task.kept_together:
        others = [one for one in SHARDING_TYPES if one != TABLE_WISE]
        rule_out(others, "it stays together with others, whole on one device")
    if position in task.kept_apart:
        rule_out(on_all, "it stays apart from others, which leaves it not every device")
    if limits.devices is not None and len(limits.devices) < machine.num_devices:
        where = f"it may only live on the devices {brief(sorted(limits.devices))}"
        rule_out(on_all, where)
        if len(limits.devices) < 2:
            rule_out((COLUMN_WISE, TABLE_ROW_WISE, GRID_SHARD), where)
        if not whole_nodes(machine, limits.devices):
            rule_out((TABLE_ROW_WISE, GRID_SHARD), f"{where}, which are not all of a node")
        if len(whole_nodes(machine, limits.devices)) < 2:
            rule_out((GRID_SHARD,), f"{where}, which are not all of two nodes")
    if machine.num_nodes == 1:
        rule_out((GRID_SHARD,), "there is one node")
    if machine.devices_per_node == 1:
        rule_out((TABLE_ROW_WISE, GRID_SHARD), "a node has one device")
    if not may_be_cut_by_columns(table, limits):
        narrowest = max(limits.min_columns, COLUMN_STEP)
        why = f"its {table.embedding_dim} columns cannot be cut into multiples of {COLUMN_STEP} of {narrowest} or more"
        rule_out((COLUMN_WISE, GRID_SHARD), why)
    if table.num_rows < 2:
        rule_out(IN_ROWS, "it has a single row")
    if table.dtype not in REPLICATED_DATA_TYPES:
        rule_out((DATA_PARALLEL,), f"replicas cannot have weights of {table.dtype}")
    return found


@lru_cache(maxsize=4096)
def whole_nodes(machine: Machine, devices: frozenset[int] | None) -> tuple[int, ...]:
    """Nodes of which a table may live on every device."""
    nodes = range(machine.num_nodes)
    return tuple(node for node in nodes if devices is None or devices.issuperset(machine.devices_of_node(node)))


def cut_by_rows(task: ShardingTask, collections: Collection[object]) -> ShardingTask:
    """The task in which the tables of some collections (``Table.collection``) may be cut by rows alone."""
    limits = [task.limits_of(at) for at in range(len(task.tables))]
    narrowed = tuple(
        replace(own, types=own.types & {*ROWS_ALONE}) if table.collection in collections else own
        for table, own in zip(task.tables, limits, strict=True)
    )
    return replace(task, limits=narrowed)


def as_cut(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> ShardingTask:
    """The task in which collections with MEAN tables that a placement cuts by rows alone may be cut so alone.

    In it such a placement is legal, and no other type of a table of such a collection is.
    """
    collections = {table.collection for table in task.tables if table.pooling == MEAN}
    if not collections or task.num_devices == 1:
        return task
    for at, table in enumerate(task.tables):
        if table.collection in collections:
            ways = ways_of(by_table[table.name], table, task.machine)
            if not ways & task.limits_of(at).types & {*ROWS_ALONE}:
                collections.discard(table.collection)
    return cut_by_rows(task, collections) if collections else task


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
    check_parts_memory(task, parts)


def check_parts_memory(task: ShardingTask, parts: Sequence[TablePart]) -> None:
    """Raises InfeasibleTask if a device, or a host, would hold more than its room; rules are left aside."""
    for device, (used, room) in enumerate(zip(used_bytes(task, parts), task.room_bytes, strict=True)):
        if used > room:
            raise InfeasibleTask(
                f"device {device} would hold {gb_text(used)}, but has {gb_text(room)}. Raise "
                f"memory_cap_gb or num_devices."
            )
    if all(part.storage == ON_DEVICE for part in parts):
        return
    machine = task.machine
    for what, knob, all_used, rooms in (
        ("memory", "host_memory_gb", used_host_bytes(task, parts), machine.host_bytes),
        ("SSDs", "ssd_gb", used_ssd_bytes(task, parts), machine.ssd_bytes),
    ):
        for node, used in enumerate(all_used):
            if used > (room := rooms[node] if rooms else 0):
                raise InfeasibleTask(
                    f"host {node} would hold {gb_text(used)} in its {what}, but has "
                    f"{gb_text(room)}. Raise {knob} or num_devices."
                )


def broken_rule(task: ShardingTask, by_table: Mapping[str, Sequence[TablePart]]) -> str | None:
    """The first rule that parts break, memory left aside, as a clause; None if they break none."""
    task = as_cut(task, by_table)
    devices_of = [{device for part in by_table[table.name] for device in part.devices} for table in task.tables]
    for position, table in enumerate(task.tables):
        if (broken := broken_limit(task, position, by_table[table.name])) is not None:
            return broken
    for group in task.together:
        if len({tuple(sorted(devices_of[position])) for position in group}) > 1:
            return f"tables {_names(task, group)} are not together"
    for group in task.apart:
        if len(set().union(*(devices_of[position] for position in group))) < sum(len(devices_of[p]) for p in group):
            return f"tables {_names(task, group)} are not apart"
    return None


def broken_limit(task: ShardingTask, position: int, parts: Sequence[TablePart]) -> str | None:
    """The first limit of a table that its parts, by columns and rows, break, as a clause; None if they break none."""
    table, limits = task.tables[position], task.limits_of(position)
    ways = ways_of(parts, table, task.machine)
    if not ways & limits.types:
        way = sharding_type(parts, table, task.machine)
        return f"table {brief(table.name)} is sharded {way}, allowed are {', '.join(sorted(limits.types))}"
    if not ways & task.types[position]:
        way = min(ways & limits.types)
        return f"table {brief(table.name)} is sharded {way}, but {ruled_out(task, position)[way]}"
    kernel = parts[0].storage.kernel
    if kernel not in task.kernels_of(position):
        return f"table {brief(table.name)} is kept as {kernel}, allowed are {', '.join(task.kernels_of(position))}"
    wrong = set().union(*(part.devices for part in parts)) - (limits.devices or set(range(task.num_devices)))
    if wrong:
        return f"table {brief(table.name)} is on device {min(wrong)}, allowed are {brief(sorted(limits.devices or ()))}"
    narrowest = min(part.columns.size for part in parts)
    if narrowest < min(limits.min_columns, table.embedding_dim):
        asked = f"where at least {limits.min_columns} are asked"
        return f"table {brief(table.name)} has a part of {narrowest} columns, {asked}"
    return None


def _names(task: ShardingTask, group: Sequence[int]) -> str:
    return cut(printable(", ".join(task.tables[position].name for position in group)))
