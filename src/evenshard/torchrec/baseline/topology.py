"""TorchRec's planner: imports, settings, the topology to plan for, and the shards of a plan.

The topology has the bandwidths of devices and links, and evenshard's limit of weights and optimizer state. TorchRec's
own memory estimate also includes inputs and outputs. It serves only to sort the tables, so the topology has unlimited
device memory. evenshard's limit is entered as host memory, which is otherwise unused: fused kernels need none.
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

BYTES_PER_MS = 1e6  # TorchRec's unit of bandwidth is bytes per ms; 10**9 bytes per second are 1e6 bytes per ms
UNLIMITED_BYTES = 2**60  # more memory than any device has
DENSE_KERNEL = "dense"  # the compute kernel of data_parallel tables, whose weights a dense optimizer updates
# Kernels that evenshard writes and reads for other tables; all need GPU ranks, except fused.
KERNELS_OF_TABLES = (FUSED, FUSED_UVM_CACHING, FUSED_UVM, KEY_VALUE)
DEFAULT_LOAD_FACTOR = 0.2  # TorchRec's default load factor, for plans without one


@dataclass(frozen=True)
class Bandwidths:
    """Bandwidths for TorchRec's time estimates, 10**9 bytes per second; None keeps TorchRec's own constant."""

    hbm_gb_s: float | None = None  # TorchRec: 963 (897 * 1024**3 bytes)
    intra_node_gb_s: float | None = None  # TorchRec: 644
    inter_node_gb_s: float | None = None  # TorchRec: 13.4
    host_gb_s: float | None = None  # from a device to its host; TorchRec: 34.4 (32 * 1024**3 bytes)


def bandwidths_of(hardware: str, link_name: str, machine: Nodes) -> Bandwidths:
    """Return the bandwidths of a simulated device and its link; real hardware keeps TorchRec's constants."""
    profile = profile_of(HardwareName.parse(hardware))
    if profile is None:
        return Bandwidths()
    return machine_bandwidths(hardware, machine, Links(link(resolve_link(link_name, profile.link))))


def machine_bandwidths(hardware: str, machine: Nodes, links: Links) -> Bandwidths:
    """Return the bandwidths of device memory and links for TorchRec's topology.

    Device memory has the bandwidth that embedding kernels reach on simulated devices, and TorchRec's constant on real
    ones. Links have the bandwidth of long messages; the lower one of short messages makes TorchRec's plans worse.
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

    Each device has ``room_bytes`` for tables, plus ``host_bytes`` of its host's memory. Without ``host_bytes``,
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
    """Build a TorchRec collection on the meta device; all tables must have the same ``Table.collection``."""
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

    Each shard is (rank, offsets, sizes); offsets and sizes are [rows, columns], as in TorchRec.
    """
    return [
        TablePart(table, Span(row, row + num_rows), Span(column, column + num_columns), (rank,), storage)
        for rank, (row, column), (num_rows, num_columns) in shards
        if num_rows
    ]


def storage_of(table: str, kernel: str, load_factor: float | None) -> Storage:
    """Return the storage of a table in a plan; unknown kernels count as device memory."""
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
            f"table {brief(table.name)} is sharded {brief(entry.sharding_type)}, but evenshard supports only "
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
            f"table {brief(table.name)} is on ranks {entry.ranks}, but its shards are on {ranks}. Make a new plan."
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
    """Merge the parts of a table that share rows and device, and renumber the columns to be contiguous."""
    widths: dict[tuple[Span, int], int] = defaultdict(int)
    for part in sorted(parts, key=lambda part: (part.columns, part.rows)):
        widths[part.rows, part.device] += part.columns.size
    starts: dict[Span, int] = defaultdict(int)  # next free column of each block of rows
    found = []
    for (rows, device), width in widths.items():
        columns = Span(starts[rows], starts[rows] + width)
        found.append(replace(parts[0], rows=rows, columns=columns, devices=(device,)))
        starts[rows] += width
    return tuple(found)


def table_name(position: int) -> str:
    """Return a name for the table at a position; TorchRec rejects evenshard's names if they contain dots."""
    return f"table_{position}"


# Settings -------------------------------------------------------------------------------------------------------------

NARROW = 32  # minimum columns per shard in settings that allow narrower shards than TorchRec's default of 128


@dataclass(frozen=True)
class PlannerSetting:
    """Settings of TorchRec's planner that a user can choose."""

    min_partition: int | None = None  # minimum columns of a shard; None for TorchRec's default of 128
    sort_by: str = "storage"  # order of the greedy partitioner, storage or perf
    # Allow grid_shard, data_parallel and types that cut rows. A table whose types are all excluded keeps them.
    grid_shard: bool = False
    replicas: bool = field(default=True, kw_only=True)
    rows: bool = field(default=True, kw_only=True)
    # Pass pooling factors and bandwidths; if False, TorchRec assumes a pooling factor of 1 and its own bandwidths.
    told: bool = field(default=True, kw_only=True)
    dynamic: bool = field(default=False, kw_only=True)  # use DynamicProgrammingProposer alone
    # Initial load factor of every cache, which EmbeddingOffloadScaleupProposer increases; None for no caches.
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


# TorchRec's planner with its defaults: its own bandwidths, and no constraints but sharding types.
DEFAULT_SETTING = PlannerSetting(told=False)
SETTINGS = (
    DEFAULT_SETTING,
    PlannerSetting(replicas=False),
    PlannerSetting(NARROW),
    PlannerSetting(NARROW, replicas=False),
)
# Caches start at 2 % of the rows, and TorchRec's proposer enlarges them while memory lasts.
OFFLOAD_SETTINGS = tuple(replace(one, told=True, load_factor=0.02) for one in SETTINGS)


# Access to TorchRec ---------------------------------------------------------------------------------------------------

OLDEST_RELEASE = (1, 7)  # oldest supported release of TorchRec


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
        raise BadConfig(f"TorchRec {release} is installed, but evenshard needs {oldest} or newer. Upgrade torchrec.")
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
    """Return TorchRec's topology of CUDA or CPU ranks, with TorchRec's constants for missing values.

    Args:
        pod_size: number of nodes that the fast link connects.
        hbm_cap: device memory of a rank, bytes.
        caps: memory of every rank, bytes, by TorchRec's name, such as ``ddr_cap``.
        bandwidths: bytes per ms, by TorchRec's name, such as ``intra_host_bw``.
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
    """Error for rules and constraints that leave a table without a sharding option."""


def planner_error(error: EvenshardError, kind: str = "") -> PlannerError:
    """Convert an error to TorchRec's ``PlannerError`` with the same message.

    ``kind`` is the name of a ``PlannerErrorType``; by default STRICT_CONSTRAINTS for ``TooStrict``, and
    INPUT_VALIDATION for all other errors.
    """
    from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

    kind = kind or ("STRICT_CONSTRAINTS" if isinstance(error, TooStrict) else "INPUT_VALIDATION")
    return PlannerError(str(error), PlannerErrorType[kind])
