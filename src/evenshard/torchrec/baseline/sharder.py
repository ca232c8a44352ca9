"""Plans of TorchRec's ``EmbeddingShardingPlanner`` with a given ``PlannerSetting``.

The planner may use every sharding type on fused kernels. If the setting has a load factor, it may also use
``fused_uvm_caching`` and ``fused_uvm``: caches start at that load factor, and TorchRec's
``EmbeddingOffloadScaleupProposer`` enlarges them, with evenshard's miss ratios. TorchRec gets pooling factors and
bandwidths (unless the setting omits them), data types, weighted features, samples per device, and nodes.

Without caches, TorchRec gets evenshard's memory limit, and its own memory estimate only orders the tables. With caches,
memory is counted as in evenshard, because a plan that fits by TorchRec's estimate might not fit.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, proposers
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, Shard, ShardingOption, Topology
from torchrec.distributed.planner.types import Storage as TorchRecStorage
from torchrec.distributed.types import CacheParams, CacheStatistics
from torchrec.modules.embedding_configs import DataType

from evenshard.base.errors import InfeasibleTask
from evenshard.base.messages import cut
from evenshard.placement.memory import PREFETCH, state_bytes
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import FUSED, USUAL_KERNELS, TablePart
from evenshard.placement.placement import Placement, check_parts_memory, parts_by_table
from evenshard.placement.sharding import GRIDS, IN_ROWS, REPLICATED, SHARDING_TYPES, TABLE_WISE, TYPES, sharding_type
from evenshard.placement.task import ShardingTask, TableLimits, memory_of_part
from evenshard.price.gpu_profile import HOST_GB_S
from evenshard.search.infeasibility import no_placement_error, require_feasible
from evenshard.tables.locality import distinct_rows, mean_miss_ratio, miss_ratio
from evenshard.tables.table import Table
from evenshard.torchrec.baseline import topology as torchrec_topology

# Tables with fewer rows stay in device memory: TorchRec's scale-up divides by the bytes of additional cache rows, which
# may round to 0.
LEAST_ROWS = 1000


@dataclass(frozen=True)
class TableStatistics(CacheStatistics):  # type: ignore[misc]  # TorchRec has no types
    """Cache statistics of one table, for ``CacheParams``; picklable, because ranks broadcast plans with them."""

    table: Table  # its miss-ratio curve is counted, bounded or assumed (``evenshard.tables.locality``)
    batch_size: int  # samples over all ranks

    @property
    def expected_lookups(self) -> float:
        """Return the number of distinct rows in a batch."""
        return distinct_rows(self.table, self.batch_size)

    def expected_miss_rate(self, clf: float) -> float:
        """Return the fraction of distinct rows that a cache of load factor ``clf`` misses."""
        return miss_ratio(self.table, self.batch_size, clf)

    @property
    def cacheability(self) -> float:
        """Return the area under the miss-ratio curve: 0 if every cache size hits, 1 if every cache size misses."""
        return mean_miss_ratio(self.table, self.batch_size)


@dataclass(frozen=True)
class TorchRecPlan:
    """A plan of TorchRec's planner, with the planner's setting and TorchRec's rating of the plan."""

    setting: torchrec_topology.PlannerSetting
    rating_ms: float  # largest sum of TorchRec's shard times on a device
    parts: tuple[TablePart, ...]


