"""TorchRec's description of a machine, and the kind of device that this process trains on."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evenshard.measure.link import bandwidth_name
from evenshard.sharders.torchrec.compat import make_topology
from evenshard.sharders.torchrec.planner import BYTES_PER_MS

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Topology

    from evenshard.torchrec.planner.machine import TorchRecMachine


def device_of_process(unknown: str = "") -> str:
    """The kind of device that this process trains on: cuda or cpu.

    The process group says it: NCCL is of GPUs, gloo alone of CPUs. Where the backend leaves both open, and where
    torchrun started the process and there is no group yet, it is cuda if there is a GPU.

    Args:
        unknown: the answer where neither tells; cuda or cpu by whether there is a GPU where left out.
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
    """TorchRec's description of the ranks and their memory, with its own bandwidths."""
    nodes = machine.nodes
    ranks = nodes.num_devices, nodes.devices_per_node, nodes.nodes_per_domain
    topology = make_topology(machine.compute_device, *ranks)
    return with_memory(topology, machine.caps_bytes, machine.host_bytes_of_ranks)


def with_memory(topology: Topology, device_bytes: Sequence[int], host_bytes: Sequence[int]) -> Topology:
    """The topology with this memory of its devices, and for each device so much of its node's.

    As ``CustomTopologyData`` it would cut rows unevenly, which TorchRec trains wrongly.

    Args:
        device_bytes: of each rank.
        host_bytes: of each rank of a node, by node; empty for none.
    """
    own = copy.deepcopy(topology)
    for rank, (device, left) in enumerate(zip(own.devices, device_bytes, strict=True)):
        if own.compute_device == "cpu":
            device.storage.ddr = left
        else:
            device.storage.hbm = left
            device.storage.ddr = host_bytes[rank // own.local_world_size] if host_bytes else 0
    return own


def assumed_link(topology: Topology | None) -> str:
    """What to know of a topology's link between nodes where it is TorchRec's constant; empty where the user said it."""
    from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH

    if topology is None or topology.comms_bandwidths.inter_host_bw != CROSS_NODE_BANDWIDTH:
        return ""
    return (
        f"The link between nodes is assumed: {CROSS_NODE_BANDWIDTH / BYTES_PER_MS:.1f} GB/s is TorchRec's constant, "
        f"not this machine's. Give inter, such as inter='ib_400g' (`evenshard hardware` lists the links), or a "
        f"Topology with its own inter_host_bw."
    )


def links_of_topology(topology: Topology) -> tuple[str, str]:
    """The links within a node and between nodes, by a topology's bandwidths, as ``measure.link`` names them.

    That within a node is empty where it is TorchRec's default: the hardware's own is known better.
    """
    from torchrec.distributed.planner.constants import INTRA_NODE_BANDWIDTH

    links = topology.comms_bandwidths
    is_default = links.intra_host_bw == INTRA_NODE_BANDWIDTH
    intra = "" if is_default else bandwidth_name(links.intra_host_bw / BYTES_PER_MS)
    return intra, bandwidth_name(links.inter_host_bw / BYTES_PER_MS)
