"""Access to TorchRec: its import, its topologies and its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from evenshard.utils.errors import BadConfig, EvenshardError
from evenshard.utils.extras import require_package

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import PlannerError, Topology

OLDEST_RELEASE = (1, 7)


def require_torchrec() -> None:
    """Import what planner and export use of TorchRec; later imports of it cost nothing and warn of nothing.

    Raises:
        BadConfig: if TorchRec is older than ``OLDEST_RELEASE``.
        MissingPackage: if TorchRec is not installed.
    """
    try:
        release = version("torchrec")
    except PackageNotFoundError:  # not installed, or built from a checkout
        release = ""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers and tuple(map(int, numbers.groups())) < OLDEST_RELEASE:
        oldest = ".".join(map(str, OLDEST_RELEASE))
        raise BadConfig(f"TorchRec {release} is installed; evenshard needs {oldest} or newer. Upgrade torchrec.")
    require_package("torchrec.distributed.model_parallel")
    require_package("torchrec.distributed.planner")


def make_topology(
    compute_device: str,
    world_size: int,
    local_world_size: int,
    pod_size: int = 1,
    hbm_cap: int | None = None,
    caps: Mapping[str, Sequence[int]] | None = None,
    bandwidths: Mapping[str, float] | None = None,
) -> Topology:
    """Return TorchRec's description of a machine; what is left out has TorchRec's own constants.

    Args:
        compute_device: cuda or cpu.
        world_size, local_world_size: ranks, and those of a node.
        pod_size: nodes that the fast link connects.
        hbm_cap: bytes of each device.
        caps: bytes of every device, by TorchRec's names of its kinds of memory.
        bandwidths: bytes per ms, by TorchRec's names.
    """
    from torchrec.distributed.planner import types

    ranks = {"world_size": world_size, "local_world_size": local_world_size, "pod_size": pod_size}
    each = None if caps is None else types.CustomTopologyData({name: [*of] for name, of in caps.items()}, world_size)
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(hbm_cap_bytes=hbm_cap, additional_params={"custom_topology_data": each}, **ranks),
        types.HardwareConfig(**bandwidths or {}),
        types.KernelConfig(compute_device=compute_device, use_hardware_based_bandwidth=True),
    )


def pod_size_of(topology: Topology) -> int:
    """Return the number of nodes that the fast link of a topology connects."""
    return int(topology.intra_group_size // topology.local_world_size)


class TooStrict(BadConfig):
    """Rules and constraints that leave a table no way to be sharded."""


def planner_error(error: EvenshardError, kind: str = "") -> PlannerError:
    """Return TorchRec's error for callers of its planner, with evenshard's message.

    Args:
        error: evenshard's.
        kind: a name of ``PlannerErrorType``. Where left out: STRICT_CONSTRAINTS of rules that are too strict,
            INPUT_VALIDATION of all other errors.
    """
    from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

    kind = kind or ("STRICT_CONSTRAINTS" if isinstance(error, TooStrict) else "INPUT_VALIDATION")
    return PlannerError(str(error), PlannerErrorType[kind])
