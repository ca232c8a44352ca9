"""evenshard's planner for a TorchRec model, in the place of TorchRec's ``EmbeddingShardingPlanner``.

::

    plan = EvenshardPlanner().collective_plan(model, sharders)          # was: EmbeddingShardingPlanner()
    model = DistributedModelParallel(model, plan=plan, sharders=sharders)

What the model's traffic looks like is worth telling: ``EvenshardPlanner(pooling_factors={"clicks": 37.5})``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.placement.sharding import BY_COLUMNS
from evenshard.planner.cluster import HostMemory
from evenshard.planner.device_memory import RESERVED_SHARE
from evenshard.planner.rules import Rules
from evenshard.report.answer import PlacementAnswer
from evenshard.sharders.base import Sharder
from evenshard.sharders.model import Model
from evenshard.sharders.torchrec.compat import planner_base, planner_error, require_torchrec
from evenshard.torchrec.model.tables import DEFAULT_POOLING_FACTOR
from evenshard.torchrec.planner.arguments import (
    DEFAULT_BATCH_SIZE,
    PlannerArguments,
    heuristical,
    reservation_of,
)
from evenshard.torchrec.planner.machine import machine_of
from evenshard.torchrec.planner.model_plan import ModelPlanner
from evenshard.torchrec.planner.model_request import PlannerSettings
from evenshard.torchrec.planner.report import stats_of
from evenshard.torchrec.planner.topology import links_of_topology, topology_of, with_memory
from evenshard.utils.errors import BadConfig, EvenshardError
from evenshard.utils.messages import one_line
from evenshard.utils.params import check_ranges
from evenshard.utils.signature import checked

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

log = logging.getLogger(__name__)


class EvenshardPlanner:
    """Plans a model's ``EmbeddingBagCollection``s and ``EmbeddingCollection``s, as ``evenshard.place`` or any
    sharder does. Modules of other kinds are planned by TorchRec's planner in the memory that is left, in the same plan.

    It takes what ``EmbeddingShardingPlanner`` takes, in its order, and arguments of its own by their names.

    Attributes:
        answer: all that is known about the last plan, on the rank that made it; None before, with a sharder, and where
            TorchRec's planner made the plan.
        notes: what there is to say about the last plan beside the answer, a line each; all is logged, too.
    """

    @checked()
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
        memory_cap_gb: float | Sequence[float] | None = None,
        reserved_gb: float | None = None,
        dense_gb: float | None = None,
        training_pipeline: str = "sparse_dist",
        host_memory_gb: float | None = None,
        host_bandwidth_gb_s: float | None = None,
        ssd_gb: float | None = None,
        ssd_bandwidth_gb_s: float | None = None,
        compute_kernels: Sequence[str] = (),
        pooling_factors: Mapping[str, float | Sequence[float]] | None = None,
        default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
        optimizer: str | None = None,
        dense_optimizer: str = "",
        pinned: Mapping[str, int | Sequence[int]] | None = None,
        forbidden: Mapping[str, int | Sequence[int]] | None = None,
        forbidden_devices: Sequence[int] = (),
        together: Sequence[Sequence[str]] = (),
        apart: Sequence[Sequence[str]] = (),
        pinned_nodes: Mapping[str, int | Sequence[int]] | None = None,
        table_types: Mapping[str, str | Sequence[str]] | None = None,
        min_columns: Mapping[str, int] | None = None,
        table_kernels: Mapping[str, str | Sequence[str]] | None = None,
        sharding_types: Sequence[str] | None = None,
        allow_column_split: bool | None = None,
        intra: str | None = None,
        inter: str | None = None,
        hardware: str | None = None,
        model: str | Path | Model | None = None,
        seed: int = 0,
    ) -> None:
        """Settles the machine; nothing is planned yet. Without arguments, the process group must have started.

        Args:
            topology: TorchRec's description of the machine; it stands for world_size, local_world_size and
                compute_device. Of its speeds those of its links are used; the others are the cost model's.
            batch_size: samples per rank and step; 512 where left out.
            enumerator: its search space bounds the ways in which tables are sharded, and its estimates fill the
                statistics. What they say decides nothing.
            storage_reservation: what it leaves of the topology is for tables; then nothing else is kept, and dense_gb
                is 0 where left out. Where left out: see reserved_gb and dense_gb.
            proposer, partitioner: decide nothing, as evenshard searches by itself; a note says so.
            performance_model: rates the plan, in a note.
            stats: TorchRec's statistics, or several; ``EmbeddingStats`` where left out. Their times and memory are
                TorchRec's estimates of the plan; evenshard's are in ``answer``.
            constraints: TorchRec's constraints, by table. What of them changes nothing is named in a note; those of
                tables that TorchRec places are all used.
            debug: whether the statistics are long.
            callbacks: each takes the plan as TorchRec's ``ShardingOption``s and returns the one that counts.
            timeout_seconds: the search ends after so many seconds with the best plan until then.
            plan_loader: where it has a stored plan, TorchRec's planner loads it; a note says so.
            heuristical_storage_reservation_percentage: short for a ``HeuristicalStorageReservation`` of so much.
            fallback: whether TorchRec's planner plans where evenshard cannot, with the same arguments; a note says why.
            sharder: decides instead of ``evenshard.place``; tables stay whole then.
            world_size: ranks; those of the process group where left out.
            local_world_size: ranks of a node. Where left out: what TorchRec finds (torchrun's ``LOCAL_WORLD_SIZE``, or
                else 8) if the process group tells the ranks; otherwise all.
            compute_device: cuda or cpu. Where left out, that of the process: cpu if its process group is of gloo, cuda
                if it is of NCCL, and otherwise cuda if there is a GPU.
            memory_cap_gb: GB (1024**3 bytes) of each rank; one number, or one for each. Where left out: those of the
                topology. Without one: of a GPU what the driver here says, or the hardware that is named, or TorchRec's
                32, with a warning; of a CPU rank its share of this machine's memory.
            reserved_gb: memory of each device kept for everything that is not counted; 15 % of it where left out.
            dense_gb: memory of the dense model on each device, with its gradients and optimizer state; where left out,
                counted from the model, as Adam trains it.
            training_pipeline: none, base, sparse_dist or prefetch, as ``evenshard.place`` takes it.
            host_memory_gb, ssd_gb: memory and SSDs of each node that tables may take. Where left out: those of the
                topology's ranks. Without one: 85 % of this machine's memory, if it has a GPU; otherwise, and of SSDs,
                TorchRec's 128 GB and 2 TB of each rank, with a warning where tables are kept there.
            host_bandwidth_gb_s, ssd_bandwidth_gb_s: their bandwidths, as ``evenshard.place`` takes them.
            compute_kernels: where weights may be kept; fused, fused_uvm_caching and fused_uvm where left out, of a GPU.
            pooling_factors: pooling factors by table or feature, as ``tables_of`` takes them; of one pooling, where
                constraints name several (``num_poolings``).
            default_pooling_factor: pooling factor of each feature that is not named.
            optimizer: optimizer whose state takes memory too: sgd, rowwise_adagrad, adagrad, adam, lamb, lars_sgd,
                partial_rowwise_adam or partial_rowwise_lamb. Where left out, that of each table, as
                ``apply_optimizer_in_backward`` or ``fused_params`` of its sharder name it, else sgd.
            dense_optimizer: optimizer of the dense model, likewise, which trains replicas (data_parallel): tables with
                the same fused one may be replicated. By naming it you say that learning rate and other settings are the
                same, too. Where left out, tables with a fused optimizer are replicated only where sharding_types,
                table_types or constraints name data_parallel.
            pinned, forbidden, forbidden_devices, together, apart, pinned_nodes, table_types, min_columns,
                table_kernels: rules, as in ``evenshard.place``; devices are ranks, tables are called as ``tables_of``
                calls them.
            sharding_types: the ways in which tables may be sharded, by TorchRec's words; all where left out, but see
                dense_optimizer.
            allow_column_split: short for sharding_types table_wise and column_wise.
            intra, inter: links within a node and between nodes, as ``evenshard hardware`` lists them. A topology has
                one between nodes; a warning says where its bandwidth is TorchRec's constant.
            hardware: hardware to place for, such as h200, which is simulated:h200. Where left out: the model's, or that
                of this process' GPU, or simulated:h100.
            model: model as in ``evenshard.place``.
            seed: seed of the search.

        Raises:
            BadConfig: if ranks are unknown, something is given twice or makes no sense, or TorchRec is not installed.
        """
        self.answer: PlacementAnswer | None = None
        self.notes: tuple[str, ...] = ()
        self._best_plan: list[ShardingOption] | None = None
        self._planned: tuple[nn.Module, list[ModuleSharder[Any]]] | None = None
        self._fallback = fallback
        self._failure: EvenshardError | None = None
        self._planner: ModelPlanner | None = None
        require_torchrec()
        storage_reservation = reservation_of(storage_reservation, heuristical_storage_reservation_percentage)
        batch_size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        self._stats = stats_of(stats)
        self._arguments = PlannerArguments(
            topology,
            batch_size,
            enumerator,
            storage_reservation,
            proposer,
            partitioner,
            performance_model,
            self._stats,
            constraints,
            debug,
            callbacks,
            timeout_seconds,
            plan_loader,
        )
        self._topology: Topology | None = topology
        planner_base().register(type(self))  # so that isinstance takes it for one of TorchRec's
        try:
            if storage_reservation is not None and reserved_gb is not None:
                raise BadConfig(
                    "storage_reservation and reserved_gb both say what memory is kept. Give one of the two."
                )
            if sharder is not None:
                if not callable(getattr(sharder, "place", None)):
                    raise BadConfig(
                        f"sharder is a {type(sharder).__name__}, which has no method place. Give a sharder, or leave "
                        "it out."
                    )
                if (sharding_types, allow_column_split, hardware, model) != (None, None, None, None) or compute_kernels:
                    raise BadConfig(
                        "a sharder decides by itself. Leave out sharding_types, allow_column_split, compute_kernels, "
                        "hardware and model."
                    )
            if allow_column_split and sharding_types and set(sharding_types) != set(BY_COLUMNS):
                raise BadConfig("allow_column_split is short for sharding_types. Give one of the two.")
            check_ranges(batch_size=batch_size, seed=seed, dense_gb=dense_gb or 0.0)
            host = HostMemory(host_memory_gb, host_bandwidth_gb_s, ssd_gb, ssd_bandwidth_gb_s)
            ranks = (topology, world_size, local_world_size, compute_device)
            machine = machine_of(*ranks, memory_cap_gb, reserved_gb, host, hardware, inter)
            rules = Rules.of(
                pinned=pinned,
                forbidden=forbidden,
                forbidden_devices=forbidden_devices,
                together=together,
                apart=apart,
                pinned_nodes=pinned_nodes,
                table_types=table_types,
                min_columns=min_columns,
                table_kernels=table_kernels,
            )
            own = ("", "") if topology is None else links_of_topology(topology)
            settings = PlannerSettings(
                batch_size=batch_size,
                pooling_factors=pooling_factors,
                default_pooling_factor=default_pooling_factor,
                optimizer=optimizer,
                dense_optimizer=dense_optimizer,
                rules=rules,
                types=BY_COLUMNS if allow_column_split else tuple(sharding_types or ()),
                kernels=tuple(compute_kernels),
                pipeline=training_pipeline,
                intra=intra or own[0],
                inter=inter or own[1],
                hardware=hardware,
                dense_gb=dense_gb,
                keeps_host=host_memory_gb is not None,
                sharder=sharder,
                model=model,
                seed=seed,
            )
            settings.check_kernels(machine.compute_device)
            if topology is None:
                topology = topology_of(machine)
            elif memory_cap_gb is not None:
                topology = with_memory(topology, machine.caps_bytes, machine.host_bytes_of_ranks)
            self._topology = topology
            self._planner = ModelPlanner(self._arguments, settings, machine, topology, type(self).__name__)
        except EvenshardError as error:
            if not fallback:
                raise
            self._failure = error

    def plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[Any]] | None = None) -> ShardingPlan:
        """The plan; empty for a model without tables. Of tables the model knows little of, it warns (logging).

        Args:
            module: the model, as ``DistributedModelParallel`` will get it.
            sharders: sharders of modules; TorchRec's default ones where left out.

        Raises:
            PlannerError: TorchRec's, with evenshard's message. INSUFFICIENT_STORAGE if all memory together is too
                small, STRICT_CONSTRAINTS if the tables cannot be divided so that they fit, or a table may be sharded in
                no way, INPUT_VALIDATION if a constraint makes no sense, or there is no cost model.
        """
        from torchrec.distributed.sharding_plan import get_default_sharders

        given = list(get_default_sharders() if sharders is None else sharders)
        self.answer, self.notes, self._best_plan, self._planned = None, (), None, (module, given)
        loader = self._arguments.plan_loader
        if loader is not None and loader.load() is not None:
            self._say("plan_loader has a stored plan: TorchRec's planner loads it, and evenshard decides nothing.")
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
            self._say(f"TorchRec's planner makes this plan (fallback=True), as evenshard cannot: {why}")
            return self._plan_of_theirs(module, given)
        self.answer, self.notes, self._best_plan = made.answer, made.notes, made.options
        return made.plan

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[Any]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """The plan of rank 0, on every rank of the process group (the default one where left out).

        Raises:
            PlannerError: on all ranks, if rank 0 cannot plan. (TorchRec's planner would leave the others waiting.)
            BadConfig: if there is no group.
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

    def hash_planner_context_inputs(self) -> int:
        """TorchRec's hash of what a plan depends on by its account; that of its own planner with the same arguments.

        Like TorchRec's it needs a plan before, or an enumerator and a reservation that have seen a model.
        """
        return int(self._with_context().hash_planner_context_inputs())

    def hash_planner_context_inputs_str(self) -> str:
        """The same as text; TorchRec 1.4 or newer."""
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
        """TorchRec's planner, whose enumerator and reservation have seen the model of the last plan."""
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator

        given, topology = self._arguments, self._topology
        batch_size, constraints = given.batch_size, given.constraints_by_table or None
        enumerator = given.enumerator or EmbeddingEnumerator(topology, batch_size, constraints=constraints)
        reservation = given.storage_reservation or heuristical(RESERVED_SHARE)
        if self._planned is not None:
            module, sharders = self._planned
            reservation.reserve(topology, batch_size, module, sharders, constraints)
            enumerator.enumerate(module, sharders)
        return given.planner(topology=topology, enumerator=enumerator, storage_reservation=reservation)
