"""Machines of a what-if request, and groups of their devices that each hold all tables.

Groups are TorchRec's 2D parallelism, ``DMPCollection``. The devices of a group shard the tables among them and train on
their share of the batch. Every few steps ``DMPCollection.sync`` averages weights and optimizer state over the devices
that hold the same table parts, one in each group. It sends all rows, looked up or not, in the data type of the weights.
Replicated tables are not included: their gradients are averaged over all devices in every step.

N devices in groups of G have one of two layouts:

- contiguous (TorchRec: ``use_inter_host_allreduce=True``): a group is G consecutive devices, so embeddings are sent
  within few nodes, and weights between nodes;
- strided (TorchRec's default): a group is every N/G-th device, so weights are sent within few nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import check_ranges
from evenshard.base.messages import brief
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import TYPES
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.hosts import own_link
from evenshard.planner.what_if.option import Sync
from evenshard.price.collectives import GRADIENT_BYTES
from evenshard.price.dense import all_reduce_ms
from evenshard.price.hardware import HardwareName
from evenshard.price.link import GPUS_OF_A_NODE, LINKS, link_name

_Value = TypeVar("_Value")
# Default link between hosts by the link within a host: the network that such servers are sold with.
USUAL_LINKS = {
    "nvlink_h100": "infiniband_ndr",
    "nvlink_h200": "infiniband_ndr",
    "nvlink_b200": "infiniband_ndr",
    "nvlink_gb200": "infiniband_ndr",
    "nvlink_b300": "infiniband_xdr",
    "nvlink_gb300": "infiniband_xdr",
    "infinity_fabric_mi300x": "infiniband_ndr",
    "infinity_fabric_mi350x": "infiniband_ndr",
    "nvlink_a100": "infiniband_hdr",
    "nvlink_v100": "infiniband_hdr",
    "nvlink_v100_dgx1": "infiniband_hdr",
    "pcie3_host": "ethernet_25g",
    "pcie4_host": "ethernet_25g",
    "pcie5_host": "infiniband_ndr",
    "pcie4": "ethernet_25g",
    "pcie5": "infiniband_ndr",
}
# Default link between hosts whose own link is not listed; with a faster link, communication takes less than predicted.
OTHER_LINK = "ethernet_25g"


def map_to_hardware(what: str, value: _Value | Mapping[str, _Value], hardware: Sequence[str]) -> dict[str, _Value]:
    """Map each full hardware name to its value, given one value or a mapping; ``what`` names the value in errors."""
    if not isinstance(value, Mapping):
        return {name: value for name in hardware}
    named = {str(HardwareName.parse(name)): own for name, own in value.items()}
    unknown = next((name for name in named if name not in hardware), None)
    if unknown is not None:
        raise BadConfig(f"{what} is given for {brief(unknown)}, not for one of {', '.join(hardware)}. Leave it out.")
    return named


def build_machine(
    hardware: str,
    num_devices: int,
    devices_per_node: int | None = None,
    intra: str = "",
    inter: str = "",
    nodes_per_domain: int = 1,
) -> Nodes:
    """Return a machine of full hosts; a single host may have fewer devices.

    By default, a host has as many devices as its link connects, at most 8; its link is the hardware's own; the link
    between hosts is from ``USUAL_LINKS``. ``nodes_per_domain`` hosts share the link within a host.

    Raises:
        BadConfig: if the devices do not fill hosts.
    """
    check_ranges(num_devices=num_devices, nodes_per_domain=nodes_per_domain)
    intra = link_name(intra) if intra else own_link(hardware)
    connects = LINKS[intra].spans if intra in LINKS else GPUS_OF_A_NODE
    size = int(min(connects, GPUS_OF_A_NODE)) if devices_per_node is None else devices_per_node
    check_ranges(devices_per_node=size)
    size = min(size, num_devices)
    inter = link_name(inter or USUAL_LINKS.get(intra, OTHER_LINK))
    machine = Nodes(num_devices, size, min(nodes_per_domain, num_devices // size), intra, inter)
    if problem := machine.problem():
        raise BadConfig(f"{num_devices} x {hardware}: {problem}")
    return machine if machine.num_domains > 1 else replace(machine, inter="")


# Groups ---------------------------------------------------------------------------------------------------------------

CONTIGUOUS, STRIDED = LAYOUTS = ("contiguous", "strided")


def group_ranks(num_devices: int, group_size: int, layout: str) -> tuple[range, ...]:
    """Return the devices of each group that holds all tables."""
    number = num_devices // group_size
    if layout == CONTIGUOUS:
        return tuple(range(first, first + group_size) for first in range(0, num_devices, group_size))
    return tuple(range(first, num_devices, number) for first in range(number))


def replica_ranks(num_devices: int, group_size: int, layout: str) -> tuple[range, ...]:
    """Return, for each device of a group, the devices of all groups that hold the same table parts."""
    other = STRIDED if layout == CONTIGUOUS else CONTIGUOUS
    return group_ranks(num_devices, num_devices // group_size, other)


def machine_of_ranks(machine: Nodes, ranks: Sequence[range]) -> Nodes | None:
    """Return the machine that each set of devices forms; None if they differ, or nodes are of unequal size."""
    found = {_machine_of_ranks(machine, group) for group in ranks}
    return found.pop() if len(found) == 1 else None


def _machine_of_ranks(machine: Nodes, ranks: range) -> Nodes | None:
    nodes = Counter(machine.node_of(rank) for rank in ranks)
    domains = Counter(node // machine.nodes_per_domain for node in nodes)
    if len(set(nodes.values())) > 1 or len(set(domains.values())) > 1:
        return None
    return replace(
        machine,
        num_devices=len(ranks),
        devices_per_node=next(iter(nodes.values())),
        nodes_per_domain=next(iter(domains.values())),
        inter=machine.inter if len(domains) > 1 else "",
    )


def layouts_of(machine: Nodes, group_size: int) -> tuple[tuple[str, Nodes], ...]:
    """Return the distinct layouts of groups of a size, and the machine that a group forms; raise BadConfig if none."""
    devices = machine.num_devices
    if group_size < 1 or devices % group_size:
        raise BadConfig(f"{devices} devices do not fill groups of {group_size}. Choose a divisor of {devices}.")
    if not (found := _layouts_of(machine, group_size)):
        raise BadConfig(
            f"groups of {group_size} devices spread unevenly over nodes of {machine.devices_per_node} devices. Choose "
            f"a divisor or a multiple of {machine.devices_per_node}."
        )
    return found


def _layouts_of(machine: Nodes, group_size: int) -> tuple[tuple[str, Nodes], ...]:
    devices = machine.num_devices
    if group_size == devices:
        return (("", machine),)
    found: dict[tuple[Nodes, Nodes], str] = {}
    for layout in LAYOUTS:
        group = machine_of_ranks(machine, group_ranks(devices, group_size, layout))
        replicas = machine_of_ranks(machine, replica_ranks(devices, group_size, layout))
        if group is not None and replicas is not None:
            found.setdefault((group, replicas), layout)
    return tuple((layout, group) for (group, _), layout in found.items())


def sizes_of(machine: Nodes, group_sizes: Sequence[int] | str) -> Iterator[int]:
    """Yield the group sizes to try on a machine, ascending, without sizes above its number of devices."""
    devices = machine.num_devices
    if not group_sizes:
        yield devices
    elif group_sizes == "all":
        yield from (size for size in range(1, devices + 1) if devices % size == 0 and _layouts_of(machine, size))
    elif isinstance(group_sizes, str):
        raise BadConfig(f"group_sizes is {brief(group_sizes)}. Give numbers of devices, or all.")
    else:
        yield from sorted({size for size in group_sizes if size <= devices} or {devices})


def sum_synced_bytes(answer: PlacementAnswer) -> tuple[int, ...]:
    """Return the bytes that ``DMPCollection.sync`` averages on each device: weights and state, without replicas."""
    held = [0] * answer.num_devices
    for part, memory in zip(answer.parts, answer.part_memory, strict=True):
        if not TYPES[answer.type_of_table[part.table]].is_replicated:
            held[part.device] += memory.weights + memory.optimizer_state
    return tuple(held)


def sync_of(answer: PlacementAnswer, machine: Nodes, layout: str, every: int) -> Sync:
    """Predict the all-reduce of weights between the groups of a machine, each with the answer's placement."""
    groups = machine.num_devices // answer.num_devices
    replicas = machine_of_ranks(machine, replica_ranks(machine.num_devices, answer.num_devices, layout))
    assert replicas is not None, "layouts_of offers no other layouts"
    held = sum_synced_bytes(answer)
    # TorchRec reduces weights and optimizer states in separate collectives.
    collectives = 1 + any(memory.optimizer_state for memory in answer.part_memory)
    sent, once_ms = all_reduce_ms(replicas, max(held), answer.link, collectives)
    return Sync(every, max(held), groups * sum(held), sent, once_ms if max(held) else 0.0)


def replicas_ms(answer: PlacementAnswer, machine: Nodes) -> float:
    """Return the additional time, ms, of averaging data_parallel gradients over all groups instead of one."""
    held = GRADIENT_BYTES * answer.replicated_values
    if not held:
        return 0.0
    return all_reduce_ms(machine, held, answer.link)[1] - all_reduce_ms(answer.request.nodes, held, answer.link)[1]
