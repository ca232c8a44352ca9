"""A simulated machine of many GPUs: what any placement of parts costs on it, by the device model and the links.

Times are simulated, as those of ``SimulatedHardware`` are; what both leave out stands in docs/measure.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.measure.collectives import ExchangeTimes, Links
from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.measure.in_turn import in_turn
from evenshard.measure.offload import host_link
from evenshard.measure.price.step import DeviceKind, PartCosts, predicted_phases
from evenshard.measure.simulated.gpu_profile import GpuProfile
from evenshard.measure.simulated.price import DeviceModelPrice
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.task import ShardingTask


class SimulatedCluster:
    """Devices of one profile, or of several, and the links between them. Deterministic.

    Args:
        machine: the machine.
        profiles: the profile of every device, by device id.
        links: of the machine's tiers.
    """

    def __init__(self, machine: Machine, profiles: Sequence[GpuProfile], links: Links) -> None:
        assert len(profiles) == machine.num_devices
        self.machine, self.links = machine, links
        kinds = list(dict.fromkeys(profiles))
        self._kind_of_D = [kinds.index(profile) for profile in profiles]
        self._kinds = [simulated_kind(profile, machine) for profile in kinds]

    def cost(self, task: ShardingTask, parts: Sequence[TablePart]) -> PlacementCost:
        """What a placement of parts costs.

        Raises:
            BadConfig: if the parts are not those of the task's tables.
        """
        devices = PartCosts(task, self._kinds, self._kind_of_D, self.links).predict(parts).devices
        phases = predicted_phases(devices)
        return in_turn(
            [DeviceCost(one.predicted_fwd_compute_ms, 0.0, 0.0, one.predicted_bwd_compute_ms) for one in devices],
            ExchangeTimes(phases.input_dist, phases.forward_exchange, phases.backward_exchange),
        )


def simulated_kind(profile: GpuProfile, machine: Machine) -> DeviceKind:
    """Devices of a profile in a machine."""
    return DeviceKind(DeviceModelPrice(profile), profile.hbm_bytes_per_ns, host_link(machine, profile))
