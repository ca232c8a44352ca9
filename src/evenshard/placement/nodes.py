"""The machine of a placement: hosts with devices, and two tiers of links.

Device ids count up from 0 through the hosts. A fast link connects the devices of a domain: one host, or several hosts
that share NVLink (TorchRec: a pod). A slow link connects domains.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.base.knobs import RANGES


@dataclass(frozen=True)
class DeviceGroup:
    """Consecutive devices with the same hardware."""

    hardware: str  # such as simulated:h100
    num_devices: int


@dataclass(frozen=True)
class Nodes:
    """A machine: all devices, the devices of each host (node), and links."""

    num_devices: int
    devices_per_node: int
    nodes_per_domain: int = 1  # hosts whose devices share the fast link
    intra: str = ""  # name of the link within a domain (see ``price.link``); "" for the hardware's default
    inter: str = ""  # name of the link between domains; "" for a single domain
    groups: tuple[DeviceGroup, ...] = ()  # groups of equal devices, in the order of ids; empty if all devices are equal
    host_bytes: tuple[int, ...] = ()  # memory of each host that tables may use; empty for none
    # bandwidth of a host's memory, 10**9 bytes per second, which its devices share; 0 if unknown
    host_gb_s: float = 0.0
    ssd_bytes: tuple[int, ...] = ()  # SSD space of each host that tables may use; empty for none
    ssd_gb_s: float = 0.0  # bandwidth of a host's SSDs, 10**9 bytes per second, which its devices share; 0 if unknown

    @staticmethod
    def one_node(num_devices: int) -> Nodes:
        """Return a machine with one host."""
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
        """Return the number of domains."""
        return self.num_devices // self.domain_size

    def node_of(self, device: int) -> int:
        """Return the host of a device."""
        return device // self.devices_per_node

    def devices_of_node(self, node: int) -> range:
        """Return the devices of a host."""
        first = node * self.devices_per_node
        return range(first, first + self.devices_per_node)

    def hardware_of(self, device: int) -> str:
        """Return the hardware of a device; "" if all devices are equal."""
        for group in self.groups:
            if device < group.num_devices:
                return group.hardware
            device -= group.num_devices
        return ""

    def problem(self) -> str | None:
        """Return an error message with a remedy if the machine is invalid, or None."""
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
                f"{self.num_devices} devices cannot be split into nodes of {self.devices_per_node} devices. Choose a "
                f"multiple of {self.devices_per_node}."
            )
        if self.num_nodes % self.nodes_per_domain:
            return (
                f"{self.num_nodes} nodes cannot be split into domains of {self.nodes_per_domain} nodes. Choose a "
                f"nodes_per_domain that divides {self.num_nodes}."
            )
        if self.num_domains > 1 and not self.inter:
            what = "nodes" if self.nodes_per_domain == 1 else "domains"
            return (
                f"there are {self.num_domains} {what}, but no link between them. Name a link, such as --inter "
                f"infiniband_ndr (`evenshard hardware` lists the links)."
            )
        if self.groups and sum(group.num_devices for group in self.groups) != self.num_devices:
            counts = " + ".join(str(group.num_devices) for group in self.groups)
            return f"there are {self.num_devices} devices, but the device kinds have {counts}. Correct the kinds."
        for what, sizes in (("host memory", self.host_bytes), ("SSDs", self.ssd_bytes)):
            if sizes and (len(sizes) != self.num_nodes or min(sizes) < 0):
                return (
                    f"there are {self.num_nodes} nodes, but {len(sizes)} sizes of {what}. Give one per node, each at "
                    f"least 0."
                )
        return None
