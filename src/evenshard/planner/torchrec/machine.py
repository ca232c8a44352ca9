"""The machine to plan for: ranks, nodes and memory, as given or as TorchRec's own planner finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenshard.measure.link import bandwidth_name
from evenshard.planner.request import caps_of
from evenshard.planner.torchrec.entries import checked_local_world_size
from evenshard.sharders.torchrec_planner import BYTES_PER_MS, require_torchrec
from evenshard.utils.errors import BadConfig
from evenshard.utils.params import check_ranges
from evenshard.utils.units import gb_to_bytes

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology

RESERVED_SHARE = 0.15
"""Share of a device's memory for everything besides tables: TorchRec's planner reserves by default."""


@dataclass(frozen=True)
class TorchRecMachine:
    """Ranks and what they have.

    Attributes:
        local_world_size: ranks of a node.
        compute_device: cuda or cpu.
        caps_bytes: memory of each rank.
        reserved_bytes: memory of each kept for everything besides tables; 0 where ``caps_bytes`` leaves it out.
    """

    local_world_size: int
    compute_device: str
    caps_bytes: tuple[int, ...]
    reserved_bytes: int

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.caps_bytes)


def machine_of(
    topology: Topology | None,
    world_size: int | None,
    local_world_size: int | None,
    compute_device: str | None,
    memory_cap_gb: float | Sequence[float] | None,
    reserved_gb: float | None,
) -> TorchRecMachine:
    """The machine; see ``EvenshardPlanner`` for the arguments.

    Raises:
        BadConfig: if the ranks are unknown, something is given twice or makes no sense, or TorchRec is not installed.
    """
    require_torchrec()
    import torch
    import torch.distributed as dist
    from torchrec.distributed.comm import get_local_size
    from torchrec.distributed.planner.constants import DDR_CAP, HBM_CAP

    if topology is not None:
        if (world_size, local_world_size, compute_device) != (None, None, None):
            raise BadConfig("the topology states ranks and device. Leave out the arguments that do so too.")
        world_size, local_world_size = topology.world_size, topology.local_world_size
        compute_device = topology.compute_device
    if world_size is None:
        if not dist.is_initialized():
            raise BadConfig(
                "the number of ranks is unknown. Give world_size or topology, or start the process group first."
            )
        world_size = dist.get_world_size()
        local_world_size = get_local_size(world_size) if local_world_size is None else local_world_size
    if world_size < 1:
        raise BadConfig(f"world_size is {world_size}, which is below 1. Raise it.")
    if compute_device is None:
        compute_device = "cuda" if torch.cuda.is_available() else "cpu"
    local_world_size = checked_local_world_size(local_world_size, world_size, compute_device)
    if memory_cap_gb is not None:
        caps = caps_of(memory_cap_gb, world_size)
    else:
        on_cpu = compute_device == "cpu"  # where tables live in host memory
        if topology is None:
            storages = [DDR_CAP if on_cpu else HBM_CAP] * world_size
        else:
            storages = [one.storage.ddr if on_cpu else one.storage.hbm for one in topology.devices]
        share = RESERVED_SHARE if reserved_gb is None else 0.0
        caps = tuple(int(storage * (1 - share)) for storage in storages)
    check_ranges(reserved_gb=reserved_gb or 0.0)
    return TorchRecMachine(local_world_size, compute_device, caps, gb_to_bytes(reserved_gb or 0.0))


def links_of_topology(topology: Topology) -> tuple[str, str]:
    """The links within a node and between nodes, by a topology's bandwidths, as ``measure.link`` names them.

    That within a node is empty where it is TorchRec's default: the hardware's own is known better.
    """
    from torchrec.distributed.planner.constants import INTRA_NODE_BANDWIDTH

    given = topology.comms_bandwidths
    intra = "" if given.intra_host_bw == INTRA_NODE_BANDWIDTH else bandwidth_name(given.intra_host_bw / BYTES_PER_MS)
    return intra, bandwidth_name(given.inter_host_bw / BYTES_PER_MS)
