"""The machine of a placement as its user states it: in a YAML file of hosts, or by flags.

::

    hosts:
      - {count: 2, devices: 8, hardware: simulated:h100, memory_gb: 80}
      - {count: 1, devices: 8, hardware: simulated:a100_80gb, memory_gb: 64}
    intra: nvlink_h100
    inter: ib_400g

Device ids follow the order of the hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from evenshard.measure.hardware import HardwareName
from evenshard.measure.link import GPUS_OF_A_NODE, link, link_name
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.machine import DeviceGroup, Machine
from evenshard.planner.options import place_option
from evenshard.planner.request import caps_of
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.limits import RANGES, read_text
from evenshard.utils.params import check_ranges
from evenshard.utils.records import record_of
from evenshard.utils.yaml_files import load_yaml

DEFAULT_DEVICES = 8


@dataclass(frozen=True)
class Hosts:
    """Hosts of one kind.

    Attributes:
        devices: devices of each.
        count: how many hosts.
        hardware: what a device is, such as simulated:h100; empty for what ``place`` is asked for.
        memory_gb: memory of a device; None for what ``place`` is asked for.
    """

    devices: int
    count: int = 1
    hardware: str = ""
    memory_gb: float | None = None

    def problem(self) -> str | None:
        """Says in one clause what makes them impossible, or None."""
        for name, limits in (("devices", "num_devices"), ("count", "nodes")):
            if problem := RANGES[limits].problem(getattr(self, name)):
                return f"{name} {problem}"
        if self.memory_gb is not None and (problem := RANGES["memory_cap_gb"].problem(self.memory_gb)):
            return f"memory_gb {problem}"
        return None


@dataclass(frozen=True)
class ClusterFile:
    """Hosts, and the links between their devices.

    Attributes:
        hosts: kinds of hosts, in the order of the device ids.
        nodes_per_domain: hosts whose devices share the fast link.
        intra: link within a domain; empty for that of the hardware.
        inter: link between domains; empty for none.
    """

    hosts: tuple[Hosts, ...]
    nodes_per_domain: int = 1
    intra: str = ""
    inter: str = ""

    @property
    def num_devices(self) -> int:
        """On all hosts."""
        return sum(one.count * one.devices for one in self.hosts)

    def problem(self) -> str | None:
        """Says in one clause what makes it impossible, or None."""
        if not self.hosts:
            return "hosts is empty"
        for number, one in enumerate(self.hosts, start=1):
            if problem := one.problem():
                return f"hosts, entry {number}: {problem}"
            if one.devices != self.hosts[0].devices:
                return f"hosts, entry {number}: devices is {one.devices}, but {self.hosts[0].devices} in entry 1"
        for what in ("hardware", "memory_gb"):
            given = {getattr(one, what) in ("", None) for one in self.hosts}
            if len(given) > 1:
                return f"{what} is given for some hosts, but not for others"
        return None


@dataclass(frozen=True)
class MachineAndMemory:
    """What a placement is for.

    Attributes:
        machine: nodes and links.
        caps_bytes: memory of each device, by device id.
        hardware: what the devices are; of several kinds, that of the first.
    """

    machine: Machine
    caps_bytes: tuple[int, ...]
    hardware: str


def load_cluster_file(path: str | Path) -> ClusterFile:
    """Reads a cluster file.

    Raises:
        BadFile: if it is missing, is not YAML, or makes no sense.
    """
    keys, of_hosts = (", ".join(field.name for field in fields(kind)) for kind in (ClusterFile, Hosts))
    remedy = f"Its keys are {keys}; those of an entry of hosts are {of_hosts}."
    try:
        content = load_yaml(read_text(Path(path)))
    except FileNotFoundError:
        raise BadFile(path, "no such file", "Check the path.") from None
    except (OSError, ValueError) as error:
        raise BadFile(path, f"is not readable as YAML ({error})", remedy) from None
    try:
        found = record_of(ClusterFile, content)
    except ValueError as error:
        raise BadFile(path, str(error), remedy) from None
    if problem := found.problem():
        raise BadFile(path, problem, "Correct it.")
    return found


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
) -> MachineAndMemory:
    """The machine of the arguments of ``evenshard.place``.

    Raises:
        BadConfig: if they contradict each other or make no machine.
        BadFile: if the cluster cannot be read.
    """
    memory, own = place_option("memory_cap_gb").default, place_option("hardware").default
    memory_cap_gb, hardware = memory if memory_cap_gb is None else memory_cap_gb, own if hardware is None else hardware
    given = {"nodes": nodes, "devices_per_node": devices_per_node}
    check_ranges(**{name: value for name, value in given.items() if value is not None})
    check_ranges(nodes_per_domain=nodes_per_domain, **({} if num_devices is None else {"num_devices": num_devices}))
    if cluster is None:
        chosen = _machine_of_flags(num_devices, hardware, nodes, devices_per_node, nodes_per_domain, intra, inter)
        return MachineAndMemory(chosen, caps_of(memory_cap_gb, chosen.num_devices), hardware)
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
        return _devices_of_file(found, memory_cap_gb, hardware)
    except BadConfig as error:
        raise BadFile(cluster, str(error).rstrip("."), "Correct it.") from None


def _devices_of_file(cluster: ClusterFile, memory_cap_gb: float | Sequence[float], hardware: str) -> MachineAndMemory:
    kinds = [one.hardware or hardware for one in cluster.hosts]
    if cluster.hosts[0].hardware and hardware not in (place_option("hardware").default, *kinds):
        raise BadConfig(f"hardware is {kinds[0]} in the file, but {hardware} is asked for. Leave one of them out.")
    for kind in kinds:
        _own_link(kind)
    caps = memory_cap_gb
    if cluster.hosts[0].memory_gb is not None:
        if memory_cap_gb != place_option("memory_cap_gb").default:
            raise BadConfig("memory_gb is in the file, and memory_cap_gb is given too. Leave one of them out.")
        caps = [one.memory_gb or 0.0 for one in cluster.hosts for _ in range(one.count * one.devices)]
    groups = tuple(DeviceGroup(kind, one.count * one.devices) for kind, one in zip(kinds, cluster.hosts, strict=True))
    machine = Machine(
        cluster.num_devices,
        cluster.hosts[0].devices,
        cluster.nodes_per_domain,
        cluster.intra,
        cluster.inter,
        groups if len(set(kinds)) > 1 else (),
    )
    return MachineAndMemory(_checked(machine), caps_of(caps, cluster.num_devices), kinds[0])


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
                f"{num_devices} devices are more than {intra or _own_link(hardware) or 'a node'} connects "
                f"({spans:g}). Say how large a node is and what links them, such as --devices-per-node {spans:g} "
                f"--inter infiniband_ndr (`evenshard hardware` lists the links)."
            )
        devices_per_node = int(min(num_devices, spans))
    return _checked(Machine(num_devices, devices_per_node, nodes_per_domain, intra, inter))


def _spans(hardware: str, intra: str) -> float:
    """MachineAndMemory that a node has at most, where its size is not given."""
    name = intra or _own_link(hardware)
    if name:
        return link(name).spans
    return math.inf if HardwareName.parse(hardware).kind.name == "cpu" else GPUS_OF_A_NODE


def _own_link(hardware: str) -> str:
    """The link between devices of a profile; empty for real hardware."""
    name = HardwareName.parse(hardware)
    return gpu_profile(name.device).link if name.kind.times == "simulated" else ""


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
