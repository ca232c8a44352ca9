"""Errors for infeasible requests, which suggest sufficient memory, more devices or other sharding types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from evenshard.base.errors import InfeasibleTask
from evenshard.base.knobs import RANGES
from evenshard.base.units import BYTES_PER_GB, gb_text, gb_to_bytes
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED_UVM, Storage, TablePart, whole_part
from evenshard.placement.placement import check_sharding
from evenshard.placement.sharding import BY_COLUMNS, SHARDING_TYPES, TABLE_WISE
from evenshard.placement.task import TASK_ID, ShardingTask, memory_of_part, part_bytes, used_host_bytes
from evenshard.planner.hosts import own_link
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import HardwareName
from evenshard.price.link import LINKS
from evenshard.search.infeasibility import MORE_CAPACITY, MORE_MEMORY
from evenshard.search.items import KnownItems
from evenshard.search.legal_parts import quick_parts

# Link between domains of a larger machine, if the machine has one domain. It does not change if tables fit.
ANY_LINK = "infiniband_ndr"


def explain_infeasibility(request: PlacementRequest, error: InfeasibleTask) -> InfeasibleTask:
    """Return a search's error with remedies that would make the request feasible."""
    problem = error.problem.removeprefix(f"{TASK_ID}: ")  # the task's internal name means nothing to the user
    if not error.remedy.startswith(MORE_MEMORY):
        return InfeasibleTask(problem, error.remedy)
    problem += _list_other_memory(request)
    rest = error.remedy.removeprefix(MORE_CAPACITY).removeprefix(MORE_MEMORY).replace(", or host_memory_gb", "")
    alike = len(set(request.caps_bytes)) == 1
    enough, remedies = [], []
    if (cap_gb := _find_memory_gb(request)) is not None:
        enough.append(f"memory_cap_gb to {cap_gb:.2f}{'' if alike else ' for each device'}")
    if (larger := _find_machine(request)) is not None:
        shape = _shape_text(request.nodes, larger)
        enough.append(
            f"num_devices to {larger.num_devices}{shape}{'' if alike else ' (new devices as large as the largest)'}"
        )
    host_gb = _find_host_gb(request)
    if host_gb is not None and request.nodes.host_bytes:
        enough.append(f"host_memory_gb to {host_gb:,}")
    if enough:
        remedies.append(f"Raise {' or '.join(enough)}{rest}")
    for types, how in (
        (BY_COLUMNS, "With column splits (--allow-column-split)"),
        (SHARDING_TYPES, "With all sharding types (without sharding_types)"),
    ):
        if {*types} - {TABLE_WISE} <= {*request.types}:
            continue
        more_types = replace(request, sharding_types=types)
        fewer = request.nodes if _fits(more_types.task()) else _find_machine(more_types)
        if fewer is not None and (larger is None or fewer.num_devices < larger.num_devices):
            on = "" if fewer == request.nodes else f" on {fewer.num_devices} devices"
            remedies.append(f"{how}, the tables fit{on}.")
            break
    if host_gb is not None and not request.nodes.host_bytes:
        remedies.append(f"With {host_gb:,} GB of host memory per host (--host-memory-gb {host_gb}), they fit.")
    if not remedies:
        remedies.append("Neither more memory nor more devices helps. Relax the placement rules.")
    return InfeasibleTask(problem, " ".join(remedies))


def _list_other_memory(request: PlacementRequest) -> str:
    kept, dense, samples = max(request.reserves_bytes), request.dense_bytes, request.sample_memory.total
    left_out = [
        f"{gb_text(size).removesuffix(' GB')} {what}"
        for size, what in (
            (kept, "are reserved"),
            (dense, "are for the dense model"),
            (samples, "are for the device's own samples"),
        )
        if size >= min(BYTES_PER_GB, 2 * max(request.caps_bytes)) / 200  # less than 0.005 GB prints as 0.00
    ]
    least, most = min(request.caps_bytes), max(request.caps_bytes)
    own = gb_text(most) if least == most else f"{gb_text(least).removesuffix(' GB')} to {gb_text(most)}"
    upto = "up to " if least < most else ""
    return f" Of the {own} per device, {upto}{', '.join(left_out)}." if left_out else ""


def _fits(task: ShardingTask, known: KnownItems | None = None) -> bool:
    return _parts(task, known) is not None


def _parts(task: ShardingTask, known: KnownItems | None = None) -> tuple[TablePart, ...] | None:
    if not all(task.types) or not all(task.kernels_of(position) for position in range(len(task.tables))):
        return None
    return quick_parts(task, known=known)


