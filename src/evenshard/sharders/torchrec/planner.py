"""What TorchRec's planner is given of a task, and what a shard of its plans is.

TorchRec gets what it would not know by itself: the bandwidths of devices and links, and what a device may hold. Both
sides keep the same rule of memory: weights and optimizer state fit a device's room. TorchRec also counts inputs and
outputs; that count keeps the order of its tables, with unlimited device memory, and what our rule counts is capped in
the column of host memory, which fused kernels leave empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenshard.measure.collectives import Links
from evenshard.measure.config import MeasureConfig
from evenshard.measure.hardware import HardwareName
from evenshard.measure.link import link, link_of
from evenshard.measure.simulated.gpu_profile import profile_of
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart, whole_part
from evenshard.placement.sharding import SHARDING_TYPES, TYPES, tiling_problem
from evenshard.placement.storage import (
    CACHED_KERNELS,
    FUSED,
    FUSED_UVM,
    FUSED_UVM_CACHING,
    KEY_VALUE,
    ON_DEVICE,
    Storage,
)
from evenshard.sharders.torchrec.compat import make_topology
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology
    from torchrec.distributed.types import ParameterSharding

BYTES_PER_MS = 1e6  # in 10**9 bytes per second
UNLIMITED_BYTES = 2**60
# The compute kernel of replicas, whose weights an optimizer updates.
DENSE_KERNEL = "dense"
# Kernels that evenshard writes and reads, of tables that are no replicas; all of them where ranks are GPUs.
KERNELS_OF_TABLES = (FUSED, FUSED_UVM_CACHING, FUSED_UVM, KEY_VALUE)
# TorchRec's, where a plan names none.
DEFAULT_LOAD_FACTOR = 0.2


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


def bandwidths_of(config: MeasureConfig, machine: Machine) -> Bandwidths:
    """Bandwidths of a simulated device and its link; TorchRec's own constants for real hardware, which names none.

    Raises:
        BadConfig, BadFile: if the device or link profile cannot be read.
    """
    profile = profile_of(config.hardware_name)
    if profile is None:
        return Bandwidths()
    return machine_bandwidths(config.hardware, machine, Links(link(link_of(config, profile.link))))


def machine_bandwidths(hardware: str, machine: Machine, links: Links) -> Bandwidths:
    """Bandwidths of devices and of the links between them; TorchRec's own constant for the memory of real devices.

    Device memory counts with what embedding kernels get out of it, a link with what its long exchanges between so many
    devices reach. A lower figure, such as the straight line through short exchanges, would make TorchRec's plans worse.
    """
    profile = profile_of(HardwareName.parse(hardware))
    return Bandwidths(
        None if profile is None else profile.hbm_bytes_per_ns,
        links.intra.even_gb_s(machine.domain_size),
        links.widest.even_gb_s(machine.num_devices),
    )


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
    if host_bytes is None:
        hbm_cap, caps = UNLIMITED_BYTES, {"ddr_cap": room_bytes}
    else:
        hbm_cap, caps = max(room_bytes), {"ddr_cap": host_bytes}
        if len(set(room_bytes)) > 1:  # else TorchRec would cut rows by memory, too
            caps["hbm_cap"] = room_bytes
    known_gb_s = {
        "hbm_mem_bw": bandwidths.hbm_gb_s,
        "intra_host_bw": bandwidths.intra_node_gb_s,
        "inter_host_bw": bandwidths.inter_node_gb_s,
        "hbm_to_ddr_mem_bw": bandwidths.host_gb_s,
    }
    per_ms = {name: gb_s * BYTES_PER_MS for name, gb_s in known_gb_s.items() if gb_s is not None}
    ranks = machine.num_devices, machine.devices_per_node, machine.nodes_per_domain
    return make_topology("cuda", *ranks, hbm_cap=hbm_cap, caps=caps, bandwidths=per_ms)


def parts_of_shards(
    table: str, shards: Iterable[tuple[int, Sequence[int], Sequence[int]]], storage: Storage = ON_DEVICE
) -> list[TablePart]:
    """The parts of a table that the shards of a plan are, but for those without rows, which a rank may have.

    Args:
        table: its name.
        shards: rank, offsets and sizes of each; the latter are TorchRec's [rows, columns].
        storage: where a plan keeps the weights.
    """
    return [
        TablePart(table, Span(row, row + num_rows), Span(column, column + num_columns), (rank,), storage)
        for rank, (row, column), (num_rows, num_columns) in shards
        if num_rows
    ]


def storage_of(table: str, kernel: str, load_factor: float | None) -> Storage:
    """Where a plan keeps the weights of a table; device memory where its kernel is none that evenshard knows.

    Raises:
        BadConfig: if the load factor makes no sense.
    """
    if kernel not in KERNELS_OF_TABLES:
        return ON_DEVICE
    if kernel not in CACHED_KERNELS:
        return Storage(kernel)
    try:
        return Storage(kernel, DEFAULT_LOAD_FACTOR if load_factor is None else min(load_factor, 1.0))
    except BadConfig as error:
        raise BadConfig(f"table {brief(table)}: {error}") from None


def parts_of_parameter(table: Table, entry: ParameterSharding) -> tuple[TablePart, ...]:
    """The parts that a table's entry in a ``ShardingPlan`` stands for; those on one rank are one wider part.

    Raises:
        BadConfig: if the entry does not list its shards, or is not of the table.
    """
    if entry.sharding_type not in SHARDING_TYPES:
        raise BadConfig(
            f"table {brief(table.name)} is sharded {brief(entry.sharding_type)}; evenshard knows "
            f"{', '.join(SHARDING_TYPES)}. Constrain TorchRec's planner to these."
        )
    if TYPES[entry.sharding_type].is_replicated:
        if not entry.ranks:
            raise BadConfig(f"the plan does not list the ranks of table {brief(table.name)}. Give a complete plan.")
        return (replica(table, entry.ranks),)
    shards = getattr(entry.sharding_spec, "shards", None)
    if not shards:
        raise BadConfig(f"the plan does not list the shards of table {brief(table.name)}. Give a complete plan.")
    ranks = [shard.placement.rank() for shard in shards]
    if entry.ranks is not None and list(entry.ranks) != ranks:
        raise BadConfig(
            f"table {brief(table.name)} is on the ranks {entry.ranks}, its shards on {ranks}. Make a new plan."
        )
    load_factor = None if entry.cache_params is None else entry.cache_params.load_factor
    parts = parts_of_shards(
        table.name,
        [(shard.placement.rank(), shard.shard_offsets, shard.shard_sizes) for shard in shards],
        storage_of(table.name, entry.compute_kernel, load_factor),
    )
    if problem := tiling_problem(parts, table):
        raise BadConfig(f"table {brief(table.name)} {problem}")
    return merge_parts(parts)


def replica(table: Table, ranks: Sequence[int]) -> TablePart:
    """A table with a replica on each of these ranks."""
    return whole_part(table, tuple(sorted(ranks)))


def merge_parts(parts: Sequence[TablePart]) -> tuple[TablePart, ...]:
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
