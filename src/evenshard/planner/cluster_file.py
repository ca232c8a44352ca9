"""The file of a machine: hosts, their devices and memory, and the links between them.

::

    hosts:
      - {count: 2, devices: 8, hardware: simulated:h100, memory_gb: 79, host_memory_gb: 1024}
      - {count: 1, devices: 8, hardware: simulated:a100_80gb, memory_gb: 64, host_memory_gb: 512}
    intra: nvlink_h100
    inter: ib_400g
    host_bandwidth_gb_s: 400

Device ids follow the order of the hosts. The file of ``evenshard pipeline --cluster`` is another kind
(``kubeflow.cluster``); who gives that one is told so.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from evenshard.utils.errors import BadFile
from evenshard.utils.limits import RANGES
from evenshard.utils.typed import read_record
from evenshard.utils.yaml_files import read_yaml


@dataclass(frozen=True)
class Hosts:
    """Hosts of one kind.

    Attributes:
        devices: devices of each.
        count: how many hosts.
        hardware: what a device is, such as simulated:h100; empty for what ``place`` is asked for.
        memory_gb: memory of a device; None for what ``place`` is asked for.
        host_memory_gb: memory of each host that tables may take; None for what ``place`` is asked for.
        ssd_gb: what tables may take of each host's SSDs; None for what ``place`` is asked for.
    """

    devices: int
    count: int = 1
    hardware: str = ""
    memory_gb: float | None = None
    host_memory_gb: float | None = None
    ssd_gb: float | None = None

    def problem(self) -> str | None:
        """Says in one clause what makes them impossible, or None."""
        called = {"devices": "num_devices", "count": "nodes", "memory_gb": "memory_cap_gb"}  # as arguments of ``place``
        for name in (*called, "host_memory_gb", "ssd_gb"):
            value = getattr(self, name)
            if value is not None and (problem := RANGES[called.get(name, name)].problem(value)):
                return f"{name} {problem}"
        return None


@dataclass(frozen=True)
class ClusterFile:
    """Hosts, and the links between their devices.

    Attributes:
        hosts: kinds of hosts, in the order of the device ids.
        nodes_per_domain: hosts whose devices share the fast link.
        intra: link within a domain; empty for that of the hardware.
        inter: link between domains; empty for none.
        host_bandwidth_gb_s: of each host's memory; None for what ``place`` is asked for.
        ssd_bandwidth_gb_s: of each host's SSDs; None for what ``place`` is asked for.
    """

    hosts: tuple[Hosts, ...]
    nodes_per_domain: int = 1
    intra: str = ""
    inter: str = ""
    host_bandwidth_gb_s: float | None = None
    ssd_bandwidth_gb_s: float | None = None

    @property
    def num_devices(self) -> int:
        """Number of devices on all hosts."""
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
        for what in ("host_bandwidth_gb_s", "ssd_bandwidth_gb_s"):
            if (speed := getattr(self, what)) is not None and (problem := RANGES[what].problem(speed)):
                return f"{what} {problem}"
        for what in ("hardware", "memory_gb", "host_memory_gb", "ssd_gb"):
            given = {getattr(one, what) in ("", None) for one in self.hosts}
            if len(given) > 1:
                return f"{what} is given for some hosts, but not for others"
        return None


def load_cluster_file(path: str | Path) -> ClusterFile:
    """Reads a cluster file.

    Raises:
        BadFile: if it is missing, is not YAML, or makes no sense.
    """
    keys, of_hosts = (", ".join(field.name for field in fields(kind)) for kind in (ClusterFile, Hosts))
    remedy = f"Its keys are {keys}; those of an entry of hosts are {of_hosts}."
    content = read_yaml(Path(path), remedy)
    if isinstance(content, dict) and "stages" in content:
        other = "says what pods of a pipeline get, which `evenshard pipeline --cluster` takes"
        raise BadFile(path, other, f"Describe the machine in a file of its own. {remedy}")
    found = read_record(ClusterFile, content, path, remedy)
    if problem := found.problem():
        raise BadFile(path, problem, "Correct it.")
    return found
