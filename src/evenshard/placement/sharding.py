"""The seven sharding types, and the ONLY check that the parts of a table form one of them.

::

    table_wise          the whole table                                 on one device
    column_wise         cut by columns                                  each part on its own device
    table_column_wise   cut by columns                                  each part on its own device of one node
    row_wise            cut by rows                                     over all devices
    table_row_wise      cut by rows                                     over all devices of one node
    grid_shard          cut by columns, and each column part by rows    each column part over all devices of one node
    data_parallel       the whole table                                 a replica on every device

The type of a table is derived from its parts, so the two always agree. Each device has at most one part of a table. If
a table has too few rows for all devices, the last devices get none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, FUSED, ON_DEVICE, Span, TablePart, row_starts
from evenshard.tables.table import DATA_TYPES, Table

TABLE_WISE, COLUMN_WISE, ROW_WISE = "table_wise", "column_wise", "row_wise"
TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID_SHARD = "table_row_wise", "table_column_wise", "grid_shard"
DATA_PARALLEL = "data_parallel"
# Scopes: a column part is on one device, is cut by rows over a node's devices or all devices, or is replicated.
DEVICE, NODE, EVERYWHERE, REPLICA = "device", "node", "everywhere", "replica"


@dataclass(frozen=True)
class ShardingType:
    """A sharding type: how it cuts tables, and which devices may have the parts."""

    name: str  # TorchRec's name
    scope: str  # of each column part: DEVICE, NODE, EVERYWHERE or REPLICA
    cuts_columns: bool = False
    within: str = EVERYWHERE  # devices of all parts of a table: NODE or EVERYWHERE
    call: str = ""  # type whose pooled tables are in the same kernel calls and all-to-alls; "" if there is none
    within_node: str = ""  # equivalent type if all its parts are on one node; "" if there is none
    of_sequences: bool = False  # True if TorchRec supports it for an ``EmbeddingCollection``

    @property
    def cuts_rows(self) -> bool:
        """Return True if rows are cut, so that each device computes partial sums of the bags of all samples."""
        return self.scope not in (DEVICE, REPLICA)

    @property
    def is_replicated(self) -> bool:
        """Return True if every device has the whole table, so that only gradients are sent, by an all-reduce."""
        return self.scope == REPLICA

    @property
    def may_be_whole(self) -> bool:
        """Return True if a whole table on one device is a special case of this type."""
        return self.scope == DEVICE and (self.within != EVERYWHERE or not self.cuts_columns)

    def span(self, machine: Nodes) -> int:
        """Return the number of devices over which the rows of a column part are cut; their ids are consecutive."""
        return _size(machine, self.scope)

    def places(self, machine: Nodes) -> tuple[range, ...]:
        """Return the sets of devices on which a column part can be; it is on all devices of one set."""
        return _sets(machine, self.span(machine))

    def home_span(self, machine: Nodes) -> int:
        """Return the number of devices among which all parts of a table must be; their ids are consecutive."""
        return _size(machine, self.within)

    def homes(self, machine: Nodes) -> tuple[range, ...]:
        """Return the sets of devices, one of which must contain all parts of a table."""
        return _sets(machine, self.home_span(machine))

    def most_column_parts(self, machine: Nodes) -> int:
        """Return the largest number of column parts of a table on a machine."""
        return self.home_span(machine) // self.span(machine)

    def covers(self, machine: Nodes) -> bool:
        """Return True if every placement of this type uses all devices of a machine."""
        return self.scope != DEVICE and not self.cuts_columns and self.span(machine) == machine.num_devices

    def is_distinct_on(self, machine: Nodes) -> bool:
        """Return True unless a simpler type is equivalent on a machine; on one device, all types equal table_wise."""
        narrow = {self.scope, self.within} - {DEVICE, EVERYWHERE, REPLICA}
        if narrow:
            return all(1 < _size(machine, scope) < machine.num_devices for scope in narrow)
        return machine.num_devices > 1 or self.name == TABLE_WISE

    @property
    def with_more_columns(self) -> str:
        """Return the type that cuts columns in addition, such as grid_shard for table_row_wise; "" if there is none."""
        return "" if self.cuts_columns else self.call

    def row_devices(self, machine: Nodes, device: int) -> range:
        """Return the devices of a column part, given one of them."""
        return self.places(machine)[device // self.span(machine)]


@lru_cache(maxsize=4096)
def _sets(machine: Nodes, size: int) -> tuple[range, ...]:
    return tuple(range(first, first + size) for first in range(0, machine.num_devices, size))


def _size(machine: Nodes, scope: str) -> int:
    return {DEVICE: 1, NODE: machine.devices_per_node}.get(scope, machine.num_devices)


# All types by name; code should use the properties of a type instead of its name.
TYPES = {
    kind.name: kind
    for kind in (
        ShardingType(TABLE_WISE, DEVICE, call=COLUMN_WISE, within_node=TABLE_COLUMN_WISE, of_sequences=True),
        ShardingType(COLUMN_WISE, DEVICE, cuts_columns=True, within_node=TABLE_COLUMN_WISE, of_sequences=True),
        ShardingType(ROW_WISE, EVERYWHERE, within_node=TABLE_ROW_WISE, of_sequences=True),
        ShardingType(TABLE_ROW_WISE, NODE, within=NODE, call=GRID_SHARD),
        ShardingType(TABLE_COLUMN_WISE, DEVICE, cuts_columns=True, within=NODE, call=COLUMN_WISE),
        ShardingType(GRID_SHARD, NODE, cuts_columns=True),
        ShardingType(DATA_PARALLEL, REPLICA, of_sequences=True),
    )
}
# TorchRec's names.
SHARDING_TYPES = tuple(TYPES)
BY_COLUMNS = (TABLE_WISE, COLUMN_WISE)
# Types that TorchRec can use for the tables of an ``EmbeddingCollection``.
SEQUENCE_TYPES = tuple(kind.name for kind in TYPES.values() if kind.of_sequences)
# Types that cut rows, so that devices compute partial sums.
IN_ROWS = tuple(kind.name for kind in TYPES.values() if kind.cuts_rows)
# Types that cut only rows. TorchRec computes means correctly only if all tables of a collection have these types.
ROWS_ALONE = tuple(kind.name for kind in TYPES.values() if kind.cuts_rows and not kind.cuts_columns)
# Types that cut columns, with or without rows.
CUT_COLUMNS = tuple(kind.name for kind in TYPES.values() if kind.cuts_columns)
# Types that cut columns and no rows.
COLUMNS_ALONE = tuple(kind.name for kind in TYPES.values() if kind.cuts_columns and not kind.cuts_rows)
# Types that cut rows over all devices.
ROWS_OF_ALL = tuple(kind.name for kind in TYPES.values() if kind.scope == EVERYWHERE)
# Types that cut both rows and columns.
GRIDS = tuple(kind.name for kind in TYPES.values() if kind.cuts_columns and kind.cuts_rows)
# Types that cut rows over the devices of a node.
NODE_ROWS = tuple(kind.name for kind in TYPES.values() if kind.cuts_rows and kind.scope != EVERYWHERE)
# Types that do not include a whole table on one device.
NEVER_WHOLE = tuple(kind.name for kind in TYPES.values() if not kind.may_be_whole)
# Types with at least two column parts of every table.
ALWAYS_CUT_COLUMNS = tuple(name for name in NEVER_WHOLE if TYPES[name].cuts_columns)
# Types with the whole table on every device.
REPLICATED = tuple(kind.name for kind in TYPES.values() if kind.is_replicated)
# Data types of weights that replicas support, because a dense kernel trains them.
REPLICATED_DATA_TYPES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Communication:
    """Data types in which embeddings and their gradients are sent (TorchRec: qcomms)."""

    forward: str = "fp32"  # outputs
    backward: str = "fp32"  # gradients

    @staticmethod
    def of(data_types: Sequence[str]) -> Communication:
        """Parse data types: none means FP32, one applies to both directions, two are forward and backward."""
        unknown = next((name for name in data_types if name not in DATA_TYPES), None)
        if unknown is not None or len(data_types) > 2:
            raise BadConfig(
                f"communication is {brief(', '.join(data_types))}. Give one data type, or two (forward and backward): "
                f"{', '.join(DATA_TYPES)}."
            )
        return Communication(data_types[0], data_types[-1]) if data_types else Communication()

    @property
    def forward_bytes(self) -> float:
        """Return the bytes per value of an output."""
        return DATA_TYPES[self.forward] / 8

    @property
    def backward_bytes(self) -> float:
        """Return the bytes per value of a gradient."""
        return DATA_TYPES[self.backward] / 8


# Types ---------------------------------------------------------------------------------------------------------------


def sharding_type(parts: Sequence[TablePart], table: Table, machine: Nodes) -> str:
    """Return the sharding type of a table, given all its parts.

    For column parts on one node, this is column_wise, which is then equivalent to table_column_wise.

    Raises:
        BadConfig: if the parts match no sharding type.
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


