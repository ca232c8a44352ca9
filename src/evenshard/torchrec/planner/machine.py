"""Machine to plan for: ranks, nodes and memory, from the arguments or as TorchRec's own planner detects them.

By default, the memory is that of the topology, else of this machine, else TorchRec's constants.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import RANGES
from evenshard.base.process import machine_bytes
from evenshard.base.units import gb_to_bytes, size_text
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import KEY_VALUE, TablePart
from evenshard.planner.hosts import MachineAndMemory
from evenshard.planner.knobs import Machine, Memory
from evenshard.planner.memory import RESERVED_SHARE, default_memory_gb, gpu_bytes, reserve_of
from evenshard.planner.request import caps_of, reserves_of
from evenshard.price.hardware import DEFAULT_HARDWARE, HardwareName
from evenshard.price.link import bandwidth_name
from evenshard.torchrec.baseline.topology import BYTES_PER_MS, make_topology, pod_size_of, require_torchrec
from evenshard.torchrec.plan.entries import check_local_world_size

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology


GIVE_MEMORY = "Give memory_cap_gb, or a Topology with its own hbm_cap."  # remedy of notes on assumed device memory


@dataclass(frozen=True)
class Assumed:
    """Notes on assumed memory and links; empty if they are known."""

    devices: str = ""  # device memory
    link: str = ""  # link between nodes
    hosts: str = ""  # host memory; matters only if tables are stored there
    ssds: str = ""  # likewise

    def notes(self, parts: Sequence[TablePart]) -> tuple[str, ...]:
        """Return the notes on memory and links that a plan of these parts uses."""
        kept = (
            (self.hosts, any(part.storage.is_on_host for part in parts)),
            (self.ssds, any(part.storage.kernel == KEY_VALUE for part in parts)),
        )
        return tuple(note for note in (self.devices, self.link, *(note for note, is_used in kept if is_used)) if note)


@dataclass(frozen=True)
class TorchRecMachine:
    """Ranks, nodes, pods and memory of a TorchRec job."""

    nodes: Nodes  # without links; ranks are devices and pods are domains
    compute_device: str
    caps_bytes: tuple[int, ...]  # memory of each rank, with the reserve
    reserved_bytes: int = 0  # reserve for memory that is not counted, in bytes and as a share
    reserved_share: float = 0.0
    assumed: Assumed = Assumed()

    @property
    def rooms_bytes(self) -> tuple[int, ...]:
        """Return the memory of each rank minus the reserve."""
        reserves = reserves_of(self.caps_bytes, self.reserved_bytes, self.reserved_share)
        return tuple(max(cap - kept, 0) for cap, kept in zip(self.caps_bytes, reserves, strict=True))

    @property
    def host_bytes_of_ranks(self) -> tuple[int, ...]:
        """Return each rank's share of its node's host memory."""
        return tuple(of_node // self.nodes.devices_per_node for of_node in self.nodes.host_bytes)

    def devices(self, asked: Machine, is_one_node: bool) -> MachineAndMemory:
        """Return the ranks as devices with the links and hardware of ``asked``; if ``is_one_node``, all on one node."""
        nodes = replace(self.nodes, intra=asked.intra, inter="" if self.nodes.num_domains == 1 else asked.inter)
        nodes = Nodes.one_node(self.nodes.num_devices) if is_one_node else nodes
        reserve = (self.reserved_bytes, self.reserved_share)
        return MachineAndMemory(nodes, self.caps_bytes, asked.hardware or DEFAULT_HARDWARE, (), *reserve)


def machine_of(
    topology: Topology | None,
    world_size: int | None,
    local_world_size: int | None,
    compute_device: str | None,
    memory: Memory,
    hardware: str | None = None,
    inter: str | None = None,
) -> TorchRecMachine:
    """Return the machine from the arguments of ``EvenshardPlanner``.

    Raises:
        BadConfig: if the ranks are unknown, an argument is invalid or given twice, or TorchRec is not installed.
    """
    require_torchrec()
    import torch.distributed as dist
    from torchrec.distributed import comm

    if topology is not None:
        if (world_size, local_world_size, compute_device) != (None, None, None):
            raise BadConfig("topology replaces world_size, local_world_size and compute_device. Leave these out.")
        world_size = topology.world_size
        # TorchRec's topology reports 8 ranks per node even if there are fewer ranks.
        local_world_size = min(topology.local_world_size, world_size)
        compute_device = topology.compute_device
    pod_size = 1 if topology is None else pod_size_of(topology)
    if world_size is None:
        if not dist.is_initialized():
            raise BadConfig(
                "the number of ranks is unknown. Give world_size or topology, or start the process group first."
            )
        world_size = dist.get_world_size()
        local_world_size = comm.get_local_size(world_size) if local_world_size is None else local_world_size
        pod_size = comm.get_topology_domain_multiple() or 1
    if problem := RANGES["num_devices"].problem(world_size):
        raise BadConfig(f"world_size {problem}. Correct it.")
    if compute_device is None:
        compute_device = device_of_process()
    local_world_size = check_local_world_size(local_world_size, world_size, compute_device)
    pod_size = min(pod_size, world_size // local_world_size)
    if world_size % (pod_size * local_world_size):
        raise BadConfig(
            f"{world_size // local_world_size} nodes cannot be split into pods of {pod_size} nodes. Correct pod_size."
        )
    of_hosts = (memory.host_memory_gb, memory.host_bandwidth_gb_s, memory.ssd_gb, memory.ssd_bandwidth_gb_s)
    if compute_device == "cpu" and any(one is not None for one in of_hosts):
        raise BadConfig("on the CPU, memory_cap_gb is host memory. Leave out all knobs of host memory and SSDs.")
    found = _memory_of_ranks(topology, world_size, local_world_size, compute_device, hardware)
    reserved_bytes, reserved_share = reserve_of(memory.reserved_gb)
    assumed = Assumed(
        devices=found.assumed.devices if memory.memory_cap_gb is None else "",
        link="" if inter or world_size == pod_size * local_world_size else note_assumed_link(topology),
        hosts=found.assumed.hosts if memory.host_memory_gb is None else "",
        ssds=found.assumed.ssds if memory.ssd_gb is None else "",
    )
    nodes = Nodes(
        world_size,
        local_world_size,
        pod_size,
        host_bytes=of_nodes(found.host, local_world_size, memory.host_memory_gb),
        host_gb_s=memory.host_bandwidth_gb_s or 0.0,
        ssd_bytes=of_nodes(found.ssd, local_world_size, memory.ssd_gb),
        ssd_gb_s=memory.ssd_bandwidth_gb_s or 0.0,
    )
    caps_bytes = found.device if memory.memory_cap_gb is None else caps_of(memory.memory_cap_gb, world_size)
    return TorchRecMachine(nodes, compute_device, caps_bytes, reserved_bytes, reserved_share, assumed)


def of_nodes(of_ranks: Sequence[int], local_world_size: int, asked_gb: float | None) -> tuple[int, ...]:
    """Return the memory of each node, bytes: ``asked_gb``, or the sum of its ranks' memory; empty if all are 0."""
    firsts = range(0, len(of_ranks), local_world_size)
    own = (sum(of_ranks[first : first + local_world_size]) for first in firsts)
    found = tuple(own) if asked_gb is None else (gb_to_bytes(asked_gb),) * len(firsts)
    return found if any(found) else ()


