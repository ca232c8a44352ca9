"""The machine of a request: nodes, links and memory, from flags or from a hosts file.

::

    hosts:
      - {count: 2, devices: 8, hardware: simulated:h100, memory_gb: 79, host_memory_gb: 1024}
      - {count: 1, devices: 8, hardware: simulated:a100_80gb, memory_gb: 64, host_memory_gb: 512}
    intra: nvlink_h100
    inter: ib_400g
    host_bandwidth_gb_s: 400

Device ids follow the order of the hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from evenshard.base.documents import read_yaml
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.knobs import RANGES, REQUIRED, changed_knobs, check_knobs, knob, range_problems
from evenshard.base.typed import read_record
from evenshard.base.units import gb_to_bytes
from evenshard.placement.nodes import DeviceGroup, Nodes
from evenshard.planner.knobs import Machine, Memory
from evenshard.planner.memory import RESERVED_SHARE, default_memory_gb, note_default_memory, reserve_of
from evenshard.planner.request import caps_of
from evenshard.price.gpu_profile import profile_of
from evenshard.price.hardware import DEFAULT_HARDWARE, HardwareName
from evenshard.price.link import GPUS_OF_A_NODE, link, link_name


@dataclass(frozen=True)
class Hosts:
    """Hosts of one kind. A missing value defaults to the knob of ``evenshard.place``."""

    devices: int = knob(REQUIRED, "devices per host", range=RANGES["num_devices"])
    count: int = knob(1, "number of hosts", range=RANGES["nodes"])
    hardware: str = knob("", "hardware of the devices, such as simulated:h100")
    memory_gb: float | None = knob(None, "GB of each device", range=RANGES["memory_cap_gb"])
    host_memory_gb: float | None = knob(None, "GB of each host's memory available to tables")
    ssd_gb: float | None = knob(None, "GB of each host's SSDs available to tables")


@dataclass(frozen=True)
class HostsFile:
    """Hosts, in the order of the device ids, and the links between their devices."""

    hosts: tuple[Hosts, ...]
    nodes_per_domain: int = 1  # hosts whose devices share the link within a domain
    intra: str = ""  # link within a domain; empty for the hardware's own
    inter: str = ""  # link between domains; empty for none
    host_bandwidth_gb_s: float | None = knob(None, "memory bandwidth of each host, 10**9 bytes per second")
    ssd_bandwidth_gb_s: float | None = knob(None, "SSD bandwidth of each host, 10**9 bytes per second")

    @property
    def num_devices(self) -> int:
        """Return the number of devices on all hosts."""
        return sum(one.count * one.devices for one in self.hosts)

    def problem(self) -> str | None:
        """Explain in a clause why the hosts are invalid; None if they are valid."""
        if not self.hosts:
            return "hosts is empty"
        for number, one in enumerate(self.hosts, start=1):
            if problem := next(range_problems(one), None):
                return f"hosts, entry {number}: {problem}"
            if one.devices != self.hosts[0].devices:
                return f"hosts, entry {number}: devices is {one.devices}, but entry 1 has {self.hosts[0].devices}"
        if problem := next(range_problems(self), None):
            return problem
        for what in ("hardware", "memory_gb", "host_memory_gb", "ssd_gb"):
            given = {getattr(one, what) in ("", None) for one in self.hosts}
            if len(given) > 1:
                return f"{what} is given for some hosts, but not for others"
        return None


def load_hosts_file(path: str | Path) -> HostsFile:
    """Load a hosts file; raise BadFile if it is missing, not YAML, or invalid."""
    keys, of_hosts = (", ".join(field.name for field in fields(kind)) for kind in (HostsFile, Hosts))
    remedy = f"Its keys are {keys}. Each entry of hosts has the keys {of_hosts}."
    content = read_yaml(Path(path), remedy)
    if isinstance(content, dict) and "stages" in content:
        other = "is a pipeline's cluster file, for `evenshard pipeline --cluster`"
        raise BadFile(path, other, f"Describe the machine in a hosts file. {remedy}")
    found = read_record(HostsFile, content, path, remedy)
    if problem := found.problem():
        raise BadFile(path, problem, "Correct it.")
    return found


def add_host_memory(machine: Nodes, memory: Memory, file: HostsFile | None = None) -> Nodes:
    """Return the machine with the memory of its hosts, from the knobs or from the hosts file."""
    host_bytes, host_gb_s = _sizes_and_speed(machine, memory, file, "host_memory_gb", "host_bandwidth_gb_s")
    ssd_bytes, ssd_gb_s = _sizes_and_speed(machine, memory, file, "ssd_gb", "ssd_bandwidth_gb_s")
    return replace(machine, host_bytes=host_bytes, host_gb_s=host_gb_s, ssd_bytes=ssd_bytes, ssd_gb_s=ssd_gb_s)


def _sizes_and_speed(
    machine: Nodes, memory: Memory, file: HostsFile | None, size: str, speed: str
) -> tuple[tuple[int, ...], float]:
    """Return each host's memory or SSD bytes (empty if all have none) and their bandwidth, GB/s (0 if unknown)."""
    asked_gb, asked_gb_s = getattr(memory, size), getattr(memory, speed)
    all_gb, gb_s = [asked_gb or 0.0] * machine.num_nodes, asked_gb_s
    if file is not None:
        own_gb = [getattr(one, size) for one in file.hosts for _ in range(one.count)]
        require_once(size, own_gb[0], size, asked_gb)
        require_once(speed, getattr(file, speed), speed, asked_gb_s)
        all_gb = all_gb if own_gb[0] is None else own_gb
        gb_s = getattr(file, speed) if asked_gb_s is None else asked_gb_s
    if gb_s is not None and not any(all_gb):
        raise BadConfig(f"{speed} is given without {size}. Give {size}, too, or leave {speed} out.")
    return tuple(map(gb_to_bytes, all_gb)) if any(all_gb) else (), gb_s or 0.0


