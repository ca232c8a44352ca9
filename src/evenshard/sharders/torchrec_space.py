"""TorchRec's ``EmbeddingShardingPlanner`` with free hands: all seven sharding types, on fused kernels.

``SETTINGS`` are what its users can choose: the narrowest part (``min_partition``), the order of its greedy
partitioner, whether it may replicate tables, and whether it may use grid_shard, which it only does where it is named.
Its default proposers are asked each time; its dynamic programme minimizes the sum over all devices and was never
better. It gets the pooling factors (unless a setting leaves them out), data types, weighted features, batch size of a
device, nodes and bandwidths, as in ``torchrec_planner``.

Memory: both sides keep the same rule, and TorchRec its own count for the order of the tables: see
``torchrec_planner``. Where it puts two shards of a table on one device, they are merged into one wider part, which is
never slower.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evenshard.measure.collectives import Links
from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.placement.machine import Machine
from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.plan import parts_by_table
from evenshard.placement.sharding import DATA_PARALLEL, GRID_SHARD, SHARDING_TYPES, sharding_type
from evenshard.placement.task import ShardingTask
from evenshard.sharders.torchrec_planner import (
    Bandwidths,
    machine_topology,
    part_of_shard,
    require_torchrec,
    table_name,
)
from evenshard.tables.table import MEAN, Table
from evenshard.utils.errors import InfeasibleTask

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ShardingOption, Topology

MIN_PARTITIONS = (None, 8, 16, 32, 64)
"""Columns of the narrowest part; None leaves TorchRec's own, which is 128."""
ORDERS = ("storage", "perf")


SizeOf = Callable[[Table], int]
"""Bytes of a part of a table, the state of its optimizer included."""

EstimatorOf = Callable[["Topology", dict[str, Any]], Any]
"""Makes a ``ShardEstimator`` of a topology and constraints."""


@dataclass(frozen=True)
class PlannerSetting:
    """What a user of TorchRec's planner chooses.

    Attributes:
        min_partition: columns of the narrowest part; None for TorchRec's own.
        sort_by: order of its partitioner, one of ``ORDERS``.
        grid_shard: whether it may use grid_shard.
        replicas: whether it may use data_parallel where the task allows another type, too.
        lookups: whether it is told pooling factors; without constraints it takes each to be 1.
    """

    min_partition: int | None = None
    sort_by: str = "storage"
    grid_shard: bool = False
    replicas: bool = field(default=True, kw_only=True)
    lookups: bool = field(default=True, kw_only=True)

    def __str__(self) -> str:
        width = "default min_partition" if self.min_partition is None else f"min_partition {self.min_partition}"
        grid = ", grid_shard" if self.grid_shard else ""
        replicas = "" if self.replicas else ", no replicas"
        lookups = "" if self.lookups else ", no pooling factors"
        return f"{width}, by {self.sort_by}{grid}{replicas}{lookups}"


SETTINGS = tuple(
    PlannerSetting(width, order, grid, replicas=replicas)
    for order in ORDERS
    for grid in (False, True)
    for replicas in (True, False)
    for width in MIN_PARTITIONS
)
"""TorchRec's own setting first."""


@dataclass(frozen=True)
class TorchRecPlan:
    """A plan of TorchRec's planner.

    Attributes:
        setting: that it was asked with.
        rating_ms: TorchRec's own rating.
        parts: the placement.
    """

    setting: PlannerSetting
    rating_ms: float
    parts: tuple[TablePart, ...]


def machine_bandwidths(machine: Machine, profile: GpuProfile, links: Links) -> Bandwidths:
    """Those of simulated devices and the links between them."""
    return Bandwidths(
        profile.hbm_bytes_per_ns,
        links.intra.even_gb_s(machine.domain_size),
        links.widest.even_gb_s(machine.num_devices),
    )


