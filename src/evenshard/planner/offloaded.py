"""What a placement pays for parts that are not in device memory: their time, and the rows that their caches miss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.measure.hardware import HardwareName
from evenshard.measure.offload import HostLink, host_link, part_offload_times
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart, part_table
from evenshard.placement.task import ShardingTask
from evenshard.planner.request import PlacementRequest
from evenshard.tables.cache import miss_ratio, miss_source
from evenshard.utils.errors import BadConfig


@dataclass(frozen=True)
class OffloadedPart:
    """A part that is not in device memory.

    Attributes:
        number: its number among the parts of the answer.
        part: the part and its device.
        offload_ms: how much longer a step of its device takes than with the part in device memory.
        miss_ratio: share of a batch's distinct rows that its cache misses; None without a cache.
        source: what the miss ratio is: counted, a bound, or a bound of something assumed; empty without a cache.
    """

    number: int
    part: TablePart
    offload_ms: float
    miss_ratio: float | None
    source: str


def offloaded_of(
    request: PlacementRequest, task: ShardingTask, parts: Sequence[TablePart]
) -> tuple[OffloadedPart, ...]:
    """The parts that are not in device memory, in their order."""
    tables = {table.name: table for table in request.tables}
    links: dict[str, HostLink] = {}
    found = []
    for number, part in enumerate(parts):
        if part.storage.is_on_device:
            continue
        table, hardware = tables[part.table], task.machine.hardware_of(part.device) or request.hardware
        if hardware not in links:
            links[hardware] = _link(hardware, task.machine)
        times = part_offload_times(task, part, table, links[hardware])
        miss, source = None, ""
        if part.storage.is_cached:
            miss = miss_ratio(part_table(part, table), task.batch_size, part.storage.load_factor)
            source = miss_source(table)
        found.append(OffloadedPart(number, part, times.forward_ms + times.backward_ms, miss, source))
    return tuple(found)


def _link(hardware: str, machine: Machine) -> HostLink:
    """Of a device to its host; where no profile describes the device, a usual one."""
    name = HardwareName.parse(hardware)
    if not name.kind.is_simulated:
        return host_link(machine)
    try:
        return host_link(machine, gpu_profile(name.device))
    except BadConfig:  # an answer may be read where the profile that it was made with is not
        return host_link(machine)
