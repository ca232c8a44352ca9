"""TorchRec's ``EmbeddingShardingPlanner`` with free hands where tables do not fit: caches and UVM beside device memory.

Tables may be on fused, ``fused_uvm_caching`` and ``fused_uvm`` kernels, sharded in all seven ways. Caches begin with
the load factor of the setting; ``EmbeddingOffloadScaleupProposer``, which is TorchRec's for this, then makes them
larger with the same miss ratios as ours. Its other proposers (greedy, by grid, uniform, dynamic programme) choose
kernels with the load factor as it is. It takes one way to shard each table, so that a setting may name one for all.

Memory is counted as the setting says: by TorchRec's own estimator, or as we count it. What a plan takes of a device or
host may then be more than it has by our count; ``exceeds`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from evenshard.measure.simulated.gpu_profile import HOST_GB_S
from evenshard.placement.memory import PREFETCH
from evenshard.placement.optimizer_state import SGD
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.plan import check_parts_memory
from evenshard.placement.sharding import DATA_PARALLEL, GRID_SHARD, TABLE_COLUMN_WISE
from evenshard.placement.storage import FUSED, FUSED_UVM, FUSED_UVM_CACHING, ON_DEVICE, Storage
from evenshard.placement.task import ShardingTask, memory_of_part
from evenshard.sharders.torchrec_planner import Bandwidths, machine_topology
from evenshard.sharders.torchrec_space import PlannerSetting, TorchRecPlan, TorchRecPlanner
from evenshard.tables.table import Table
from evenshard.utils.errors import InfeasibleTask

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ShardingOption, Topology
    from torchrec.distributed.types import CacheStatistics

OWN_MEMORY, OUR_MEMORY = "torchrec", "evenshard"
SCALE_UP, ALL_PROPOSERS = "scale-up", "all"
LEAST_ROWS = 1000
"""Smaller tables are in device memory: the scale-up divides by what more rows of a cache take, which may be nothing."""
_PIPELINES = {
    "": "NONE",
    "none": "NONE",
    "base": "TRAIN_BASE",
    "sparse_dist": "TRAIN_SPARSE_DIST",
    PREFETCH: "TRAIN_PREFETCH_SPARSE_DIST",
}
_KERNELS = (FUSED, FUSED_UVM_CACHING, FUSED_UVM)

StatisticsOf = Callable[[Table], "CacheStatistics"]
"""Miss ratios of a table, as TorchRec takes them."""


@dataclass(frozen=True)
class OffloadSetting(PlannerSetting):
    """What a user of TorchRec's planner chooses where tables do not fit.

    Attributes:
        load_factor: of every cache, to begin with.
        only: the one way to shard every table that can be; empty for all ways.
        memory: who counts it, ``OWN_MEMORY`` or ``OUR_MEMORY``.
        proposers: ``SCALE_UP`` for EmbeddingOffloadScaleupProposer alone, or ``ALL_PROPOSERS``.
    """

    load_factor: float = 0.2
    only: str = ""
    memory: str = OWN_MEMORY
    proposers: str = SCALE_UP

    def __str__(self) -> str:
        only = f", {self.only}" if self.only else ""
        return (
            f"load factor {self.load_factor:g}{only}, {super().__str__()}, {self.proposers} proposers, memory by "
            f"{self.memory}"
        )


def offload_settings(
    load_factors: Sequence[float] = (0.02, 0.05, 0.1, 0.2),
    min_partitions: Sequence[int | None] = (None, 32),
    only: Sequence[str] = ("", "table_wise", "column_wise", "row_wise", "table_row_wise"),
    memory: Sequence[str] = (OWN_MEMORY, OUR_MEMORY),
) -> tuple[OffloadSetting, ...]:
    """All combinations that differ, TorchRec's own default first: those of the scale-up, then of all its proposers."""
    found = []
    for proposers, way, columns, load_factor, who in product(
        (SCALE_UP, ALL_PROPOSERS), only, min_partitions, load_factors, memory
    ):
        cuts_columns = way in ("", "column_wise", TABLE_COLUMN_WISE, GRID_SHARD)
        if (proposers == ALL_PROPOSERS and way) or (columns != min_partitions[0] and not cuts_columns):
            continue
        found.append(OffloadSetting(columns, "storage", not way, load_factor, way, who, proposers))
    return tuple(found)


def exceeds(task: ShardingTask, parts: Sequence[TablePart]) -> bool:
    """Whether parts take more of a device or a host than it has, as we count."""
    try:
        check_parts_memory(task, parts)
    except InfeasibleTask:
        return True
    return False


