"""What placements of a request cost, by the cost models of its devices and the links of its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from evenshard.measure.collectives import Links
from evenshard.measure.config import MeasureConfig
from evenshard.measure.costs import PlacementCost, combine_visits
from evenshard.measure.evidence import DeviceError
from evenshard.measure.hardware import HardwareName, open_hardware
from evenshard.measure.in_turn import parts_in_turn
from evenshard.measure.link import LINKS, link
from evenshard.measure.link_model import Link
from evenshard.measure.offload import host_link
from evenshard.measure.price.step import DeviceKind, PartCosts, PredictedDevice, PredictedParts, predicted_phases
from evenshard.measure.simulated.gpu_profile import gpu_profile, profile_of
from evenshard.measure.simulated.price import SimulatedCluster
from evenshard.measure.step_time import Phases, step_ms
from evenshard.placement.machine import Machine
from evenshard.placement.parts import TablePart
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.model import model_of
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
from evenshard.sharders.trained_on import TrainedOn
from evenshard.tables.locality import with_hot_rows
from evenshard.utils.errors import BadConfig
from evenshard.utils.process import one_thread

# Measures placements of parts.
PartsMeasurer = Callable[[ShardingTask, Sequence[Sequence[TablePart]]], list[PlacementCost]]


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


def part_costs(request: PlacementRequest, model: Model) -> PartCosts:
    """Return a predictor of placements; hardware besides the request's own, which the model is of, is simulated."""
    names = hardware_of_devices(request)
    kinds: dict[str, DeviceKind] = {}
    for name in names:
        if name not in kinds:
            own = model if name == request.hardware else model_of(None, name)
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
    """Measure placements of the request on its hardware at so many moments; on simulated hardware, simulate them."""
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


# Prices of an answer --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PricedParts:
    """What a model predicts of parts of tables: all of an answer that its parts alone decide.

    The fields are those of ``PlacementAnswer``; the interval is wider where the model has seen nothing like them.
    """

    parts: tuple[TablePart, ...]
    alone_ms: tuple[float, ...]
    adds_ms: tuple[float, ...]
    devices: tuple[PredictedDevice, ...]
    predicted_ms: float
    model_low_ms: float
    model_high_ms: float


# Parts with what is predicted of them: an answer, or parts that are none yet.
Priced = PlacementAnswer | PricedParts


def price_parts(
    request: PlacementRequest, model: Model, costs: PartCosts, found: PredictedParts
) -> tuple[PricedParts, str | None]:
    """Return a prediction as an answer has it, and a note on its interval where that is wider than the model's own."""
    alone_ms, adds_ms = costs.part_ms(found.parts)
    below = above = 1.0
    if model.trained_on is not None:
        below, above = interval_factors(request, model.trained_on, found.parts, found.devices, alone_ms)
    faster, slower = hot_rows_factors(request, model, costs, found)
    parts = PricedParts(
        parts=found.parts,
        alone_ms=alone_ms,
        adds_ms=adds_ms,
        devices=found.devices,
        predicted_ms=found.predicted_ms,
        model_low_ms=found.low_ms / below / faster,
        model_high_ms=found.high_ms * above * slower,
    )
    notes = [widening_note(below, above), hot_rows_note(request, faster, slower)]
    return parts, " ".join(filter(None, notes)) or None


@one_thread()
def reprice_answer(answer: PlacementAnswer, parts: Sequence[TablePart], model: Model) -> PlacementAnswer:
    """The answer with other parts of the same tables, and what these are predicted to cost.

    Raises:
        BadConfig: if the parts are not those of the answer's tables.
    """
    costs = part_costs(answer.request, model)
    now, _ = price_parts(answer.request, model, costs, costs.predict(parts))
    return replace(
        answer,
        **vars(now),
        lower_bound_ms=min(answer.lower_bound_ms, now.predicted_ms),
        measured=None,
        measured_ms=None,
    )