# Memory of ranks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RankMemory:
    """Memory of each rank, bytes."""

    device: tuple[int, ...]
    host: tuple[int, ...]  # the rank's share of its node; 0 on CPU ranks
    ssd: tuple[int, ...]  # likewise
    assumed: Assumed = Assumed()


def _memory_of_ranks(
    topology: Topology | None, world_size: int, local_world_size: int, compute_device: str, hardware: str | None
) -> _RankMemory:
    """Return the memory of each rank from the topology, this machine's driver, or the named hardware."""
    on_cpu = compute_device == "cpu"
    gpu = None if on_cpu else gpu_bytes()
    of_rank = machine_bytes() // local_world_size
    if topology is not None:
        return _of_topology(topology, on_cpu, gpu, of_rank)
    if on_cpu:
        return _RankMemory((of_rank,) * world_size, (0,) * world_size, (0,) * world_size)
    found = _constants(world_size)
    if gpu is not None:
        host = round((1 - RESERVED_SHARE) * of_rank)  # 15 % stays free, as on devices
        return _RankMemory((gpu,) * world_size, (host,) * world_size, found.ssd, Assumed(ssds=found.assumed.ssds))
    if hardware is not None and HardwareName.parse(hardware).kind.is_simulated:
        device = (gb_to_bytes(default_memory_gb(hardware)),) * world_size
        return replace(found, device=device, assumed=replace(found.assumed, devices=""))
    return found


def _constants(world_size: int) -> _RankMemory:
    from torchrec.distributed.planner import constants

    hbm, ddr, ssd = constants.HBM_CAP, constants.DDR_CAP, constants.SSD_CAP
    note = (
        f"GPU memory is assumed to be TorchRec's constant, {size_text(hbm)}, because this machine has no GPU. "
        f"{GIVE_MEMORY}"
    )
    hosts = _constant_note("in host memory", ddr, "host_memory_gb", "ddr_cap")
    assumed = Assumed(note, hosts=hosts, ssds=_constant_note("on SSDs", ssd, "ssd_gb", "ssd_cap"))
    return _RankMemory((hbm,) * world_size, (ddr,) * world_size, (ssd,) * world_size, assumed)


