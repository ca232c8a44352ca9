"""A task: tables, a machine, the available memory of its devices, and the rules of each table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import MAX_TOTAL_BYTES, RANGES
from evenshard.base.messages import brief
from evenshard.base.units import bytes_to_gb
from evenshard.placement.memory import SGD, PartMemory, part_memory
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, FUSED, HOST_KERNELS, KEY_VALUE, TablePart, whole_part
from evenshard.placement.sharding import (
    ALWAYS_CUT_COLUMNS,
    CUT_COLUMNS,
    GRIDS,
    IN_ROWS,
    NEVER_WHOLE,
    NODE_ROWS,
    REPLICATED,
    REPLICATED_DATA_TYPES,
    ROWS_ALONE,
    SEQUENCE_TYPES,
    SHARDING_TYPES,
    TABLE_WISE,
    TYPES,
    Communication,
    allowed_sets,
    types_on_all,
)
from evenshard.tables.table import MEAN, Table

# Name of a task that is not part of a set.
TASK_ID = "placement"


@dataclass(frozen=True)
class TableLimits:
    """Rules of one table."""

    types: frozenset[str] = frozenset(SHARDING_TYPES)  # allowed sharding types
    # Allowed devices; None for any. All devices of the table must be among them.
    devices: frozenset[int] | None = None
    min_columns: int = COLUMN_STEP  # least columns of a part of a table that is cut
    kernels: frozenset[str] | None = None  # allowed compute kernels; None for those of the task

    @property
    def min_column_steps(self) -> int:
        """Return the least width of a part, in steps of ``COLUMN_STEP`` columns."""
        return max(-(-self.min_columns // COLUMN_STEP), 1)


NO_LIMITS, WHOLE = TableLimits(), TableLimits(frozenset({TABLE_WISE}))


@dataclass(frozen=True)
class ShardingTask:
    """Tables to shard over the devices of a machine, within rules.

    Raises:
        BadConfig: if the bytes of the tables or of the devices overflow numpy's integers.
    """

    tables: tuple[Table, ...]  # whole tables with distinct names
    machine: Nodes  # devices and links
    room_bytes: tuple[int, ...]  # available memory of each device, by device id
    batch_size: int  # global batch, samples
    optimizer: str = SGD  # one of ``STATE_NUMBERS``
    communication: Communication = field(default_factory=Communication)  # data types in communication
    limits: tuple[TableLimits, ...] = ()  # rules by table; empty for none
    together: tuple[tuple[int, ...], ...] = ()  # groups of tables, by position, that stay whole on the same device
    apart: tuple[tuple[int, ...], ...] = ()  # groups of tables, by position, that may not share a device
    pipeline: str = ""  # training pipeline, one of ``PIPELINES``; if empty, only weights and optimizer state count
    kernels: tuple[str, ...] = (FUSED,)  # kernels that tables may use, of ``COMPUTE_KERNELS``
    # Optimizers by table name, where different; their states are counted.
    table_optimizers: Mapping[str, str] = field(default_factory=dict, hash=False)
    # True if MEAN tables of ``may_go_in_rows`` may be cut by rows whatever type the others have; the search has to
    # check that its answer is correct.
    means_of_rows: bool = False
    # Columns of the widest table or part that a device trains. Not in ``repr``, like ``task_id``.
    max_columns: int = field(default=sys.maxsize, repr=False)
    # Unique within a file of tasks. Not in ``repr``, which identifies measurements of parts.
    task_id: str = field(default=TASK_ID, repr=False)

    def __post_init__(self) -> None:
        _check_total("the tables", [table.size_bytes for table in self.tables])
        _check_total("the devices", self.room_bytes)

    @staticmethod
    def whole(
        task_id: str, tables: tuple[Table, ...], num_devices: int, memory_cap_bytes: int, batch_size: int
    ) -> ShardingTask:
        """Make a task of whole tables on equal devices of one node, where only weights count.

        Raises:
            BadConfig: if there are too many devices or bytes.
        """
        if problem := RANGES["num_devices"].problem(num_devices):  # check before making a cap per device
            raise BadConfig(f"num_devices {problem}.")
        machine, rooms = Nodes.one_node(num_devices), (memory_cap_bytes,) * num_devices
        return ShardingTask(tables, machine, rooms, batch_size, limits=(WHOLE,) * len(tables), task_id=task_id)

    @property
    def as_whole(self) -> ShardingTask:
        """Return the task for a sharder of whole tables: every table whole, in the memory of its allowed devices."""
        limits = tuple(replace(WHOLE, devices=self.limits_of(at).devices) for at in range(len(self.tables)))
        return replace(self, limits=limits, kernels=(FUSED,))

    @property
    def num_devices(self) -> int:
        """Return the number of devices of the machine."""
        return self.machine.num_devices

    @property
    def memory_cap_bytes(self) -> int:
        """Return the available memory of the largest device."""
        return max(self.room_bytes)

    @property
    def is_whole(self) -> bool:
        """Return True if the rules keep every table whole."""
        return bool(self.limits) and all(limits.types == WHOLE.types for limits in self.limits)

    @cached_property
    def table_bytes(self) -> tuple[int, ...]:
        """Return the device memory of each table if it is whole.

        Raises:
            BadConfig: if the sum overflows numpy's integers.
        """
        sizes = tuple(part_bytes(self, table, whole_part(table)) for table in self.tables)
        _check_total("the tables", sizes)
        return sizes

    @property
    def local_batch(self) -> float:
        """Return the samples of a device."""
        return self.batch_size / self.num_devices

    def limits_of(self, position: int) -> TableLimits:
        """Return the rules of a table."""
        return self.limits[position] if self.limits else NO_LIMITS

    def fewest_column_parts(self, table: Table) -> int:
        """Return the least number of column parts of a table that are no wider than ``max_columns``."""
        return -(-table.embedding_dim // self.max_columns)

    def optimizer_of(self, name: str) -> str:
        """Return the optimizer of a table."""
        return self.table_optimizers.get(name, self.optimizer)

    @cached_property
    def types(self) -> tuple[frozenset[str], ...]:
        """Return the possible sharding types of each table; an empty set where its rules contradict each other."""
        return tuple(self.limits_of(at).types - ruled_out(self, at).keys() for at in range(len(self.tables)))

    @cached_property
    def only_replicated(self) -> frozenset[int]:
        """Return the tables, by position, that are replicated because their rules allow nothing else."""
        if self.num_devices == 1:
            return frozenset()
        return frozenset(at for at, types in enumerate(self.types) if types and types <= {*REPLICATED})

    def kernels_of(self, position: int) -> tuple[str, ...]:
        """Return the kernels that a table may use and the machine has memory for."""
        limits = self.limits_of(position).kernels
        missing = {
            *(() if self.machine.host_bytes else HOST_KERNELS),
            *(() if self.machine.ssd_bytes else (KEY_VALUE,)),
        }
        return tuple(one for one in (self.kernels if limits is None else sorted(limits)) if one not in missing)

    @cached_property
    def in_rows(self) -> frozenset[int]:
        """Return the tables, by position, of collections in which every table may only be cut by rows."""
        types_of = [self.limits_of(at).types for at in range(len(self.tables))]
        free = {table.collection for table, types in zip(self.tables, types_of, strict=True) if types - {*ROWS_ALONE}}
        return frozenset(at for at, table in enumerate(self.tables) if table.collection not in free)

    @cached_property
    def may_go_in_rows(self) -> frozenset[tuple[str, bool, bool]]:
        """Return the collections with MEAN tables that may, but need not, be cut by rows as a whole."""
        found = {table.collection for table in self.tables if table.pooling == MEAN}
        if not found or self.num_devices == 1:
            return frozenset()
        found -= {self.tables[at].collection for at in self.in_rows}
        types = cut_by_rows(self, found).types
        return frozenset(found - {table.collection for table, own in zip(self.tables, types, strict=True) if not own})

    @cached_property
    def may_offload(self) -> bool:
        """Return True if a table may be kept outside of device memory."""
        return any(set(self.kernels_of(position)) != {FUSED} for position in range(len(self.tables)))

    @cached_property
    def kept_together(self) -> frozenset[int]:
        """Return the tables, by position, that must share their device with others."""
        return frozenset(position for group in self.together for position in group)

    @cached_property
    def kept_apart(self) -> frozenset[int]:
        """Return the tables, by position, that may not share a device with some others."""
        return frozenset(position for group in self.apart for position in group)


def distinct_tables(tasks: Sequence[ShardingTask]) -> tuple[Table, ...]:
    """Return the tables of all tasks, without duplicates."""
    return tuple(dict.fromkeys(table for task in tasks for table in task.tables))


def _check_total(what: str, sizes: Sequence[int]) -> None:
    if (total := sum(sizes)) > MAX_TOTAL_BYTES:
        most = f"{bytes_to_gb(MAX_TOTAL_BYTES):,.0f}"
        raise BadConfig(f"{what} have {bytes_to_gb(total):,.0f} GB together, more than {most}.")


def whole_task_text(task: ShardingTask) -> str:
    """Return a text that identifies a task of whole tables in journals and for simulated noise."""
    return (
        f"PlacementTask(task_id={task.task_id!r}, tables={task.tables!r}, num_devices={task.num_devices!r}, "
        f"memory_cap_bytes={task.memory_cap_bytes!r}, batch_size={task.batch_size!r})"
    )


def common_kernels(task: ShardingTask, positions: Sequence[int]) -> tuple[str, ...]:
    """Return the kernels that all of these tables may use, because tables that stay together share a kernel."""
    first, *others = (task.kernels_of(position) for position in positions)
    return tuple(one for one in first if all(one in kernels for kernels in others))


def memory_of_part(task: ShardingTask, table: Table, part: TablePart) -> PartMemory:
    """Return the memory of a part on each of its devices."""
    return part_memory(
        part,
        table,
        num_devices=task.num_devices,
        batch_size=task.batch_size,
        optimizer=task.optimizer_of(table.name),
        pipeline=task.pipeline,
    )


def part_bytes(task: ShardingTask, table: Table, part: TablePart) -> int:
    """Return the device memory of a part, on each of its devices."""
    return memory_of_part(task, table, part).device_bytes


def used_bytes(task: ShardingTask, parts: Sequence[TablePart]) -> list[int]:
    """Return the device memory of the parts, by device id."""
    return _sum_memory(task, parts, "device_bytes")


def used_host_bytes(task: ShardingTask, parts: Sequence[TablePart]) -> list[int]:
    """Return the host memory of the parts, by node."""
    return _of_nodes(task, _sum_memory(task, parts, "host_bytes"))


def used_ssd_bytes(task: ShardingTask, parts: Sequence[TablePart]) -> list[int]:
    """Return the SSD memory of the parts, by node."""
    return _of_nodes(task, _sum_memory(task, parts, "ssd_weights"))


def _of_nodes(task: ShardingTask, of_devices: Sequence[int]) -> list[int]:
    size = task.machine.devices_per_node
    return [sum(of_devices[first : first + size]) for first in range(0, len(of_devices), size)]


def _sum_memory(task: ShardingTask, parts: Sequence[TablePart], what: str) -> list[int]:
    by_name = {table.name: table for table in task.tables}
    used, of_every_device = [0] * task.num_devices, 0
    for part in parts:
        size = getattr(memory_of_part(task, by_name[part.table], part), what)
        if len(part.devices) == task.num_devices:
            of_every_device += size
            continue
        for device in part.devices:
            used[device] += size
    return [own + of_every_device for own in used]


def may_be_cut_by_columns(table: Table, limits: TableLimits, parts: int = 2) -> bool:
    """Return True if the table can be cut into ``parts`` column parts, at least two, that are wide enough."""
    fours, rest = divmod(table.embedding_dim, COLUMN_STEP)
    return not rest and fours >= max(parts, 2) * limits.min_column_steps


def width_problem(task: ShardingTask, columns: int) -> str | None:
    """Return the reason, as a clause, that no device trains a part with this many columns; None if a device does."""
    if columns <= task.max_columns:
        return None
    return f"its {columns:,} columns are more than the {task.max_columns:,} that FBGEMM trains in one call on a GPU"


def _most_column_parts(task: ShardingTask, name: str, devices: frozenset[int] | None) -> int:
    """Return the largest number of column parts of a table of this sharding type on these devices."""
    own, machine = TYPES[name], task.machine
    if not own.cuts_columns:
        return 1
    homes = (place[0] // own.home_span(machine) for place in allowed_sets(machine, own.span(machine), devices))
    return max(Counter(homes).values(), default=0)


def ruled_out(task: ShardingTask, position: int) -> dict[str, str]:
    """Map each sharding type that is impossible for this table, whatever types its rules allow, to the reason."""
    table, limits, machine = task.tables[position], task.limits_of(position), task.machine
    found: dict[str, str] = {}
    if too_wide := width_problem(task, table.embedding_dim):
        fewest = task.fewest_column_parts(table)
        barred = (one for one in SHARDING_TYPES if _most_column_parts(task, one, limits.devices) < fewest)
        found = dict.fromkeys(barred, too_wide)
    if task.num_devices == 1:  # on one device, all types are equal
        return found

    def rule_out(types: Sequence[str], why: str) -> None:
        for one in types:
            found.setdefault(one, why)

    on_all = types_on_all(machine)
    if table.is_sequence:
        rule_out([one for one in SHARDING_TYPES if one not in SEQUENCE_TYPES], "its lookups are not pooled")
        rule_out(ALWAYS_CUT_COLUMNS, "TorchRec cuts all sequences of a collection into one width, or none")
    if table.pooling == MEAN:
        rule_out(GRIDS, "TorchRec takes no means in a grid")
        if table.is_weighted:
            rule_out(ROWS_ALONE, "TorchRec takes no means of weighted rows")
        elif position not in task.in_rows and not (task.means_of_rows and table.collection in task.may_go_in_rows):
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
            rule_out(NEVER_WHOLE, where)
        nodes = allowed_sets(machine, machine.devices_per_node, limits.devices)
        if not nodes:
            rule_out(NODE_ROWS, f"{where}, which are not all of a node")
        if len(nodes) < 2:
            rule_out(GRIDS, f"{where}, which are not all of two nodes")
    if machine.num_nodes == 1:
        rule_out(GRIDS, "there is one node")
    if machine.devices_per_node == 1:
        rule_out(NODE_ROWS, "a node has one device")
    if not may_be_cut_by_columns(table, limits, task.fewest_column_parts(table)):
        narrowest = max(limits.min_columns, COLUMN_STEP)
        why = f"its {table.embedding_dim} columns cannot be cut into multiples of {COLUMN_STEP} of {narrowest} or more"
        rule_out(CUT_COLUMNS if too_wide else ALWAYS_CUT_COLUMNS, why)
    if table.num_rows < 2:
        rule_out(IN_ROWS, "it has a single row")
    if table.dtype not in REPLICATED_DATA_TYPES:
        rule_out(REPLICATED, f"replicas cannot have weights of {table.dtype}")
    return found


def cut_by_rows(task: ShardingTask, collections: Collection[object]) -> ShardingTask:
    """Return the task in which the tables of some collections (``Table.collection``) may only be cut by rows."""
    if not collections and not task.means_of_rows:
        return task
    limits = [task.limits_of(at) for at in range(len(task.tables))]
    narrowed = tuple(
        replace(own, types=own.types & {*ROWS_ALONE}) if table.collection in collections else own
        for table, own in zip(task.tables, limits, strict=True)
    )
    return replace(task, limits=narrowed, means_of_rows=False)


def allow_means_of_rows(task: ShardingTask) -> ShardingTask:
    """Relax a task for a search: MEAN tables may be cut by rows, and must be where a rule leaves no other type.

    A placement found in it must still pass ``placement.check_sharding``.
    """
    if not task.may_go_in_rows:
        return task
    types_of = zip(task.tables, task.types, strict=True)
    must = {table.collection for table, types in types_of if not types} & task.may_go_in_rows
    return replace(cut_by_rows(task, must), means_of_rows=True)