def interval_factors(
    request: PlacementRequest,
    learned: TrainedOn,
    parts: Sequence[TablePart],
    devices: Sequence[PredictedDevice],
    alone_ms: Sequence[float],
) -> tuple[float, float]:
    """What to divide the lower end of an interval by, and to multiply the upper end with; 1 and 1 inside of the data.

    The cost model's own interval is that of placements like those it has seen. Beyond them it only continues its lines.
    The rule here takes that a time neither falls nor grows faster than in proportion with rows, dims, lookups, weight
    bits, batch, and devices (for the exchange): a model that is right at the edge of its data then errs by no more than
    the factor that a table is beyond it. Factors of one table multiply, and each part of the time has the factor of its
    own tables. It is a rule and no measurement.

    Args:
        alone_ms: of each part, which says how much of its device's compute time is the part's.
    """
    factor_of = {table.name: learned.table_factor(table) for table in request.tables}
    load = learned.load_factor(request.tables, request.num_devices, request.batch_size)
    exchange = learned.exchange_factor(request.num_devices)
    if load == exchange == 1 and set(factor_of.values()) == {1.0}:
        return 1.0, 1.0
    sums_3D = np.zeros((3, len(devices)))  # as fast as may be, as predicted, and as slow
    for part, ms in zip(parts, alone_ms, strict=True):
        factor = factor_of[part.table] * load
        sums_3D[:, list(part.devices)] += np.array([[ms / factor], [ms], [ms * factor]])
    kernels_3D = np.divide(sums_3D, sums_3D[1], out=np.ones_like(sums_3D), where=sums_3D[1] > 0)
    links_31 = np.array([[1 / exchange], [1.0], [exchange]])
    inputs, forward, out, back, backward = predicted_phases(devices)
    phases = Phases(inputs * links_31, forward * kernels_3D, out * links_31, back * links_31, backward * kernels_3D)
    low_ms, predicted_ms, high_ms = step_ms(phases, request.training_pipeline).tolist()
    return (predicted_ms / low_ms, high_ms / predicted_ms) if predicted_ms else (1.0, 1.0)


def hot_rows_factors(
    request: PlacementRequest, model: Model, costs: PartCosts, found: PredictedParts
) -> tuple[float, float]:
    """What to divide the lower end of an interval by, and to multiply the upper end with, for tables without traffic.

    Then it is not known whether their hot rows lie side by side. The factors are those by which the same placement is
    faster or slower if all of them do, or none; 1 and 1 where the model sees no difference.
    """
    if not _unknown_hot_rows(request) or not any(price.sees_hot_rows for price in costs.prices):
        return 1.0, 1.0
    times = []
    for together in (False, True):
        tables = tuple(
            with_hot_rows(table, request.batch_size, together) if table.row_shares is None else table
            for table in request.tables
        )
        times.append(part_costs(replace(request, tables=tables), model).predict(found.parts).predicted_ms)
    return max(found.predicted_ms / min(times), 1.0), max(max(times) / found.predicted_ms, 1.0)


def hot_rows_note(request: PlacementRequest, faster: float, slower: float) -> str | None:
    """A sentence about an interval that ``hot_rows_factors`` made wider; None of one that is not."""
    if faster == slower == 1:
        return None
    unknown = _unknown_hot_rows(request)
    return (
        f"Whether hot rows lie side by side in memory is not known of {unknown} table{'s' * (unknown != 1)} (no "
        "row_shares): the interval covers both."
    )


def _unknown_hot_rows(request: PlacementRequest) -> int:
    return sum(table.row_shares is None for table in request.tables)


def widening_note(below: float, above: float) -> str | None:
    """Return a sentence about an interval that is wider than the model's own; None if it is not."""
    ends = {"upper end multiplied by": above, "lower end divided by": below}
    changed = [f"{end} {factor:.3g}" for end, factor in ends.items() if f"{factor:.3g}" != "1"]
    if not changed:
        return None
    return (
        "Outside the training range, times may grow or fall in proportion, so the interval is wider than the model's "
        f"own ({', '.join(changed)})."
    )
