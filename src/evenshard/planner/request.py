"""Placement request: tables, devices with their memory, and rules, all validated here.

``list_unit_warnings`` lists values so far from all known machines that their unit is probably wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import MAX_TABLES, check_ranges
from evenshard.base.messages import brief
from evenshard.base.units import bytes_to_gb, gb_to_bytes
from evenshard.placement.memory import PIPELINES, SGD, SampleMemory, optimizer_problem, sample_memory
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import (
    COMPUTE_KERNELS,
    HOST_KERNELS,
    KEY_VALUE,
    MAX_GPU_COLUMNS,
    USUAL_KERNELS,
    TablePart,
)
from evenshard.placement.sharding import BY_COLUMNS, REPLICATED, SHARDING_TYPES, TABLE_WISE, Communication
from evenshard.placement.task import ShardingTask, TableLimits
from evenshard.planner.knobs import Sharding, knob_field
from evenshard.planner.rules import Rules
from evenshard.price.dense import DenseLayers
from evenshard.price.gpu_profile import profile_of
from evenshard.price.hardware import DEFAULT_HARDWARE, HardwareName
from evenshard.price.link import GPUS_OF_A_NODE, LINKS, link
from evenshard.tables.assumptions import Assumption
from evenshard.tables.table import Table, duplicate_name

# Largest relative change of the batch by rounding to whole samples per device: less than the error of predicted times.
BATCH_SLACK = 0.01


@dataclass(frozen=True)
class PlacementRequest:
    """A placement request. Fields declared by ``knob_field`` mean the same as the knob.

    Raises:
        BadConfig: if a value is invalid.
    """

    tables: tuple[Table, ...]  # whole tables with distinct names
    caps_bytes: tuple[int, ...]  # memory of each device, by device id
    batch_size: int
    reserved_bytes: int = 0  # memory of each device to keep free for allocations that are not counted
    optimizer: str = knob_field("optimizer", SGD)
    rules: Rules = field(default_factory=Rules)
    sharding_types: tuple[str, ...] = ()  # allowed sharding types; empty for all
    machine: Nodes | None = None  # nodes and links; None for one node with all devices
    communication: Communication = field(default_factory=Communication)
    hardware: str = knob_field("hardware", DEFAULT_HARDWARE)
    assumptions: tuple[Assumption, ...] = ()
    reserved_share: float = 0.0  # fraction of each device's memory to reserve in addition to ``reserved_bytes``
    dense_bytes: int = 0  # memory of the dense model with gradients and optimizer state on each device
    # one of ``PIPELINES``; empty, as in the oldest files, to count only weights and optimizer state of tables, with the
    # step times of the default pipeline
    training_pipeline: str = ""
    # allowed compute kernels; empty for the defaults that the machine has memory for
    compute_kernels: tuple[str, ...] = ()
    dense_optimizer: str = knob_field("dense_optimizer")
    # fused optimizers by table name, for tables that have their own
    table_optimizers: Mapping[str, str] = field(default_factory=dict)
    keep_output_order: bool = knob_field("keep_output_order")
    dense: DenseLayers | None = None  # dense layers; None if unknown
    dense_ms: float | None = knob_field("dense_ms")

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
        if min(self.reserved_bytes, self.reserved_share, self.dense_bytes, *self.caps_bytes) < 0:
            raise BadConfig("memory_cap_gb, reserved_gb or dense_gb is below 0. Correct it.")
        if self.reserved_share >= 1:
            raise BadConfig(f"reserved_share is {self.reserved_share:g}, not below 1. Lower it.")
        for optimizer in (self.optimizer, *self.table_optimizers.values()):
            if problem := optimizer_problem(optimizer):
                raise BadConfig(f"{problem}. Choose one of these.")
        if self.dense_optimizer and (problem := optimizer_problem(self.dense_optimizer)):
            raise BadConfig(f"dense_{problem}. Choose one of these, or leave it out.")
        known = {table.name for table in self.tables}
        if (name := next((table for table in self.table_optimizers if table not in known), None)) is not None:
            raise BadConfig(f"table_optimizers has the key {brief(name)}, which is no table. Correct the name.")
        if self.training_pipeline and self.training_pipeline not in PIPELINES:
            pipelines = ", ".join(PIPELINES)
            raise BadConfig(f"training_pipeline is {brief(self.training_pipeline)}. Choose from {pipelines}.")
        for what, choices in (("compute_kernels", COMPUTE_KERNELS), ("sharding_types", SHARDING_TYPES)):
            if (unknown := next((word for word in getattr(self, what) if word not in choices), None)) is not None:
                raise BadConfig(f"{what} contains {brief(unknown)}. Choose from {', '.join(choices)}.")
        if self.machine is not None:
            if problem := self.machine.problem():
                raise BadConfig(problem)
            if self.machine.num_devices != self.num_devices:
                raise BadConfig(
                    f"the machine has {self.machine.num_devices} devices, but the request has {self.num_devices}. Use "
                    f"the same number."
                )
        if problem := self.rules.problem((table.name for table in self.tables), self.nodes):
            raise BadConfig(problem)
        for kernel in (*self.compute_kernels, *(one for own in self.rules.table_kernels.values() for one in own)):
            if problem := memory_problem(kernel, self.nodes):
                raise BadConfig(problem)

    @property
    def num_devices(self) -> int:
        """Return the number of devices."""
        return len(self.caps_bytes)

    @property
    def reserves_bytes(self) -> tuple[int, ...]:
        """Return the reserve of each device, bytes."""
        return reserves_of(self.caps_bytes, self.reserved_bytes, self.reserved_share)

    @property
    def sample_memory(self) -> SampleMemory:
        """Return the memory of each device for its own samples if tables are whole."""
        return self.sample_memory_of()

    def sample_memory_of(self, parts: Sequence[TablePart] = ()) -> SampleMemory:
        """Return the memory of each device for its own samples if tables have these parts."""
        return sample_memory(
            self.tables,
            num_devices=self.num_devices,
            batch_size=self.batch_size,
            pipeline=self.training_pipeline,
            parts=parts,
        )

    @property
    def rooms_bytes(self) -> tuple[int, ...]:
        """Return the memory of each device that is available to table parts."""
        taken = self.dense_bytes + self.sample_memory.total
        return tuple(max(cap - kept - taken, 0) for cap, kept in zip(self.caps_bytes, self.reserves_bytes, strict=True))

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the allowed compute kernels."""
        return self.compute_kernels or USUAL_KERNELS

    @property
    def types(self) -> tuple[str, ...]:
        """Return the allowed sharding types."""
        return self.sharding_types or SHARDING_TYPES

    @property
    def is_whole(self) -> bool:
        """Return True if all tables stay whole, each on one device."""
        return set(self.types) == {TABLE_WISE}

    def optimizer_of(self, name: str) -> str:
        """Return the optimizer of a table."""
        return self.table_optimizers.get(name, self.optimizer)

    def leaves_optimizer(self, name: str) -> bool:
        """Return True if replication would change the optimizer of a table, because the dense optimizer differs."""
        has_own = name in self.table_optimizers or bool(self.dense_optimizer)
        return has_own and self.optimizer_of(name) != self.dense_optimizer

    def names_replicas_of(self, name: str) -> bool:
        """Return True if the request explicitly allows data_parallel for a table."""
        return not {*REPLICATED}.isdisjoint(self.rules.table_types.get(name, self.sharding_types))

    def limits_of(self, name: str) -> TableLimits:
        """Return a table's rules; unless the request names replicas, they forbid those that change its optimizer."""
        limits = self.rules.limits(name, self.nodes, self.types)
        if not self.leaves_optimizer(name) or self.names_replicas_of(name):
            return limits
        return replace(limits, types=limits.types - {*REPLICATED})

    @property
    def nodes(self) -> Nodes:
        """Return the machine."""
        return self.machine or Nodes.one_node(self.num_devices)

    def task(self) -> ShardingTask:
        """Return the task of sharding the tables with every type that the request allows."""
        number = {table.name: position for position, table in enumerate(self.tables)}
        return ShardingTask(
            tables=self.tables,
            machine=self.nodes,
            room_bytes=self.rooms_bytes,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            communication=self.communication,
            limits=tuple(self.limits_of(table.name) for table in self.tables),
            together=tuple(tuple(number[name] for name in group) for group in self.rules.together),
            apart=tuple(tuple(number[name] for name in group) for group in self.rules.apart),
            pipeline=self.training_pipeline,
            kernels=self.kernels,
            table_optimizers=self.table_optimizers,
            max_columns=sys.maxsize if HardwareName.parse(self.hardware).kind.is_host else MAX_GPU_COLUMNS,
        )