def type_among(allowed: Collection[str], parts: Sequence[TablePart], table: Table, machine: Nodes) -> str:
    """Return the type of a table's parts, or the equivalent type within a node if only the latter is allowed."""
    found = sharding_type(parts, table, machine)
    in_node = TYPES[found].within_node or found
    return in_node if found not in allowed and in_node in allowed else found


def join_type(name: str, allowed: Collection[str], others: Collection[str]) -> str:
    """Return the type to write to a plan for a pooled table: its own, or an equivalent one of its collection.

    TorchRec makes separate kernel calls and all-to-alls for each type, so fewer types save time.

    Args:
        name: type of the table.
        allowed: types that it may be written as.
        others: types of all pooled tables of its collection.
    """
    same = TYPES[name].with_more_columns
    return same if same in allowed and same in others else name


def sharding_problem(parts: Sequence[TablePart], table: Table, machine: Nodes) -> str | None:
    """Return the reason that the parts match no sharding type; None if they match a type."""
    if _is_whole_on_one_device(parts, table):  # by far the most frequent case
        return None
    if problem := tiling_problem(parts, table):
        return problem
    rows_of = _by_columns(parts)
    spans = sorted(rows_of)
    in_rows = len(parts) > len(rows_of)
    if len(kept := {part.storage for part in parts}) > 1:
        return f"has shards with different kernels ({', '.join(sorted(map(str, kept)))}). Give all the same kernel."
    for part in parts:
        if not part.devices:
            return "has a shard without a device. Place each shard."
        if len(part.devices) > 1:
            if len(parts) > 1:
                return (
                    f"is split, but a shard is on the devices {brief(part.devices)}. Replicate the whole table, or "
                    f"place each shard on one device."
                )
            if sorted(part.devices) != list(range(machine.num_devices)):
                return (
                    f"is on the devices {brief(part.devices)}. Place it on one device, or replicate it on all "
                    f"{machine.num_devices}."
                )
            if part.storage != ON_DEVICE:
                return f"is replicated with the kernel {part.storage}. Replicas need device memory ({FUSED})."
            return None
    homes = [part.device for part in parts]
    if len(set(homes)) < len(homes):
        twice = next(home for home in homes if homes.count(home) > 1)
        return f"has several shards on device {twice}. Merge them into one wider shard."
    if len(spans) > 1 and any(span.size % COLUMN_STEP for span in spans):
        widths = cut(", ".join(str(span.size) for span in spans))
        return f"is split into shards of {widths} columns. Make each a multiple of {COLUMN_STEP}."
    if not in_rows:
        return None
    for of_columns in rows_of.values():
        nodes = {machine.node_of(part.device) for part in of_columns}
        on_one_node = len(nodes) == 1 and _covers_devices(of_columns, table, machine.devices_per_node)
        if not on_one_node and (len(spans) > 1 or not _covers_devices(of_columns, table, machine.num_devices)):
            where = brief(sorted(part.device for part in of_columns))
            everywhere = "" if len(spans) > 1 else f"all {machine.num_devices} devices, or "
            return f"is split by rows over the devices {where}. Use {everywhere}all devices of one node."
    return None


