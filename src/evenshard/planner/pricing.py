"""Choice of the cost model for a request, and predictions from it and the machine's links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evenshard.base.errors import BadConfig
from evenshard.base.installation import how_to_train, require_package
from evenshard.base.messages import brief
from evenshard.base.process import one_thread
from evenshard.base.providers import load_provider
from evenshard.base.s3 import is_address, local_copy
from evenshard.placement.parts import TablePart
from evenshard.placement.placement import parts_by_table
from evenshard.placement.task import ShardingTask
from evenshard.planner.answer import PlacementAnswer, PricedParts, model_lineage, slowest_device
from evenshard.planner.memory import known_profile
from evenshard.planner.request import PlacementRequest
from evenshard.price.collectives import Links
from evenshard.price.costs import PlacementCost
from evenshard.price.evidence import DeviceError, Errors, widest
from evenshard.price.hardware import HardwareName
from evenshard.price.kernel_calls import EVERY_DEVICE, list_held_parts
from evenshard.price.link import LINKS, link
from evenshard.price.link_model import Link
from evenshard.price.offload import host_link
from evenshard.price.step import DeviceKind, PartCosts, PredictedDevice, PredictedParts, collect_phases
from evenshard.price.step_time import Phases, step_ms
from evenshard.sharders.model import DeviceModel, Model
from evenshard.tables.locality import arrange_hot_rows

if TYPE_CHECKING:
    from evenshard.sharders.models import PlacementModel
    from evenshard.sharders.training_domain import TrainingDomain

REGISTERED = "models:/"
# Prefix of a device model's name, before its profile: simulated:h200.
SIMULATED = "simulated:"


def model_of(where: str | Path | None, hardware: str | None = None) -> Model:
    """Load a model from a folder, local or on S3, or from MLflow (``models:/name@alias``, ``models:/name/version``).

    None, or a name such as ``simulated:h200``, means the device model of simulated hardware.

    Raises:
        BadInput: if there is no model, it cannot be read, or it is for other hardware.
        TrackingFailed: if MLflow cannot be reached.
    """
    device = _device_model(where, hardware)
    if device is not None:
        return device
    require_package("torch")
    from evenshard.sharders.models import load_model

    assert where is not None
    if isinstance(where, str) and where.startswith(REGISTERED):
        registered: Model = load_provider("load_registered")(where, hardware)
        return registered
    if is_address(where):
        with local_copy(where) as folder:
            return replace(load_model(folder, hardware), source=str(where))
    return load_model(Path(where), hardware)


def load_learned_model(where: str | Path | None, hardware: str | None = None) -> PlacementModel:
    """Load a learned cost model like ``model_of``; raise BadConfig for a device model."""
    require_package("torch")
    from evenshard.sharders.models import PlacementModel

    found = model_of(where, hardware)
    if not isinstance(found, PlacementModel):
        raise BadConfig(
            f"{found.source} is a device model, not a learned cost model. Give a learned model: a round's folder such "
            "as work/round_3, or models:/evenshard-cost@champion."
        )
    return found


def _device_model(where: str | Path | None, hardware: str | None) -> DeviceModel | None:
    named = str(where or "")
    if named.startswith(SIMULATED):
        found = DeviceModel(named)
        if hardware is not None:
            found.require_hardware(hardware)
    elif where is not None:
        return None
    elif hardware is not None and HardwareName.parse(hardware).kind.is_simulated:
        found = DeviceModel(str(HardwareName.parse(hardware)))
    else:
        raise BadConfig(
            f"there is no cost model for hardware {brief(hardware)}. Train one with {how_to_train()} and give its "
            f"folder (--model work/round_3), or place for simulated hardware such as simulated:h100."
        )
    assert found.profile  # raise errors of the profile file here
    return found


def resolve_model(model: str | Path | Model | None, hardware: str | None) -> tuple[Model | None, str | None]:
    """Return the model and the hardware that the user named, None if not given; a model implies its hardware."""
    named = None if hardware is None else str(HardwareName.parse(hardware))
    if model is None:
        return None, named
    loaded = model_of(model, named) if isinstance(model, str | Path) else model
    if named is not None:
        loaded.require_hardware(named)
    return loaded, named or loaded.hardware


def find_model_source(answer: PlacementAnswer) -> str:
    """Return the source of an answer's model, for ``model_of``; raise BadConfig if its lineage has none."""
    source = model_lineage(answer).get("source")
    if not isinstance(source, str) or not source:
        raise BadConfig("the placement's lineage names no model. Give one (--model).")
    return source


