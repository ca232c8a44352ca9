"""The machine of a placement: hosts with devices, and the two tiers of links between them.

Devices have the ids 0, 1, 2, ..., host after host. Devices of a domain are connected by the fast link: a domain is
a host, or several hosts that NVLink spans (TorchRec: a pod). The slow link connects domains.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.base.knobs import RANGES


@dataclass(frozen=True)
class DeviceGroup:
    """Devices of one kind with consecutive ids.

    Attributes:
        hardware: such as simulated:h100.
        num_devices: how many.
    """

    hardware: str
    num_devices: int


@dataclass(frozen=True)
class Nodes:
    """Hosts, devices and links.

    Attributes:
        num_devices: on all hosts.
        devices_per_node: on each host.
        nodes_per_domain: hosts whose devices share the fast link.
        intra: link within a domain, as ``price.link`` names it; empty for that of the hardware.
        inter: link between domains; empty where there is one domain.
        groups: kinds of devices, where they are not all of one kind.
        host_bytes: memory of each host that tables may take, by its number; empty for none.
        host_gb_s: bandwidth of a host's memory, 10**9 bytes per second, which its devices share; 0 if unknown.
        ssd_bytes: what tables may take of each host's SSDs, by its number; empty for none.
        ssd_gb_s: bandwidth of a host's SSDs, 10**9 bytes per second, which its devices share; 0 if unknown.
    """

    num_devices: int
    devices_per_node: int
    nodes_per_domain: int = 1
    intra: str = ""
    inter: str = ""
    groups: tuple[DeviceGroup, ...] = ()
    host_bytes: tuple[int, ...] = ()
    host_gb_s: float = 0.0
    ssd_bytes: tuple[int, ...] = ()
    ssd_gb_s: float = 0.0

    @staticmethod
    def one_node(num_devices: int) -> Nodes:
        """Return a machine that is one host with all devices."""
        return Nodes(num_devices, num_devices)

    @property
    def num_nodes(self) -> int:
        """Return the number of hosts."""
        return self.num_devices // self.devices_per_node

    @property
    def domain_size(self) -> int:
        """Return the number of devices in a domain."""
        return self.devices_per_node * self.nodes_per_domain

    @property
    def num_domains(self) -> int:
        """Return the number of domains, which only the slow link connects."""
        return self.num_devices // self.domain_size

    def node_of(self, device: int) -> int:
        """Return the host of a device."""
        return device // self.devices_per_node

    def devices_of_node(self, node: int) -> range:
        """Return the devices of a host."""
        first = node * self.devices_per_node
        return range(first, first + self.devices_per_node)

    def hardware_of(self, device: int) -> str:
        """Return the hardware of a device; empty if all devices are the same."""
        for group in self.groups:
            if device < group.num_devices:
                return group.hardware
            device -= group.num_devices
        return ""

    def problem(self) -> str | None:
        """Return a sentence about why the machine is impossible and what to do; None if it is valid."""
        for what in ("num_devices", "devices_per_node", "nodes_per_domain"):
            if problem := RANGES[what].problem(getattr(self, what)):
                return f"{what} {problem}. Correct it."
        if self.devices_per_node > self.num_devices:
            return (
                f"devices_per_node is {self.devices_per_node}, but there are {self.num_devices} devices. Lower it, or "
                f"raise num_devices."
            )
        if self.num_devices % self.devices_per_node:
            return (
                f"{self.num_devices} devices do not fill nodes of {self.devices_per_node}. Choose a number of devices "
                f"that does."
            )
        if self.num_nodes % self.nodes_per_domain:
            return (
                f"{self.num_nodes} nodes do not fill domains of {self.nodes_per_domain}. Choose nodes_per_domain that "
                f"divides the nodes."
            )
        if self.num_domains > 1 and not self.inter:
            what = "nodes" if self.nodes_per_domain == 1 else "domains"
            return (
                f"there are {self.num_domains} {what} and no link between them. Name it, such as --inter "
                f"infiniband_ndr (`evenshard hardware` lists the links)."
            )
        if self.groups and sum(group.num_devices for group in self.groups) != self.num_devices:
            counts = " + ".join(str(group.num_devices) for group in self.groups)
            return f"there are {self.num_devices} devices, but {counts} of its kinds. Correct the kinds."
        for what, sizes in (("host memory", self.host_bytes), ("SSDs", self.ssd_bytes)):
            if sizes and (len(sizes) != self.num_nodes or min(sizes) < 0):
                return f"there are {self.num_nodes} nodes, but {len(sizes)} sizes of {what}. Give one for each, from 0."
        return None
