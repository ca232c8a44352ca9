"""The machine of a placement as its user states it, by flags or by a file: nodes, links and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evenshard.measure.hardware import DEFAULT_HARDWARE, HardwareName
from evenshard.measure.link import GPUS_OF_A_NODE, link, link_name
from evenshard.measure.simulated.gpu_profile import profile_of
from evenshard.placement.machine import DeviceGroup, Machine
from evenshard.planner.cluster_file import ClusterFile, load_cluster_file
from evenshard.planner.device_memory import own_memory_gb, own_memory_note
from evenshard.planner.host_memory import NO_HOST_MEMORY, HostMemory, not_twice
from evenshard.planner.request import caps_of
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.params import check_ranges

DEFAULT_DEVICES = 8


@dataclass(frozen=True)
class MachineAndMemory:
    """What a placement is for.

    Attributes:
        machine: nodes, links and memory of hosts.
        caps_bytes: memory of each device, by device id.
        hardware: what the devices are; of several kinds, that of the first.
        notes: what to know of the memory.
    """

    machine: Machine
    caps_bytes: tuple[int, ...]
    hardware: str
    notes: tuple[str, ...] = ()


def devices_of(
    num_devices: int | None = None,
    memory_cap_gb: float | Sequence[float] | None = None,
    hardware: str | None = None,
    *,
    nodes: int | None = None,
    devices_per_node: int | None = None,
    nodes_per_domain: int = 1,
    intra: str = "",
    inter: str = "",
    cluster: str | Path | None = None,
    host: HostMemory = NO_HOST_MEMORY,
) -> MachineAndMemory:
    """The machine of the arguments of ``evenshard.place``.

    Raises:
        BadConfig: if they contradict each other or make no machine.
        BadFile: if the cluster cannot be read.
    """
    given = {"nodes": nodes, "devices_per_node": devices_per_node}
    check_ranges(**{name: value for name, value in given.items() if value is not None})
    check_ranges(nodes_per_domain=nodes_per_domain, **({} if num_devices is None else {"num_devices": num_devices}))
    hardware = None if hardware is None else str(HardwareName.parse(hardware))
    if cluster is None:
        hardware = hardware or DEFAULT_HARDWARE
        chosen = _machine_of_flags(num_devices, hardware, nodes, devices_per_node, nodes_per_domain, intra, inter)
        return _with_memory(host.on(chosen), memory_cap_gb, [hardware] * chosen.num_devices)
    flags = {
        **given,
        "intra": intra,
        "inter": inter,
        "nodes_per_domain": nodes_per_domain if nodes_per_domain > 1 else 0,
    }
    if twice := [name for name, value in flags.items() if value]:
        raise BadConfig(f"the cluster file says what {twice[0]} says. Leave {twice[0]} out.")
    found = load_cluster_file(cluster)
    if num_devices not in (None, found.num_devices):
        raise BadConfig(
            f"{cluster} has {found.num_devices} devices, num_devices is {num_devices}. Leave it out, or take hosts out "
            f"of the file."
        )
    try:
        return _devices_of_file(found, memory_cap_gb, hardware, host)
    except BadConfig as error:
        raise BadFile(cluster, str(error).rstrip("."), "Correct it.") from None


def _with_memory(
    machine: Machine, memory_cap_gb: float | Sequence[float] | None, hardware: Sequence[str]
) -> MachineAndMemory:
    """The machine with its devices' memory; where none is given, what each of them has by itself.

    Args:
        hardware: of each device.
    """
    if memory_cap_gb is not None:
        return MachineAndMemory(machine, caps_of(memory_cap_gb, machine.num_devices), hardware[0])
    own = {kind: own_memory_gb(kind, machine.devices_per_node) for kind in dict.fromkeys(hardware)}
    notes = (own_memory_note(kind, machine.devices_per_node) for kind in own)
    caps = caps_of([own[kind] for kind in hardware], machine.num_devices)
    return MachineAndMemory(machine, caps, hardware[0], tuple(note for note in notes if note))


def _devices_of_file(
    cluster: ClusterFile, memory_cap_gb: float | Sequence[float] | None, hardware: str | None, host: HostMemory
) -> MachineAndMemory:
    kinds = [str(HardwareName.parse(one.hardware or hardware or DEFAULT_HARDWARE)) for one in cluster.hosts]
    if hardware is not None and hardware not in kinds:
        raise BadConfig(f"hardware is {kinds[0]} in the file, but {hardware} is asked for. Leave one of them out.")
    for kind in kinds:
        own_link(kind)
    not_twice("memory_gb", cluster.hosts[0].memory_gb, "memory_cap_gb", memory_cap_gb)
    of_hosts = [one.memory_gb for one in cluster.hosts for _ in range(one.count * one.devices)]
    caps = [one for one in of_hosts if one is not None] or memory_cap_gb  # all hosts say it, or none
    groups = tuple(DeviceGroup(kind, one.count * one.devices) for kind, one in zip(kinds, cluster.hosts, strict=True))
    machine = Machine(
        cluster.num_devices,
        cluster.hosts[0].devices,
        cluster.nodes_per_domain,
        cluster.intra,
        cluster.inter,
        groups if len(set(kinds)) > 1 else (),
    )
    of_devices = [group.hardware for group in groups for _ in range(group.num_devices)]
    return _with_memory(host.on(_checked(machine), cluster), caps, of_devices)


def _machine_of_flags(
    num_devices: int | None,
    hardware: str,
    nodes: int | None,
    devices_per_node: int | None,
    nodes_per_domain: int,
    intra: str,
    inter: str,
) -> Machine:
    intra, inter = _link_name("intra", intra), _link_name("inter", inter)
    if nodes is devices_per_node is None and not intra and (num_devices or DEFAULT_DEVICES) <= GPUS_OF_A_NODE:
        num_devices = devices_per_node = num_devices or DEFAULT_DEVICES
    spans = math.inf if devices_per_node is not None else _spans(hardware, intra)
    if nodes is not None:
        if devices_per_node is None:
            devices_per_node = int(min(spans, GPUS_OF_A_NODE)) if num_devices is None else max(num_devices // nodes, 1)
        if num_devices not in (None, nodes * devices_per_node):
            raise BadConfig(
                f"num_devices is {num_devices}, but there are {nodes} nodes of {devices_per_node} devices. Correct one "
                f"of the three."
            )
        num_devices = nodes * devices_per_node
    if num_devices is None:
        num_devices = DEFAULT_DEVICES
    if devices_per_node is None:
        if num_devices > spans and not inter:
            raise BadConfig(
                f"{num_devices} devices are more than {intra or own_link(hardware) or 'a node'} connects "
                f"({spans:g}). Say how large a node is and what links them, such as --devices-per-node {spans:g} "
                f"--inter infiniband_ndr (`evenshard hardware` lists the links)."
            )
        devices_per_node = int(min(num_devices, spans))
    return _checked(Machine(num_devices, devices_per_node, nodes_per_domain, intra, inter))


def _spans(hardware: str, intra: str) -> float:
    """MachineAndMemory that a node has at most, where its size is not given."""
    name = intra or own_link(hardware)
    if name:
        return link(name).spans
    return math.inf if HardwareName.parse(hardware).kind.is_host else GPUS_OF_A_NODE


def own_link(hardware: str) -> str:
    """The link between devices of a profile; empty for real hardware."""
    profile = profile_of(HardwareName.parse(hardware))
    return "" if profile is None else profile.link


def _checked(machine: Machine) -> Machine:
    """The machine with the names of its links; without a link between domains where there is one.

    Raises:
        BadConfig: if it is impossible or a link is unknown.
    """
    named = replace(
        machine,
        intra=_link_name("intra", machine.intra),
        inter=_link_name("inter", machine.inter),
    )
    if problem := named.problem():
        raise BadConfig(problem)
    return replace(named, inter="") if named.num_domains == 1 else named


def _link_name(which: str, name: Any) -> str:
    if not name:
        return ""
    try:
        link(name)
    except BadConfig as error:
        raise BadConfig(f"{which}: {error}") from None
    return link_name(name)