def match_optimizers(old: PlacementRequest, new: PlacementRequest) -> dict[str, str]:
    """Return the optimizers of tables that have the same optimizer in both requests and so keep its state."""
    names = {table.name for table in old.tables}
    both = ((table.name, new.optimizer_of(table.name)) for table in new.tables if table.name in names)
    return {name: optimizer for name, optimizer in both if old.optimizer_of(name) == optimizer}


def check_batch(batch_size: int, num_devices: int) -> None:
    """Raise BadConfig if the batch is farther than ``BATCH_SLACK`` from a multiple of ``num_devices``."""
    check_ranges(batch_size=batch_size)
    below = batch_size // num_devices * num_devices
    nearest = [size for size in (below, below + num_devices) if size]
    if min(abs(batch_size - size) for size in nearest) > BATCH_SLACK * batch_size:
        raise BadConfig(
            f"batch_size is {batch_size:,} over all {num_devices:,} devices, but each device must get the same number "
            f"of samples. Give {' or '.join(f'{size:,}' for size in nearest)}."
        )


def sharding_types_of(sharding: Sharding) -> tuple[str, ...]:
    """Return the sharding types that the knobs name, empty for all; raise BadConfig if they contradict each other."""
    if not sharding.allow_column_split:
        return tuple(sharding.sharding_types)
    if sharding.sharding_types and set(sharding.sharding_types) != set(BY_COLUMNS):
        both = ", ".join(BY_COLUMNS)
        raise BadConfig(f"allow_column_split is short for sharding_types {both}. Give one of the two.")
    return BY_COLUMNS