class TorchRecOffloadPlanner(TorchRecPlanner):
    """TorchRec's planner for one task whose tables may live outside of device memory."""

    def __init__(
        self, task: ShardingTask, bandwidths: Bandwidths, statistics_of: StatisticsOf, timeout_s: int | None = None
    ) -> None:
        """Loads TorchRec.

        Args:
            statistics_of: a table's miss ratios.
            timeout_s: TorchRec's setting ``timeout_seconds``: the best plan found by then is its answer.

        Raises:
            MissingPackage: if TorchRec is not installed.
        """
        if bandwidths.host_gb_s is None:
            bandwidths = replace(bandwidths, host_gb_s=HOST_GB_S)
        super().__init__(task, bandwidths, timeout_s)
        self._statistics_of = statistics_of
        self._setting = OffloadSetting()

    def plan(self, setting: PlannerSetting, widths: Mapping[str, int] | None = None) -> TorchRecPlan:
        """TorchRec's plan with one setting; see ``TorchRecPlanner.plan``."""
        assert isinstance(setting, OffloadSetting)
        self._setting = setting
        return super().plan(setting, widths)

    def plans(self, chosen: Sequence[PlannerSetting]) -> Iterator[TorchRecPlan]:
        """The plans of all settings with which TorchRec finds one."""
        return super().plans(chosen)

    # What TorchRec is given ------------------------------------------------------------------------------------------

    @cached_property
    def topology(self) -> Topology:
        """The machine, with each device's share of its host's memory."""
        machine = self._task.machine
        sizes = machine.host_bytes or (0,) * machine.num_nodes
        shares = [sizes[machine.node_of(device)] // machine.devices_per_node for device in range(machine.num_devices)]
        return machine_topology(machine, self._task.room_bytes, self._bandwidths, shares)

    def _constraints(self, setting: PlannerSetting, widths: Mapping[str, int]) -> dict[str, Any]:
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
        from torchrec.distributed.types import CacheParams

        assert isinstance(setting, OffloadSetting)
        found = super()._constraints(setting, widths)
        prefetches = self._task.pipeline == PREFETCH if self._task.pipeline else None
        for name, position in self._position.items():
            own, kernels = found[name], self._task.kernels_of(position)
            if self._task.tables[position].num_rows < LEAST_ROWS and FUSED in kernels:
                kernels = (FUSED,)
            own.compute_kernels = [
                *(one for one in _KERNELS if one in kernels),
                *(["dense"] if FUSED in kernels else []),
            ]
            if setting.only and setting.only in self._task.types[position]:
                own.sharding_types = [setting.only]
            own.cache_params = CacheParams(
                algorithm=CacheAlgorithm.LRU,
                load_factor=setting.load_factor,
                prefetch_pipeline=prefetches,
                stats=self._statistics_of(self._task.tables[position]),
            )
        return found

    def _proposers(self, setting: PlannerSetting) -> list[Any] | None:
        from torchrec.distributed.planner import proposers

        assert isinstance(setting, OffloadSetting)
        if setting.proposers == SCALE_UP:
            return [proposers.EmbeddingOffloadScaleupProposer()]
        return [
            proposers.GreedyProposer(),
            proposers.GreedyProposer(use_depth=False),
            proposers.UniformProposer(),
            proposers.GridSearchProposer(),
            proposers.EmbeddingOffloadScaleupProposer(),
            proposers.DynamicProgrammingProposer(),
        ]

    def _storage_estimator(self, constraints: dict[str, Any]) -> Any:
        from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
        from torchrec.distributed.types import PipelineType

        if self._setting.memory == OUR_MEMORY:
            return _OurMemory(self._task, self._position)
        pipeline = PipelineType[_PIPELINES[self._task.pipeline]]
        return EmbeddingStorageEstimator(self.topology, constraints, pipeline_type=pipeline)

    @cached_property
    def _module(self) -> nn.Module:
        """The tables, whose state of the optimizer TorchRec counts."""
        import torch
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        kinds = {SGD: torch.optim.SGD, "rowwise_adagrad": RowWiseAdagrad, "adam": torch.optim.Adam}
        module = super()._module
        for path, weights in module.named_parameters():
            table = self._task.tables[self._position[path.split(".")[-2]]]
            kind = kinds.get(self._task.optimizer_of(table.name), torch.optim.Adagrad)  # others count once, as there
            weights._optimizer_classes = [kind]  # type: ignore[attr-defined]
        return module

    def _parts(self, position: int, entry: Any) -> tuple[TablePart, ...]:
        storage = _storage(entry.compute_kernel, entry.cache_params)
        return tuple(replace(part, storage=storage) for part in super()._parts(position, entry))


def _storage(kernel: str, cache_params: Any) -> Storage:
    if kernel == FUSED_UVM_CACHING:
        return Storage(kernel, min(cache_params.load_factor, 1.0))
    return Storage(kernel) if kernel in _KERNELS else ON_DEVICE


class _OurMemory:
    """Storage as we count it, in place of TorchRec's estimate."""

    def __init__(self, task: ShardingTask, position: Mapping[str, int]) -> None:
        self._task, self._position = task, position
        self._known: dict[tuple[Table, TablePart], Any] = {}

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Sets the storage of every shard, as TorchRec's ``ShardEstimator`` does."""
        for option in sharding_options:
            table = self._task.tables[self._position[option.name]]
            everywhere = tuple(range(self._task.num_devices)) if option.sharding_type == DATA_PARALLEL else (0,)
            storage = _storage(option.compute_kernel, option.cache_params)
            for shard in option.shards:
                (row, column), (rows, columns) = shard.offset, shard.size
                part = TablePart(table.name, Span(row, row + rows), Span(column, column + columns), everywhere, storage)
                shard.storage = self._of(part, table)

    def _of(self, part: TablePart, table: Table) -> Any:
        from torchrec.distributed.planner.types import Storage as TorchRecStorage

        if not part.rows.size:
            return TorchRecStorage(hbm=0, ddr=0)
        key = table, part
        if key not in self._known:
            memory = memory_of_part(self._task, table, part)
            self._known[key] = memory.device_bytes, memory.host_bytes
        device_bytes, host_bytes = self._known[key]
        return TorchRecStorage(hbm=device_bytes, ddr=host_bytes)
