"""The memory of devices and hosts: defaults, components in an answer, and the cost of parts outside of devices.

A placement is legal if the table parts on each device fit its room (``rooms_bytes`` of the request): all counted memory
must fit the device without its reserve. Counted is the memory while outputs are exchanged; if the peak is at another
moment of the step and does not fit, it uses some of the reserve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from evenshard.base.errors import BadConfig
from evenshard.base.installation import require_package
from evenshard.base.knobs import check_ranges
from evenshard.base.process import machine_bytes
from evenshard.base.units import bytes_to_gb, gb_text, gb_to_bytes
from evenshard.placement.memory import PartMemory, moments, peak_bytes
from evenshard.placement.parts import TablePart, part_table
from evenshard.placement.task import ShardingTask
from evenshard.planner.request import PlacementRequest
from evenshard.price.gpu_profile import GpuProfile, profile_of
from evenshard.price.hardware import HardwareName
from evenshard.price.offload import HostLink, host_link, part_offload_ms
from evenshard.tables.locality import miss_source, set_miss_ratio

# Fraction of each device's memory that is reserved for uncounted memory; TorchRec's planner has the same default.
RESERVED_SHARE = 0.15


def gpu_bytes() -> int | None:
    """Return the memory of the smallest GPU on this machine, by its driver; None without a GPU."""
    require_package("torch")
    import torch

    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_properties(device).total_memory for device in range(torch.cuda.device_count()))


def own_memory_gb(hardware: str, devices_per_node: int = 1) -> float:
    """Return the memory of a device from a profile, a GPU's driver, or as a share of this machine's for a CPU.

    Raises:
        BadConfig: if the hardware is a GPU, and this machine has none.
    """
    name = HardwareName.parse(hardware)
    if (profile := profile_of(name)) is not None:
        return profile.memory_gb
    found = None if name.kind.is_host else gpu_bytes()
    if found is not None:
        return bytes_to_gb(found)
    if name.kind.needs_gpu:
        raise BadConfig("there is no GPU here to ask for its memory. Give memory_cap_gb.")
    return bytes_to_gb(machine_bytes() // devices_per_node)


def own_memory_note(hardware: str, devices_per_node: int = 1) -> str | None:
    """Return a note for CPU devices that the memory is this machine's; None for GPUs."""
    if HardwareName.parse(hardware).kind.is_host:
        return (
            f"Memory is that of this machine: {gb_text(machine_bytes())}, of which each of {devices_per_node} devices "
            f"of a node has {own_memory_gb(hardware, devices_per_node):.2f}. Give memory_cap_gb for other machines."
        )
    return None


def reserve_of(reserved_gb: float | None) -> tuple[int, float]:
    """Return the reserve of each device, in bytes or as a share; the other of the two is 0.

    Raises:
        BadConfig: if the number is out of range.
    """
    check_ranges(reserved_gb=reserved_gb)
    return (0, RESERVED_SHARE) if reserved_gb is None else (gb_to_bytes(reserved_gb), 0.0)


