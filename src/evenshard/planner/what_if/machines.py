"""The machines that a question is about: what is taken for links and hosts not named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from evenshard.measure.hardware import HardwareName
from evenshard.measure.link import GPUS_OF_A_NODE, LINKS, link_name
from evenshard.placement.machine import Machine
from evenshard.planner.cluster import own_link
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief
from evenshard.utils.params import check_ranges

_Value = TypeVar("_Value")
USUAL_LINKS = {
    "nvlink_h100": "infiniband_ndr",
    "nvlink_h200": "infiniband_ndr",
    "nvlink_b200": "infiniband_ndr",
    "nvlink_gb200": "infiniband_ndr",
    "nvlink_a100": "infiniband_hdr",
    "nvlink_v100": "infiniband_hdr",
    "nvlink_v100_dgx1": "infiniband_hdr",
    "pcie3_host": "ethernet_25g",
}
"""The link between hosts that is taken where none is named, by the link within them: what such hosts are sold with."""
OTHER_LINK = "ethernet_25g"
"""Of hosts whose own link is none of these."""


def of_hardware(what: str, value: _Value | Mapping[str, _Value], hardware: Sequence[str]) -> dict[str, _Value]:
    """A value of each kind of hardware, from one for all or one for each.

    Args:
        what: name of the value, for the error.
        hardware: full names.

    Raises:
        BadConfig: if a kind is named that is not asked for.
    """
    if not isinstance(value, Mapping):
        return {one: value for one in hardware}
    named = {str(HardwareName.parse(name)): own for name, own in value.items()}
    unknown = next((name for name in named if name not in hardware), None)
    if unknown is not None:
        raise BadConfig(f"{what} names {brief(unknown)}, which is none of {', '.join(hardware)}. Leave it out.")
    return named


@dataclass(frozen=True)
class HostShape:
    """How devices of a kind stand in hosts.

    Attributes:
        devices_per_node: of a full host; None for as many as its link connects, 8 at most.
        intra: link within a host; empty for the hardware's own.
        inter: link between hosts; empty for what is taken of such hosts.
        nodes_per_domain: hosts that the link within a host connects.
    """

    devices_per_node: int | None = None
    intra: str = ""
    inter: str = ""
    nodes_per_domain: int = 1


def whole_machine(hardware: str, num_devices: int, shape: HostShape) -> Machine:
    """A machine of so many devices in such hosts; one host that is not full where they fit into it.

    Raises:
        BadConfig: if they do not fill hosts.
    """
    check_ranges(num_devices=num_devices, nodes_per_domain=shape.nodes_per_domain)
    intra = link_name(shape.intra) if shape.intra else own_link(hardware)
    connects = LINKS[intra].spans if intra in LINKS else GPUS_OF_A_NODE
    size = int(min(connects, GPUS_OF_A_NODE)) if shape.devices_per_node is None else shape.devices_per_node
    check_ranges(devices_per_node=size)
    size = min(size, num_devices)
    inter = link_name(shape.inter or USUAL_LINKS.get(intra, OTHER_LINK))
    machine = Machine(num_devices, size, min(shape.nodes_per_domain, num_devices // size), intra, inter)
    if problem := machine.problem():
        raise BadConfig(f"{num_devices} x {hardware}: {problem}")
    return machine if machine.num_domains > 1 else replace(machine, inter="")
