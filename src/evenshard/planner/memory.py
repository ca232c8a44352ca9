"""Device and host memory: defaults, components in an answer, and the cost of parts outside of device memory.

A placement is legal if the table parts on each device fit its available memory (``rooms_bytes`` of the request): its
memory minus the reserve, the dense model and the device's own samples. Memory is counted during the output dist; a
higher peak at another moment of the step may use some of the reserve.
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
    """Return the memory of this machine's smallest GPU, from its driver; None without a GPU."""
    require_package("torch")
    import torch

    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_properties(device).total_memory for device in range(torch.cuda.device_count()))


def default_memory_gb(hardware: str, devices_per_node: int = 1) -> float:
    """Return a device's memory: from its profile, from the GPU's driver, or a CPU device's share of this machine.

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
        raise BadConfig("the GPU's memory is unknown, because this machine has no GPU. Give memory_cap_gb.")
    return bytes_to_gb(machine_bytes() // devices_per_node)


def note_default_memory(hardware: str, devices_per_node: int = 1) -> str | None:
    """Return a note that CPU devices have this machine's memory; None for GPUs."""
    if HardwareName.parse(hardware).kind.is_host:
        return (
            f"Memory is this machine's: {gb_text(machine_bytes())} for {devices_per_node} devices of a node, "
            f"{default_memory_gb(hardware, devices_per_node):.2f} GB each. Give memory_cap_gb for other machines."
        )
    return None


def reserve_of(reserved_gb: float | None) -> tuple[int, float]:
    """Return the reserve of each device in bytes and as a share, one of which is 0; raise BadConfig if out of range."""
    check_ranges(reserved_gb=reserved_gb)
    return (0, RESERVED_SHARE) if reserved_gb is None else (gb_to_bytes(reserved_gb), 0.0)


# Used shares above which a device is almost full: of its memory without the reserve, and of all memory if none is
# reserved, because then memory that is not counted needs some of it.
ALMOST_FULL, ALMOST_FULL_WITHOUT_RESERVE = 0.95, 0.85
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
    """Memory of a device by component, bytes; fields of ``PartMemory`` are sums over the device's table parts."""

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
    own_inputs: int = 0  # indices of its own samples before the input dist, for all batches in flight
    received: int = 0  # embeddings of all tables for its own samples
    dense_model: int = 0  # with gradients and optimizer state
    reserved: int = 0  # for memory that is not counted
    cap: int = 0
    peak: int = 0  # largest memory at a moment of a step
    moment: str = ""  # name of that moment; empty if only weights and optimizer state are counted

    @property
    def counted_bytes(self) -> int:
        """Return the memory in use during the output dist: the sum of ``components``."""
        return sum(size for _, size in self.components)

    @property
    def components(self) -> tuple[tuple[str, int], ...]:
        """Return the size of each of ``DEVICE_COMPONENTS``."""
        return tuple((name, sum(getattr(self, one) for one in names)) for name, names in DEVICE_COMPONENTS.items())

    @property
    def limit_bytes(self) -> int:
        """Return the memory of the device minus the reserve."""
        return max(self.cap - self.reserved, 0)

    @property
    def most_bytes(self) -> int:
        """Return the larger of the memory during the output dist and the peak of a step."""
        return max(self.counted_bytes, self.peak)

    @property
    def full(self) -> float:
        """Return the most memory used in a step, as a fraction of the memory without the reserve."""
        return self.most_bytes / self.limit_bytes if self.limit_bytes else 0.0

    @property
    def is_almost_full(self) -> bool:
        """Return True if little memory is left for allocations that are not counted."""
        return self.full > (ALMOST_FULL if self.reserved else ALMOST_FULL_WITHOUT_RESERVE)


@dataclass(frozen=True)
class NodeMemory:
    """Memory of a host and its SSDs that tables use, bytes."""

    node: int
    weights: int = 0
    optimizer_state: int = 0
    room: int = 0  # host memory available to tables
    ssd: int = 0  # weights and optimizer state on its SSDs
    ssd_room: int = 0  # SSD space available to tables

    @property
    def used_bytes(self) -> int:
        """Return the host memory that tables use."""
        return self.weights + self.optimizer_state

    @property
    def full(self) -> float:
        """Return the used fraction of the host memory available to tables."""
        return self.used_bytes / self.room if self.room else 0.0

    @property
    def ssd_full(self) -> float:
        """Return the used fraction of the SSD space available to tables."""
        return self.ssd / self.ssd_room if self.ssd_room else 0.0


_OF_PART = PartMemory._fields
_OF_DEVICE = tuple(one.name for one in fields(DeviceMemory) if one.name in _OF_PART)
_OF_HOST = ("weights", "optimizer_state", "ssd")


def device_memories(
    request: PlacementRequest, parts: Sequence[TablePart], sizes: Sequence[PartMemory]
) -> tuple[DeviceMemory, ...]:
    """Return the memory of each device, by its id, given the memory of each part."""
    # Output buffers depend on the parts, so the peak uses ``own``; ``counted`` is the same for every placement.
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
    """Return the memory of each host, by its number, given the memory of each part."""
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


def warn_of_full_memory(devices: Sequence[DeviceMemory], hosts: Sequence[NodeMemory]) -> Iterator[str]:
    """Yield warnings on devices, hosts and SSDs that are almost full."""
    almost_full = [memory for memory in devices if memory.is_almost_full]
    if with_reserve := {memory.device: memory.full for memory in almost_full if memory.reserved}:
        yield (
            f"{_full_text('device', with_reserve)} of its memory minus the reserve. A batch with more lookups than "
            f"usual may not fit: use more memory or more devices."
        )
    if without := {memory.device: memory.full for memory in almost_full if not memory.reserved}:
        yield (
            f"{_full_text('device', without)}, and no memory is reserved: training may run out of memory. Reserve some "
            f"(reserved_gb), or use more memory or more devices."
        )
    if full_hosts := {host.node: host.full for host in hosts if host.full > ALMOST_FULL}:
        yield f"{_full_text('host', full_hosts)} of the memory available to tables. Raise host_memory_gb."
    if full_ssds := {host.node: host.ssd_full for host in hosts if host.ssd_full > ALMOST_FULL}:
        yield f"{_full_text('SSD of host', full_ssds)} of the space available to tables. Raise ssd_gb."


def _full_text(what: str, full: dict[int, float]) -> str:
    most = max(full, key=lambda number: full[number])
    fullest = f"{what[0].upper()}{what[1:]} {most} is filled to {100 * full[most]:.0f} %"
    return fullest if len(full) == 1 else f"{fullest} ({len(full):,} are almost full)"


# Outside of device memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OffloadedPart:
    """A part of a table outside of device memory."""

    number: int  # index among the parts of the answer
    part: TablePart
    offload_ms: float  # time that its device would save per step with the part in device memory
    miss_ratio: float | None  # fraction of a batch's distinct rows that miss the cache; None without a cache
    source: str  # origin of the miss ratio: counted, a bound, or a bound from an assumption; empty without a cache


def list_offloaded(
    request: PlacementRequest, task: ShardingTask, parts: Sequence[TablePart]
) -> tuple[OffloadedPart, ...]:
    """Return the parts outside of device memory, in the order of the parts."""
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