def _is_whole_on_one_device(parts: Sequence[TablePart], table: Table) -> bool:
    if len(parts) != 1 or len(parts[0].devices) != 1:
        return False
    return parts[0].rows == (0, table.num_rows) and parts[0].columns == (0, table.embedding_dim)


def _covers_devices(parts: Sequence[TablePart], table: Table, num_devices: int) -> bool:
    """Return True if the parts are row-wise over ``num_devices``, of which the last may have no rows."""
    if len(parts) == num_devices:
        return True
    blocks = row_starts(table.num_rows, num_devices)
    return len(parts) == len(blocks) and max(part.rows.size for part in parts) == blocks.step


def tiling_problem(parts: Sequence[TablePart], table: Table) -> str | None:
    """Return the reason that the parts do not cover each row and column exactly once; None if they do."""
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
        f"has shards with the {what} {held}; each of its {size} {what} must be in exactly one shard. Correct the "
        f"shards, or give the tables to which they belong."
    )


def matching_types(parts: Sequence[TablePart], table: Table, machine: Nodes) -> frozenset[str]:
    """Return all sharding types that the parts match, including equivalent types."""
    found = sharding_type(parts, table, machine)
    if machine.num_devices == 1:
        return frozenset(SHARDING_TYPES)
    if found in BY_COLUMNS:  # also types that need one node, if all parts are on one node
        sizes = {name: TYPES[name].home_span(machine) for name in COLUMNS_ALONE if TYPES[name].within != EVERYWHERE}
        bound = [name for name, size in sizes.items() if len({part.device // size for part in parts}) == 1]
        return frozenset({found, *bound})
    if found == ROW_WISE and machine.num_nodes == 1:
        return frozenset({found, TABLE_ROW_WISE})
    if found == TABLE_ROW_WISE and _covers_devices(parts, table, machine.num_devices):
        return frozenset({found, ROW_WISE})
    return frozenset({found})


def least_limited_column_type(types: Collection[str], machine: Nodes, default: str) -> str:
    """Return the type among ``types`` that cuts only columns and allows the most devices, or ``default``."""
    own = (name for name in COLUMNS_ALONE if name in types)
    return max(own, key=lambda name: TYPES[name].home_span(machine), default=default)


@lru_cache(maxsize=4096)
def types_on_all(machine: Nodes) -> tuple[str, ...]:
    """Return the types that always use every device."""
    return tuple(kind.name for kind in TYPES.values() if kind.covers(machine))


@lru_cache(maxsize=4096)
def allowed_sets(machine: Nodes, size: int, devices: frozenset[int] | None) -> tuple[range, ...]:
    """Return the possible sets of ``size`` consecutive devices, all of them in ``devices`` (None: any device)."""
    return tuple(own for own in _sets(machine, size) if devices is None or devices.issuperset(own))
