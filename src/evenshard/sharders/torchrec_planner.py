"""TorchRec's ``EmbeddingShardingPlanner``, on fused kernels, as a sharder.

For whole tables, with one way to shard each table, its proposers have nothing to propose; its greedy partitioner
decides: the tables in descending order of storage, each on the device with the least estimated time so far among those
with room. The time of a shard is the sum of its tables' (forward, backward, both all-to-alls, the exchange of indices).

TorchRec gets what it would not know by itself: the tables' true pooling factors, the weights' data type, the batch
size of a device and the bandwidths. It has no 8-bit weights to train and estimates them as FP16. It estimates that
pooled embeddings travel in the weights' data type.

The memory: evenshard's rule is that the weights of a device fit its cap; TorchRec also counts a table's inputs and
outputs. So its own count keeps the order of the tables, with unlimited device memory, and the weights are capped in
the column of host memory, which fused kernels leave empty.

With columns allowed, its proposers try which tables to split, and its own estimate of the time decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from evenshard.measure.config import MeasureConfig
from evenshard.measure.link import link, link_of
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.feasibility import no_placement_found, require_room
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.placement import Placement, check_memory
from evenshard.placement.task import PlacementTask
from evenshard.tables.table import Table
from evenshard.utils.extras import require_package

if TYPE_CHECKING:
    from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
    from torchrec.distributed.planner.types import Topology
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

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
    """

    hbm_gb_s: float | None = None
    intra_node_gb_s: float | None = None
    inter_node_gb_s: float | None = None


def bandwidths_of(config: MeasureConfig) -> Bandwidths:
    """Those of a simulated device and its link; TorchRec's own constants for real hardware, which names none.

    The device memory counts with what embedding kernels get out of it, as in the device model.

    Raises:
        BadConfig, BadFile: if the device or link profile cannot be read.
    """
    if config.hardware_name.kind.times == "measured":
        return Bandwidths()
    profile = gpu_profile(config.hardware_name.device)
    link_gb_s = link(link_of(config, profile.link)).bandwidth_gb_s
    return Bandwidths(profile.hbm_bytes_per_ns, link_gb_s, link_gb_s)


def require_torchrec() -> None:
    """Imports what planner and export use of TorchRec; later imports of it cost nothing and warn of nothing.

    Raises:
        MissingPackage: if TorchRec is not installed.
    """
    require_package("torchrec.distributed.model_parallel")
    require_package("torchrec.distributed.planner")


SizeOf = Callable[[Table], int]
"""Bytes of a part of a table, the state of its optimizer included."""


class TorchRecSharder:
    """TorchRec's planner, table-wise. Fast and deterministic; a GPU is not needed.

    ``sort_by`` is TorchRec's setting of the same name: which tables go first, those that need the most storage (its
    default) or those that take the most time.
    """

    def __init__(self, bandwidths: Bandwidths | None = None, sort_by: Literal["storage", "perf"] = "storage") -> None:
        """Loads TorchRec.

        Raises:
            MissingPackage: if TorchRec is not installed.
        """
        require_torchrec()
        self._bandwidths = bandwidths or Bandwidths()
        self._sort_by = sort_by
        self.name = "torchrec_planner" if sort_by == "storage" else "torchrec_planner_perf"

    def place(self, task: PlacementTask) -> Placement:
        """TorchRec's plan.

        Raises:
            InfeasibleTask: if TorchRec finds none.
        """
        require_room(task)
        size_bytes = dict(zip(task.tables, task.table_bytes, strict=True))
        plan = self._plan(task, size_bytes.__getitem__)
        ranks = [plan[table_name(position)].ranks for position in range(len(task.tables))]
        assert all(len(rank) == 1 for rank in ranks), "a table is split"
        placement = Placement(tuple(rank[0] for rank in ranks), task.num_devices)
        check_memory(task, placement)
        return placement

    def split(
        self, task: PlacementTask, splittable: Collection[str], min_partition: int, size_of: SizeOf
    ) -> tuple[TablePart, ...]:
        """TorchRec's plan where some tables may be split by columns.

        Args:
            splittable: names of these tables.
            min_partition: TorchRec's setting of the same name: columns of the narrowest part. A multiple of four.

        Raises:
            InfeasibleTask: if TorchRec finds none.
        """
        plan = self._plan(task, size_of, splittable, min_partition)
        return tuple(
            part_of_shard(table.name, rank, shard.shard_offsets, shard.shard_sizes)
            for position, table in enumerate(task.tables)
            for entry in [plan[table_name(position)]]
            for rank, shard in zip(entry.ranks, entry.sharding_spec.shards, strict=True)
        )

    def _plan(
        self,
        task: PlacementTask,
        size_of: SizeOf,
        splittable: Collection[str] = (),
        min_partition: int | None = None,
    ) -> Mapping[str, Any]:
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner.types import PlannerError

        planner = self._planner(task, size_of, splittable, min_partition)
        try:
            plan: Mapping[str, Any] = planner.plan(_module(task), [EmbeddingBagCollectionSharder()]).plan[""]
        except PlannerError:
            raise no_placement_found(task, "TorchRec's planner found no plan") from None
        return plan

    def _planner(
        self,
        task: PlacementTask,
        size_of: SizeOf,
        splittable: Collection[str] = (),
        min_partition: int | None = None,
    ) -> EmbeddingShardingPlanner:
        from torchrec.distributed.planner import EmbeddingShardingPlanner
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy
        from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import ParameterConstraints

        of_machine = topology(Machine.one_node(task.num_devices), task.caps_bytes, self._bandwidths)
        constraints = {
            table_name(position): ParameterConstraints(
                sharding_types=["table_wise", "column_wise"] if table.name in splittable else ["table_wise"],
                compute_kernels=["fused"],
                pooling_factors=[table.pooling_factor],
                min_partition=min_partition,
            )
            for position, table in enumerate(task.tables)
        }
        table_of = {table_name(position): table for position, table in enumerate(task.tables)}
        estimators = [
            EmbeddingPerfEstimator(of_machine, constraints),
            _CappedWeights(EmbeddingStorageEstimator(of_machine, constraints), table_of, size_of),
        ]
        batch_per_device = math.ceil(task.batch_size / task.num_devices)
        return EmbeddingShardingPlanner(
            topology=of_machine,
            batch_size=batch_per_device,
            constraints=constraints,
            enumerator=EmbeddingEnumerator(of_machine, batch_per_device, constraints, estimators),
            partitioner=GreedyPerfPartitioner(SortBy(self._sort_by)),
            storage_reservation=FixedPercentageStorageReservation(0.0),
            stats=[],  # which would print
            debug=False,
        )