def require_once(in_file: str, own: float | None, asked_for: str, asked: object) -> None:
    """Raise BadConfig if both the hosts file and the arguments give a value."""
    if own is not None and asked is not None:
        raise BadConfig(f"{in_file} is in the hosts file, but {asked_for} is given, too. Leave one of them out.")


DEFAULT_DEVICES = 8  # devices of a request that names no machine: a common GPU server


@dataclass(frozen=True)
class MachineAndMemory:
    """A machine with the memory and hardware of its devices."""

    machine: Nodes
    caps_bytes: tuple[int, ...]  # by device id
    hardware: str  # of the first device, if there are several kinds
    notes: tuple[str, ...] = ()  # on assumed memory
    reserved_bytes: int = 0  # of each device, for memory that is not counted
    reserved_share: float = RESERVED_SHARE  # of each device's memory, on top of ``reserved_bytes``


def devices_of(asked: Machine, memory: Memory) -> MachineAndMemory:
    """Build the machine that the knobs describe.

    Raises:
        BadConfig: if the knobs contradict each other or are invalid.
        BadFile: if the file cannot be read.
    """
    check_knobs(asked)
    check_knobs(memory)
    num_devices, file = asked.num_devices, asked.hosts
    hardware = None if asked.hardware is None else str(HardwareName.parse(asked.hardware))
    if file is None:
        hardware = hardware or DEFAULT_HARDWARE
        chosen = _machine_of_flags(asked, hardware)
        return _with_memory(add_host_memory(chosen, memory), memory, [hardware] * chosen.num_devices)
    if twice := [name for name in changed_knobs(asked) if name not in ("num_devices", "hardware", "hosts")]:
        raise BadConfig(f"the hosts file replaces {twice[0]}. Leave {twice[0]} out.")
    found = load_hosts_file(file)
    if num_devices not in (None, found.num_devices):
        raise BadConfig(
            f"{file} has {found.num_devices} devices, but num_devices is {num_devices}. Leave num_devices out, or "
            f"correct the file."
        )
    try:
        return _devices_of_file(found, memory, hardware)
    except BadConfig as error:
        problem, _, remedy = str(error).rpartition(". ")  # the message ends with its remedy
        raise BadFile(file, problem, remedy) from None


