"""evenshard's planner for a TorchRec model, with the interface of TorchRec's ``EmbeddingShardingPlanner``.

::

    plan = EvenshardPlanner().collective_plan(model, sharders)          # was: EmbeddingShardingPlanner()
    model = DistributedModelParallel(model, plan=plan, sharders=sharders)

What the model's traffic looks like is worth telling: ``EvenshardPlanner(pooling_factors={"clicks": 37.5})``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.placement.parts import TablePart, whole_tables
from evenshard.placement.placement import check_placement, parts_on
from evenshard.placement.sharding import (
    BY_COLUMNS,
    DATA_PARALLEL,
    SHARDING_TYPES,
    TABLE_WISE,
    used_bytes,
    used_host_bytes,
)
from evenshard.placement.storage import FUSED, FUSED_UVM, FUSED_UVM_CACHING, KEY_VALUE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.host_memory import HostMemory
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.planner.torchrec.constraints import constrained
from evenshard.planner.torchrec.dense_model import dense_bytes
from evenshard.planner.torchrec.machine import links_of_topology, machine_of
from evenshard.planner.torchrec.model import DEFAULT_HARDWARE, chosen_model
from evenshard.planner.torchrec.modules import (
    collections_in,
    located_tables,
    other_modules_in,
    other_tables_in,
    qualified_name,
)
from evenshard.planner.torchrec.other_modules import plan_of_others
from evenshard.planner.torchrec.plans import sharding_plan
from evenshard.planner.torchrec.tables import DEFAULT_POOLING_FACTOR, table_set_of
from evenshard.sharders.base import Sharder
from evenshard.sharders.convex_search.sharder import SearchConfig
from evenshard.sharders.models import PlacementModel
from evenshard.tables.sources import TableSet
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief, cut
from evenshard.utils.params import check_ranges
from evenshard.utils.units import gb_to_bytes

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints, Topology
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

DEFAULT_BATCH_SIZE = 512
"""Samples per rank; TorchRec's planner assumes the same."""
ON_GPU = (FUSED, FUSED_UVM_CACHING, FUSED_UVM, KEY_VALUE)
"""Where TorchRec keeps weights of tables on GPUs."""

log = logging.getLogger(__name__)


