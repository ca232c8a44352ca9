"""Step-time predictions for TorchRec plans: for finished plans, and inside TorchRec's planner.

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
from evenshard.planner.pricing import model_of, named_with_hardware, part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import DEFAULT_HARDWARE, HardwareName, profile_of_gpu
from evenshard.price.step import PartCosts, PredictedParts
from evenshard.sharders.model import Model
from evenshard.tables.table import Table
from evenshard.torchrec.baseline.topology import merge_parts, parts_of_shards, pod_size_of, replica, storage_of
from evenshard.torchrec.model.modules import is_placed, located_tables, qualified_name
from evenshard.torchrec.model.tables import LEFT_TO_TORCHREC, tables_of
from evenshard.torchrec.plan.plans import other_kernels, shards_of

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ShardingOption, Topology
    from torchrec.distributed.types import ShardingPlan

log = logging.getLogger(__name__)


def chosen_model(where: str | Path | Model | None, hardware: str | None, compute_device: str) -> tuple[Model, str]:
    """Return the cost model to use and its hardware.

    As in ``evenshard.place``, the default model is the device model of simulated hardware, and the default hardware is
    the model's, or else this machine's GPU.

    Raises:
        BadInput: if there is no such model, or it is for other hardware.
    """
    model, own = named_with_hardware(where, hardware)
    own = own or _hardware_here(compute_device)
    return model or model_of(None, own), own


def _hardware_here(compute_device: str) -> str:
    """Return the hardware that matches this GPU's name; the default on the CPU and for unknown GPUs."""
    import torch

    if compute_device != "cuda" or not torch.cuda.is_available():
        return DEFAULT_HARDWARE
    name = torch.cuda.get_device_name()
    profile = profile_of_gpu(name)
    if profile is not None:
        return str(HardwareName.of("simulated", profile))
    log.warning("no model is known for %s; it is placed as for %s. Name hardware or model.", name, DEFAULT_HARDWARE)
    return DEFAULT_HARDWARE


def predicted(
    plan: ShardingPlan,
    asked: PlacementAnswer | PlacementRequest,
    model: Model | str | Path | None = None,
) -> PredictedParts:
    """Predict the step time of a plan, even if it violates memory limits or rules.

    Modules that evenshard does not place are not counted. Tables on kernels that it does not place on are logged.

    Args:
        plan: TorchRec's or evenshard's, with any sharding types.
        asked: an answer for the same tables and devices, or its request, with table names of ``tables_of``.
        model: the one of the answer, as in ``evenshard.place``; None for the device model of simulated hardware.

    Raises:
        BadInput: if the plan has other tables, or if there is no model.
    """
    request = asked.request if isinstance(asked, PlacementAnswer) else asked
    loaded, _ = chosen_model(model, request.hardware, "cuda")
    plan = _of_placed_modules(plan, request)
    for name, kernel in other_kernels(plan, request.tables).items():
        log.warning(
            "table %s is on %s in the plan; it is priced as on fused, in the memory of its device.", name, kernel
        )
    return part_costs(request, loaded).predict(shards_of(plan, request.tables))


def _of_placed_modules(plan: ShardingPlan, request: PlacementRequest) -> ShardingPlan:
    from torchrec.distributed.types import ShardingPlan

    others = {one.table for one in request.assumptions if one.column == LEFT_TO_TORCHREC}
    tables_at = {path: tuple(of) if isinstance(of, Mapping) else () for path, of in plan.plan.items()}
    left_out = {path for path, names in tables_at.items() if others & {qualified_name(path, name) for name in names}}
    return ShardingPlan({path: of for path, of in plan.plan.items() if path not in left_out})


# No memory limit applies here: TorchRec's planner enforces it.
_UNLIMITED_BYTES = 10**15
# Path of a table's module, and the table's name.
_Key = tuple[str, str]


class EvenshardPerfModel:
    """A TorchRec ``PerfModel`` that rates a plan by evenshard's predicted step time, in milliseconds.

    It knows the sizes, data types and pooling factors that TorchRec's planner knows, without ``num_poolings``; other
    traffic statistics must be passed in ``tables``. Rating a plan takes some milliseconds.

    Args:
        topology: ranks and nodes of the planner, and the bandwidths of the links.
        hardware: simulated:<profile>, whose device model prices plans; with a model, what it was trained on.
        model: a model as in ``evenshard.place``, used in place of the device model.
        intra: link within a node; that of the hardware where left out.
        inter: link between nodes.
        optimizer: an optimizer of ``evenshard.place``.
        training_pipeline: one of those of ``evenshard.place``; decides if the input dist overlaps the step before.
        tables: tables of ``evenshard.place`` with the planner's names; only ``reuse_bins``, ``row_shares`` and
            ``miss_ratios`` are used.

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
                f"the topology has {topology.world_size} ranks, {node} on a node; nodes must be full, and the fast "
                "link within each."
            )
        loaded, hardware = named_with_hardware(model, hardware)
        if hardware is None:
            raise BadConfig('neither hardware nor model is given. Name one, such as hardware="simulated:h100".')
        if loaded is None and not HardwareName.parse(hardware).kind.is_simulated:
            raise BadConfig(
                f"hardware is {brief(hardware)}, and only a model knows its costs. Name one, such as "
                'model="work/round_3".'
            )
        self._world_size, self._hardware, self._optimizer = topology.world_size, hardware, optimizer
        self._model = loaded or model_of(None, hardware)
        self._machine = Nodes(self._world_size, node, intra=intra, inter=inter if self._world_size > node else "")
        self._counted = {table.name: table for table in tables}
        self._of: tuple[object, ...] = ()
        self._tables: dict[_Key, Table] = {}
        self._pipeline = training_pipeline
        self._costs: PartCosts | None = None

    def rate(self, plan: list[ShardingOption]) -> float:
        """Return the step time, ms, including waits.

        Raises:
            BadConfig: if a table is in a module that evenshard does not place.
        """
        return self._predict(plan).predicted_ms

    def times(self, plan: list[ShardingOption]) -> list[float]:
        """Return the busy time of each rank in a step, ms: compute and the communication that counts, without waits."""
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
                f"table {brief(option.name)} is in a {type(option.module[1]).__name__}, whose costs evenshard does not "
                "know."
            )
    located = located_tables(modules)
    known = {(one.path, one.config.name): table for one, table in zip(located, tables_of(modules), strict=True)}
    found = {}
    for option in plan:
        key = option.path, option.name
        table, lookups = known[key], tuple(float(one) for one in option.input_lengths)
        if len(lookups) != table.num_features:
            lookups = (sum(lookups) / table.num_features,) * table.num_features
        each = lookups if len(lookups) > 1 else ()
        more = counted.get(option.name, table)
        found[key] = replace(
            table,
            pooling_factor=sum(lookups),
            feature_pooling_factors=each,
            reuse_bins=more.reuse_bins,
            row_shares=more.row_shares,
            miss_ratios=more.miss_ratios,
        )
    return found
