"""The plan of modules that evenshard does not place, by TorchRec's own planner, in the memory that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.planner.torchrec.machine import TorchRecMachine
from evenshard.planner.torchrec.modules import qualified_name
from evenshard.planner.torchrec.planner_arguments import DEFAULT_BATCH_SIZE, PlannerArguments
from evenshard.planner.torchrec.topology import with_memory
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import cut
from evenshard.utils.units import size_text

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import Topology
    from torchrec.distributed.types import ModuleSharder, ShardingPlan


def plan_of_others(
    modules: Mapping[str, nn.Module],
    sharders: Sequence[ModuleSharder[Any]] | None,
    machine: TorchRecMachine,
    left_bytes: Sequence[int],
    left_host_bytes: Sequence[int],
    topology: Topology,
    arguments: PlannerArguments,
) -> ShardingPlan:
    """TorchRec's plan of the modules.

    Args:
        modules: by their paths in the model.
        sharders: sharders of modules; TorchRec's default ones where left out.
        left_bytes: memory of each rank for them.
        left_host_bytes: memory of each node for them; empty for none.
        topology: TorchRec's description of the machine, apart from its memory.
        arguments: TorchRec's, as the planner was given them.

    Raises:
        PlannerError: if TorchRec finds none.
        BadConfig: if it cannot plan such modules.
    """
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import PlannerError
    from torchrec.distributed.sharding_plan import get_default_sharders

    planner = PlannerArguments(
        topology=with_memory(
            topology,
            left_bytes,
            [of_node // machine.local_world_size for of_node in left_host_bytes],
        ),
        batch_size=arguments.batch_size or DEFAULT_BATCH_SIZE,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # what is reserved is not among what is left
        proposer=arguments.proposer,
        partitioner=arguments.partitioner,
        performance_model=arguments.performance_model,
        stats=[],  # the whole plan has its own
        constraints=dict(arguments.constraints or {}) or None,
        debug=False,
        timeout_seconds=arguments.timeout_seconds,
    ).planner()
    names = cut(", ".join(path or "the model" for path in modules))
    try:
        return planner.plan(_alone(modules), list(get_default_sharders() if sharders is None else sharders))
    except PlannerError as error:
        raise PlannerError(
            f"TorchRec's planner finds no plan of {names}, which evenshard does not place, with "
            f"{size_text(min(left_bytes))} to {size_text(max(left_bytes))} of a rank left for them. "
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