def _of_topology(topology: Topology, on_cpu: bool, gpu: int | None, of_rank: int) -> _RankMemory:
    from torchrec.distributed.planner import constants

    storages = [one.storage for one in topology.devices]
    hbm, ddr = tuple(one.hbm for one in storages), tuple(one.ddr for one in storages)
    ssd = tuple(one.ssd for one in storages)
    if on_cpu:
        note = ""
        if set(ddr) == {constants.DDR_CAP} and of_rank < constants.DDR_CAP:
            note = (
                f"The topology has TorchRec's default of {size_text(constants.DDR_CAP)} host memory per CPU rank, but "
                f"this machine has {size_text(of_rank)} per rank. Give memory_cap_gb, or a Topology with your ddr_cap."
            )
        return _RankMemory(ddr, (0,) * len(ddr), (0,) * len(ddr), Assumed(note))
    note = ""
    # A difference of up to 10 % needs no note.
    if set(hbm) == {constants.HBM_CAP} and gpu is not None and abs(gpu - constants.HBM_CAP) > 0.1 * constants.HBM_CAP:
        note = (
            f"The topology has TorchRec's constant of {size_text(constants.HBM_CAP)} per GPU, but this machine's GPU "
            f"has {size_text(gpu)}. {GIVE_MEMORY}"
        )
    known = _constants(len(hbm)).assumed
    hosts = known.hosts if set(ddr) == {constants.DDR_CAP} else ""
    ssds = known.ssds if set(ssd) == {constants.SSD_CAP} else ""
    return _RankMemory(hbm, ddr, ssd, Assumed(note, "", hosts, ssds))


def _constant_note(where: str, size: int, knob: str, field: str) -> str:
    return (
        f"Tables are stored {where}, whose size is assumed to be TorchRec's constant, {size_text(size)} per rank. Give "
        f"{knob}, or a Topology with its own {field}."
    )


def device_of_process(unknown: str = "") -> str:
    """Return the device type that this process trains on: cuda or cpu.

    A process group with NCCL means cuda; gloo alone means cpu. Another backend, or a process of torchrun without a
    group yet, means cuda if there is a GPU. Without a group or torchrun, return ``unknown`` if given.
    """
    import torch
    import torch.distributed as dist

    here = "cuda" if torch.cuda.is_available() else "cpu"
    if dist.is_available() and dist.is_initialized():
        backend = str(dist.get_backend())
        return {"nccl": "cuda", "gloo": "cpu"}.get(backend, here)
    is_launched = {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    return here if is_launched or not unknown else unknown


def topology_of(machine: TorchRecMachine) -> Topology:
    """Return TorchRec's topology of the ranks and their memory, with TorchRec's bandwidths."""
    nodes = machine.nodes
    ranks = nodes.num_devices, nodes.devices_per_node, nodes.nodes_per_domain
    topology = make_topology(machine.compute_device, *ranks)
    return with_memory(topology, machine.caps_bytes, machine.host_bytes_of_ranks)


def with_memory(topology: Topology, device_bytes: Sequence[int], host_bytes: Sequence[int]) -> Topology:
    """Return the topology with this device memory of each rank, and this host memory of each rank of a node.

    ``CustomTopologyData`` is not used: TorchRec would then cut rows unevenly, which it trains incorrectly.
    """
    own = copy.deepcopy(topology)
    for rank, (device, left) in enumerate(zip(own.devices, device_bytes, strict=True)):
        if own.compute_device == "cpu":
            device.storage.ddr = left
        else:
            device.storage.hbm = left
            device.storage.ddr = host_bytes[rank // own.local_world_size] if host_bytes else 0
    return own


def note_assumed_link(topology: Topology | None) -> str:
    """Return a note if the bandwidth between nodes is TorchRec's constant; empty if the user set it."""
    from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH

    if topology is None or topology.comms_bandwidths.inter_host_bw != CROSS_NODE_BANDWIDTH:
        return ""
    return (
        f"The link between nodes is assumed to have TorchRec's constant, {CROSS_NODE_BANDWIDTH / BYTES_PER_MS:.1f} "
        f"GB/s. Give inter, such as inter='ib_400g' (`evenshard hardware` lists the links), or a Topology with its own "
        f"inter_host_bw."
    )


def links_of_topology(topology: Topology) -> tuple[str, str]:
    """Return a topology's links within nodes ("" for TorchRec's default bandwidth) and between nodes."""
    from torchrec.distributed.planner.constants import INTRA_NODE_BANDWIDTH

    links = topology.comms_bandwidths
    is_default = links.intra_host_bw == INTRA_NODE_BANDWIDTH
    intra = "" if is_default else bandwidth_name(links.intra_host_bw / BYTES_PER_MS)
    return intra, bandwidth_name(links.inter_host_bw / BYTES_PER_MS)