def note_other_model(answer: PlacementAnswer, model: Model) -> str | None:
    """Return a note if another model made the answer; None if it was this model."""
    made_with = model_lineage(answer)
    if made_with.get("sha256") == model.digest:
        return None
    return (
        f"{model.source} (sha256 {model.digest[:12]}) is not the model that made this placement, "
        f"{made_with.get('source')} (sha256 {str(made_with.get('sha256'))[:12]}); its times differ from the file's"
    )


# Function that measures placements of parts.
PartsMeasurer = Callable[[ShardingTask, Sequence[Sequence[TablePart]]], list[PlacementCost]]


def hardware_of_devices(request: PlacementRequest) -> tuple[str, ...]:
    """Return the hardware of each device, by device id."""
    machine = request.nodes
    return tuple(machine.hardware_of(device) or request.hardware for device in range(request.num_devices))


def links_of_request(request: PlacementRequest, model: Model) -> Links:
    """Return the links within and between domains (nodes on one fast link), the former by default the model's.

    Raises:
        BadConfig, BadFile: if a named link is unknown or cannot be read, or no link is known.
    """
    machine = request.nodes
    inter = link(machine.inter) if machine.num_domains > 1 else None
    own = link(machine.intra) if machine.intra else model.exchange_link()
    if machine.domain_size > 1 and own is None:
        raise BadConfig(
            f"the model's training data has no link and no communication times, so communication between "
            f"{machine.domain_size} devices would take no time. Give their link, such as --intra nvlink_h100 or "
            f"--intra 50gb_s."
        )
    return Links(own or Link(0.0, "no link, as each domain has one device"), inter)


def link_error(request: PlacementRequest, model: Model) -> DeviceError | None:
    """Return the largest error of the machine's links; None without communication."""
    if request.num_devices == 1:
        return None
    machine = request.nodes
    inside = machine.intra or (model.link if model.link in LINKS else "")
    names = [*([inside] if machine.domain_size > 1 else []), *([machine.inter] if machine.num_domains > 1 else [])]
    return widest(*(link(name).error for name in names if name))


def device_error(request: PlacementRequest, model: Model, found: PredictedParts | PricedParts) -> DeviceError | None:
    """Return the largest error of the machine's hardware for the request's optimizers and the slowest device's lookups.

    It is assumed if tables are outside of device memory: no such times were held out. None for real hardware.
    """
    task, slowest = request.task(), slowest_device(found.devices)
    held = list_held_parts(task, parts_by_table(task, found.parts))
    calls = [one for part in held if part.device in (slowest, EVERY_DEVICE) for one in part.lookups]
    lookups = sum(one.table.pooling_factor * one.bags for one in calls)
    optimizers = dict.fromkeys(request.optimizer_of(table.name) for table in request.tables)
    kinds = dict.fromkeys(hardware_of_devices(request))
    models = [model if name == request.hardware else model_of(None, name) for name in kinds]
    error = widest(*(one.device_error(optimizer, lookups) for one in models for optimizer in optimizers))
    if error is None or model.trained_on is not None or all(part.storage.is_on_device for part in found.parts):
        return error
    return error.assumed("with tables outside of device memory")


def errors_of(request: PlacementRequest, model: Model, *found: PredictedParts | PricedParts) -> Errors:
    """Return the largest errors of kernels and of communication for predicted placements of a request."""
    return widest(*(device_error(request, model, one) for one in found)), link_error(request, model)


def part_costs(request: PlacementRequest, model: Model) -> PartCosts:
    """Return a predictor of placements; the device model predicts devices of other hardware than the model's."""
    names = hardware_of_devices(request)
    kinds: dict[str, DeviceKind] = {}
    for name in names:
        if name not in kinds:
            own = model if name == request.hardware else model_of(None, name)
            kind, profile = HardwareName.parse(name).kind, known_profile(name)
            bytes_per_ns = kind.memory_bytes_per_ns if profile is None else profile.hbm_bytes_per_ns
            kinds[name] = DeviceKind(own.price(), bytes_per_ns, host_link(request.nodes, profile))
    order = list(kinds)
    return PartCosts(
        request.task(),
        list(kinds.values()),
        [order.index(name) for name in names],
        links_of_request(request, model),
    )


# Prices of an answer --------------------------------------------------------------------------------------------------