class TorchRecPlanner:
    """TorchRec's planner for a task. Deterministic; needs no GPU."""

    def __init__(
        self,
        task: ShardingTask,
        bandwidths: torchrec_topology.Bandwidths,
        timeout_s: int | None = None,
        size_of: Callable[[Table], int] | None = None,
    ) -> None:
        """Load TorchRec; a plan may take ``timeout_s`` seconds.

        ``size_of`` returns the bytes of a table part; by default, of its weights and optimizer state.
        """
        torchrec_topology.require_torchrec()
        self._task, self._bandwidths, self._timeout_s = task, bandwidths, timeout_s
        self._size_of = size_of or (lambda part: part.size_bytes + state_bytes(part, task.optimizer_of(part.name)))
        self._position = {torchrec_topology.table_name(number): number for number in range(len(task.tables))}

    def plan(self, setting: torchrec_topology.PlannerSetting) -> TorchRecPlan:
        """Return TorchRec's plan with a setting; raise InfeasibleTask if TorchRec finds none."""
        constraints = self._constraints(setting)
        rates = NoopPerfModel(self.topology_of(setting))
        planner = EmbeddingShardingPlanner(
            topology=self.topology_of(setting),
            batch_size=self.batch_per_device,
            constraints=constraints,
            enumerator=self._enumerator(setting, constraints),
            proposer=self._proposers(setting),
            partitioner=GreedyPerfPartitioner(SortBy(setting.sort_by)),
            storage_reservation=FixedPercentageStorageReservation(0.0),  # ``room_bytes`` already excludes the reserve
            performance_model=rates,
            stats=[],  # TorchRec's default statistics would print
            debug=False,
            timeout_seconds=self._timeout_s,
        )
        try:
            with _without_warnings():
                plan = planner.plan(self._module, self._sharders).plan
        except PlannerError:
            raise InfeasibleTask(f"TorchRec's planner found no plan ({setting})") from None
        rating_ms = float(rates.rate(planner._best_plan))
        entries = {name: entry for of_module in plan.values() for name, entry in of_module.items()}
        parts = tuple(
            part
            for name, position in self._position.items()
            for part in torchrec_topology.parts_of_parameter(self._task.tables[position], entries[name])
        )
        return TorchRecPlan(setting, rating_ms, parts)

    def plans(self, chosen: Sequence[torchrec_topology.PlannerSetting]) -> Iterator[TorchRecPlan]:
        """Yield the plan of each setting for which TorchRec finds one."""
        for setting in chosen:
            try:
                yield self.plan(setting)
            except InfeasibleTask:
                continue

    def rating_ms(self, parts: Sequence[TablePart]) -> float:
        """Return TorchRec's rating of a placement in device memory: the largest sum of shard times on a device, ms."""
        by_table = parts_by_table(self._task, parts)
        enumerator, templates = self._rating_templates
        options = []
        for template in templates:
            table = self._task.tables[self._position[template.name]]
            of_table = by_table[table.name]
            option = template.__deepcopy__({})  # TorchRec's copy keeps tensor and module by reference
            option.sharding_type = sharding_type(of_table, table, self._task.machine)
            option.compute_kernel = (
                torchrec_topology.DENSE_KERNEL if TYPES[option.sharding_type].is_replicated else FUSED
            )
            option.shards = [
                Shard([part.rows.size, part.columns.size], [part.rows.start, part.columns.start], rank=rank)
                for part in of_table
                for rank in part.devices
            ]
            options.append(option)
        enumerator.populate_estimates(options)
        return float(NoopPerfModel(self.topology_of(torchrec_topology.PlannerSetting())).rate(options))

    @cached_property
    def _rating_templates(self) -> tuple[_SortedEnumerator, list[ShardingOption]]:
        # The first option of each table; ``rating_ms`` replaces its type, kernel and shards.
        usual = torchrec_topology.PlannerSetting()
        enumerator = self._enumerator(usual, self._constraints(usual))
        first = {option.name: option for option in enumerator.enumerate(self._module, self._sharders)}
        return enumerator, list(first.values())

    @property
    def batch_per_device(self) -> int:
        """Return the samples per device."""
        return math.ceil(self._task.local_batch)

    def topology_of(self, setting: torchrec_topology.PlannerSetting) -> Topology:
        """Return TorchRec's topology. If the setting allows caches, each device also has its share of host memory."""
        machine, bandwidths = self._task.machine, self._bandwidths if setting.told else torchrec_topology.Bandwidths()
        if setting.load_factor is None:
            return torchrec_topology.machine_topology(machine, self._task.room_bytes, bandwidths)
        if bandwidths.host_gb_s is None and setting.told:
            bandwidths = replace(bandwidths, host_gb_s=HOST_GB_S)
        sizes = machine.host_bytes or (0,) * machine.num_nodes
        shares = [sizes[machine.node_of(device)] // machine.devices_per_node for device in range(machine.num_devices)]
        return torchrec_topology.machine_topology(machine, self._task.room_bytes, bandwidths, shares)

    @cached_property
    def _sharders(self) -> list[Any]:
        return [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]

    def _constraints(self, setting: torchrec_topology.PlannerSetting) -> dict[str, Any]:
        left_out = {
            *(() if setting.grid_shard else GRIDS),
            *(() if setting.replicas else REPLICATED),
            *(() if setting.rows else IN_ROWS),
        }
        found = {}
        for name, position in self._position.items():
            table, types = self._task.tables[position], self._task.types[position]
            able = [name for name in SHARDING_TYPES if name in types]
            allowed = [name for name in able if name not in left_out] or able  # TorchRec needs at least one type
            found[name] = ParameterConstraints(
                sharding_types=allowed,
                compute_kernels=[FUSED, torchrec_topology.DENSE_KERNEL],
                min_partition=setting.min_partition,
                pooling_factors=list(table.feature_lookups) if setting.told else [1.0] * table.num_features,
                is_weighted=table.is_weighted,
            )
            if setting.load_factor is not None:
                self._allow_caches(found[name], position, setting.load_factor)
        return found

    def _allow_caches(self, constraints: Any, position: int, load_factor: float) -> None:
        task, table, kernels = self._task, self._task.tables[position], self._task.kernels_of(position)
        if table.num_rows < LEAST_ROWS and FUSED in kernels:
            kernels = (FUSED,)
        replicas = (torchrec_topology.DENSE_KERNEL,) if FUSED in kernels else ()
        constraints.compute_kernels = [*(one for one in USUAL_KERNELS if one in kernels), *replicas]
        constraints.cache_params = CacheParams(
            algorithm=CacheAlgorithm.LRU,
            load_factor=load_factor,
            prefetch_pipeline=task.pipeline == PREFETCH if task.pipeline else None,
            stats=TableStatistics(table, task.batch_size),
        )

    def _proposers(self, setting: torchrec_topology.PlannerSetting) -> list[Any] | None:
        """Return the proposers of a setting; None for TorchRec's defaults."""
        if setting.dynamic:
            return [proposers.DynamicProgrammingProposer()]
        if setting.load_factor is None:
            return None
        return [proposers.GreedyProposer(), proposers.EmbeddingOffloadScaleupProposer()]  # for tables in UVM

    def _enumerator(self, setting: torchrec_topology.PlannerSetting, constraints: dict[str, Any]) -> _SortedEnumerator:
        topology = self.topology_of(setting)
        times = EmbeddingPerfEstimator(topology, constraints)
        estimators = [times, self._storage_estimator(setting, constraints)]
        enumerator = EmbeddingEnumerator(topology, self.batch_per_device, constraints, estimators)
        return _SortedEnumerator(enumerator, self._position)

    def _storage_estimator(self, setting: torchrec_topology.PlannerSetting, constraints: dict[str, Any]) -> Any:
        if setting.load_factor is None:
            estimator = EmbeddingStorageEstimator(self.topology_of(setting), constraints)
            return _CappedStorageEstimator(estimator, self._shard_bytes)
        return _EvenshardStorageEstimator(self._task, self._position)

    def _shard_bytes(self, name: str, rows: int, columns: int) -> int:
        table = self._task.tables[self._position[name]]
        if (rows, columns) != (table.num_rows, table.embedding_dim):  # row_shares and miss_ratios describe whole tables
            table = replace(table, num_rows=rows, embedding_dim=columns, row_shares=None, miss_ratios=None)
        return self._size_of(table)

    @cached_property
    def _module(self) -> nn.Module:
        """Build TorchRec's collections on the meta device, with weighted tables in a separate collection."""
        # All other types are passed as FP16: TorchRec cannot train weights of 8 bits or fewer.
        types = {"fp32": DataType.FP32, "bf16": DataType.BF16}
        groups: dict[tuple[str, bool, bool], dict[str, Table]] = defaultdict(dict)
        for name, position in self._position.items():
            table = self._task.tables[position]
            groups[table.collection][name] = table
        root = torch.nn.Module()
        for number, of_name in enumerate(groups.values()):
            tables = list(of_name.values())
            features = [[f"{name}_{at}" for at in range(table.num_features)] for name, table in of_name.items()]
            data_types = [types.get(table.dtype, DataType.FP16) for table in tables]
            root.add_module(
                f"collection_{number}", torchrec_topology.collection_of(tables, list(of_name), features, data_types)
            )
        return root


class TorchRecSharder:
    """TorchRec's planner as a sharder of whole tables over the devices of one node.

    Each table has a single sharding option, so the greedy partitioner alone decides. It takes tables in descending
    order of ``sort_by``, storage (its default) or estimated time, and puts each on the device with the least estimated
    time so far that has enough memory.
    """

    def __init__(
        self,
        bandwidths_on: Callable[[Nodes], torchrec_topology.Bandwidths] | None = None,
        sort_by: Literal["storage", "perf"] = "storage",
    ) -> None:
        """Load TorchRec; without ``bandwidths_on``, TorchRec uses its own constants."""
        torchrec_topology.require_torchrec()
        self._bandwidths_on, self._sort_by = bandwidths_on, sort_by
        self.name = "torchrec_planner" if sort_by == "storage" else "torchrec_planner_perf"

    def place(self, task: ShardingTask) -> Placement:
        """Return TorchRec's plan of a task; raise InfeasibleTask if TorchRec finds none."""
        require_feasible(task)
        try:
            parts = self.planner(task).plan(torchrec_topology.PlannerSetting(sort_by=self._sort_by)).parts
        except InfeasibleTask:
            raise no_placement_error(task, f"{cut(task.task_id)}: TorchRec's planner found no plan") from None
        placement = Placement.of(task, parts)
        check_parts_memory(task, placement.parts(task.tables))
        return placement

    def planner(self, task: ShardingTask) -> TorchRecPlanner:
        """Return TorchRec's planner for a task."""
        machine = Nodes.one_node(task.num_devices)
        sharding = ShardingTask(
            tables=task.tables,
            machine=machine,
            room_bytes=tuple(task.room_bytes),
            batch_size=task.batch_size,
            limits=(TableLimits(types=frozenset({TABLE_WISE})),) * len(task.tables),
        )
        size_bytes = dict(zip(task.tables, task.table_bytes, strict=True))
        bandwidths = torchrec_topology.Bandwidths() if self._bandwidths_on is None else self._bandwidths_on(machine)
        return TorchRecPlanner(sharding, bandwidths, size_of=size_bytes.__getitem__)


class _SortedEnumerator:
    """TorchRec's enumerator with sharding options in a fixed order; TorchRec's own order differs between processes."""

    def __init__(self, enumerator: Any, position: Mapping[str, int]) -> None:
        self._enumerator, self._position = enumerator, position

    def enumerate(self, module: nn.Module, sharders: list[Any]) -> list[ShardingOption]:
        options = self._enumerator.enumerate(module, sharders)
        order, kind = self._position, SHARDING_TYPES.index
        return sorted(options, key=lambda one: (order[one.name], kind(one.sharding_type), one.compute_kernel))

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        self._enumerator.populate_estimates(sharding_options)


class _CappedStorageEstimator:
    """TorchRec's storage estimator, with evenshard's size of a shard as host memory to enforce evenshard's limit."""

    def __init__(self, estimator: Any, shard_bytes: Callable[[str, int, int], int]) -> None:
        self._estimator, self._shard_bytes = estimator, cache(shard_bytes)

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        self._estimator.estimate(sharding_options, sharder_data_map)
        for option in sharding_options:
            for shard in option.shards:
                shard.storage.ddr = self._shard_bytes(option.name, *shard.size)


class _EvenshardStorageEstimator:
    """Storage estimator that counts memory as evenshard does, in place of TorchRec's."""

    def __init__(self, task: ShardingTask, position: Mapping[str, int]) -> None:
        self._task, self._position = task, position
        self._memory = cache(lambda table, part: memory_of_part(task, table, part))

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        for option in sharding_options:
            table = self._task.tables[self._position[option.name]]
            is_replicated = TYPES[option.sharding_type].is_replicated
            devices = tuple(range(self._task.num_devices)) if is_replicated else (0,)
            cache_params = option.cache_params
            load_factor = None if cache_params is None else cache_params.load_factor
            storage = torchrec_topology.storage_of(table.name, option.compute_kernel, load_factor)
            for shard in option.shards:
                shard.storage = TorchRecStorage(hbm=0, ddr=0)
                for part in torchrec_topology.parts_of_shards(table.name, [(0, shard.offset, shard.size)], storage):
                    memory = self._memory(table, replace(part, devices=devices))
                    shard.storage = TorchRecStorage(hbm=memory.device_bytes, ddr=memory.host_bytes)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence TorchRec's warnings about replicas without a sharding spec and about ignored sharding options."""
    root, handler = logging.getLogger(), logging.NullHandler()
    disabled = root.manager.disable
    root.addHandler(handler)  # without a handler, the first warning would configure logging
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.removeHandler(handler)
