"""Step-time predictions of TorchRec plans: for finished plans, and as a ``PerfModel`` of TorchRec's planner.

::

    answer = evenshard.place(model, num_devices=8)
    theirs = predicted(EmbeddingShardingPlanner(topology).plan(model, sharders), answer)
    theirs.predicted_ms, answer.predicted_ms
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.base.process import one_thread
from evenshard.placement.memory import USUAL_PIPELINE
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import REPLICATED
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import model_of, part_costs, resolve_model
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import DEFAULT_HARDWARE, HardwareName, profile_of_gpu
from evenshard.price.step import PartCosts, PredictedParts
from evenshard.sharders.model import Model
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import merge_parts, parts_of_shards, pod_size_of, replica, storage_of
from evenshard.torchrec.model.modules import is_placed, locate_tables, qualify_name
from evenshard.torchrec.model.tables import LEFT_TO_TORCHREC, tables_of
from evenshard.torchrec.plan.plans import find_unsupported_kernels, shards_of

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ShardingOption, Topology
    from torchrec.distributed.types import ShardingPlan

log = logging.getLogger(__name__)


def choose_model(where: str | Path | Model | None, hardware: str | None, compute_device: str) -> tuple[Model, str]:
    """Return the cost model to use and its hardware.

    As in ``evenshard.place``, the default model is the device model of simulated hardware, and the default hardware is
    the model's, or else this machine's GPU.

    Raises:
        BadInput: if there is no such model, or it is for other hardware.
    """
    model, own = resolve_model(where, hardware)
    own = own or _detect_hardware(compute_device)
    return model or model_of(None, own), own


def _detect_hardware(compute_device: str) -> str:
    """Return the hardware that matches this GPU's name; the default on the CPU and for unknown GPUs."""
    import torch

    if compute_device != "cuda" or not torch.cuda.is_available():
        return DEFAULT_HARDWARE
    name = torch.cuda.get_device_name()
    profile = profile_of_gpu(name)
    if profile is not None:
        return str(HardwareName.of("simulated", profile))
    log.warning("no cost model is known for %s; %s is used. Give hardware or model.", name, DEFAULT_HARDWARE)
    return DEFAULT_HARDWARE


def predicted(
    plan: ShardingPlan, asked: PlacementAnswer | PlacementRequest, model: Model | str | Path | None = None
) -> PredictedParts:
    """Predict the step time of a plan, even if it violates memory limits or rules.

    Modules that evenshard does not place are left out. Tables with unsupported kernels are logged.

    Args:
        plan: a plan of TorchRec or evenshard, with any sharding types.
        asked: an answer for the same tables and devices, or its request, with the table names of ``tables_of``.
        model: the answer's model, as in ``evenshard.place``; None for the device model of simulated hardware.

    Raises:
        BadInput: if the plan has other tables, or if there is no model.
    """
    request = asked.request if isinstance(asked, PlacementAnswer) else asked
    loaded, _ = choose_model(model, request.hardware, "cuda")
    plan = _keep_placed_modules(plan, request)
    for name, kernel in find_unsupported_kernels(plan, request.tables).items():
        log.warning(
            "table %s uses kernel %s in the plan; its time is predicted for the fused kernel in device memory.",
            name,
            kernel,
        )
    return part_costs(request, loaded).predict(shards_of(plan, request.tables))


def _keep_placed_modules(plan: ShardingPlan, request: PlacementRequest) -> ShardingPlan:
    from torchrec.distributed.types import ShardingPlan

    others = {one.table for one in request.assumptions if one.column == LEFT_TO_TORCHREC}
    tables_at = {path: tuple(of) if isinstance(of, Mapping) else () for path, of in plan.plan.items()}
    left_out = {path for path, names in tables_at.items() if others & {qualify_name(path, name) for name in names}}
    return ShardingPlan({path: of for path, of in plan.plan.items() if path not in left_out})


_UNLIMITED_BYTES = 10**15  # bytes per device, more than any has: TorchRec's planner enforces the real limit
_Key = tuple[str, str]  # path of a table's module, and the table's name