def memory_problem(kernel: str, machine: Nodes) -> str | None:
    """Return an error message if the machine has no memory for a kernel's weights; None if it has."""
    if kernel in HOST_KERNELS and not machine.host_bytes:
        return (
            f"{kernel} stores weights in host memory, but no host memory is available to tables. Give host_memory_gb."
        )
    if kernel == KEY_VALUE and not machine.ssd_bytes:
        return f"{kernel} stores weights on SSDs, but no SSD space is available to tables. Give ssd_gb."
    return None


def reserves_of(caps_bytes: Sequence[int], reserved_bytes: int, reserved_share: float) -> tuple[int, ...]:
    """Return the bytes reserved on each device."""
    return tuple(reserved_bytes + round(reserved_share * cap) for cap in caps_bytes)


def caps_of(memory_cap_gb: float | Sequence[float], num_devices: int) -> tuple[int, ...]:
    """Return the bytes of each device from one cap for all, or one for each."""
    check_ranges(num_devices=num_devices)
    caps = list(memory_cap_gb) if isinstance(memory_cap_gb, Sequence) else [memory_cap_gb]
    if len(caps) == 1:
        caps *= num_devices
    if len(caps) != num_devices:
        raise BadConfig(f"memory_cap_gb has {len(caps)} numbers for {num_devices} devices. Give one, or one for each.")
    for cap in caps:
        check_ranges(memory_cap_gb=cap)
    return tuple(gb_to_bytes(cap) for cap in caps)


