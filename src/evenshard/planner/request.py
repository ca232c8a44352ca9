"""A request: whole tables by name, devices and their memory, and rules. Checked once, here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evenshard.placement.constraints import Constraints
from evenshard.placement.machine import Machine
from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.sharding import SHARDING_TYPES, Communication, ShardingTask
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
        sharding_types: the ways in which tables may be sharded; empty for all.
        machine: nodes and links; None for one node with all devices.
        communication: data types in which embeddings and gradients travel.
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
    sharding_types: tuple[str, ...] = ()
    machine: Machine | None = None
    communication: Communication = field(default_factory=Communication)
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
        unknown = next((way for way in self.sharding_types if way not in SHARDING_TYPES), None)
        if unknown is not None:
            raise BadConfig(f"sharding_types names {brief(unknown)}. Choose from {', '.join(SHARDING_TYPES)}.")
        if self.machine is not None:
            if problem := self.machine.problem():
                raise BadConfig(problem)
            if self.machine.num_devices != self.num_devices:
                raise BadConfig(
                    f"the machine has {self.machine.num_devices} devices, the request {self.num_devices}. Name one "
                    f"number."
                )
        if problem := self.rules.problem((table.name for table in self.tables), self.nodes):
            raise BadConfig(problem)

    @property
    def num_devices(self) -> int:
        """How many there are."""
        return len(self.caps_bytes)

    @property
    def rooms_bytes(self) -> tuple[int, ...]:
        """What the tables may take of each device."""
        return tuple(max(cap - self.reserved_bytes, 0) for cap in self.caps_bytes)

    @property
    def types(self) -> tuple[str, ...]:
        """The ways in which tables may be sharded."""
        return self.sharding_types or SHARDING_TYPES

    @property
    def nodes(self) -> Machine:
        """The machine."""
        return self.machine or Machine.one_node(self.num_devices)

    def sharding_task(self) -> ShardingTask:
        """The task of sharding the tables in every way that the request allows."""
        number = {table.name: position for position, table in enumerate(self.tables)}
        return ShardingTask(
            tables=self.tables,
            machine=self.nodes,
            room_bytes=self.rooms_bytes,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            communication=self.communication,
            limits=tuple(self.rules.limits(table.name, self.nodes, self.types) for table in self.tables),
            together=tuple(tuple(number[name] for name in group) for group in self.rules.together),
            apart=tuple(tuple(number[name] for name in group) for group in self.rules.apart),
        )

    def task(self) -> PlacementTask:
        """The task of placing whole tables."""
        rooms, task = self.rooms_bytes, self.sharding_task()
        state = tuple(state_bytes(table, self.optimizer) for table in self.tables)
        allowed = tuple(limits.devices for limits in task.limits)
        constraints = Constraints(
            device_caps_bytes=rooms if len(set(rooms)) > 1 else None,
            state_bytes=state if any(state) else None,
            allowed=allowed if any(devices is not None for devices in allowed) else None,
            together=task.together,
            apart=task.apart,
        )
        return PlacementTask(TASK_ID, self.tables, self.num_devices, max(rooms), self.batch_size, constraints)


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