class EvenshardPlanner:
    """Plans a model's ``EmbeddingBagCollection``s and ``EmbeddingCollection``s, as ``evenshard.place`` or any
    sharder does. Modules of other kinds are planned by TorchRec's planner in the memory that is left, in the same plan.

    Attributes:
        answer: all that is known about the last plan, on the rank that made it; None before, and with a sharder.
    """

    def __init__(
        self,
        sharder: Sharder | None = None,
        *,
        topology: Topology | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
        compute_device: str | None = None,
        memory_cap_gb: float | Sequence[float] | None = None,
        reserved_gb: float | None = None,
        dense_gb: float | None = None,
        training_pipeline: str = "sparse_dist",
        host_memory_gb: float | None = None,
        host_bandwidth_gb_s: float | None = None,
        ssd_gb: float | None = None,
        ssd_bandwidth_gb_s: float | None = None,
        compute_kernels: Sequence[str] = (),
        batch_size: int = DEFAULT_BATCH_SIZE,
        pooling_factors: Mapping[str, float] | None = None,
        default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
        optimizer: str = "sgd",
        pinned: Mapping[str, int | Sequence[int]] | None = None,
        forbidden: Mapping[str, int | Sequence[int]] | None = None,
        forbidden_devices: Sequence[int] = (),
        together: Sequence[Sequence[str]] = (),
        apart: Sequence[Sequence[str]] = (),
        pinned_nodes: Mapping[str, int | Sequence[int]] | None = None,
        table_types: Mapping[str, str | Sequence[str]] | None = None,
        min_columns: Mapping[str, int] | None = None,
        table_kernels: Mapping[str, str | Sequence[str]] | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        sharding_types: Sequence[str] | None = None,
        allow_column_split: bool | None = None,
        intra: str | None = None,
        inter: str | None = None,
        hardware: str | None = None,
        model: str | Path | PlacementModel | None = None,
        seed: int = 0,
    ) -> None:
        """Settles the machine; nothing is planned yet. Without arguments, the process group must have started.

        Args:
            sharder: decides instead of ``evenshard.place``; tables stay whole then.
            topology: TorchRec's description of the machine; it stands for the next three arguments. Of its speeds
                those of its links are used; the others are the cost model's.
            world_size: ranks; those of the process group where left out.
            local_world_size: ranks of a node. Where left out: what TorchRec finds (torchrun's ``LOCAL_WORLD_SIZE``, or
                else 8) if the process group tells the ranks; otherwise all.
            compute_device: cuda or cpu; cuda where left out, if there is one.
            memory_cap_gb: GB (1024**3 bytes) of each rank; one number, or one for each. Where left out: those of the
                topology, or what TorchRec assumes without one, which is 32 of a GPU, however large it is.
            reserved_gb: memory of each device kept for everything that is not counted; 15 % of it where left out.
            dense_gb: memory of the dense model on each device, with its gradients and optimizer state; where left out,
                counted from the model, as Adam trains it.
            training_pipeline: none, base, sparse_dist or prefetch, as ``evenshard.place`` takes it.
            host_memory_gb, ssd_gb: memory and SSDs of each node that tables may take. Where left out: those of the
                topology's ranks, or what TorchRec assumes without one, which is 128 GB and 2 TB of each rank.
            host_bandwidth_gb_s, ssd_bandwidth_gb_s: their bandwidths, as ``evenshard.place`` takes them.
            compute_kernels: where weights may be kept; fused, fused_uvm_caching and fused_uvm where left out, of a GPU.
            batch_size: samples per rank and step, as in TorchRec.
            pooling_factors: pooling factors by table or feature, as ``tables_of`` takes them.
            default_pooling_factor: pooling factor of each feature that is not named.
            optimizer: optimizer whose state takes memory too: sgd, rowwise_adagrad, adagrad or adam.
            pinned, forbidden, forbidden_devices, together, apart, pinned_nodes, table_types, min_columns,
                table_kernels: rules, as in ``evenshard.place``; devices are ranks, tables are called as ``tables_of``
                calls them.
            constraints: TorchRec's constraints, by table. What of them changes nothing is named in a note; those of
                tables that TorchRec places are all used.
            sharding_types: the ways in which tables may be sharded, by TorchRec's words; all seven where left out.
            allow_column_split: short for sharding_types table_wise and column_wise.
            intra, inter: links within a node and between nodes, as ``evenshard hardware`` lists them. Several nodes
                need one between them; a topology's has its bandwidth.
            hardware: hardware to place for, such as simulated:h200. Default: the model's, or that of this process' GPU,
                or simulated:h200.
            model: model as in ``evenshard.place``.
            seed: seed of the search.

        Raises:
            BadConfig: if ranks are unknown, something is given twice or makes no sense, or TorchRec is not installed.
        """
        if sharder is not None:
            if not callable(getattr(sharder, "place", None)):
                raise BadConfig(f"sharder is a {type(sharder).__name__}, which cannot place. Name other arguments.")
            if (sharding_types, allow_column_split, hardware, model) != (None, None, None, None) or compute_kernels:
                raise BadConfig(
                    "a sharder decides by itself. Leave out sharding_types, allow_column_split, compute_kernels, "
                    "hardware and model."
                )
        check_ranges(batch_size=batch_size, seed=seed, dense_gb=dense_gb or 0.0)
        self._sharder = sharder
        host = HostMemory(host_memory_gb, host_bandwidth_gb_s, ssd_gb, ssd_bandwidth_gb_s)
        self._machine = machine_of(
            topology, world_size, local_world_size, compute_device, memory_cap_gb, reserved_gb, host
        )
        self._dense_gb, self._pipeline, self._kernels = dense_gb, training_pipeline, tuple(compute_kernels)
        self._batch_size, self._optimizer, self._seed = batch_size, optimizer, seed
        self._pooling_factors, self._default_pooling_factor = dict(pooling_factors or {}), default_pooling_factor
        self._rules = Rules.of(
            pinned,
            forbidden,
            forbidden_devices,
            together,
            apart,
            pinned_nodes,
            table_types,
            min_columns,
            table_kernels,
        )
        self._check_kernels()
        self._constraints = dict(constraints or {})
        if allow_column_split and sharding_types and set(sharding_types) != set(BY_COLUMNS):
            raise BadConfig("allow_column_split is short for sharding_types. Give one of the two.")
        self._types = BY_COLUMNS if allow_column_split else tuple(sharding_types or SHARDING_TYPES)
        self._hardware, self._model = hardware, model
        own = ("", "") if topology is None else links_of_topology(topology)
        self._intra, self._inter = intra or own[0], inter or own[1]
        self._topology = topology
        self._notes: tuple[str, ...] = ()
        self.answer: PlacementAnswer | None = None

    def plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[Any]] | None = None) -> ShardingPlan:
        """The plan; empty for a model without tables. Of tables the model knows little of, it warns (logging).

        Args:
            module: the model, as ``DistributedModelParallel`` will get it.
            sharders: sharders of modules; TorchRec's default ones where left out.

        Raises:
            PlannerError: TorchRec's, with evenshard's message, if the tables find no room.
            BadInput: if a table cannot be placed, or there is no cost model.
        """
        from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
        from torchrec.distributed.types import ShardingPlan

        self.answer = None
        plan = ShardingPlan({})
        machine, dense = self._machine, gb_to_bytes(self._dense_gb or 0.0)
        if self._dense_gb is None:
            dense = dense_bytes(module, sharders=sharders)
        left_bytes = [room - dense for room in machine.rooms_bytes]
        left_host_bytes = list(machine.host_bytes)
        if collections := collections_in(module, sharders):
            request = self._request(module, sharders, dense)
            try:
                parts = self._answered(request) if self._sharder is None else _sharded(self._sharder, request)
            except InfeasibleTask as error:
                raise PlannerError(str(error), PlannerErrorType.INSUFFICIENT_STORAGE) from error
            plan = sharding_plan(
                parts if self.answer is None else self.answer,
                request.tables,
                collections,
                request.num_devices,
                compute_device=machine.compute_device,
                local_world_size=machine.local_world_size,
            )
            task = request.sharding_task()
            left_bytes = _less(request.rooms_bytes, used_bytes(task, parts))
            if machine.host_bytes and task.machine.host_bytes:
                left_host_bytes = _less(machine.host_bytes, used_host_bytes(task, parts))
        if others := other_modules_in(module, sharders):
            theirs = plan_of_others(
                others,
                sharders,
                machine,
                left_bytes,
                left_host_bytes,
                self._topology,
                self._batch_size,
                self._constraints,
            )
            plan.plan.update(theirs.plan)
            self._name_others(theirs)
        return plan

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[Any]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """The plan of rank 0, on every rank of the process group (the default one where left out).

        Raises:
            PlannerError: on all ranks, if rank 0 cannot plan. (TorchRec's planner would leave the others waiting.)
            BadInput: on rank 0, as ``plan``, or if there is no group.
        """
        import torch.distributed as dist
        from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

        if pg is None and not dist.is_initialized():
            raise BadConfig("there is no process group. Start it with init_process_group, or use plan().")
        pg = dist.group.WORLD if pg is None else pg
        failure: Exception | None = None
        result: list[Any] = [None, None]  # the plan, or what went wrong
        if dist.get_rank(pg) == 0:
            try:
                result[0] = self.plan(module, sharders)
            except Exception as error:  # raised again below: the others wait for an answer
                failure = error
                result[1] = (str(error), getattr(error, "error_type", PlannerErrorType.OTHER))
        dist.broadcast_object_list(result, group=pg, group_src=0)
        if failure is not None:
            raise failure
        if result[1] is not None:
            raise PlannerError(*result[1])
        plan: ShardingPlan = result[0]
        return plan

    def _check_kernels(self) -> None:
        """Raises BadConfig if something is named where TorchRec keeps no weights."""
        on = self._machine.compute_device
        there = (FUSED,) if on == "cpu" else ON_GPU
        for kernel in (*self._kernels, *(one for kernels in self._rules.table_kernels.values() for one in kernels)):
            if kernel not in there:
                raise BadConfig(f"{brief(kernel)} is no kernel of TorchRec's on {on}. Choose from {', '.join(there)}.")

    def _available_kernels(self) -> tuple[str, ...]:
        """Where TorchRec can keep weights; a sharder keeps all in device memory."""
        machine = self._machine
        if self._sharder is not None or machine.compute_device == "cpu":
            return (FUSED,)
        return (
            FUSED,
            *((FUSED_UVM_CACHING, FUSED_UVM) if machine.host_bytes else ()),
            *((KEY_VALUE,) if machine.ssd_bytes else ()),
        )

    def _request(
        self, module: nn.Module, sharders: Sequence[ModuleSharder[Any]] | None, dense: int
    ) -> PlacementRequest:
        known = table_set_of(module, self._pooling_factors, self._default_pooling_factor, sharders)
        machine, types = self._machine, (TABLE_WISE,) if self._sharder is not None else self._types
        located = located_tables(module, sharders)
        names = {name for one in located for name in (one.name, one.config.name)}
        others = {name.rpartition(".")[2] for name, _ in other_tables_in(module, sharders)} - names
        constraints = {name: own for name, own in self._constraints.items() if name not in others}
        found = constrained(constraints, known, located, types, machine.compute_device, self._available_kernels())
        known, self._notes = found.known, found.notes
        return PlacementRequest(
            tables=known.tables,
            caps_bytes=machine.caps_bytes,
            batch_size=self._batch_size * machine.world_size,
            reserved_bytes=machine.reserved_bytes,
            optimizer=self._optimizer,
            rules=self._rules + found.rules + self._rules_of_cpu(known, found.rules),
            sharding_types=types,
            machine=None if self._sharder is not None else machine.nodes(self._intra, self._inter),
            hardware=self._hardware or DEFAULT_HARDWARE,
            assumptions=known.assumptions,
            reserved_share=machine.reserved_share,
            dense_bytes=dense,
            training_pipeline=self._pipeline,
            compute_kernels=self._kernels,
        )

    def _rules_of_cpu(self, known: TableSet, given: Rules) -> Rules:
        """On the CPU FBGEMM looks up no replicas of sequences."""
        if self._machine.compute_device != "cpu" or DATA_PARALLEL not in self._types:
            return Rules()
        types = tuple(way for way in self._types if way != DATA_PARALLEL)
        has_own = self._rules.table_types.keys() | given.table_types.keys()
        return Rules(
            table_types={one.name: types for one in known.tables if one.is_sequence and one.name not in has_own}
        )

    def _answered(self, request: PlacementRequest) -> Sequence[TablePart]:
        """Where the columns live, as ``evenshard.place`` says."""
        model, hardware = chosen_model(self._model, self._hardware, self._machine.compute_device)
        config = PlaceConfig(SearchConfig(seed=self._seed))
        answer = place_request(replace(request, hardware=hardware), model, config)
        self.answer = replace(answer, notes=(*answer.notes, *self._notes))
        for warning in (*self.answer.notes, *self.answer.warnings):
            log.warning("%s", warning)
        return self.answer.parts

    def _name_others(self, plan: ShardingPlan) -> None:
        """Says which tables TorchRec placed, and how."""
        placed = (
            f"{qualified_name(path, name)} ({entry.sharding_type}, {entry.compute_kernel})"
            for path, tables in plan.plan.items()
            for name, entry in tables.items()
        )
        note = (
            f"TorchRec's planner placed tables of modules that evenshard does not place, in the memory that was left; "
            f"no time counts them: {cut(', '.join(placed), 400)}."
        )
        log.warning("%s", note)
        if self.answer is not None:
            self.answer = replace(self.answer, notes=(*self.answer.notes, note))


def _less(rooms: Sequence[int], used: Sequence[int]) -> list[int]:
    """What is left."""
    return [room - taken for room, taken in zip(rooms, used, strict=True)]


def _sharded(sharder: Sharder, request: PlacementRequest) -> Sequence[TablePart]:
    """The same by a sharder."""
    task = replace(request.task(), task_id="the model")
    placement = sharder.place(task)
    check_placement(task, placement)
    return parts_on(whole_tables(request.tables), placement)