# Factors above the largest and below the smallest known value from which another unit is likely. Device memory has a
# smaller factor, because the hardware's own memory is known.
FAR_ABOVE, FAR_BELOW, FAR_ABOVE_MEMORY = 5.0, 0.01, 2.0
# Smallest and largest values of servers.
SERVER_RANGES = {
    "host_memory_gb": ("GB", (16.0, 6_144.0)),
    "host_bandwidth_gb_s": ("GB/s", (20.0, 1_200.0)),
    "ssd_gb": ("GB", (100.0, 250_000.0)),
    "ssd_bandwidth_gb_s": ("GB/s", (0.5, 60.0)),
}
# Units that a value may have been given in, and the factor to the expected unit.
OTHER_UNITS: Mapping[str, Mapping[str, float]] = {
    "GB/s": {
        "in Gbit/s": 1 / 8,
        "in MB/s, or in bytes per second where TorchRec's Topology counts bytes per ms": 1e-3,
        "in bytes per second": 1e-9,
        "in TB/s": 1e3,
        "in GB/s where TorchRec's Topology counts bytes per ms": 1e6,
    },
    "GB": {"in MB": 1 / 1024, "in KB": 2.0**-20, "in bytes": 2.0**-30, "in TB": 1024.0, "in GB": 2.0**30},
    "us": {"in ns": 1e-3, "in ms": 1e3},
}


def list_unit_warnings(request: PlacementRequest) -> tuple[str, ...]:
    """Return a clause for each value far from all known machines: its field, value, unit and likely unit."""
    found = (*_list_link_warnings(request), *_list_memory_warnings(request))
    return tuple(dict.fromkeys(warning for warning in found if warning))


def _list_link_warnings(request: PlacementRequest) -> Iterator[str | None]:
    machine = request.nodes
    for what, theirs, name in (("intra", "intra_host_bw", machine.intra), ("inter", "inter_host_bw", machine.inter)):
        if not name or name in LINKS:
            continue
        tier = [one for one in LINKS.values() if one.tier == what]
        found, gb_s = link(name), [one.even_gb_s(GPUS_OF_A_NODE) for one in tier]
        named = f"{what} ({theirs} of a Topology)"
        yield _warn_beyond(named, found.even_gb_s(GPUS_OF_A_NODE), "GB/s", (min(gb_s), max(gb_s)))
        us = [one.latency_us for one in tier]
        yield _warn_beyond(f"the latency of {what}", found.latency_us, "us", (min(us), max(us)))


def _list_memory_warnings(request: PlacementRequest) -> Iterator[str | None]:
    machine = request.nodes
    devices = ((machine.hardware_of(at) or request.hardware, cap) for at, cap in enumerate(request.caps_bytes))
    for hardware, cap in dict.fromkeys(devices):
        if (profile := profile_of(HardwareName.parse(hardware))) is not None:
            known = (profile.memory_gb, profile.memory_gb)
            yield _warn_beyond("memory_cap_gb (hbm_cap of a Topology)", bytes_to_gb(cap), "GB", known, FAR_ABOVE_MEMORY)
    values = {
        "host_memory_gb": [bytes_to_gb(one) for one in machine.host_bytes],
        "host_bandwidth_gb_s": [machine.host_gb_s],
        "ssd_gb": [bytes_to_gb(one) for one in machine.ssd_bytes],
        "ssd_bandwidth_gb_s": [machine.ssd_gb_s],
    }
    for what, of_field in values.items():
        for value in filter(None, of_field):  # 0 means none or unknown
            yield _warn_beyond(what, value, *SERVER_RANGES[what])


def _warn_beyond(what: str, value: float, unit: str, known: tuple[float, float], most: float = FAR_ABOVE) -> str | None:
    low, high = known
    if FAR_BELOW * low <= value <= most * high:
        return None
    beyond = f"more than {most:g} times the largest known value ({high:,.4g})"
    if value < low:
        beyond = f"less than a hundredth of the smallest known value ({low:,.4g})"
    readings = ((words, value * factor) for words, factor in OTHER_UNITS[unit].items())
    # A reading is plausible within a factor of 2 of known values.
    meant = next(
        (f"; if given {words}, it is {own:,.4g} {unit}" for words, own in readings if low / 2 <= own <= high * 2), ""
    )
    return f"{what} is {value:,.6g} {unit}, {beyond}{meant}"
