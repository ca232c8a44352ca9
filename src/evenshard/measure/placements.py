"""Costs of placements with cut tables: measured in sequence on one device, or simulated by the device model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from evenshard.base.errors import BadConfig
from evenshard.measure.config import MeasureConfig
from evenshard.measure.local_hardware import open_hardware
from evenshard.measure.sequential import measure_parts, sequential_cost
from evenshard.placement.parts import TablePart
from evenshard.placement.task import ShardingTask
from evenshard.planner.pricing import PartsMeasurer, hardware_of_devices, links_of_request
from evenshard.planner.request import PlacementRequest
from evenshard.price.collectives import ExchangeTimes, Links
from evenshard.price.costs import DeviceCost, PlacementCost, combine_visits
from evenshard.price.gpu_profile import GpuProfile, gpu_profile
from evenshard.price.hardware import HardwareName
from evenshard.price.simulated_price import build_device_kind
from evenshard.price.step import PartCosts, collect_phases
from evenshard.sharders.model import Model


def simulate_cost(
    task: ShardingTask, parts: Sequence[TablePart], profiles: Sequence[GpuProfile], links: Links
) -> PlacementCost:
    """Predict the cost of a placement of table parts with the device model, without noise.

    Args:
        profiles: the profile of every device of the task's machine, by device id.
        links: link models of the machine's tiers.

    Raises:
        BadConfig: if the parts do not belong to the task's tables.
    """
    kinds = list(dict.fromkeys(profiles))
    kind_of_D = [kinds.index(profile) for profile in profiles]
    device_kinds = [build_device_kind(profile, task.machine) for profile in kinds]
    devices = PartCosts(task, device_kinds, kind_of_D, links).predict(parts).devices
    phases = collect_phases(devices)
    return sequential_cost(
        [DeviceCost(device.predicted_fwd_compute_ms, 0.0, 0.0, device.predicted_bwd_compute_ms) for device in devices],
        ExchangeTimes(phases.input_dist, phases.forward_exchange, phases.backward_exchange),
    )


@contextmanager
def open_measurer(request: PlacementRequest, model: Model, visits: int) -> Iterator[PartsMeasurer]:
    """Yield a function that measures placements on the request's hardware ``visits`` times, or simulates them."""
    links, names = links_of_request(request, model), hardware_of_devices(request)
    kinds = {HardwareName.parse(name) for name in names}
    if all(kind.kind.is_simulated for kind in kinds):
        profiles = [gpu_profile(HardwareName.parse(name).device) for name in names]
        yield lambda task, placements: [simulate_cost(task, parts, profiles, links) for parts in placements]
        return
    if len(kinds) > 1:
        raise BadConfig("placements on devices of several kinds cannot be measured. Remove num_measured.")
    with closing(open_hardware(MeasureConfig(request.hardware, optimizer=request.optimizer))) as opened:

        def measure(task: ShardingTask, placements: Sequence[Sequence[TablePart]]) -> list[PlacementCost]:
            rounds = [[measure_parts(opened, task, parts, links) for parts in placements] for _ in range(visits)]
            return [combine_visits(of_one) for of_one in zip(*rounds, strict=True)]

        yield measure