# Shares of a device's available memory above which it is almost full: with a reserve, and without.
BRIM, BRIM_WITHOUT_RESERVE = 0.95, 0.85
# Components of a device's memory, and the fields of ``DeviceMemory`` that each sums.
DEVICE_COMPONENTS: Final = {
    "weights": ("weights",),
    "optimizer state": ("optimizer_state",),
    "caches": ("cache_rows", "cache_state", "prefetch"),
    "inputs": ("inputs",),
    "outputs": ("outputs", "sent"),
    "gradients of replicas": ("dense_gradient",),
    "own samples": ("own_inputs", "received"),
    "dense model": ("dense_model",),
}


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a device's memory. Fields of ``PartMemory`` are the sums of its parts."""

    device: int
    weights: int = 0  # of parts in device memory
    optimizer_state: int = 0
    cache_rows: int = 0
    cache_state: int = 0
    prefetch: int = 0
    inputs: int = 0
    outputs: int = 0
    sent: int = 0
    dense_gradient: int = 0
    own_inputs: int = 0  # of its own samples, for all batches in flight, before they are sent to the tables' devices
    received: int = 0  # embeddings of all tables for its own samples
    dense_model: int = 0  # with gradients and optimizer state
    reserved: int = 0  # for memory that is not counted
    cap: int = 0
    peak: int = 0  # largest memory at a moment of a step
    moment: str = ""  # name of the moment; empty if only weights and states are counted

    @property
    def counted_bytes(self) -> int:
        """Return the sum of all components, while outputs are exchanged."""
        return sum(size for _, size in self.components)

    @property
    def components(self) -> tuple[tuple[str, int], ...]:
        """Return the size of each of ``DEVICE_COMPONENTS``."""
        return tuple((name, sum(getattr(self, one) for one in names)) for name, names in DEVICE_COMPONENTS.items())

    @property
    def limit_bytes(self) -> int:
        """Return the memory of the device without the reserve."""
        return max(self.cap - self.reserved, 0)

    @property
    def most_bytes(self) -> int:
        """Return the larger of the counted bytes and the peak."""
        return max(self.counted_bytes, self.peak)

    @property
    def full(self) -> float:
        """Return the used fraction of the memory without the reserve."""
        return self.most_bytes / self.limit_bytes if self.limit_bytes else 0.0

    @property
    def is_brimful(self) -> bool:
        """Return True if little is left for memory that is not counted."""
        return self.full > (BRIM if self.reserved else BRIM_WITHOUT_RESERVE)


@dataclass(frozen=True)
class NodeMemory:
    """Bytes of a host's memory, and of its SSDs, that parts of tables take."""

    node: int
    weights: int = 0
    optimizer_state: int = 0
    room: int = 0  # memory that tables may use
    ssd: int = 0  # weights and optimizer state on its SSDs
    ssd_room: int = 0  # SSD space that tables may use

    @property
    def used_bytes(self) -> int:
        """Return the host memory that tables use, without SSDs."""
        return self.weights + self.optimizer_state

    @property
    def full(self) -> float:
        """Return the used fraction of its memory."""
        return self.used_bytes / self.room if self.room else 0.0

    @property
    def ssd_full(self) -> float:
        """Return the used fraction of its SSDs."""
        return self.ssd / self.ssd_room if self.ssd_room else 0.0


_OF_PART = PartMemory._fields
_OF_DEVICE = tuple(one.name for one in fields(DeviceMemory) if one.name in _OF_PART)
_OF_HOST = ("weights", "optimizer_state", "ssd")


def device_memories(
    request: PlacementRequest, parts: Sequence[TablePart], sizes: Sequence[PartMemory]
) -> tuple[DeviceMemory, ...]:
    """Return the memory of each device, by its id, given the memory of each part."""
    # Buffers of outputs depend on the placement.
    own, counted, reserves = request.sample_memory_of(parts), request.sample_memory, request.reserves_bytes
    taken = np.zeros((request.num_devices, len(_OF_PART)), dtype=np.int64)
    cache_rows = np.zeros(request.num_devices, dtype=np.int64)
    for part, size in zip(parts, sizes, strict=True):
        taken[list(part.devices)] += [getattr(size, name) for name in _OF_PART]
        if part.storage.is_cached:
            cache_rows[part.device] += size.weights
    found = []
    for device, of_device in enumerate(taken):
        held = PartMemory(*of_device.tolist())
        known = {name: getattr(held, name) for name in _OF_DEVICE}
        at_moments = moments(held, own) if request.training_pipeline else {"": 0}
        found.append(
            DeviceMemory(
                device=device,
                **{**known, "weights": held.weights - int(cache_rows[device])},
                cache_rows=int(cache_rows[device]),
                own_inputs=counted.inputs,
                received=counted.received,
                dense_model=request.dense_bytes,
                reserved=reserves[device],
                cap=request.caps_bytes[device],
                peak=peak_bytes(held, own) + request.dense_bytes,
                moment=max(at_moments, key=lambda name: at_moments[name]),
            )
        )
    return tuple(found)


