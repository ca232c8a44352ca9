"""The machine to plan for: ranks, nodes and memory, as given or as TorchRec's own planner finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.storage import KEY_VALUE
from evenshard.planner.cluster import NO_HOST_MEMORY, HostMemory
from evenshard.planner.device_memory import reserve_of, reserves_of
from evenshard.planner.request import caps_of
from evenshard.planner.torchrec.entries import checked_local_world_size
from evenshard.planner.torchrec.rank_memory import memory_of_ranks
from evenshard.planner.torchrec.topology import assumed_link, device_of_process
from evenshard.sharders.torchrec_planner import require_torchrec
from evenshard.utils.errors import BadConfig
from evenshard.utils.limits import RANGES
from evenshard.utils.units import gb_to_bytes

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology


@dataclass(frozen=True)
class Assumed:
    """What is assumed of a machine, in a sentence or two each; empty where it was given or measured.

    Attributes:
        devices: of their memory.
        link: of the one between nodes.
        hosts, ssds: of their memory, which is to be known where tables are kept there.
    """

    devices: str = ""
    link: str = ""
    hosts: str = ""
    ssds: str = ""

    def notes(self, parts: Sequence[TablePart]) -> tuple[str, ...]:
        """What is to be known of a plan of these parts."""
        kept = (
            (self.hosts, any(part.storage.is_on_host for part in parts)),
            (self.ssds, any(part.storage.kernel == KEY_VALUE for part in parts)),
        )
        return tuple(note for note in (self.devices, self.link, *(note for note, is_used in kept if is_used)) if note)


@dataclass(frozen=True)
class TorchRecMachine:
    """Ranks and what they have.

    Attributes:
        local_world_size: ranks of a node.
        compute_device: cuda or cpu.
        caps_bytes: memory of each rank.
        reserved_bytes, reserved_share: what is kept of it for everything that is not counted.
        host_bytes: memory of each node that tables may take; empty for none.
        host_gb_s: its bandwidth, 10**9 bytes per second; 0 if unknown.
        ssd_bytes, ssd_gb_s: of each node's SSDs, likewise.
        nodes_per_domain: nodes that the fast link connects; TorchRec's ``pod_size``.
        assumed: what of all that was neither given nor measured.
    """

    local_world_size: int
    compute_device: str
    caps_bytes: tuple[int, ...]
    reserved_bytes: int = 0
    reserved_share: float = 0.0
    host_bytes: tuple[int, ...] = ()
    host_gb_s: float = 0.0
    ssd_bytes: tuple[int, ...] = ()
    ssd_gb_s: float = 0.0
    nodes_per_domain: int = 1
    assumed: Assumed = Assumed()

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.caps_bytes)

    @property
    def rooms_bytes(self) -> tuple[int, ...]:
        """What is not kept of each rank's memory."""
        reserves = reserves_of(self.caps_bytes, self.reserved_bytes, self.reserved_share)
        return tuple(max(cap - kept, 0) for cap, kept in zip(self.caps_bytes, reserves, strict=True))

    @property
    def host_bytes_of_ranks(self) -> tuple[int, ...]:
        """Of each node's memory, what a rank has."""
        return tuple(of_node // self.local_world_size for of_node in self.host_bytes)

    def nodes(self, intra: str = "", inter: str = "") -> Machine:
        """The nodes, with a link between their domains, if there are several."""
        machine = Machine(
            self.world_size,
            self.local_world_size,
            self.nodes_per_domain,
            intra=intra,
            host_bytes=self.host_bytes,
            host_gb_s=self.host_gb_s,
            ssd_bytes=self.ssd_bytes,
            ssd_gb_s=self.ssd_gb_s,
        )
        return machine if machine.num_domains == 1 else replace(machine, inter=inter)


def machine_of(
    topology: Topology | None,
    world_size: int | None,
    local_world_size: int | None,
    compute_device: str | None,
    memory_cap_gb: float | Sequence[float] | None,
    reserved_gb: float | None,
    host: HostMemory = NO_HOST_MEMORY,
    hardware: str | None = None,
    inter: str | None = None,
) -> TorchRecMachine:
    """The machine; see ``EvenshardPlanner`` for the arguments.

    Raises:
        BadConfig: if the ranks are unknown, something is given twice or makes no sense, or TorchRec is not installed.
    """
    require_torchrec()
    import torch.distributed as dist
    from torchrec.distributed import comm

    if topology is not None:
        if (world_size, local_world_size, compute_device) != (None, None, None):
            raise BadConfig("the topology states ranks and device. Leave out the arguments that do so too.")
        world_size = topology.world_size
        # Of a single rank TorchRec's topology says 8 of a node.
        local_world_size = min(topology.local_world_size, world_size)
        compute_device = topology.compute_device
    pod_size = 1
    if world_size is None:
        if not dist.is_initialized():
            raise BadConfig(
                "the number of ranks is unknown. Give world_size or topology, or start the process group first."
            )
        world_size = dist.get_world_size()
        local_world_size = comm.get_local_size(world_size) if local_world_size is None else local_world_size
        if hasattr(comm, "get_topology_domain_multiple"):  # of the job's environment; older ones know none
            pod_size = comm.get_topology_domain_multiple() or 1
    if problem := RANGES["num_devices"].problem(world_size):
        raise BadConfig(f"world_size {problem}. Correct it.")
    if compute_device is None:
        compute_device = device_of_process()
    local_world_size = checked_local_world_size(local_world_size, world_size, compute_device)
    if topology is not None and hasattr(topology, "intra_group_size"):  # older ones know no pods
        pod_size = topology.intra_group_size // topology.local_world_size
    pod_size = min(pod_size, world_size // local_world_size)
    if world_size % (pod_size * local_world_size):
        raise BadConfig(
            f"pods of {pod_size} nodes do not fill the {world_size // local_world_size} nodes. Correct pod_size."
        )
    on_cpu = compute_device == "cpu"  # where tables live in host memory
    if on_cpu and host != NO_HOST_MEMORY:
        raise BadConfig("on the CPU, memory_cap_gb is of host memory. Leave all other memory of hosts and SSDs out.")
    found = memory_of_ranks(topology, world_size, local_world_size, compute_device, hardware)
    reserved_bytes, reserved_share = reserve_of(reserved_gb)
    assumed = Assumed(
        devices=found.device_note if memory_cap_gb is None else "",
        link="" if inter or world_size == pod_size * local_world_size else assumed_link(topology),
        hosts=found.host_note if host.host_memory_gb is None else "",
        ssds=found.ssd_note if host.ssd_gb is None else "",
    )
    return TorchRecMachine(
        local_world_size,
        compute_device,
        found.device if memory_cap_gb is None else caps_of(memory_cap_gb, world_size),
        reserved_bytes,
        reserved_share,
        host_bytes=() if on_cpu else of_nodes(found.host, local_world_size, host.host_memory_gb),
        host_gb_s=host.host_bandwidth_gb_s or 0.0,
        ssd_bytes=() if on_cpu else of_nodes(found.ssd, local_world_size, host.ssd_gb),
        ssd_gb_s=host.ssd_bandwidth_gb_s or 0.0,
        nodes_per_domain=pod_size,
        assumed=assumed,
    )


def of_nodes(of_ranks: Sequence[int], local_world_size: int, asked_gb: float | None) -> tuple[int, ...]:
    """Memory of each node, bytes: as asked for, or what its ranks have together; empty where all have none."""
    firsts = range(0, len(of_ranks), local_world_size)
    own = (sum(of_ranks[first : first + local_world_size]) for first in firsts)
    found = tuple(own) if asked_gb is None else (gb_to_bytes(asked_gb),) * len(firsts)
    return found if any(found) else ()
