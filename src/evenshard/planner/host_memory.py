"""Memory and SSDs of hosts that tables may take, as the user states them: alike for all hosts, or in a cluster file."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenshard.placement.machine import Machine
from evenshard.planner.cluster_file import ClusterFile
from evenshard.utils.errors import BadConfig
from evenshard.utils.params import check_ranges
from evenshard.utils.units import gb_to_bytes


@dataclass(frozen=True)
class HostMemory:
    """What ``place`` is asked for; None where it is left out.

    Attributes:
        host_memory_gb: memory of each host that tables may take.
        host_bandwidth_gb_s: its bandwidth.
        ssd_gb: of each host's SSDs.
        ssd_bandwidth_gb_s: their bandwidth.

    Raises:
        BadConfig: if a number is out of its range.
    """

    host_memory_gb: float | None = None
    host_bandwidth_gb_s: float | None = None
    ssd_gb: float | None = None
    ssd_bandwidth_gb_s: float | None = None

    def __post_init__(self) -> None:
        check_ranges(**{name: value for name, value in vars(self).items() if value is not None})

    def on(self, machine: Machine, cluster: ClusterFile | None = None) -> Machine:
        """A machine with it.

        Args:
            machine: whose hosts have nothing for tables.
            cluster: the file that it is made of, if there is one; its hosts may have their own.

        Raises:
            BadConfig: if something is given twice, or a bandwidth of nothing.
        """
        memory, memory_gb_s = self._sizes_and_speed(machine, cluster, "host_memory_gb", "host_bandwidth_gb_s")
        ssd, ssd_gb_s = self._sizes_and_speed(machine, cluster, "ssd_gb", "ssd_bandwidth_gb_s")
        return replace(machine, host_bytes=memory, host_gb_s=memory_gb_s, ssd_bytes=ssd, ssd_gb_s=ssd_gb_s)

    def _sizes_and_speed(
        self, machine: Machine, cluster: ClusterFile | None, size: str, speed: str
    ) -> tuple[tuple[int, ...], float]:
        """Bytes of each host, empty where all have none, and GB/s, 0 where unknown."""
        asked_gb, asked_gb_s = getattr(self, size), getattr(self, speed)
        all_gb, gb_s = [asked_gb or 0.0] * machine.num_nodes, asked_gb_s
        if cluster is not None:
            own_gb = [getattr(one, size) for one in cluster.hosts for _ in range(one.count)]
            not_twice(size, own_gb[0], size, asked_gb)
            not_twice(speed, getattr(cluster, speed), speed, asked_gb_s)
            all_gb = all_gb if own_gb[0] is None else own_gb
            gb_s = getattr(cluster, speed) if asked_gb_s is None else asked_gb_s
        if gb_s is not None and not any(all_gb):
            raise BadConfig(f"{speed} is given, but nothing that it is of. Give {size} too, or leave {speed} out.")
        return tuple(map(gb_to_bytes, all_gb)) if any(all_gb) else (), gb_s or 0.0


NO_HOST_MEMORY = HostMemory()


def not_twice(in_file: str, own: float | None, asked_for: str, asked: object) -> None:
    """Raises BadConfig if both a cluster file and the arguments give something."""
    if own is not None and asked is not None:
        raise BadConfig(f"{in_file} is in the file, and {asked_for} is given too. Leave one of them out.")