def price_parts(
    request: PlacementRequest, model: Model, costs: PartCosts, found: PredictedParts
) -> tuple[PricedParts, str | None]:
    """Return parts with all times that an answer records, and a note if the interval was widened."""
    alone_ms, adds_ms = costs.part_ms(found.parts)
    below = above = 1.0
    if model.trained_on is not None:
        below, above = compute_interval_factors(request, model.trained_on, found.parts, found.devices, alone_ms)
    faster, slower = compute_hot_rows_factors(request, model, costs, found)
    parts = PricedParts(
        parts=found.parts,
        alone_ms=alone_ms,
        adds_ms=adds_ms,
        devices=found.devices,
        predicted_ms=found.predicted_ms,
        model_low_ms=found.low_ms / below / faster,
        model_high_ms=found.high_ms * above * slower,
    )
    notes = [note_widening(below, above)]
    if not faster == slower == 1:
        unknown = _unknown_hot_rows(request)
        notes.append(
            f"It is unknown if hot rows are adjacent in memory for {unknown} table{'s' * (unknown != 1)} (no "
            "row_shares): the interval covers both cases."
        )
    return parts, " ".join(filter(None, notes)) or None


@one_thread()
def reprice_answer(answer: PlacementAnswer, parts: Sequence[TablePart], model: Model) -> PlacementAnswer:
    """Return the answer with other parts of the same tables and their predicted times."""
    costs = part_costs(answer.request, model)
    now, _ = price_parts(answer.request, model, costs, costs.predict(parts))
    return replace(
        answer,
        **vars(now),
        lower_bound_ms=min(answer.lower_bound_ms, now.predicted_ms),
        measured=None,
        measured_ms=None,
    )


def compute_interval_factors(
    request: PlacementRequest,
    learned: TrainingDomain,
    parts: Sequence[TablePart],
    devices: Sequence[PredictedDevice],
    alone_ms: Sequence[float],
) -> tuple[float, float]:
    """Return a divisor of an interval's lower end and a factor of its upper end; both 1 within the training range.

    The cost model's own interval applies within the training range. Beyond it, times are assumed to change at most in
    proportion to rows, dims, lookups, weight bits, batch, and, for communication, devices. So the time is wrong at most
    by the factor by which a table exceeds the range; if it exceeds several ranges, their factors are multiplied. A
    device's factor is the mean of its parts' factors, weighted by ``alone_ms``.
    """
    factor_of = {table.name: learned.table_factor(table) for table in request.tables}
    load = learned.load_factor(request.tables, request.num_devices, request.batch_size)
    communication = learned.exchange_factor(request.num_devices)
    if load == communication == 1 and set(factor_of.values()) == {1.0}:
        return 1.0, 1.0
    sums_3D = np.zeros((3, len(devices)))  # lower end, prediction and upper end
    for part, ms in zip(parts, alone_ms, strict=True):
        factor = factor_of[part.table] * load
        sums_3D[:, list(part.devices)] += np.array([[ms / factor], [ms], [ms * factor]])
    kernels_3D = np.divide(sums_3D, sums_3D[1], out=np.ones_like(sums_3D), where=sums_3D[1] > 0)
    links_31 = np.array([[1 / communication], [1.0], [communication]])
    inputs, forward, out, back, backward = collect_phases(devices)
    phases = Phases(inputs * links_31, forward * kernels_3D, out * links_31, back * links_31, backward * kernels_3D)
    low_ms, predicted_ms, high_ms = step_ms(phases, request.training_pipeline).tolist()
    return (predicted_ms / low_ms, high_ms / predicted_ms) if predicted_ms else (1.0, 1.0)


def compute_hot_rows_factors(
    request: PlacementRequest, model: Model, costs: PartCosts, found: PredictedParts
) -> tuple[float, float]:
    """Return a divisor of an interval's lower end and a factor of its upper end, for tables without ``row_shares``.

    One end assumes that all hot rows of these tables are adjacent in memory, the other end that none are.
    """
    if not _unknown_hot_rows(request) or not any(price.sees_hot_rows for price in costs.prices):
        return 1.0, 1.0
    times = []
    for together in (False, True):
        tables = tuple(
            arrange_hot_rows(table, request.batch_size, together) if table.row_shares is None else table
            for table in request.tables
        )
        times.append(part_costs(replace(request, tables=tables), model).predict(found.parts).predicted_ms)
    return max(found.predicted_ms / min(times), 1.0), max(max(times) / found.predicted_ms, 1.0)


def _unknown_hot_rows(request: PlacementRequest) -> int:
    return sum(table.row_shares is None for table in request.tables)


def note_widening(below: float, above: float) -> str | None:
    """Return a note on an interval that is wider than the model's own; None if it is not."""
    ends = {"the upper bound is {}x wider": above, "the lower bound is {}x wider": below}
    changed = [end.format(f"{factor:.3g}") for end, factor in ends.items() if f"{factor:.3g}" != "1"]
    return f"Outside the training range: {' and '.join(changed)}." if changed else None
