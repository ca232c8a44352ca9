"""The seven sharding types, and the ONLY rule of which parts form one.

::

    table_wise          one part                                        on one device
    column_wise         parts by columns                                on one device each
    table_column_wise   parts by columns                                on devices of one node
    row_wise            parts by rows                                   on all devices
    table_row_wise      parts by rows                                   on all devices of one node
    grid_shard          parts by columns, each in parts by rows         each on all devices of one node
    data_parallel       one part                                        a replica on every device

The type of a table is derived from its parts, so it cannot contradict them. Two parts of a table are never on the same
device: they would be one wider part. If a table has fewer rows than all devices need, the last devices have none.
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
# Scopes of the rows of a column part: one device, cut over a node's devices or over all devices, or replicated.
DEVICE, NODE, EVERYWHERE, REPLICA = "device", "node", "everywhere", "replica"


@dataclass(frozen=True)
class ShardingType:
    """A sharding type."""

    name: str  # TorchRec's name
    scope: str  # scope of the rows of a column part: DEVICE, NODE, EVERYWHERE or REPLICA
    cuts_columns: bool = False
    within: str = EVERYWHERE  # scope of all parts of a table: NODE or EVERYWHERE
    call: str = ""  # type whose kernel calls and exchanges pooled lookups share; "" if not shared
    within_node: str = ""  # equivalent type if all devices are on the same node; "" if there is none
    of_sequences: bool = False  # True if TorchRec supports it for an ``EmbeddingCollection``

    @property
    def cuts_rows(self) -> bool:
        """Return True if rows are cut, so that devices hold partial sums of all samples' bags."""
        return self.scope not in (DEVICE, REPLICA)

    @property
    def is_replicated(self) -> bool:
        """Return True if every device holds the whole table; then only gradients are exchanged, by an all-reduce."""
        return self.scope == REPLICA

    @property
    def may_be_whole(self) -> bool:
        """Return True if a whole table on one device is a special case of this type."""
        return self.scope == DEVICE and (self.within != EVERYWHERE or not self.cuts_columns)

    def span(self, machine: Nodes) -> int:
        """Return the number of consecutive devices that hold the rows of a column part."""
        return _size(machine, self.scope)

    def places(self, machine: Nodes) -> tuple[range, ...]:
        """Return the sets of devices that can hold the rows of a column part."""
        return _sets(machine, self.span(machine))

    def home_span(self, machine: Nodes) -> int:
        """Return the number of consecutive devices that all parts of a table are limited to."""
        return _size(machine, self.within)

    def homes(self, machine: Nodes) -> tuple[range, ...]:
        """Return the sets of devices, one of which holds all parts of a table."""
        return _sets(machine, self.home_span(machine))

    def most_column_parts(self, machine: Nodes) -> int:
        """Return the largest number of column parts, since each needs its own devices."""
        return self.home_span(machine) // self.span(machine)

    def covers(self, machine: Nodes) -> bool:
        """Return True if every placement of this type uses all devices of a machine."""
        return self.scope != DEVICE and not self.cuts_columns and self.span(machine) == machine.num_devices

    def is_distinct_on(self, machine: Nodes) -> bool:
        """Return True if this type differs from all others on a machine; on one device, only table_wise does."""
        narrow = {self.scope, self.within} - {DEVICE, EVERYWHERE, REPLICA}
        if narrow:
            return all(1 < _size(machine, one) < machine.num_devices for one in narrow)
        return machine.num_devices > 1 or self.name == TABLE_WISE

    @property
    def with_more_columns(self) -> str:
        """Return the type that a pooled table equals with a single column part; "" if there is none."""
        return "" if self.cuts_columns else self.call

    def row_devices(self, machine: Nodes, device: int) -> range:
        """Return the devices that share the rows of a column part, given one of them."""
        return self.places(machine)[device // self.span(machine)]


@lru_cache(maxsize=4096)
def _sets(machine: Nodes, size: int) -> tuple[range, ...]:
    return tuple(range(first, first + size) for first in range(0, machine.num_devices, size))


def _size(machine: Nodes, scope: str) -> int:
    return {DEVICE: 1, NODE: machine.devices_per_node}.get(scope, machine.num_devices)


# All types by name; code asks for the properties of a type, not for its name.
TYPES = {
    one.name: one
    for one in (
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
SEQUENCE_TYPES = tuple(one.name for one in TYPES.values() if one.of_sequences)
# Types whose devices hold partial sums of all samples' bags.
IN_ROWS = tuple(one.name for one in TYPES.values() if one.cuts_rows)
# Types that cut only rows. TorchRec computes means correctly if all tables of a collection have such a type.
ROWS_ALONE = tuple(one.name for one in TYPES.values() if one.cuts_rows and not one.cuts_columns)
# Types that cut columns, with or without rows.
CUT_COLUMNS = tuple(one.name for one in TYPES.values() if one.cuts_columns)
# Types that cut columns and no rows.
COLUMNS_ALONE = tuple(one.name for one in TYPES.values() if one.cuts_columns and not one.cuts_rows)
# Types that cut rows over all devices.
ROWS_OF_ALL = tuple(one.name for one in TYPES.values() if one.scope == EVERYWHERE)
# Types that cut both rows and columns.
GRIDS = tuple(one.name for one in TYPES.values() if one.cuts_columns and one.cuts_rows)
# Types that cut rows over the devices of a node.
NODE_ROWS = tuple(one.name for one in TYPES.values() if one.cuts_rows and one.scope != EVERYWHERE)
# Types that do not include a whole table on one device.
NEVER_WHOLE = tuple(one.name for one in TYPES.values() if not one.may_be_whole)
# Types that have several column parts for every table.
ALWAYS_CUT_COLUMNS = tuple(one for one in NEVER_WHOLE if TYPES[one].cuts_columns)
# Types that keep the whole table on every device.
REPLICATED = tuple(one.name for one in TYPES.values() if one.is_replicated)
# Data types of weights that a dense kernel can train; replicas need one.
REPLICATED_DATA_TYPES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Communication:
    """Data types in which embeddings and their gradients travel (TorchRec: qcomms)."""

    forward: str = "fp32"  # for outputs
    backward: str = "fp32"  # for their gradients

    @staticmethod
    def of(data_types: Sequence[str]) -> Communication:
        """Parse data types: none means FP32, one is for both directions, two are forward and backward.

        Raises:
            BadConfig: if there are more than two, or one is unknown.
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
        """Return the bytes of a value in the forward exchange."""
        return DATA_TYPES[self.forward] / 8

    @property
    def backward_bytes(self) -> float:
        """Return the bytes of a value in the backward exchange."""
        return DATA_TYPES[self.backward] / 8


# Types ---------------------------------------------------------------------------------------------------------------


def sharding_type(parts: Sequence[TablePart], table: Table, machine: Nodes) -> str:
    """Return the sharding type of a table, given all its parts.

    Column parts that are all on one node count as column_wise, which is equivalent.

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
    """Return the sharding type of a table's parts, or its equivalent within a node if only that is allowed."""
    way = sharding_type(parts, table, machine)
    in_node = TYPES[way].within_node or way
    return in_node if way not in allowed and in_node in allowed else way


def join_type(way: str, allowed: Collection[str], ways: Collection[str]) -> str:
    """Return the type to write for a pooled table: a type of its collection that covers it, if there is one.

    TorchRec looks up and exchanges the tables of each type separately, so fewer types save kernel calls and exchanges.

    Args:
        way: type of the table.
        allowed: types that it may be written as.
        ways: types of all pooled tables of its collection.
    """
    same = TYPES[way].with_more_columns
    return same if same in allowed and same in ways else way


def sharding_problem(parts: Sequence[TablePart], table: Table, machine: Nodes) -> str | None:
    """Explain, in a sentence that starts with the table's name, why parts match no sharding type; None if they do."""
    if _is_whole_on_one_device(parts, table):  # by far the most frequent case
        return None
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


def _is_whole_on_one_device(parts: Sequence[TablePart], table: Table) -> bool:
    if len(parts) != 1 or len(parts[0].devices) != 1:
        return False
    return parts[0].rows == (0, table.num_rows) and parts[0].columns == (0, table.embedding_dim)


def _fills(parts: Sequence[TablePart], table: Table, num_devices: int) -> bool:
    """Return True if rows are on each of ``num_devices``, or in equal blocks that end before the last devices."""
    if len(parts) == num_devices:
        return True
    blocks = row_starts(table.num_rows, num_devices)
    return len(parts) == len(blocks) and max(part.rows.size for part in parts) == blocks.step


def tiling_problem(parts: Sequence[TablePart], table: Table) -> str | None:
    """Explain in a clause why the parts do not cover each row and column of a table exactly once; None if they do."""
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


def ways_of(parts: Sequence[TablePart], table: Table, machine: Nodes) -> frozenset[str]:
    """Return all sharding types that the parts satisfy; a whole table is also a single column part on one node."""
    way = sharding_type(parts, table, machine)
    if machine.num_devices == 1:
        return frozenset(SHARDING_TYPES)
    if way in BY_COLUMNS:
        return frozenset({way, *_bound_by_columns(machine, [part.device for part in parts])})
    if way == ROW_WISE and machine.num_nodes == 1:
        return frozenset({way, TABLE_ROW_WISE})
    if way == TABLE_ROW_WISE and _fills(parts, table, machine.num_devices):
        return frozenset({way, ROW_WISE})
    return frozenset({way})


def _bound_by_columns(machine: Nodes, devices: Collection[int]) -> list[str]:
    """Return the types that cut only columns and limit their devices, if parts on these devices satisfy them."""
    sizes = {one: TYPES[one].home_span(machine) for one in COLUMNS_ALONE if TYPES[one].within != EVERYWHERE}
    return [one for one, size in sizes.items() if len({device // size for device in devices}) == 1]


def freest_by_columns(types: Collection[str], machine: Nodes, default: str) -> str:
    """Return the type that cuts only columns with the fewest limits on devices; ``default`` if there is none."""
    own = (one for one in COLUMNS_ALONE if one in types)
    return max(own, key=lambda one: TYPES[one].home_span(machine), default=default)


@lru_cache(maxsize=4096)
def types_on_all(machine: Nodes) -> tuple[str, ...]:
    """Return the types whose placements all use every device."""
    return tuple(one.name for one in TYPES.values() if one.covers(machine))


@lru_cache(maxsize=4096)
def allowed_sets(machine: Nodes, size: int, devices: frozenset[int] | None) -> tuple[range, ...]:
    """Return the sets of ``size`` devices that are all allowed; any device is if ``devices`` is None."""
    return tuple(own for own in _sets(machine, size) if devices is None or devices.issuperset(own))