def _with_memory(machine: Nodes, memory: Memory, hardware: Sequence[str]) -> MachineAndMemory:
    reserve = reserve_of(memory.reserved_gb)
    if memory.memory_cap_gb is not None:
        return MachineAndMemory(machine, caps_of(memory.memory_cap_gb, machine.num_devices), hardware[0], (), *reserve)
    own = {kind: default_memory_gb(kind, machine.devices_per_node) for kind in dict.fromkeys(hardware)}
    notes = (note_default_memory(kind, machine.devices_per_node) for kind in own)
    caps = caps_of([own[kind] for kind in hardware], machine.num_devices)
    return MachineAndMemory(machine, caps, hardware[0], tuple(note for note in notes if note), *reserve)


def _devices_of_file(file: HostsFile, memory: Memory, hardware: str | None) -> MachineAndMemory:
    kinds = [str(HardwareName.parse(one.hardware or hardware or DEFAULT_HARDWARE)) for one in file.hosts]
    if hardware is not None and hardware not in kinds:
        raise BadConfig(f"hardware is {kinds[0]} in the file, but {hardware} is requested. Leave one of them out.")
    for kind in kinds:
        own_link(kind)
    require_once("memory_gb", file.hosts[0].memory_gb, "memory_cap_gb", memory.memory_cap_gb)
    of_hosts = [one.memory_gb for one in file.hosts for _ in range(one.count * one.devices)]
    caps = [one for one in of_hosts if one is not None] or memory.memory_cap_gb  # either all hosts have it or none
    groups = tuple(DeviceGroup(kind, one.count * one.devices) for kind, one in zip(kinds, file.hosts, strict=True))
    machine = Nodes(
        file.num_devices,
        file.hosts[0].devices,
        file.nodes_per_domain,
        _link_name("intra", file.intra),
        _link_name("inter", file.inter),
        groups if len(set(kinds)) > 1 else (),
    )
    of_devices = [group.hardware for group in groups for _ in range(group.num_devices)]
    memory_of_file = replace(memory, memory_cap_gb=caps)
    return _with_memory(add_host_memory(_check_machine(machine), memory, file), memory_of_file, of_devices)


def _machine_of_flags(asked: Machine, hardware: str) -> Nodes:
    num_devices, nodes, devices_per_node = asked.num_devices, asked.nodes, asked.devices_per_node
    intra, inter = _link_name("intra", asked.intra), _link_name("inter", asked.inter)
    if nodes is devices_per_node is None and not intra and (num_devices or DEFAULT_DEVICES) <= GPUS_OF_A_NODE:
        num_devices = devices_per_node = num_devices or DEFAULT_DEVICES
    spans = math.inf if devices_per_node is not None else _spans(hardware, intra)
    if nodes is not None:
        if devices_per_node is None:
            if num_devices is not None and num_devices % nodes:
                raise BadConfig(
                    f"{num_devices} devices cannot be divided evenly over {nodes} nodes. Correct num_devices or nodes."
                )
            devices_per_node = int(min(spans, GPUS_OF_A_NODE)) if num_devices is None else num_devices // nodes
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
                f"({spans:g}). Give the size of a node and the link between nodes, such as --devices-per-node "
                f"{spans:g} --inter infiniband_ndr (`evenshard hardware` lists the links)."
            )
        devices_per_node = int(min(num_devices, spans))
    return _check_machine(Nodes(num_devices, devices_per_node, asked.nodes_per_domain, intra, inter))


def _spans(hardware: str, intra: str) -> float:
    name = intra or own_link(hardware)
    if name:
        return link(name).spans
    return math.inf if HardwareName.parse(hardware).kind.is_host else GPUS_OF_A_NODE


def own_link(hardware: str) -> str:
    """Return the link between devices in a hardware profile; empty for real hardware."""
    profile = profile_of(HardwareName.parse(hardware))
    return "" if profile is None else profile.link


def _check_machine(machine: Nodes) -> Nodes:
    if problem := machine.problem():
        raise BadConfig(problem)
    return replace(machine, inter="") if machine.num_domains == 1 else machine


def _link_name(which: str, name: Any) -> str:
    if not name:
        return ""
    try:
        link(name)
    except BadConfig as error:
        raise BadConfig(f"{which}: {error}") from None
    return link_name(name)
