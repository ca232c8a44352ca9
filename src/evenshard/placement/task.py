"""A placement task: tables, a machine, the available memory of its devices, and the rules of each table."""

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
from evenshard.placement import sharding
from evenshard.placement.memory import SGD, PartMemory, part_memory
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, FUSED, HOST_KERNELS, KEY_VALUE, TablePart, whole_part
from evenshard.tables.table import MEAN, Table

TASK_ID = "placement"  # id of a task that is not from a file of tasks


@dataclass(frozen=True)
class TableLimits:
    """Rules of one table."""

    types: frozenset[str] = frozenset(sharding.SHARDING_TYPES)  # allowed sharding types
    # Allowed devices; None for any. All devices of the table must be among them.
    devices: frozenset[int] | None = None
    min_columns: int = COLUMN_STEP  # minimum width of a column part
    kernels: frozenset[str] | None = None  # allowed compute kernels; None for the task's ``kernels``

    @property
    def min_column_steps(self) -> int:
        """Return the minimum width of a column part, in units of ``COLUMN_STEP`` columns."""
        return max(-(-self.min_columns // COLUMN_STEP), 1)


NO_LIMITS, WHOLE = TableLimits(), TableLimits(frozenset({sharding.TABLE_WISE}))


@dataclass(frozen=True)
class ShardingTask:
    """Tables to place on the devices of a machine, and the rules that a placement must follow.

    Raises:
        BadConfig: if the bytes of the tables or of the devices overflow NumPy's integers.
    """

    tables: tuple[Table, ...]  # whole tables with distinct names
    machine: Nodes  # devices and links
    room_bytes: tuple[int, ...]  # available memory of each device, by device id
    batch_size: int  # global batch, samples
    optimizer: str = SGD  # one of ``STATE_NUMBERS``
    communication: sharding.Communication = field(default_factory=sharding.Communication)
    limits: tuple[TableLimits, ...] = ()  # rules by table; empty for no rules
    together: tuple[tuple[int, ...], ...] = ()  # groups of tables, by position, that stay whole on the same device
    apart: tuple[tuple[int, ...], ...] = ()  # groups of tables, by position, that may not share a device
    pipeline: str = ""  # training pipeline, one of ``PIPELINES``; "" counts only weights and optimizer states
    kernels: tuple[str, ...] = (FUSED,)  # compute kernels that tables may use
    # Optimizers of tables, by name, that differ from ``optimizer``; they affect memory.
    table_optimizers: Mapping[str, str] = field(default_factory=dict, hash=False)
    # True if MEAN tables in collections of ``may_be_row_wise`` may be cut by rows, even if the collection's other
    # tables are not. Only for searches, which check the result.
    means_of_rows: bool = False
    # Most columns of a table or part that a device can train. Not in ``repr``, like ``task_id``.
    max_columns: int = field(default=sys.maxsize, repr=False)
    # Unique within a file of tasks. Not in ``repr``, because measurements do not depend on it.
    task_id: str = field(default=TASK_ID, repr=False)

    def __post_init__(self) -> None:
        _check_total("the tables", [table.size_bytes for table in self.tables])
        _check_total("the devices", self.room_bytes)

    @staticmethod
    def whole(
        task_id: str, tables: tuple[Table, ...], num_devices: int, memory_cap_bytes: int, batch_size: int
    ) -> ShardingTask:
        """Create a task of whole tables on equal devices of one node; only weights count as memory.

        Raises:
            BadConfig: if there are too many devices or bytes.
        """
        if problem := RANGES["num_devices"].problem(num_devices):  # before creating a tuple with a cap per device
            raise BadConfig(f"num_devices {problem}.")
        machine, rooms = Nodes.one_node(num_devices), (memory_cap_bytes,) * num_devices
        return ShardingTask(tables, machine, rooms, batch_size, limits=(WHOLE,) * len(tables), task_id=task_id)

    @property
    def as_whole(self) -> ShardingTask:
        """Return the task with rules that keep every table whole and in device memory."""
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
        """Return True if the rules require every table to be whole."""
        return bool(self.limits) and all(limits.types == WHOLE.types for limits in self.limits)

    @cached_property
    def table_bytes(self) -> tuple[int, ...]:
        """Return the device memory of each table as a whole.

        Raises:
            BadConfig: if the sum overflows NumPy's integers.
        """
        sizes = tuple(part_bytes(self, table, whole_part(table)) for table in self.tables)
        _check_total("the tables", sizes)
        return sizes

    @property
    def local_batch(self) -> float:
        """Return the samples per device."""
        return self.batch_size / self.num_devices

    def limits_of(self, position: int) -> TableLimits:
        """Return the rules of a table."""
        return self.limits[position] if self.limits else NO_LIMITS

    def fewest_column_parts(self, table: Table) -> int:
        """Return the number of column parts that a table needs so that none is wider than ``max_columns``."""
        return -(-table.embedding_dim // self.max_columns)

    def optimizer_of(self, name: str) -> str:
        """Return the optimizer of a table."""
        return self.table_optimizers.get(name, self.optimizer)

    @cached_property
    def types(self) -> tuple[frozenset[str], ...]:
        """Return the possible sharding types of each table; an empty set if rules leave no type."""
        return tuple(self.limits_of(at).types - impossible_types(self, at).keys() for at in range(len(self.tables)))

    @cached_property
    def only_replicated(self) -> frozenset[int]:
        """Return the tables, by position, whose rules allow only replicas."""
        if self.num_devices == 1:
            return frozenset()
        return frozenset(at for at, types in enumerate(self.types) if types and types <= {*sharding.REPLICATED})

    def kernels_of(self, position: int) -> tuple[str, ...]:
        """Return the compute kernels that a table may use on this machine."""
        limits = self.limits_of(position).kernels
        missing = {
            *(() if self.machine.host_bytes else HOST_KERNELS),
            *(() if self.machine.ssd_bytes else (KEY_VALUE,)),
        }
        return tuple(name for name in (self.kernels if limits is None else sorted(limits)) if name not in missing)

    @cached_property
    def row_wise_only(self) -> frozenset[int]:
        """Return the tables, by position, of the collections in which rules require all tables to be cut by rows."""
        rows = {*sharding.ROWS_ALONE}
        free = {table.collection for at, table in enumerate(self.tables) if self.limits_of(at).types - rows}
        return frozenset(at for at, table in enumerate(self.tables) if table.collection not in free)

    @cached_property
    def may_be_row_wise(self) -> frozenset[tuple[str, bool, bool]]:
        """Return the collections that have MEAN tables and whose tables may all be cut by rows, but need not be."""
        found = {table.collection for table in self.tables if table.pooling == MEAN}
        if not found or self.num_devices == 1:
            return frozenset()
        found -= {self.tables[at].collection for at in self.row_wise_only}
        types = restrict_to_row_wise(self, found).types
        return frozenset(found - {table.collection for table, own in zip(self.tables, types, strict=True) if not own})

    @cached_property
    def may_offload(self) -> bool:
        """Return True if a table may be stored outside of device memory."""
        return any(set(self.kernels_of(position)) != {FUSED} for position in range(len(self.tables)))

    @cached_property
    def kept_together(self) -> frozenset[int]:
        """Return the tables, by position, that must share their device with other tables."""
        return frozenset(position for group in self.together for position in group)

    @cached_property
    def kept_apart(self) -> frozenset[int]:
        """Return the tables, by position, that may not share a device with some other table."""
        return frozenset(position for group in self.apart for position in group)


def distinct_tables(tasks: Sequence[ShardingTask]) -> tuple[Table, ...]:
    """Return the tables of all tasks, without duplicates."""
    return tuple(dict.fromkeys(table for task in tasks for table in task.tables))


def _check_total(what: str, sizes: Sequence[int]) -> None:
    if (total := sum(sizes)) > MAX_TOTAL_BYTES:
        most = f"{bytes_to_gb(MAX_TOTAL_BYTES):,.0f}"
        raise BadConfig(f"{what} add up to {bytes_to_gb(total):,.0f} GB; the limit is {most} GB. Check their sizes.")


def whole_task_text(task: ShardingTask) -> str:
    """Return a text that identifies a task of whole tables in journals, and is the seed of simulated noise."""
    return (
        f"PlacementTask(task_id={task.task_id!r}, tables={task.tables!r}, num_devices={task.num_devices!r}, "
        f"memory_cap_bytes={task.memory_cap_bytes!r}, batch_size={task.batch_size!r})"
    )


def common_kernels(task: ShardingTask, positions: Sequence[int]) -> tuple[str, ...]:
    """Return the compute kernels that all of these tables may use."""
    first, *others = (task.kernels_of(position) for position in positions)
    return tuple(name for name in first if all(name in kernels for kernels in others))


def memory_of_part(task: ShardingTask, table: Table, part: TablePart) -> PartMemory:
    """Return the memory of a part, per device."""
    return part_memory(
        part,
        table,
        num_devices=task.num_devices,
        batch_size=task.batch_size,
        optimizer=task.optimizer_of(table.name),
        pipeline=task.pipeline,
    )


def part_bytes(task: ShardingTask, table: Table, part: TablePart) -> int:
    """Return the bytes of device memory of a part, per device."""
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
    sizes = dict[object, int]()  # parts of a table with the same shape and lookups have the same size
    for part in parts:
        table = by_name[part.table]
        rows = part.rows.size if table.row_shares is None else part.rows
        key = part.table, rows, part.columns.size, part.storage, len(part.devices)
        if (size := sizes.get(key)) is None:
            size = sizes[key] = getattr(memory_of_part(task, table, part), what)
        if len(part.devices) == task.num_devices:
            of_every_device += size
            continue
        for device in part.devices:
            used[device] += size
    return [own + of_every_device for own in used]


def may_be_cut_by_columns(table: Table, limits: TableLimits, parts: int = 2) -> bool:
    """Return True if the table can be cut into ``parts`` column parts (at least two) of the minimum width."""
    steps, rest = divmod(table.embedding_dim, COLUMN_STEP)
    return not rest and steps >= max(parts, 2) * limits.min_column_steps


def width_problem(task: ShardingTask, columns: int) -> str | None:
    """Return the reason that no device can train a part with this many columns; None if a device can."""
    if columns <= task.max_columns:
        return None
    return f"its {columns:,} columns are more than the {task.max_columns:,} that FBGEMM trains in one call on a GPU"


def _most_column_parts(task: ShardingTask, name: str, devices: frozenset[int] | None) -> int:
    own, machine = sharding.TYPES[name], task.machine
    if not own.cuts_columns:
        return 1
    homes = (place[0] // own.home_span(machine) for place in sharding.allowed_sets(machine, own.span(machine), devices))
    return max(Counter(homes).values(), default=0)


def impossible_types(task: ShardingTask, position: int) -> dict[str, str]:
    """Return the reason for each sharding type that this table cannot have, apart from the rule on its types."""
    table, limits, machine = task.tables[position], task.limits_of(position), task.machine
    found: dict[str, str] = {}
    if too_wide := width_problem(task, table.embedding_dim):
        fewest = task.fewest_column_parts(table)
        narrow = (name for name in sharding.SHARDING_TYPES if _most_column_parts(task, name, limits.devices) < fewest)
        found = dict.fromkeys(narrow, too_wide)
    if task.num_devices == 1:  # on one device, all types are equal
        return found

    def exclude(types: Sequence[str], why: str) -> None:
        for name in types:
            found.setdefault(name, why)

    on_all = sharding.types_on_all(machine)
    if table.is_sequence:
        exclude(
            [name for name in sharding.SHARDING_TYPES if name not in sharding.SEQUENCE_TYPES],
            "its lookups are not pooled",
        )
        exclude(
            sharding.ALWAYS_CUT_COLUMNS, "TorchRec requires shards of one width for all sequence tables of a collection"
        )
    if table.pooling == MEAN:
        exclude(sharding.GRIDS, "TorchRec does not support MEAN with grid_shard")
        if table.is_weighted:
            exclude(sharding.ROWS_ALONE, "TorchRec does not support row-wise MEAN with weighted lookups")
        elif not (position in task.row_wise_only or (task.means_of_rows and table.collection in task.may_be_row_wise)):
            exclude(
                sharding.ROWS_ALONE, "TorchRec handles row-wise MEAN correctly only if its whole collection is row-wise"
            )
    if position in task.kept_together:
        others = [name for name in sharding.SHARDING_TYPES if name != sharding.TABLE_WISE]
        exclude(others, "a rule keeps it whole, on the same device as other tables")
    if position in task.kept_apart:
        exclude(on_all, "a rule keeps it apart from other tables, so it cannot use every device")
    if limits.devices is not None and len(limits.devices) < machine.num_devices:
        where = f"a rule allows only the devices {brief(sorted(limits.devices))}"
        exclude(on_all, where)
        if len(limits.devices) < 2:
            exclude(sharding.NEVER_WHOLE, where)
        nodes = sharding.allowed_sets(machine, machine.devices_per_node, limits.devices)
        if not nodes:
            exclude(sharding.NODE_ROWS, f"{where}, which include no whole node")
        if len(nodes) < 2:
            exclude(sharding.GRIDS, f"{where}, which do not include two whole nodes")
    if machine.num_nodes == 1:
        exclude(sharding.GRIDS, "there is only one node")
    if machine.devices_per_node == 1:
        exclude(sharding.NODE_ROWS, "each node has only one device")
    if not may_be_cut_by_columns(table, limits, task.fewest_column_parts(table)):
        narrowest = max(limits.min_columns, COLUMN_STEP)
        why = f"{table.embedding_dim} columns cannot be split into multiples of {COLUMN_STEP} of at least {narrowest}"
        exclude(sharding.CUT_COLUMNS if too_wide else sharding.ALWAYS_CUT_COLUMNS, why)
    if table.num_rows < 2:
        exclude(sharding.IN_ROWS, "it has only one row")
    if table.dtype not in sharding.REPLICATED_DATA_TYPES:
        exclude(sharding.REPLICATED, f"replicas do not support {table.dtype} weights")
    return found


def restrict_to_row_wise(task: ShardingTask, collections: Collection[object]) -> ShardingTask:
    """Restrict a task so that the tables of these collections (``Table.collection``) must be cut by rows."""
    if not collections and not task.means_of_rows:
        return task
    limits = [task.limits_of(at) for at in range(len(task.tables))]
    narrowed = tuple(
        replace(own, types=own.types & {*sharding.ROWS_ALONE}) if table.collection in collections else own
        for table, own in zip(task.tables, limits, strict=True)
    )
    return replace(task, limits=narrowed, means_of_rows=False)


def allow_row_wise_means(task: ShardingTask) -> ShardingTask:
    """Relax a task for a search: MEAN tables may be cut by rows even if not all tables of their collection are.

    The answer must pass ``placement.check_sharding`` of the original task.
    """
    if not task.may_be_row_wise:
        return task
    types_of = zip(task.tables, task.types, strict=True)
    must = {table.collection for table, types in types_of if not types} & task.may_be_row_wise
    return replace(restrict_to_row_wise(task, must), means_of_rows=True)
