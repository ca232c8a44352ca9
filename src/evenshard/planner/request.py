"""A request: whole tables by name, devices and their memory, and rules. Checked once, here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product

from evenshard.placement.constraints import Constraints
from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.parts import TablePart, tables_of_parts, whole_tables
from evenshard.placement.placement import Placement, by_table
from evenshard.placement.task import PlacementTask
from evenshard.planner.options import option_field
from evenshard.planner.rules import Rules
from evenshard.tables.assumptions import Assumption
from evenshard.tables.table import Table, duplicate_name
from evenshard.utils.errors import BadConfig
from evenshard.utils.limits import MAX_TABLES
from evenshard.utils.messages import brief
from evenshard.utils.params import check_ranges
from evenshard.utils.units import gb_to_bytes

TASK_ID = "placement"


@dataclass(frozen=True)
class PlacementRequest:
    """A question.

    Attributes:
        tables: whole, with distinct names.
        caps_bytes: memory of each device, by device id.
        batch_size: global batch, samples.
        reserved_bytes: memory of each device kept for everything besides tables.
        optimizer: optimizer whose state is counted; see ``optimizer_state``.
        rules: rules of where tables may live.
        allow_column_split: tables may be split by columns.
        hardware: hardware that the answer is for, such as ``simulated:h200``.
        assumptions: assumptions about the tables.

    Raises:
        BadConfig: a value makes no sense.
    """

    tables: tuple[Table, ...]
    caps_bytes: tuple[int, ...]
    batch_size: int
    reserved_bytes: int = 0
    optimizer: str = option_field("optimizer")
    rules: Rules = field(default_factory=Rules)
    allow_column_split: bool = option_field("allow_column_split")
    hardware: str = option_field("hardware")
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        if not self.tables:
            raise BadConfig("there are no tables. Give at least one.")
        if len(self.tables) > MAX_TABLES:
            raise BadConfig(f"there are {len(self.tables):,} tables, more than {MAX_TABLES:,}. Give fewer.")
        for table in self.tables:
            if problem := table.problem():
                raise BadConfig(f"table {brief(table.name)}: {problem}. Correct it.")
        if (name := duplicate_name(self.tables)) is not None:
            raise BadConfig(f"several tables are called {brief(name)}. Give each its own name.")
        check_ranges(num_devices=self.num_devices, batch_size=self.batch_size)
        if self.reserved_bytes < 0 or min(self.caps_bytes) < 0:
            raise BadConfig("a memory cap or the reserved memory is below 0. Correct it.")
        state_bytes(self.tables[0], self.optimizer)
        if problem := self.rules.problem((table.name for table in self.tables), self.num_devices):
            raise BadConfig(problem)

    @property
    def num_devices(self) -> int:
        """How many there are."""
        return len(self.caps_bytes)

    def task(self, parts: Sequence[TablePart] | None = None) -> PlacementTask:
        """The task of placing these parts, in their order; of placing the whole tables where none are given."""
        parts = whole_tables(self.tables) if parts is None else parts
        tables = tables_of_parts(parts, self.tables)
        positions: dict[str, list[int]] = {}
        for number, part in enumerate(parts):
            positions.setdefault(part.table, []).append(number)
        rooms = tuple(max(cap - self.reserved_bytes, 0) for cap in self.caps_bytes)

        state = tuple(state_bytes(table, self.optimizer) for table in tables)
        allowed = tuple(self.rules.allowed_devices(part.table, self.num_devices) for part in parts)
        constraints = Constraints(
            device_caps_bytes=rooms if len(set(rooms)) > 1 else None,
            state_bytes=state if any(state) else None,
            allowed=allowed if any(devices is not None for devices in allowed) else None,
            together=tuple(tuple(positions[name][0] for name in group) for group in self.rules.together),
            apart=tuple(one for group in self.rules.apart for one in _apart([positions[name] for name in group])),
        )
        return PlacementTask(TASK_ID, tables, self.num_devices, max(rooms), self.batch_size, constraints)

    def task_and_placement(self, parts: Sequence[TablePart]) -> tuple[PlacementTask, Placement]:
        """Task and placement that put rows and columns where these parts, from any plan, say.

        Raises:
            BadConfig: if the parts are not those of these tables on these devices.
        """
        ordered = [*chain.from_iterable(by_table(parts, self.tables, self.num_devices).values())]
        return self.task(ordered), Placement(tuple(part.device for part in ordered), self.num_devices)

    @property
    def splittable(self) -> frozenset[str]:
        """Tables that may be split: none of those that a rule keeps together."""
        kept_whole = {name for group in self.rules.together for name in group}
        return frozenset(table.name for table in self.tables if table.name not in kept_whole)


def _apart(parts_of_table: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Groups that keep the parts of different tables apart; parts of one table may share a device."""
    if all(len(parts) == 1 for parts in parts_of_table):
        return (tuple(parts[0] for parts in parts_of_table),)
    return tuple(pair for one, other in combinations(parts_of_table, 2) for pair in product(one, other))


def caps_of(memory_cap_gb: float | Sequence[float], num_devices: int) -> tuple[int, ...]:
    """Bytes of each device, from one cap for all or one for each.

    Raises:
        BadConfig: if the numbers make no sense.
    """
    check_ranges(num_devices=num_devices)
    caps = list(memory_cap_gb) if isinstance(memory_cap_gb, Sequence) else [memory_cap_gb]
    if len(caps) == 1:
        caps *= num_devices
    if len(caps) != num_devices:
        raise BadConfig(f"memory_cap_gb has {len(caps)} numbers for {num_devices} devices. Give one, or one for each.")
    for cap in caps:
        check_ranges(memory_cap_gb=cap)
    return tuple(gb_to_bytes(cap) for cap in caps)
