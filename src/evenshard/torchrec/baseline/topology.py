"""TorchRec's planner: imports, settings, the machine that it is given, and the shards of its plans.

TorchRec is given the bandwidths of devices and links, and the memory limit of each device, which is the one that
evenshard uses: weights and optimizer state must fit. TorchRec's own estimate also includes inputs and outputs. It only
orders the tables: device memory is unlimited, and the bytes of evenshard's rule are capped in the field of host memory,
which fused kernels leave at 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig, EvenshardError
from evenshard.base.installation import require_package
from evenshard.base.messages import brief
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import (
    CACHED_KERNELS,
    FUSED,
    FUSED_UVM,
    FUSED_UVM_CACHING,
    KEY_VALUE,
    ON_DEVICE,
    Span,
    Storage,
    TablePart,
    whole_part,
)
from evenshard.placement.sharding import SHARDING_TYPES, TYPES, tiling_problem
from evenshard.price.collectives import Links
from evenshard.price.gpu_profile import profile_of
from evenshard.price.hardware import HardwareName
from evenshard.price.link import link, resolve_link
from evenshard.tables.table import Table

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import PlannerError, Topology
    from torchrec.distributed.types import ParameterSharding
    from torchrec.modules.embedding_configs import DataType

BYTES_PER_MS = 1e6  # in 10**9 bytes per second
UNLIMITED_BYTES = 2**60
# The compute kernel of replicas, whose weights a dense optimizer updates.
DENSE_KERNEL = "dense"
# Kernels that evenshard writes and reads for tables that are not replicated; on GPU ranks, all of them.
KERNELS_OF_TABLES = (FUSED, FUSED_UVM_CACHING, FUSED_UVM, KEY_VALUE)
# TorchRec's default load factor, for plans that do not name one.
DEFAULT_LOAD_FACTOR = 0.2


@dataclass(frozen=True)
class Bandwidths:
    """Divisors of TorchRec's time estimates, 10**9 bytes per second; None keeps TorchRec's own constant.

    Bandwidths of device memory, of the links within and between nodes, and of the link from a device to its host.
    """

    hbm_gb_s: float | None = None  # TorchRec: 963 (897 * 1024**3 bytes)
    intra_node_gb_s: float | None = None  # TorchRec: 644
    inter_node_gb_s: float | None = None  # TorchRec: 13.4
    host_gb_s: float | None = None  # TorchRec: 34.4 (32 * 1024**3 bytes)


def bandwidths_of(hardware: str, link_name: str, machine: Nodes) -> Bandwidths:
    """Return the bandwidths of a simulated device and its link; real hardware keeps TorchRec's constants.

    Raises:
        BadConfig, BadFile: if the device or link profile cannot be read.
    """
    profile = profile_of(HardwareName.parse(hardware))
    if profile is None:
        return Bandwidths()
    return machine_bandwidths(hardware, machine, Links(link(resolve_link(link_name, profile.link))))


def machine_bandwidths(hardware: str, machine: Nodes, links: Links) -> Bandwidths:
    """Return the bandwidths of devices and links; real devices keep TorchRec's constant for device memory.

    For device memory, it is the bandwidth that embedding kernels reach; for a link, that of long messages between this
    many devices. A lower number, such as a linear fit to short messages, would make TorchRec's plans worse.
    """
    profile = profile_of(HardwareName.parse(hardware))
    return Bandwidths(
        None if profile is None else profile.hbm_bytes_per_ns,
        links.intra.even_gb_s(machine.domain_size),
        links.widest.even_gb_s(machine.num_devices),
    )


def machine_topology(
    machine: Nodes, room_bytes: Sequence[int], bandwidths: Bandwidths, host_bytes: Sequence[int] | None = None
) -> Topology:
    """Return TorchRec's topology of a machine.

    Each device may hold ``room_bytes``, plus ``host_bytes`` of its host's memory. Without ``host_bytes``,
    ``room_bytes`` is passed as host memory and device memory has no limit.
    """
    if host_bytes is None:
        hbm_cap, caps = UNLIMITED_BYTES, {"ddr_cap": room_bytes}
    else:
        hbm_cap, caps = max(room_bytes), {"ddr_cap": host_bytes}
        if len(set(room_bytes)) > 1:  # with unequal device memory, TorchRec would also size row shards by memory
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


def collection_of(
    tables: Sequence[Table], names: Sequence[str], features: Sequence[Sequence[str]], data_types: Sequence[DataType]
) -> nn.Module:
    """Return TorchRec's collection of tables with equal ``Table.collection``, on the meta device."""
    import torch
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    configs: list[Any] = []
    for table, *fields in zip(tables, names, features, data_types, strict=True):
        named = dict(zip(("name", "feature_names", "data_type"), fields, strict=True))
        named |= {"num_embeddings": table.num_rows, "embedding_dim": table.embedding_dim}
        if table.is_sequence:
            configs.append(EmbeddingConfig(**named))
        else:
            configs.append(EmbeddingBagConfig(**named, pooling=PoolingType[table.pooling.upper()]))
    meta = torch.device("meta")
    collection: nn.Module
    if tables[0].is_sequence:
        collection = EmbeddingCollection(tables=configs, device=meta)
    else:
        collection = EmbeddingBagCollection(tables=configs, is_weighted=tables[0].is_weighted, device=meta)
    return collection


