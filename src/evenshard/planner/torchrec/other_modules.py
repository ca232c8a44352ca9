"""The plan of modules that evenshard does not place, by TorchRec's own planner, in the memory that is left."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.planner.torchrec.machine import TorchRecMachine
from evenshard.planner.torchrec.modules import qualified_name
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import cut
from evenshard.utils.units import BYTES_PER_GB

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints, Topology
    from torchrec.distributed.types import ModuleSharder, ShardingPlan


def plan_of_others(
    modules: Mapping[str, nn.Module],
    sharders: Sequence[ModuleSharder[Any]] | None,
    machine: TorchRecMachine,
    left_bytes: Sequence[int],
    left_host_bytes: Sequence[int],
    topology: Topology | None,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints],
) -> ShardingPlan:
    """TorchRec's plan of the modules.

    Args:
        modules: by their paths in the model.
        sharders: sharders of modules; TorchRec's default ones where left out.
        left_bytes: memory of each rank for them.
        left_host_bytes: memory of each node for them; empty for none.
        topology: TorchRec's description of the machine, apart from its memory; its own constants where left out.
        batch_size: samples per rank.
        constraints: by table.

    Raises:
        PlannerError: if TorchRec finds none.
        BadConfig: if it cannot plan such modules.
    """
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import PlannerError
    from torchrec.distributed.sharding_plan import get_default_sharders

    planner = EmbeddingShardingPlanner(
        topology=_with_memory(
            _topology_of(machine) if topology is None else topology,
            left_bytes,
            [of_node // machine.local_world_size for of_node in left_host_bytes],
        ),
        batch_size=batch_size,
        constraints=dict(constraints) or None,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # what is reserved is not among what is left
        stats=[],  # which would print
        debug=False,
    )
    names = cut(", ".join(path or "the model" for path in modules))
    try:
        return planner.plan(_alone(modules), list(get_default_sharders() if sharders is None else sharders))
    except PlannerError as error:
        raise PlannerError(
            f"TorchRec's planner finds no plan of {names}, which evenshard does not place, with "
            f"{min(left_bytes) / BYTES_PER_GB:.3g} to {max(left_bytes) / BYTES_PER_GB:.3g} GB of a rank left for them. "
            f"Raise memory_cap_gb or the number of ranks, or constrain their tables less.",
            error.error_type,
        ) from error
    except (ValueError, RuntimeError) as error:  # such as managed collisions with fewer buckets than ranks
        raise BadConfig(f"TorchRec's planner cannot plan {names}: {error}") from error


def _alone(modules: Mapping[str, nn.Module]) -> nn.Module:
    """A model of these modules only, under the same paths."""
    from torch import nn

    if "" in modules:
        return modules[""]
    parents: dict[str, nn.Module] = {"": nn.Module()}
    for path, module in modules.items():
        above, *names = "", *path.split(".")
        for name in names[:-1]:
            below = qualified_name(above, name)
            if below not in parents:
                parents[below] = nn.Module()
                parents[above].add_module(name, parents[below])
            above = below
        parents[above].add_module(names[-1], module)
    return parents[""]


def _topology_of(machine: TorchRecMachine) -> Topology:
    """TorchRec's description of the ranks, with its own bandwidths."""
    from torchrec.distributed.planner import types

    ranks = {"world_size": machine.world_size, "local_world_size": machine.local_world_size}
    if not hasattr(types, "TopologyFactory"):  # TorchRec before 1.6
        return types.Topology(compute_device=machine.compute_device, **ranks)
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(**ranks),
        types.HardwareConfig(),
        types.KernelConfig(compute_device=machine.compute_device),
    )


def _with_memory(topology: Topology, left_bytes: Sequence[int], of_host_bytes: Sequence[int]) -> Topology:
    """The topology with this memory of its devices, and for each device so much of its node's.

    As ``CustomTopologyData`` it would cut rows unevenly, which TorchRec trains wrongly.
    """
    own = copy.deepcopy(topology)
    for rank, (device, left) in enumerate(zip(own.devices, left_bytes, strict=True)):
        if own.compute_device == "cpu":
            device.storage.ddr = left
        else:
            device.storage.hbm = left
            device.storage.ddr = of_host_bytes[rank // own.local_world_size] if of_host_bytes else 0
    return own