class EvenshardPerfModel:
    """A TorchRec ``PerfModel`` that rates a plan by evenshard's predicted step time, in milliseconds.

    It uses the sizes, data types and pooling factors of TorchRec's planner, without ``num_poolings``; other traffic
    statistics come from ``tables``. Rating a plan takes some milliseconds.

    Args:
        topology: the planner's topology, for its ranks and nodes.
        hardware: simulated:<profile>, whose device model predicts times; with ``model``, the hardware that it is for.
        model: cost model, as in ``evenshard.place``.
        intra: link within a node; by default, the hardware's own.
        inter: link between nodes.
        optimizer: optimizer of the tables, as in ``evenshard.place``.
        training_pipeline: as in ``evenshard.place``; decides if the input dist overlaps the previous step.
        tables: tables with the planner's names; only ``reuse_bins``, ``row_shares`` and ``miss_ratios`` are used.

    Raises:
        BadInput: if a name is unknown.
    """

    def __init__(
        self,
        topology: Topology,
        hardware: str | None = None,
        *,
        model: str | Path | Model | None = None,
        intra: str = "",
        inter: str = "infiniband_ndr",
        optimizer: str = "sgd",
        training_pipeline: str = USUAL_PIPELINE,
        tables: Sequence[Table] = (),
    ) -> None:
        node = topology.local_world_size
        if topology.world_size % node or pod_size_of(topology) != 1:
            raise BadConfig(
                f"the topology has {topology.world_size} ranks, {node} per node. All nodes must be full, and pod_size "
                "must be 1."
            )
        loaded, hardware = resolve_model(model, hardware)
        if hardware is None:
            raise BadConfig('neither hardware nor model is given. Give one of them, such as hardware="simulated:h100".')
        if loaded is None and not HardwareName.parse(hardware).kind.is_simulated:
            raise BadConfig(
                f"hardware is {brief(hardware)}, which has no device model. Give a cost model, such as "
                'model="work/round_3".'
            )
        self._world_size, self._hardware, self._optimizer = topology.world_size, hardware, optimizer
        self._model = loaded or model_of(None, hardware)
        self._machine = Nodes(self._world_size, node, intra=intra, inter=inter if self._world_size > node else "")
        self._counted = {table.name: table for table in tables}
        # TorchRec rates many plans of the same tables: costs are built again only if the tables change.
        self._of: tuple[object, ...] = ()
        self._tables: dict[_Key, Table] = {}
        self._pipeline = training_pipeline
        self._costs: PartCosts | None = None

    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the step time, ms, including waits; raise BadConfig for a module that evenshard does not place."""
        return self._predict(plan).predicted_ms

    def times(self, plan: list[ShardingOption]) -> list[float]:
        """Return each rank's busy time in a step, ms: kernels and communication that is not hidden, without waits."""
        return [one.predicted_total_ms for one in self._predict(plan).devices]

    def _predict(self, plan: list[ShardingOption]) -> PredictedParts:
        described = tuple((one.path, one.name, tuple(one.input_lengths), one.batch_size) for one in plan)
        if self._costs is None or described != self._of:
            self._of, self._tables = described, _tables_of_options(plan, self._counted)
            request = PlacementRequest(
                tables=tuple(self._tables.values()),
                caps_bytes=(_UNLIMITED_BYTES,) * self._world_size,
                batch_size=plan[0].batch_size * self._world_size,
                hardware=self._hardware,
                optimizer=self._optimizer,
                machine=self._machine,
                training_pipeline=self._pipeline,
            )
            self._costs = part_costs(request, self._model)
        with one_thread():
            return self._costs.predict([part for option in plan for part in self._parts(option)])

    def _parts(self, option: ShardingOption) -> Sequence[TablePart]:
        table = self._tables[option.path, option.name]
        if option.sharding_type in REPLICATED:
            return (replica(table, range(self._world_size)),)
        load_factor = None if option.cache_params is None else option.cache_params.load_factor
        shards = [(one.rank, one.offset, one.size) for one in option.shards]
        return merge_parts(
            parts_of_shards(table.name, shards, storage_of(table.name, option.compute_kernel, load_factor))
        )


def _tables_of_options(plan: Sequence[ShardingOption], counted: Mapping[str, Table]) -> dict[_Key, Table]:
    modules = {option.path: option.module[1] for option in plan}
    for option in plan:
        if not is_placed(option.module[1]):
            raise BadConfig(
                f"table {brief(option.name)} is in a {type(option.module[1]).__name__}, which evenshard cannot predict."
            )
    located = locate_tables(modules)
    known = {(one.path, one.config.name): table for one, table in zip(located, tables_of(modules), strict=True)}
    found = {}
    for option in plan:
        key = option.path, option.name
        table, lookups = known[key], tuple(float(one) for one in option.input_lengths)
        if len(lookups) != table.num_features:  # the planner's default has one value for all features
            lookups = (sum(lookups) / table.num_features,) * table.num_features
        each = lookups if len(lookups) > 1 else ()
        more = counted.get(option.name, table)
        seen = replace(table, reuse_bins=more.reuse_bins, row_shares=more.row_shares, miss_ratios=more.miss_ratios)
        found[key] = replace(seen, pooling_factor=sum(lookups), feature_pooling_factors=each)
    return found