def parts_of_shards(
    table: str, shards: Iterable[tuple[int, Sequence[int], Sequence[int]]], storage: Storage = ON_DEVICE
) -> list[TablePart]:
    """Convert the shards of a table to parts, without empty shards.

    A shard is its rank, its offsets and its sizes; the latter two are TorchRec's [rows, columns].
    """
    return [
        TablePart(table, Span(row, row + num_rows), Span(column, column + num_columns), (rank,), storage)
        for rank, (row, column), (num_rows, num_columns) in shards
        if num_rows
    ]


def storage_of(table: str, kernel: str, load_factor: float | None) -> Storage:
    """Return the storage of a table in a plan; unknown kernels count as device memory.

    Raises:
        BadConfig: if the load factor is out of range.
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
    """Convert a table's entry in a ``ShardingPlan`` to parts; shards on the same rank are merged.

    Raises:
        BadConfig: if the entry does not list its shards, or belongs to another table.
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
    """Return a table as one part with a replica on each of these ranks."""
    return whole_part(table, tuple(sorted(ranks)))


def merge_parts(parts: Sequence[TablePart]) -> tuple[TablePart, ...]:
    """Merge the parts of a table that share rows and device, and lay out the columns again."""
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
    """Return a name that TorchRec accepts; table names may contain dots, which TorchRec rejects."""
    return f"table_{position}"


# Settings -------------------------------------------------------------------------------------------------------------

# Least columns of a shard, where a setting does not keep TorchRec's own 128.
NARROW = 32


@dataclass(frozen=True)
class PlannerSetting:
    """Settings of TorchRec's planner that a user chooses.

    Attributes:
        min_partition: least columns of a shard; None for TorchRec's own 128.
        sort_by: order of the greedy partitioner, storage or perf.
        grid_shard, replicas, rows: allow grid_shard, data_parallel and the types that cut rows, the latter two
            where the task allows another type, too.
        told: pass pooling factors and bandwidths. By default TorchRec assumes a pooling factor of 1 for each feature,
            and its own constants for bandwidths.
        dynamic: use DynamicProgrammingProposer alone.
        load_factor: initial load factor of every cache, which EmbeddingOffloadScaleupProposer increases; None for
            device memory alone.
    """

    min_partition: int | None = None
    sort_by: str = "storage"
    grid_shard: bool = False
    replicas: bool = field(default=True, kw_only=True)
    rows: bool = field(default=True, kw_only=True)
    told: bool = field(default=True, kw_only=True)
    dynamic: bool = field(default=False, kw_only=True)
    load_factor: float | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        width = "default min_partition" if self.min_partition is None else f"min_partition {self.min_partition}"
        said = (
            *(() if self.load_factor is None else (f"load factor {self.load_factor:g}",)),
            f"{width}, by {self.sort_by}",
            *(("grid_shard",) if self.grid_shard else ()),
            *(() if self.replicas else ("no replicas",)),
            *(() if self.rows else ("no cut rows",)),
            *(() if self.told else ("no pooling factors", "its own bandwidths")),
            *(("dynamic programming proposers",) if self.dynamic else ()),
        )
        return ", ".join(said)


