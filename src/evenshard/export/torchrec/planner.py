"""How does evenshard plan for a TorchRec model? With the interface of TorchRec's ``EmbeddingShardingPlanner``.

::

    planner = EvenshardPlanner(sharder, topology=topology, batch_size=512, pooling_factors={"clicks": 37.5})
    plan = planner.collective_plan(model, sharders)
    model = DistributedModelParallel(model, plan=plan, sharders=sharders)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.errors import BadConfig, InfeasibleTask
from evenshard.export.torchrec.plans import sharding_plan
from evenshard.export.torchrec.tables import DEFAULT_POOLING_FACTOR, collections_in, tables_of
from evenshard.placement import check_placement
from evenshard.sharders.base import Sharder
from evenshard.sharders.torchrec_planner import require_torchrec
from evenshard.tasks import PlacementTask

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn
    from torchrec.distributed.planner.types import Topology
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

RESERVED_SHARE = 0.15
"""Of a topology's device memory, for everything but weights: what TorchRec's planner reserves by default."""
DEFAULT_BATCH_SIZE = 512
"""Samples per rank; TorchRec's planner assumes the same."""


class EvenshardPlanner:
    """Plans a model's ``EmbeddingBagCollection``s with any sharder of evenshard; tables stay whole."""

    def __init__(
        self,
        sharder: Sharder,
        *,
        topology: Topology | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
        compute_device: str | None = None,
        memory_cap_bytes: int | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        pooling_factors: Mapping[str, float] | None = None,
        default_pooling_factor: float = DEFAULT_POOLING_FACTOR,
    ) -> None:
        """Settles the machine; nothing is planned yet.

        Args:
            sharder: decides.
            topology: TorchRec's description of the machine; it stands for the next three arguments. Of its speeds
                nothing is used: those are the sharder's.
            world_size: ranks; those of the process group where left out.
            local_world_size: ranks of a node. Where left out: what TorchRec finds (torchrun's ``LOCAL_WORLD_SIZE``, or
                else 8) if the process group tells the ranks; otherwise all.
            compute_device: cuda or cpu; cuda where left out, if there is one.
            memory_cap_bytes: bytes of weights that a rank may hold. From a topology, where left out: 85 % of the
                memory of its smallest device.
            batch_size: samples per rank and step, as in TorchRec.
            pooling_factors: by table or feature, as ``tables_of`` takes them.
            default_pooling_factor: of each feature that is not named.

        Raises:
            BadConfig: if ranks or memory are unknown or told twice, or if TorchRec is not installed.
        """
        require_torchrec()
        import torch
        import torch.distributed as dist
        from torchrec.distributed.comm import get_local_size

        if topology is not None:
            if (world_size, local_world_size, compute_device) != (None, None, None):
                raise BadConfig("the topology tells ranks and device. Leave out the arguments that do so too.")
            world_size, local_world_size = topology.world_size, topology.local_world_size
            compute_device = topology.compute_device
            if memory_cap_bytes is None:
                memory_cap_bytes = _memory_for_weights_bytes(topology)
        if world_size is None and dist.is_initialized():
            world_size = dist.get_world_size()
            local_world_size = get_local_size(world_size) if local_world_size is None else local_world_size
        if world_size is None:
            raise BadConfig("the number of ranks is unknown. Give world_size or topology, or start the process group.")
        if memory_cap_bytes is None:
            raise BadConfig("the memory of a rank is unknown. Give memory_cap_bytes or topology.")
        numbers = {"world_size": world_size, "memory_cap_bytes": memory_cap_bytes, "batch_size": batch_size}
        for name, value in numbers.items():
            if value < 1:
                raise BadConfig(f"{name} is {value}, which is below 1. Raise it.")
        self._sharder = sharder
        self._world_size, self._local_world_size = world_size, local_world_size
        self._compute_device = compute_device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._memory_cap_bytes, self._batch_size = memory_cap_bytes, batch_size
        self._pooling_factors, self._default_pooling_factor = dict(pooling_factors or {}), default_pooling_factor

    def plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[Any]] | None = None) -> ShardingPlan:
        """The plan; empty for a model that has no collections.

        Args:
            module: the model, as ``DistributedModelParallel`` will get it.
            sharders: of modules; TorchRec's default ones where left out.

        Raises:
            PlannerError: TorchRec's, with evenshard's message, if the tables find no room.
            BadConfig: if the model has tables that evenshard does not place.
        """
        from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
        from torchrec.distributed.types import ShardingPlan

        collections = collections_in(module, sharders)
        if not collections:
            return ShardingPlan({})
        tables = tables_of(collections, self._pooling_factors, self._default_pooling_factor)
        batch_size = self._batch_size * self._world_size
        task = PlacementTask("the model", tables, self._world_size, self._memory_cap_bytes, batch_size)
        try:
            placement = self._sharder.place(task)
            check_placement(task, placement)
        except InfeasibleTask as error:
            raise PlannerError(str(error), PlannerErrorType.INSUFFICIENT_STORAGE) from error
        return sharding_plan(
            placement,
            tables,
            collections,
            compute_device=self._compute_device,
            local_world_size=self._local_world_size,
        )

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[ModuleSharder[Any]] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """The plan of rank 0, on every rank of the process group (the default one where left out).

        Raises:
            PlannerError: on all ranks, if rank 0 cannot plan. (TorchRec's planner would leave the others waiting.)
            BadConfig: on rank 0, if the model has tables that evenshard does not place, or if there is no group.
        """
        import torch.distributed as dist
        from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

        if pg is None and not dist.is_initialized():
            raise BadConfig("there is no process group. Start it with init_process_group, or use plan().")
        pg = dist.group.WORLD if pg is None else pg
        failure: Exception | None = None
        told: list[Any] = [None, None]  # the plan, or what went wrong
        if dist.get_rank(pg) == 0:
            try:
                told[0] = self.plan(module, sharders)
            except Exception as error:  # raised again below: the others wait for an answer
                failure = error
                told[1] = (str(error), getattr(error, "error_type", PlannerErrorType.OTHER))
        dist.broadcast_object_list(told, group=pg, group_src=0)
        if failure is not None:
            raise failure
        if told[1] is not None:
            raise PlannerError(*told[1])
        plan: ShardingPlan = told[0]
        return plan


def _memory_for_weights_bytes(topology: Topology) -> int:
    """What its smallest device has for weights; on the CPU tables live in host memory."""
    storages = [device.storage for device in topology.devices]
    smallest = min(storage.ddr if topology.compute_device == "cpu" else storage.hbm for storage in storages)
    return int(smallest * (1 - RESERVED_SHARE))