def host_memories(
    request: PlacementRequest, parts: Sequence[TablePart], sizes: Sequence[PartMemory]
) -> tuple[NodeMemory, ...]:
    """Return the memory of each host, by its number. The arguments are those of ``device_memories``."""
    machine = request.nodes
    taken = np.zeros((machine.num_nodes, len(_OF_HOST)), dtype=np.int64)
    for part, size in zip(parts, sizes, strict=True):
        if not part.storage.is_on_device:
            taken[machine.node_of(part.device)] += (size.host_weights, size.host_state, size.ssd_weights)
    return tuple(
        NodeMemory(
            node=node,
            **dict(zip(_OF_HOST, of_host.tolist(), strict=True)),
            room=machine.host_bytes[node] if machine.host_bytes else 0,
            ssd_room=machine.ssd_bytes[node] if machine.ssd_bytes else 0,
        )
        for node, of_host in enumerate(taken)
    )


def brim_warnings(devices: Sequence[DeviceMemory], hosts: Sequence[NodeMemory]) -> Iterator[str]:
    """Yield a warning for devices, hosts and SSDs that are almost full."""
    brimful = [one for one in devices if one.is_brimful]
    if with_reserve := {one.device: one.full for one in brimful if one.reserved}:
        yield (
            f"{_fullness('device', with_reserve)} of what the reserve leaves. A batch with more lookups than usual may "
            f"not fit: give more memory or devices."
        )
    if without := {one.device: one.full for one in brimful if not one.reserved}:
        yield (
            f"{_fullness('device', without)}, and nothing is reserved for what is not counted: training may run out of "
            f"memory. Reserve some, or give more memory or devices."
        )
    if full_hosts := {one.node: one.full for one in hosts if one.full > BRIM}:
        yield f"{_fullness('host', full_hosts)} of the memory that tables may take of it: give more."
    if full_ssds := {one.node: one.ssd_full for one in hosts if one.ssd_full > BRIM}:
        yield f"{_fullness('host', full_ssds, 'SSDs')} of what tables may take of them: give more."


def _fullness(what: str, full: dict[int, float], of_it: str = "") -> str:
    most = max(full, key=lambda number: full[number])
    share = f"{100 * full[most]:.0f} %"
    if len(full) == 1:
        return f"{what.capitalize()} {most} {f'has its {of_it}' if of_it else 'is'} filled to {share}"
    return f"{len(full):,} {what}s {f'have their {of_it}' if of_it else 'are'} filled, {what} {most} to {share}"


# Outside of device memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OffloadedPart:
    """A part that is not in device memory."""

    number: int  # index among the parts of the answer
    part: TablePart
    offload_ms: float  # time that a step of its device would save with the part in device memory
    miss_ratio: float | None  # fraction of a batch's distinct rows that its cache misses; None without a cache
    source: str  # origin of the miss ratio: counted, a bound, or a bound from an assumption; empty without a cache


def offloaded_of(
    request: PlacementRequest, task: ShardingTask, parts: Sequence[TablePart]
) -> tuple[OffloadedPart, ...]:
    """Return the parts that are not in device memory, in order."""
    tables = {table.name: table for table in request.tables}
    links: dict[str, HostLink] = {}
    found = []
    for number, part in enumerate(parts):
        if part.storage.is_on_device:
            continue
        table, hardware = tables[part.table], task.machine.hardware_of(part.device) or request.hardware
        if hardware not in links:
            links[hardware] = host_link(task.machine, known_profile(hardware))
        offload_ms = sum(part_offload_ms(task, part, table, links[hardware]))
        miss, source = None, ""
        if part.storage.is_cached:
            miss = set_miss_ratio(part_table(part, table), task.batch_size, part.storage.load_factor)
            source = miss_source(table)
        found.append(OffloadedPart(number, part, offload_ms, miss, source))
    return tuple(found)


def known_profile(hardware: str) -> GpuProfile | None:
    """Return the profile of simulated hardware; None for real hardware, or if the profile is not installed."""
    try:
        return profile_of(HardwareName.parse(hardware))
    except BadConfig:
        return None