def _find_memory_gb(request: PlacementRequest) -> float | None:
    task = request.task()
    known: KnownItems = {}

    def fits(hundredths: int) -> bool:
        caps = (gb_to_bytes(hundredths / 100),) * request.num_devices
        return _fits(replace(task, room_bytes=replace(request, caps_bytes=caps).rooms_bytes), known)

    offloaded = sum(task.machine.host_bytes) + sum(task.machine.ssd_bytes)  # most that can leave device memory
    weights = max(sum(table.size_bytes for table in task.tables) - offloaded, 0) // request.num_devices
    least = max(min(request.caps_bytes), weights - BYTES_PER_GB) * 100 // BYTES_PER_GB
    # Twice the largest part of every table on one device surely fits, unless rules forbid every placement.
    most = 2 * sum(_most_bytes(task, position) for position in range(len(task.tables)))
    most += request.reserved_bytes + request.dense_bytes + request.sample_memory.total
    enough = _bisect_fit(fits, least, max(least, int(most / (1 - request.reserved_share) * 100 / BYTES_PER_GB)) + 1)
    return None if enough is None else enough / 100


def _most_bytes(task: ShardingTask, position: int) -> int:
    """Return the most device memory that a whole table can need, with any of its compute kernels or as a replica."""
    table = task.tables[position]
    kept = [whole_part(table, (0,), Storage(kernel)) for kernel in task.kernels_of(position)]
    replica = whole_part(table, tuple(range(task.num_devices)))
    return max(part_bytes(task, table, part) for part in (*kept, replica))


def _find_host_gb(request: PlacementRequest) -> int | None:
    """Return the memory of each host, GB, with which the tables fit; None for CPU devices, which use host memory."""
    if HardwareName.parse(request.hardware).kind.is_host:
        return None

    def task_with(gb: int) -> ShardingTask:
        machine = replace(request.nodes, host_bytes=(gb * BYTES_PER_GB,) * request.nodes.num_nodes)
        return replace(request, machine=machine).task()

    wholes = (whole_part(table, (0,), Storage(FUSED_UVM)) for table in request.tables)
    task = request.task()
    most = sum(memory_of_part(task, *one).host_bytes for one in zip(task.tables, wholes, strict=True))
    parts = _parts(task := task_with(most // BYTES_PER_GB + 1))
    if parts is None:
        return None
    enough = -(-max(used_host_bytes(task, parts)) // BYTES_PER_GB)
    check_sharding(task_with(enough), parts)
    return enough if enough > min(request.nodes.host_bytes, default=0) / BYTES_PER_GB else None


def _find_machine(request: PlacementRequest) -> Nodes | None:
    """Return the smallest larger machine with a placement; each added device has the memory of the largest one."""
    if request.nodes.groups:
        return None
    # More devices than tables and columns cannot help: every column part already has a device.
    most = len(request.tables) + max(table.embedding_dim for table in request.tables)
    larger = tuple(_list_larger_machines(request, min(request.num_devices + most, int(RANGES["num_devices"].most))))

    def fits(steps: int) -> bool:
        machine = larger[steps - 1]
        more = (max(request.caps_bytes),) * (machine.num_devices - request.num_devices)
        return _fits(replace(request, caps_bytes=(*request.caps_bytes, *more), machine=machine).task())

    steps = _bisect_fit(fits, 0, len(larger)) if larger else None
    return None if steps is None else larger[steps - 1]


def _list_larger_machines(request: PlacementRequest, enough: int) -> Iterator[Nodes]:
    machine, most = request.nodes, int(RANGES["num_devices"].most)
    nodes, size, per_domain = machine.num_nodes, machine.devices_per_node, machine.nodes_per_domain
    name = machine.intra or own_link(request.hardware)
    spans = LINKS[name].spans if name in LINKS else math.inf
    linked = int(min(spans, most)) // size  # nodes that the link connects
    widest = max(linked, per_domain) if machine.num_domains == 1 else per_domain
    devices = request.num_devices
    while devices < enough:
        if nodes == 1:
            size += 1
        else:
            nodes += 1 if nodes < widest else widest
        devices = nodes * size
        if devices > most:
            return
        per_domain = min(nodes, widest)
        yield replace(
            machine,
            num_devices=devices,
            devices_per_node=size,
            nodes_per_domain=per_domain,
            inter=(machine.inter or ANY_LINK) if nodes > per_domain else "",
            host_bytes=_grow(machine.host_bytes, nodes),
            ssd_bytes=_grow(machine.ssd_bytes, nodes),
        )


def _shape_text(machine: Nodes, larger: Nodes) -> str:
    if machine.nodes_per_domain == larger.nodes_per_domain == 1:
        return ""
    if larger.num_domains == 1:
        return f" ({larger.num_nodes} nodes of one domain)"
    linked = "" if machine.inter else " linked by --inter"
    return f" ({larger.num_domains} domains of {larger.nodes_per_domain} nodes{linked})"


def _grow(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    return sizes and sizes + (max(sizes),) * (count - len(sizes))


def _bisect_fit(fits: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the smallest number above ``low`` that fits, by bisection; None if ``most`` does not fit."""
    step = 1
    while not fits(high := min(low + step, most)):
        if high == most:
            return None
        low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
