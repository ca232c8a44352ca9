"""The only module that asks which TorchRec this is: what differs between versions, under one name for all of them."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenshard.utils.errors import BadConfig, EvenshardError
from evenshard.utils.extras import require_package

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import PlannerError, Topology
    from torchrec.distributed.types import ShardingPlan


def require_torchrec() -> None:
    """Imports what planner and export use of TorchRec; later imports of it cost nothing and warn of nothing.

    Raises:
        MissingPackage: if TorchRec is not installed.
    """
    require_package("torchrec.distributed.model_parallel")
    require_package("torchrec.distributed.planner")


def known_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the installed version's function, or one of the user's class, takes."""
    taken = inspect.signature(function).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    return {name: value for name, value in given.items() if takes_all or name in taken}


# Topologies -----------------------------------------------------------------------------------------------------------


def make_topology(
    compute_device: str,
    world_size: int,
    local_world_size: int,
    pod_size: int = 1,
    hbm_cap: int | None = None,
    caps: Mapping[str, Sequence[int]] | None = None,
    bandwidths: Mapping[str, float] | None = None,
) -> Topology:
    """TorchRec's description of a machine; what is left out has TorchRec's own constants.

    Args:
        compute_device: cuda or cpu.
        world_size, local_world_size: ranks, and those of a node.
        pod_size: nodes that the fast link connects.
        hbm_cap: bytes of each device.
        caps: bytes of every device, by TorchRec's names of its kinds of memory.
        bandwidths: bytes per ms, by TorchRec's names.
    """
    from torchrec.distributed.planner import types

    ranks = {"world_size": world_size, "local_world_size": local_world_size}
    if pod_size > 1:  # older ones know no pods
        ranks["pod_size"] = pod_size
    each = None if caps is None else types.CustomTopologyData({name: [*of] for name, of in caps.items()}, world_size)
    speeds = dict(bandwidths or {})
    if not hasattr(types, "TopologyFactory"):  # before 1.6
        return types.Topology(
            compute_device=compute_device, hbm_cap=hbm_cap, custom_topology_data=each, **ranks, **speeds
        )
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(hbm_cap_bytes=hbm_cap, additional_params={"custom_topology_data": each}, **ranks),
        types.HardwareConfig(**speeds),
        types.KernelConfig(compute_device=compute_device, use_hardware_based_bandwidth=True),
    )


def pod_size_of(topology: Topology) -> int:
    """Nodes that the fast link of a topology connects; versions without pods know one."""
    domain_size = getattr(topology, "intra_group_size", None) or topology.local_world_size
    return int(domain_size // topology.local_world_size)


def pod_size_of_job() -> int:
    """Nodes that the fast link connects, as the environment of the job says to TorchRec 1.4 or newer."""
    from torchrec.distributed import comm

    asked = getattr(comm, "get_topology_domain_multiple", None)
    return 1 if asked is None else asked() or 1


def link_bandwidths(topology: Topology) -> tuple[float, float]:
    """Bandwidths of the links within a node and between nodes, bytes per ms."""
    given = getattr(topology, "comms_bandwidths", topology)  # before 1.3 the topology itself has them
    return given.intra_host_bw, given.inter_host_bw


def ssd_bytes_of(storage: Any) -> int:
    """Bytes of SSDs in a record of a rank's memory; versions before 1.8 know none."""
    return int(getattr(storage, "ssd", 0))


def default_ssd_bytes() -> int:
    """Bytes of SSDs that TorchRec assumes of a rank; versions before 1.8 know none."""
    from torchrec.distributed.planner import constants

    return int(getattr(constants, "SSD_CAP", 0))


# The planner ----------------------------------------------------------------------------------------------------------


def planner_base() -> ABCMeta:
    """The class whose instances TorchRec takes for planners."""
    from torchrec.distributed.planner import planners
    from torchrec.distributed.types import ShardingPlanner

    base: ABCMeta = getattr(planners, "EmbeddingPlannerBase", ShardingPlanner)
    return base


class TooStrict(BadConfig):
    """Rules and constraints that leave a table no way to be sharded."""


def planner_error(error: EvenshardError, kind: str = "") -> PlannerError:
    """What goes wrong in planning, as callers of TorchRec's planner expect it: its error, with evenshard's line.

    Args:
        error: evenshard's.
        kind: a name of ``PlannerErrorType``, for which versions without it have OTHER. Where left out:
            STRICT_CONSTRAINTS of rules that are too strict, INPUT_VALIDATION of everything else.
    """
    from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

    kind = kind or ("STRICT_CONSTRAINTS" if isinstance(error, TooStrict) else "INPUT_VALIDATION")
    return PlannerError(str(error), getattr(PlannerErrorType, kind, PlannerErrorType.OTHER))


def check_ranks(plan: ShardingPlan, topology: Topology) -> None:
    """Raises TorchRec's PlannerError if a plan names a rank that there is not, in versions that check it (1.8)."""
    from torchrec.distributed.planner import planners

    if hasattr(planners, "validate_rank_assignment"):
        planners.validate_rank_assignment(plan, topology)


def debug_statistics(**values: Any) -> dict[str, Any]:
    """The argument ``debug_stats`` of ``Stats.log``, in versions that have it (1.4)."""
    from torchrec.distributed.planner import types

    return {"debug_stats": types.PlanDebugStats(**values)} if hasattr(types, "PlanDebugStats") else {}
