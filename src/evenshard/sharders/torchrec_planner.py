"""What TorchRec's planner is given of a task, and what a shard of its plans is.

TorchRec gets what it would not know by itself: the bandwidths of devices and links, and what a device may hold. Both
sides keep the same rule of memory: weights and optimizer state fit a device's room. TorchRec also counts inputs and
outputs; that count keeps the order of its tables, with unlimited device memory, and what our rule counts is capped in
the column of host memory, which fused kernels leave empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenshard.measure.collectives import Links
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import HardwareName
from evenshard.measure.link import link, link_of
from evenshard.measure.simulated.gpu_profile import profile_of
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.utils.extras import require_package

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology

BYTES_PER_MS = 1e6  # in 10**9 bytes per second
UNLIMITED_BYTES = 2**60


@dataclass(frozen=True)
class Bandwidths:
    """What TorchRec's estimates divide by; None leaves TorchRec's own constant.

    Attributes:
        hbm_gb_s: 10**9 bytes per second out of a device's memory; TorchRec's own: 963 (897 * 1024**3 bytes).
        intra_node_gb_s: bandwidth between devices of one node; TorchRec's own value: 644. All devices of a task are on
            one node.
        inter_node_gb_s: bandwidth between nodes; TorchRec's own value: 13.4.
        host_gb_s: of a device's link to its host; TorchRec's own value: 34.4 (32 * 1024**3 bytes).
    """

    hbm_gb_s: float | None = None
    intra_node_gb_s: float | None = None
    inter_node_gb_s: float | None = None
    host_gb_s: float | None = None


def bandwidths_of(config: MeasureConfig) -> Bandwidths:
    """Those of a simulated device and its link; TorchRec's own constants for real hardware, which names none.

    Device memory counts with what embedding kernels get out of it.

    Raises:
        BadConfig, BadFile: if the device or link profile cannot be read.
    """
    profile = profile_of(config.hardware_name)
    if profile is None:
        return Bandwidths()
    link_gb_s = link(link_of(config, profile.link)).bandwidth_gb_s
    return Bandwidths(profile.hbm_bytes_per_ns, link_gb_s, link_gb_s)


def machine_bandwidths(hardware: str, machine: Machine, links: Links) -> Bandwidths:
    """Those of devices and of the links between them; of real devices' memory TorchRec's own constant."""
    profile = profile_of(HardwareName.parse(hardware))
    return Bandwidths(
        None if profile is None else profile.hbm_bytes_per_ns,
        links.intra.even_gb_s(machine.domain_size),
        links.widest.even_gb_s(machine.num_devices),
    )


def require_torchrec() -> None:
    """Imports what planner and export use of TorchRec; later imports of it cost nothing and warn of nothing.

    Raises:
        MissingPackage: if TorchRec is not installed.
    """
    require_package("torchrec.distributed.model_parallel")
    require_package("torchrec.distributed.planner")


def machine_topology(
    machine: Machine, room_bytes: Sequence[int], bandwidths: Bandwidths, host_bytes: Sequence[int] | None = None
) -> Topology:
    """A machine as TorchRec sees it.

    Args:
        machine: nodes and devices.
        room_bytes: what each device may hold.
        bandwidths: of devices and links.
        host_bytes: of each device, its share of its host's memory. Where it is left out, what devices may hold is
            capped as host memory instead, and that of the devices has no limit.
    """
    from torchrec.distributed.planner import types

    ranks = {
        "world_size": machine.num_devices,
        "local_world_size": machine.devices_per_node,
        "pod_size": machine.nodes_per_domain,
    }
    if host_bytes is None:
        hbm_cap, of_ddr = UNLIMITED_BYTES, list(room_bytes)
    else:
        hbm_cap, of_ddr = max(room_bytes), list(host_bytes)
    given = {"ddr_cap": of_ddr}
    if host_bytes is not None and len(set(room_bytes)) > 1:  # else TorchRec would cut rows by memory, too
        given["hbm_cap"] = list(room_bytes)
    caps = types.CustomTopologyData(given, machine.num_devices)
    known_gb_s = {
        "hbm_mem_bw": bandwidths.hbm_gb_s,
        "intra_host_bw": bandwidths.intra_node_gb_s,
        "inter_host_bw": bandwidths.inter_node_gb_s,
        "hbm_to_ddr_mem_bw": bandwidths.host_gb_s,
    }
    per_ms = {name: gb_s * BYTES_PER_MS for name, gb_s in known_gb_s.items() if gb_s is not None}
    if not hasattr(types, "TopologyFactory"):  # TorchRec before 1.6
        if machine.nodes_per_domain == 1:
            del ranks["pod_size"]
        return types.Topology(
            compute_device="cuda",
            hbm_cap=hbm_cap,
            ddr_cap=max(of_ddr),
            custom_topology_data=caps,
            **ranks,
            **per_ms,
        )
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(
            hbm_cap_bytes=hbm_cap,
            ddr_cap_bytes=max(of_ddr),
            additional_params={"custom_topology_data": caps},
            **ranks,
        ),
        types.HardwareConfig(**per_ms),
        types.KernelConfig(compute_device="cuda", use_hardware_based_bandwidth=True),
    )


def part_of_shard(table: str, rank: int, shard_offsets: Sequence[int], shard_sizes: Sequence[int]) -> TablePart:
    """The part of a table that a shard of a plan is; offsets and sizes are TorchRec's [rows, columns]."""
    rows, columns = (Span(start, start + size) for start, size in zip(shard_offsets, shard_sizes, strict=True))
    return TablePart(table, rows, columns, (rank,))


def merged(parts: Sequence[TablePart]) -> tuple[TablePart, ...]:
    """Parts of one table, with those of the same rows and device as one part each; columns are laid out again."""
    widths: dict[tuple[Span, int], int] = defaultdict(int)
    for part in sorted(parts, key=lambda one: (one.columns, one.rows)):
        widths[part.rows, part.device] += part.columns.size
    starts: dict[Span, int] = defaultdict(int)
    found = []
    for (rows, device), width in widths.items():
        columns = Span(starts[rows], starts[rows] + width)
        found.append(replace(parts[0], rows=rows, columns=columns, devices=(device,)))
        starts[rows] += width
    return tuple(found)


def table_name(position: int) -> str:
    """A name that TorchRec takes: those of the tables may hold dots."""
    return f"table_{position}"