class TorchRecPlanner:
    """TorchRec's planner for one task. Deterministic; a GPU is not needed."""

    def __init__(
        self,
        task: ShardingTask,
        bandwidths: Bandwidths,
        timeout_s: int | None = None,
        size_of: SizeOf | None = None,
        estimator_of: EstimatorOf | None = None,
        rates: Callable[[Topology], Any] | None = None,
    ) -> None:
        """Loads TorchRec.

        Args:
            timeout_s: TorchRec's setting ``timeout_seconds``: the best plan found by then is its answer.
            size_of: memory of a part of a table; None for its weights and the task's optimizer state.
            estimator_of: makes what estimates the times of shards; None for TorchRec's own.
            rates: makes the ``PerfModel`` that rates plans; None for TorchRec's own.

        Raises:
            MissingPackage: if TorchRec is not installed.
        """
        require_torchrec()
        self._task, self._bandwidths, self._timeout_s = task, bandwidths, timeout_s
        self._size_of = size_of or self._weights_and_state
        self._estimator_of, self._rates = estimator_of, rates
        self._known_bytes: dict[tuple[str, int, int], int] = {}
        self._position = {table_name(number): number for number in range(len(task.tables))}

    def plan(self, setting: PlannerSetting, widths: Mapping[str, int] | None = None) -> TorchRecPlan:
        """TorchRec's plan with one setting.

        Args:
            widths: narrowest part of some tables, by name, in place of the setting's.

        Raises:
            InfeasibleTask: if TorchRec finds none.
        """
        from torchrec.distributed.planner import EmbeddingShardingPlanner
        from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
        from torchrec.distributed.planner.types import PlannerError

        constraints = self._constraints(setting, widths or {})
        planner = EmbeddingShardingPlanner(
            topology=self.topology,
            batch_size=self.batch_per_device,
            constraints=constraints,
            enumerator=self._enumerator(constraints),
            proposer=self._proposers(setting),
            partitioner=self._partitioner(setting),
            storage_reservation=FixedPercentageStorageReservation(0.0),
            performance_model=self._perf_model,
            stats=[],  # which would print
            debug=False,
            timeout_seconds=self._timeout_s,
        )
        try:
            with _without_warnings():
                plan = planner.plan(self._module, self._sharders).plan
        except PlannerError:
            raise InfeasibleTask(f"TorchRec's planner found no plan ({setting})") from None
        rating_ms = float(self._perf_model.rate(planner._best_plan))
        shards = {name: entry for entries in plan.values() for name, entry in entries.items()}
        parts = tuple(part for name, position in self._position.items() for part in self._parts(position, shards[name]))
        return TorchRecPlan(setting, rating_ms, parts)

    def plans(self, chosen: Sequence[PlannerSetting]) -> Iterator[TorchRecPlan]:
        """The plans of all settings with which TorchRec finds one."""
        for setting in chosen:
            try:
                yield self.plan(setting)
            except InfeasibleTask:
                continue

    def rating_ms(self, parts: Sequence[TablePart]) -> float:
        """TorchRec's own rating of any placement.

        Raises:
            BadConfig: if the parts are not those of the task's tables.
        """
        from torchrec.distributed.planner.types import Shard

        by_table = parts_by_table(self._task, parts)
        enumerator, templates = self._rating_templates
        options = []
        for template in templates:
            table = self._task.tables[self._position[template.name]]
            of_table = by_table[table.name]
            option = template.__deepcopy__({})
            option.sharding_type = sharding_type(of_table, table, self._task.machine)
            option.compute_kernel = "dense" if option.sharding_type == DATA_PARALLEL else "fused"
            option.shards = [
                Shard([part.rows.size, part.columns.size], [part.rows.start, part.columns.start], rank=rank)
                for part in of_table
                for rank in part.devices
            ]
            options.append(option)
        enumerator.populate_estimates(options)
        return float(self._perf_model.rate(options))

    @cached_property
    def _perf_model(self) -> Any:
        from torchrec.distributed.planner.perf_models import NoopPerfModel

        return (self._rates or NoopPerfModel)(self.topology)

    @cached_property
    def _rating_templates(self) -> tuple[_SortedEnumerator, list[ShardingOption]]:
        """An enumerator that has seen the tables, and an option of each."""
        enumerator = self._enumerator(self._constraints(PlannerSetting(), {}))
        first = {option.name: option for option in enumerator.enumerate(self._module, self._sharders)}
        return enumerator, list(first.values())

    # What TorchRec is given ------------------------------------------------------------------------------------------

    @property
    def batch_per_device(self) -> int:
        """Samples."""
        return math.ceil(self._task.local_batch)

    @cached_property
    def _sharders(self) -> list[Any]:
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

        return [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]

    @cached_property
    def topology(self) -> Topology:
        """The machine."""
        return machine_topology(self._task.machine, self._task.room_bytes, self._bandwidths)

    def _constraints(self, setting: PlannerSetting, widths: Mapping[str, int]) -> dict[str, Any]:
        from torchrec.distributed.planner.types import ParameterConstraints

        found = {}
        for name, position in self._position.items():
            table = self._task.tables[position]
            able = [way for way in SHARDING_TYPES if way in self._task.types[position]]
            left_out = {*(() if setting.grid_shard else (GRID_SHARD,)), *(() if setting.replicas else (DATA_PARALLEL,))}
            allowed = [way for way in able if way not in left_out] or able
            found[name] = ParameterConstraints(
                sharding_types=allowed,
                compute_kernels=["fused", "dense"],  # dense is for replicas
                min_partition=widths.get(table.name, setting.min_partition),
                pooling_factors=list(table.feature_lookups) if setting.lookups else [1.0] * table.num_features,
                is_weighted=table.is_weighted,
            )
        return found

    def _proposers(self, setting: PlannerSetting) -> list[Any] | None:
        """None for TorchRec's default ones."""
        return None

    def _partitioner(self, setting: PlannerSetting) -> Any:
        from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy

        return GreedyPerfPartitioner(SortBy(setting.sort_by))

    def _storage_estimator(self, constraints: dict[str, Any]) -> Any:
        from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator

        return _CappedWeights(EmbeddingStorageEstimator(self.topology, constraints), self._shard_bytes)

    def _enumerator(self, constraints: dict[str, Any]) -> _SortedEnumerator:
        from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator

        estimator_of = self._estimator_of or EmbeddingPerfEstimator
        estimators = [estimator_of(self.topology, constraints), self._storage_estimator(constraints)]
        return _SortedEnumerator(self._unsorted_enumerator(constraints, estimators), self._position)

    def _unsorted_enumerator(self, constraints: dict[str, Any], estimators: list[Any]) -> Any:
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator

        return EmbeddingEnumerator(self.topology, self.batch_per_device, constraints, estimators)

    def _shard_bytes(self, name: str, rows: int, columns: int) -> int:
        key = (name, rows, columns)
        if key not in self._known_bytes:
            table = self._task.tables[self._position[name]]
            if (rows, columns) != (table.num_rows, table.embedding_dim):  # what was counted in rows is of all of them
                table = replace(table, num_rows=rows, embedding_dim=columns, row_shares=None, miss_ratios=None)
            self._known_bytes[key] = self._size_of(table)
        return self._known_bytes[key]

    def _weights_and_state(self, part: Table) -> int:
        return part.size_bytes + state_bytes(part, self._task.optimizer_of(part.name))

    @cached_property
    def _module(self) -> nn.Module:
        """The tables as TorchRec's collections, weighted ones apart, without memory behind them."""
        import torch
        from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
        from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

        # It has no weights of 8 bits or less to train.
        types = {"fp32": DataType.FP32, "bf16": DataType.BF16}
        configs: dict[tuple[str, bool, bool], list[Any]] = defaultdict(list)
        for name, position in self._position.items():
            table = self._task.tables[position]
            fields: dict[str, Any] = {
                "name": name,
                "feature_names": [f"{name}_{number}" for number in range(table.num_features)],
                "num_embeddings": table.num_rows,
                "embedding_dim": table.embedding_dim,
                "data_type": types.get(table.dtype, DataType.FP16),
            }
            if table.is_sequence:
                config: Any = EmbeddingConfig(**fields)
            else:
                config = EmbeddingBagConfig(
                    **fields, pooling=PoolingType.MEAN if table.pooling == MEAN else PoolingType.SUM
                )
            configs[table.collection].append(config)
        meta = torch.device("meta")
        root = torch.nn.Module()
        for number, ((_, is_sequence, is_weighted), of_module) in enumerate(configs.items()):
            if is_sequence:
                collection: nn.Module = EmbeddingCollection(tables=of_module, device=meta)
            else:
                collection = EmbeddingBagCollection(tables=of_module, is_weighted=is_weighted, device=meta)
            root.add_module(f"collection_{number}", collection)
        return root

    def _parts(self, position: int, entry: Any) -> tuple[TablePart, ...]:
        """The parts of a table that its entry in a plan stands for."""
        table = self._task.tables[position]
        if entry.sharding_spec is None:
            everywhere = tuple(range(self._task.num_devices))
            return (TablePart(table.name, Span(0, table.num_rows), Span(0, table.embedding_dim), everywhere),)
        found = [
            part_of_shard(table.name, rank, shard.shard_offsets, shard.shard_sizes)
            for rank, shard in zip(entry.ranks, entry.sharding_spec.shards, strict=True)
            if shard.shard_sizes[0] > 0
        ]
        return merged(found)


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


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Without warnings of no use: that replicated tables have no sharding spec, and that one way of many is taken."""
    root = logging.getLogger()
    loggers = root, logging.getLogger("torchrec.distributed.planner.proposers")
    handler = logging.NullHandler()  # without one, the first warning would set logging up
    root.addHandler(handler)
    for one in loggers:
        one.addFilter(_is_no_warning)
    try:
        yield
    finally:
        for one in loggers:
            one.removeFilter(_is_no_warning)
        root.removeHandler(handler)


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno != logging.WARNING


class _SortedEnumerator:
    """TorchRec's options in one order: it takes types out of a set, whose order differs from process to process."""

    def __init__(self, enumerator: Any, position: Mapping[str, int]) -> None:
        self._enumerator, self._position = enumerator, position

    def enumerate(self, module: nn.Module, sharders: list[Any]) -> list[ShardingOption]:
        """Table after table, type after type, kernel after kernel."""
        options = self._enumerator.enumerate(module, sharders)
        return sorted(options, key=self._key)

    def _key(self, option: ShardingOption) -> tuple[int, int, str]:
        return self._position[option.name], SHARDING_TYPES.index(option.sharding_type), option.compute_kernel

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        """Sets the times and storage of shards."""
        self._enumerator.populate_estimates(sharding_options)


class _CappedWeights:
    """TorchRec's estimate of the storage, with what our rule counts as host memory."""

    def __init__(self, estimator: Any, shard_bytes: Callable[[str, int, int], int]) -> None:
        self._estimator, self._shard_bytes = estimator, shard_bytes

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Sets the storage of every shard, as TorchRec's ``ShardEstimator`` does."""
        self._estimator.estimate(sharding_options, sharder_data_map)
        for option in sharding_options:
            for shard in option.shards:
                shard.storage.ddr = self._shard_bytes(option.name, *shard.size)


def torchrec_rating(task: ShardingTask, parts: Sequence[TablePart], bandwidths: Bandwidths) -> float:
    """TorchRec's own rating of a placement, ms: the slowest device's sum of the estimates of its shards."""
    return TorchRecPlanner(task, bandwidths).rating_ms(parts)


def best_by(plans: Sequence[TorchRecPlan], cost: Callable[[Sequence[TablePart]], float]) -> TorchRecPlan:
    """The plan that costs least."""
    return min(plans, key=lambda one: cost(one.parts))