def topology(machine: Machine, room_bytes: Sequence[int], bandwidths: Bandwidths) -> Topology:
    """A machine as TorchRec sees it; what its devices may hold is host memory, that of the devices has no limit."""
    from torchrec.distributed.planner import types

    ranks = {
        "world_size": machine.num_devices,
        "local_world_size": machine.devices_per_node,
        "pod_size": machine.nodes_per_domain,
    }
    caps = types.CustomTopologyData({"ddr_cap": list(room_bytes)}, machine.num_devices)
    known_gb_s = {
        "hbm_mem_bw": bandwidths.hbm_gb_s,
        "intra_host_bw": bandwidths.intra_node_gb_s,
        "inter_host_bw": bandwidths.inter_node_gb_s,
    }
    per_ms = {name: gb_s * BYTES_PER_MS for name, gb_s in known_gb_s.items() if gb_s is not None}
    if not hasattr(types, "TopologyFactory"):  # TorchRec before 1.6
        if machine.nodes_per_domain == 1:
            del ranks["pod_size"]
        return types.Topology(
            compute_device="cuda",
            hbm_cap=UNLIMITED_BYTES,
            ddr_cap=max(room_bytes),
            custom_topology_data=caps,
            **ranks,
            **per_ms,
        )
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(
            hbm_cap_bytes=UNLIMITED_BYTES,
            ddr_cap_bytes=max(room_bytes),
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


class _CappedWeights:
    """TorchRec's estimate of the storage, with the weights, which are capped, as host memory."""

    def __init__(self, estimator: Any, table_of: Mapping[str, Table], size_of: SizeOf) -> None:
        self._estimator, self._table_of, self._size_of = estimator, table_of, size_of

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Sets the storage of every shard, as TorchRec's ``ShardEstimator`` does."""
        self._estimator.estimate(sharding_options, sharder_data_map)
        for option in sharding_options:
            for shard in option.shards:
                part = replace(self._table_of[option.name], embedding_dim=shard.size[1])
                shard.storage.ddr = self._size_of(part)


def _module(task: PlacementTask) -> EmbeddingBagCollection:
    """The tables as TorchRec's module, without memory behind them."""
    import torch
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    configs = [
        EmbeddingBagConfig(
            name=table_name(position),
            feature_names=[table_name(position)],
            num_embeddings=table.num_rows,
            embedding_dim=table.embedding_dim,
            data_type=DataType.FP32 if table.weight_bits == 32 else DataType.FP16,
        )
        for position, table in enumerate(task.tables)
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def table_name(position: int) -> str:
    """A name that TorchRec takes: those of the tables may hold dots."""
    return f"table_{position}"
