"""What placements of a request cost: the cost models of its devices, and the links of its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from evenshard.measure.collectives import Links
from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import PlacementCost, combine_visits
from evenshard.measure.evidence import DeviceError
from evenshard.measure.hardware import HardwareName, open_hardware
from evenshard.measure.link import LINKS, Link, link
from evenshard.measure.offload import host_link
from evenshard.measure.parts_in_turn import parts_in_turn
from evenshard.measure.price.step import DeviceKind, PartCosts
from evenshard.measure.simulated.cluster import SimulatedCluster
from evenshard.measure.simulated.gpu_profile import gpu_profile, profile_of
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.task import ShardingTask
from evenshard.planner.model import model_of
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
from evenshard.utils.errors import BadConfig

PartsMeasurer = Callable[[ShardingTask, Sequence[Sequence[TablePart]]], list[PlacementCost]]
"""Measures placements of parts."""


def hardware_of_devices(request: PlacementRequest) -> tuple[str, ...]:
    """The hardware of each device, by device id."""
    machine = request.nodes
    return tuple(machine.hardware_of(device) or request.hardware for device in range(request.num_devices))


def links_of_request(request: PlacementRequest, model: Model) -> Links:
    """The links of both tiers. Within a domain, where none is named: the one that the model's training data went over.

    Raises:
        BadConfig, BadFile: if a named one is unknown or cannot be read, or none is known.
    """
    machine = request.nodes
    inter = link(machine.inter) if machine.num_domains > 1 else None
    own = link(machine.intra) if machine.intra else model.exchange_link()
    if machine.domain_size > 1 and own is None:
        raise BadConfig(
            f"the costs that the model learned from name no link and have no exchanges, so that {machine.domain_size} "
            f"devices would exchange in no time. Name their link, such as --intra nvlink_h100 or --intra 50gb_s."
        )
    return Links(own or Link(0.0, "none between devices that are alone"), inter)


def link_error(request: PlacementRequest, model: Model) -> DeviceError | None:
    """How far modelled exchanges are from real ones: the larger error of both tiers; None where none is modelled."""
    if request.num_devices == 1:
        return None
    machine = request.nodes
    inside = machine.intra or (model.link if model.link in LINKS else "")
    names = [*([inside] if machine.domain_size > 1 else []), *([machine.inter] if machine.num_domains > 1 else [])]
    return max((link(name).error for name in names if name), key=lambda error: error.percent, default=None)


def part_costs(request: PlacementRequest, model: Model, others: Mapping[str, Any] | None = None) -> PartCosts:
    """What placements of parts of the request's tables are predicted to cost.

    Args:
        model: of the request's hardware.
        others: models of other hardware in the machine, by its name; where left out, those of simulated devices.
    """
    names = hardware_of_devices(request)
    kinds: dict[str, DeviceKind] = {}
    for name in names:
        if name not in kinds:
            own = model if name == request.hardware else (others or {}).get(name) or model_of(None, name)
            kinds[name] = _device_kind(own, name, request.nodes)
    order = list(kinds)
    return PartCosts(
        request.task(),
        list(kinds.values()),
        [order.index(name) for name in names],
        links_of_request(request, model),
    )


def _device_kind(model: Model, hardware: str, machine: Machine) -> DeviceKind:
    name = HardwareName.parse(hardware)
    try:
        profile = profile_of(name)
    except BadConfig:  # a model is served where the profile that it was trained on is not
        profile = None
    if profile is None:
        return DeviceKind(model.price(), name.kind.memory_bytes_per_ns, host_link(machine))
    return DeviceKind(model.price(), profile.hbm_bytes_per_ns, host_link(machine, profile))


@contextmanager
def measured_parts(request: PlacementRequest, model: Model, visits: int) -> Iterator[PartsMeasurer]:
    """Measures placements of the request on its hardware; on simulated hardware, simulates them.

    Args:
        visits: moments at which each is measured.
    """
    links, names = links_of_request(request, model), hardware_of_devices(request)
    kinds = {HardwareName.parse(name) for name in names}
    if all(kind.kind.is_simulated for kind in kinds):
        profiles = [gpu_profile(HardwareName.parse(name).device) for name in names]
        cluster = SimulatedCluster(request.nodes, profiles, links)
        yield lambda task, placements: [cluster.cost(task, parts) for parts in placements]
        return
    if len(kinds) > 1:
        raise BadConfig("devices of several kinds cannot be measured here. Leave num_measured out.")
    with closing(open_hardware(MeasureConfig(request.hardware, optimizer=request.optimizer))) as opened:

        def measure(task: ShardingTask, placements: Sequence[Sequence[TablePart]]) -> list[PlacementCost]:
            rounds = [[parts_in_turn(opened, task, parts, links) for parts in placements] for _ in range(visits)]
            return [combine_visits(of_one) for of_one in zip(*rounds, strict=True)]

        yield measure
