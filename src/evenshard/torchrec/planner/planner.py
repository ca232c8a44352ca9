"""evenshard's planner for TorchRec models, a drop-in replacement for ``EmbeddingShardingPlanner``.

::

    plan = EvenshardPlanner().collective_plan(model, sharders)          # was: EmbeddingShardingPlanner()
    model = DistributedModelParallel(model, plan=plan, sharders=sharders)

Pooling factors from real traffic make the plan better: ``EvenshardPlanner(pooling_factors={"clicks": 37.5})``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evenshard.base.errors import BadConfig, EvenshardError
from evenshard.base.knobs import changed_knobs, check_ranges
from evenshard.base.messages import one_line
from evenshard.base.typed import check_arguments
from evenshard.planner.knobs import Knobs, group_knobs
from evenshard.planner.memory import RESERVED_SHARE
from evenshard.planner.request import sharding_types_of
from evenshard.report.answer import PlacementAnswer
from evenshard.sharders.catalog import Sharder
from evenshard.torchrec.baseline.topology import planner_error, require_torchrec
from evenshard.torchrec.planner import arguments
from evenshard.torchrec.planner.arguments import planner_knobs
from evenshard.torchrec.planner.machine import links_of_topology, machine_of, topology_of, with_memory
from evenshard.torchrec.planner.model_request import check_kernels

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.types import (
        Enumerator,
        ParameterConstraints,
        Partitioner,
        PerfModel,
        PlanLoader,
        Proposer,
        ShardingOption,
        Stats,
        StorageReservation,
        Topology,
    )
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from evenshard.torchrec.planner.model_plan import ModelPlanner

log = logging.getLogger(__name__)


class EvenshardPlanner:
    """Planner that places a model's embedding collections with ``evenshard.place``, or with a sharder.

    TorchRec's planner plans all other modules in the remaining memory, in the same plan. The positional arguments are
    those of ``EmbeddingShardingPlanner``.

    Attributes:
        answer: the answer of the last plan, on the rank that made it; None before a plan, with a sharder, and if
            TorchRec's planner made the plan.
        notes: further notes on the last plan, one line each; they are also logged.
    """

    @check_arguments((*planner_knobs(), *group_knobs(planner_knobs())), Model="evenshard.sharders.model")
    def __init__(
        self,
        topology: Topology | None = None,
        batch_size: int | None = None,
        enumerator: Enumerator | None = None,
        storage_reservation: StorageReservation | None = None,
        proposer: Proposer | list[Proposer] | None = None,
        partitioner: Partitioner | None = None,
        performance_model: PerfModel | None = None,
        stats: Stats | list[Stats] | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        debug: bool = True,
        callbacks: Sequence[Callable[[list[ShardingOption]], list[ShardingOption]]] | None = None,
        timeout_seconds: float | None = None,
        plan_loader: PlanLoader | None = None,
        *,
        heuristical_storage_reservation_percentage: float | None = None,
        fallback: bool = False,
        sharder: Sharder | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
        compute_device: str | None = None,
        **knobs: Any,
    ) -> None:
        """Determine ranks, nodes and memory; ``plan`` does the planning. By default, a process group must exist.

        Args:
            topology: TorchRec's topology, in place of world_size, local_world_size and compute_device. Of its
                bandwidths, only those of the links are used.
            batch_size: samples per rank and step; 512 by default.
            enumerator: its search space limits the sharding types; its estimates are used only in the statistics.
            storage_reservation: determines the memory for tables; nothing else is reserved, and dense_gb defaults to 0.
                If omitted, reserved_gb and dense_gb apply.
            proposer, partitioner, performance_model: used only by TorchRec's planner, for modules that evenshard does
                not place; listed in the log at DEBUG.
            stats: TorchRec's statistics, or several; ``EmbeddingStats`` by default. Their times and memory are
                TorchRec's estimates of the plan; evenshard's are in ``answer``.
            constraints: TorchRec's constraints, by table. Fields that do not affect the placement are listed in the log
                at DEBUG; TorchRec uses all fields for the tables that it places.
            debug: True for long statistics.
            callbacks: called in order with the plan as TorchRec's ``ShardingOption``s; each returns the plan to use.
            timeout_seconds: time limit of the search, which then returns the best plan found so far.
            plan_loader: if it has a stored plan, TorchRec's planner loads it, and a note is logged.
            heuristical_storage_reservation_percentage: shorthand for a ``HeuristicalStorageReservation``.
            fallback: True to use TorchRec's planner if evenshard cannot plan; a note states the reason.
            sharder: places whole tables in place of ``evenshard.place``.
            world_size: number of ranks; by default, that of the process group.
            local_world_size: ranks per node. By default, TorchRec's (torchrun's ``LOCAL_WORLD_SIZE``, else 8) if
                world_size is the process group's; else all ranks.
            compute_device: cuda or cpu. By default, cpu for a process group with gloo, cuda with NCCL, else cuda if
                there is a GPU.
            knobs: knobs of ``evenshard.place`` that model and topology do not determine (``planner_knobs``), by name,
                or in the dataclasses of ``evenshard.planner.knobs``; ``OWN_MEANINGS`` lists knobs that differ here.
                Arguments of newer TorchRec releases are passed to TorchRec's planner, and listed in the log at DEBUG.

        Raises:
            BadConfig: if ranks are unknown, an argument is invalid or given twice, or TorchRec is not installed.
        """
        self.answer: PlacementAnswer | None = None
        self.notes: tuple[str, ...] = ()
        self._best_plan: list[ShardingOption] | None = None
        self._planned: tuple[nn.Module, list[ModuleSharder[Any]]] | None = None
        self._fallback = fallback
        self._failure: EvenshardError | None = None
        self._planner: ModelPlanner | None = None
        require_torchrec()
        from torchrec.distributed.planner.planners import EmbeddingPlannerBase, EmbeddingShardingPlanner
        from torchrec.distributed.planner.stats import EmbeddingStats

        from evenshard.torchrec.planner.model_plan import ModelPlanner

        storage_reservation = arguments.reservation_of(storage_reservation, heuristical_storage_reservation_percentage)
        batch_size = arguments.DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        self._stats = list(stats) if isinstance(stats, list) else [EmbeddingStats() if stats is None else stats]
        known = (topology, batch_size, enumerator, storage_reservation, proposer, partitioner, performance_model)
        more = (self._stats, constraints, debug, callbacks, timeout_seconds, plan_loader)
        newer = [name for name in inspect.signature(EmbeddingShardingPlanner).parameters if name in knobs]
        self._arguments = arguments.PlannerArguments(*known, *more, {name: knobs.pop(name) for name in newer})
        self._topology: Topology | None = topology
        EmbeddingPlannerBase.register(type(self))  # so that isinstance accepts it as a TorchRec planner
        try:
            asked = Knobs.of(knobs, [one.name for one in planner_knobs()])
            memory, sharding = asked.memory, asked.sharding
            hardware, inter = asked.machine.hardware, asked.machine.inter
            if storage_reservation is not None and memory.reserved_gb is not None:
                raise BadConfig(
                    "storage_reservation and reserved_gb both set the reserved memory. Give one of the two."
                )
            if sharder is not None:
                if not callable(getattr(sharder, "place", None)):
                    raise BadConfig(
                        f"sharder is a {type(sharder).__name__} without a method place. Give a sharder, or leave it "
                        "out."
                    )
                if changed_knobs(sharding) or (hardware, asked.search.model) != (None, None):
                    raise BadConfig(
                        "sharder ignores sharding_types, allow_column_split, compute_kernels, keep_output_order, "
                        "hardware and model. Leave these out."
                    )
            sharding_types_of(sharding)
            check_ranges(batch_size=batch_size)
            ranks = (topology, world_size, local_world_size, compute_device)
            machine = machine_of(*ranks, memory, hardware, inter or None)
            own = ("", "") if topology is None else links_of_topology(topology)
            asked = replace(
                asked,
                machine=replace(asked.machine, intra=asked.machine.intra or own[0], inter=inter or own[1]),
                training=replace(asked.training, batch_size=batch_size * machine.nodes.num_devices),
            )
            check_kernels(asked, machine.compute_device)
            if topology is None:
                topology = topology_of(machine)
            elif memory.memory_cap_gb is not None:
                topology = with_memory(topology, machine.caps_bytes, machine.host_bytes_of_ranks)
            self._topology = topology
            self._planner = ModelPlanner(self._arguments, asked, sharder, machine, topology, type(self).__name__)
        except EvenshardError as error:
            if not fallback:
                raise
            self._failure = error

    def plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[Any]] | None = None) -> ShardingPlan:
        """Plan a model; a model without tables gets an empty plan. Assumptions about tables are logged as warnings.

        Args:
            module: the model, as ``DistributedModelParallel`` will get it.
            sharders: module sharders; TorchRec's by default.

        Raises:
            PlannerError: TorchRec's, with evenshard's message: INSUFFICIENT_STORAGE if the total memory is too small;
                STRICT_CONSTRAINTS if no placement fits, or a table has no allowed sharding type; INPUT_VALIDATION if a
                constraint is invalid, or there is no cost model.
        """
        from torchrec.distributed.sharding_plan import get_default_sharders

        given = list(get_default_sharders() if sharders is None else sharders)
        self.answer, self.notes, self._best_plan, self._planned = None, (), None, (module, given)
        loader = self._arguments.plan_loader
        if loader is not None and loader.load() is not None:
            self._say("plan_loader has a stored plan. TorchRec's planner loads it; evenshard makes no plan.")
            return self._plan_of_theirs(module, given)
        try:
            if self._failure is not None:
                raise self._failure
            assert self._planner is not None
            made = self._planner.plan(module, given)
        except Exception as error:
            if not self._fallback:
                if isinstance(error, EvenshardError):
                    raise planner_error(error) from error
                raise
            why = one_line(str(error)) or type(error).__name__
            self._say(f"TorchRec's planner makes this plan (fallback=True), because evenshard cannot: {why}")
            return self._plan_of_theirs(module, given)
        self.answer, self.notes, self._best_plan = made.answer, made.notes, made.options
        return made.plan

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[Any]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Return the plan of rank 0 on every rank of the process group, by default the whole world.

        Raises:
            PlannerError: on all ranks, if rank 0 cannot plan. (With TorchRec's planner, all other ranks would hang.)
            BadConfig: if there is no group.
        """
        import torch.distributed as dist
        from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

        if pg is None and not dist.is_initialized():
            raise BadConfig("there is no process group. Start it with init_process_group, or use plan().")
        pg = dist.group.WORLD if pg is None else pg
        failure: Exception | None = None
        result: list[Any] = [None, None]  # the plan, or the error
        if dist.get_rank(pg) == 0:
            try:
                result[0] = self.plan(module, sharders)
            except Exception as error:  # raised again below, because the other ranks wait for a result
                failure = error
                result[1] = (str(error), getattr(error, "error_type", PlannerErrorType.OTHER))
        dist.broadcast_object_list(result, group=pg, group_src=0)
        if failure is not None:
            raise failure
        if result[1] is not None:
            raise PlannerError(*result[1])
        plan: ShardingPlan = result[0]
        return plan

    def hash_planner_context_inputs(self) -> int:
        """Return TorchRec's hash of the planner's inputs; as in TorchRec, it needs an earlier plan."""
        return int(self._with_context().hash_planner_context_inputs())

    def hash_planner_context_inputs_str(self) -> str:
        """Return ``hash_planner_context_inputs`` as text."""
        return str(self._with_context().hash_planner_context_inputs_str())

    def _say(self, note: str) -> None:
        log.warning("%s", note)
        self.notes = (*self.notes, note)

    # TorchRec's planner ----------------------------------------------------------------------------------------------

    def _plan_of_theirs(self, module: nn.Module, sharders: list[ModuleSharder[Any]]) -> ShardingPlan:
        theirs = self._arguments.planner(topology=self._topology)
        plan = theirs.plan(module, sharders)
        self._best_plan = getattr(theirs, "_best_plan", None)
        return plan

    def _with_context(self) -> EmbeddingShardingPlanner:
        """Return TorchRec's planner after its enumerator and reservation have processed the last plan's model."""
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator

        given, topology = self._arguments, self._topology
        batch_size, constraints = given.batch_size, given.constraints_by_table or None
        enumerator = given.enumerator or EmbeddingEnumerator(topology, batch_size, constraints=constraints)
        reservation = given.storage_reservation or arguments.heuristical(RESERVED_SHARE)
        if self._planned is not None:
            module, sharders = self._planned
            reservation.reserve(topology, batch_size, module, sharders, constraints)
            enumerator.enumerate(module, sharders)
        return given.planner(topology=topology, enumerator=enumerator, storage_reservation=reservation)