# TorchRec's planner with its defaults: no constraints but sharding types, and TorchRec's bandwidths.
AS_IT_COMES = PlannerSetting(told=False)
SETTINGS = (
    AS_IT_COMES,
    PlannerSetting(replicas=False),
    PlannerSetting(NARROW),
    PlannerSetting(NARROW, replicas=False),
)
OFFLOAD_SETTINGS = tuple(replace(one, told=True, load_factor=0.02) for one in SETTINGS)


# Access to TorchRec ---------------------------------------------------------------------------------------------------

OLDEST_RELEASE = (1, 7)


def require_torchrec() -> None:
    """Import the TorchRec modules that planner and export use, with their import warnings silenced.

    Raises:
        BadConfig: if TorchRec is older than ``OLDEST_RELEASE``.
        MissingPackage: if TorchRec is not installed.
    """
    try:
        release = version("torchrec")
    except PackageNotFoundError:  # not installed, or run from a source checkout
        release = ""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers and tuple(map(int, numbers.groups())) < OLDEST_RELEASE:
        oldest = ".".join(map(str, OLDEST_RELEASE))
        raise BadConfig(f"TorchRec {release} is installed; evenshard needs {oldest} or newer. Upgrade torchrec.")
    require_package("torchrec.distributed.model_parallel")
    require_package("torchrec.distributed.planner")


def make_topology(
    compute_device: str,
    world_size: int,
    local_world_size: int,
    pod_size: int = 1,
    hbm_cap: int | None = None,
    caps: Mapping[str, Sequence[int]] | None = None,
    bandwidths: Mapping[str, float] | None = None,
) -> Topology:
    """Return TorchRec's topology of CUDA or CPU ranks; TorchRec's constants replace values left out.

    Args:
        pod_size: number of nodes that the fast link connects.
        hbm_cap: bytes of each device.
        caps: bytes of every device, by TorchRec's keyword for each kind of memory.
        bandwidths: bytes per ms, by TorchRec's keywords.
    """
    from torchrec.distributed.planner import types

    ranks = {"world_size": world_size, "local_world_size": local_world_size, "pod_size": pod_size}
    each = None if caps is None else types.CustomTopologyData({name: [*of] for name, of in caps.items()}, world_size)
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(hbm_cap_bytes=hbm_cap, additional_params={"custom_topology_data": each}, **ranks),
        types.HardwareConfig(**bandwidths or {}),
        types.KernelConfig(compute_device=compute_device, use_hardware_based_bandwidth=True),
    )


def pod_size_of(topology: Topology) -> int:
    """Return the number of nodes that the fast link of a topology connects."""
    return int(topology.intra_group_size // topology.local_world_size)


class TooStrict(BadConfig):
    """Rules and constraints that leave a table no sharding option."""


def planner_error(error: EvenshardError, kind: str = "") -> PlannerError:
    """Wrap an error as TorchRec's ``PlannerError`` with evenshard's message.

    ``kind`` is the name of a ``PlannerErrorType``; by default STRICT_CONSTRAINTS for rules that are too strict and
    INPUT_VALIDATION for all other errors.
    """
    from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

    kind = kind or ("STRICT_CONSTRAINTS" if isinstance(error, TooStrict) else "INPUT_VALIDATION")
    return PlannerError(str(error), PlannerErrorType[kind])
