"""From a request to an answer: search, split what is too big, compare, measure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from evenshard.measure.hardware import Measure
from evenshard.measure.link import beyond_span
from evenshard.placement.optimizer_state import NUMBERS
from evenshard.placement.parts import whole_tables
from evenshard.placement.placement import Placement
from evenshard.placement.task import PlacementTask
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.capacity import refusal
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rivals import rivals
from evenshard.planner.splits import TRIAL, Found, split_search
from evenshard.sharders.convex_search.cost_model import CostModel
from evenshard.sharders.convex_search.sharder import EvenshardSharder, SearchConfig
from evenshard.sharders.models import PlacementModel
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.process import one_thread
from evenshard.version import __version__


@dataclass(frozen=True)
class PlaceConfig:
    """How to answer.

    Attributes:
        search: search for a placement of given parts.
        compare: other sharders to compare with, by name; see ``rivals``.
        num_measured: candidates to measure; 0 trusts the model.
    """

    search: SearchConfig = field(default_factory=SearchConfig)
    compare: tuple[str, ...] = ()
    num_measured: int = 0


@one_thread()
def place_request(
    request: PlacementRequest,
    model: PlacementModel,
    config: PlaceConfig | None = None,
    measure: Measure | None = None,
    tables_from: str | None = None,
) -> PlacementAnswer:
    """The answer to a request; the same arguments give the same answer. On one thread: the matrices are small.

    Args:
        measure: measures placements; needed to measure candidates.
        tables_from: source of the tables, for the lineage.

    Raises:
        InfeasibleTask: if there is no legal placement; the message says what is missing.
        BadConfig: if something in ``config`` makes no sense.
    """
    config = config or PlaceConfig()
    sharder = EvenshardSharder(model.cost_model, model.policy, config.search)
    try:
        found = _found(request, sharder, config)
    except InfeasibleTask as error:
        raise refusal(request, error) from None
    best, cost = found.result.best, None
    if config.num_measured:
        assert measure is not None, "measuring needs hardware"
        best, cost = sharder.place_measured(found.task, measure, config.num_measured, found.result)
    alone_ms, adds_ms = _part_ms(found.task, best.placement, model.cost_model)
    lineage: dict[str, Any] = {
        "evenshard_version": __version__,
        "model": {
            "source": model.source,
            "sha256": model.digest,
            **({} if model.registered is None else {"mlflow": dict(model.registered)}),
            "trained_on": asdict(model.trained_on),
        },
        "tables": tables_from,
        "search": {"seed": config.search.seed, "num_measured": config.num_measured},
    }
    return PlacementAnswer(
        device_of_table=best.placement.device_of_table,
        num_devices=request.num_devices,
        request=request,
        parts=found.parts,
        alone_ms=alone_ms,
        adds_ms=adds_ms,
        devices=best.devices,
        predicted_ms=best.predicted_ms,
        model_low_ms=best.low_ms,
        model_high_ms=best.high_ms,
        lower_bound_ms=best.lower_bound_ms,
        warnings=model.trained_on.outside(found.task),
        comparison=rivals(request, model, config.compare, measure if config.num_measured else None),
        measured=cost,
        lineage=json.loads(json.dumps(lineage)),  # as a file gives it back
        link=model.trained_on.link,
        notes=tuple(note for note in _notes(request, model) if note),
        device_error=model.trained_on.device_error,
    )


def _notes(request: PlacementRequest, model: PlacementModel) -> Iterator[str | None]:
    """How far the model's times are those of the request."""
    learned, asked = model.trained_on.optimizer, request.optimizer
    if learned != asked:
        order = list(NUMBERS)
        word = "slower" if order.index(asked) > order.index(learned) else "faster"
        yield f"Predicted times are of {learned}; {asked}'s memory is counted, its {word} backward pass is not."
    yield beyond_span(model.trained_on.link, request.num_devices)


def _found(request: PlacementRequest, sharder: EvenshardSharder, config: PlaceConfig) -> Found:
    if request.allow_column_split:
        quick = EvenshardSharder(sharder.model, config=replace(config.search, **TRIAL))
        return split_search(request, sharder, quick)
    parts = whole_tables(request.tables)
    task = request.task(parts)
    return Found(parts, task, sharder.search(task))


def _part_ms(
    task: PlacementTask, placement: Placement, model: CostModel
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each table: the least that a device with it takes, and what its device would save without it; ms.

    An exchange is shortest at the even share of the dims, as in ``CostModel.lower_bound_ms``.
    """
    alone_TH = model.represent(task.tables, task.batch_size)
    device_of_T = torch.tensor(placement.device_of_table)
    sums_DH = alone_TH.new_zeros(task.num_devices, alone_TH.shape[1]).index_add_(0, device_of_T, alone_TH)
    others_TH = (sums_DH[device_of_T] - alone_TH).clamp(min=0.0)
    # What rounding leaves of an emptied device is not a table.
    others_TH[torch.bincount(device_of_T, minlength=task.num_devices)[device_of_T] == 1] = 0.0
    total_dims = float(alone_TH[:, 0].sum())
    context = (total_dims, task.num_devices, task.batch_size)
    dims_D = sums_DH[:, 0]
    rest_D = torch.where(torch.eye(len(dims_D), dtype=torch.bool), 0.0, dims_D).amax(dim=1)
    most_T = torch.maximum(others_TH[:, 0], rest_D[device_of_T])
    adds_T = model.device_ms(sums_DH, *context, dims_D.max())[device_of_T]
    adds_T -= model.device_ms(others_TH, *context, most_T)
    alone_TH[:, 0].clamp_(min=total_dims / task.num_devices)
    return tuple(model.device_ms(alone_TH, *context).tolist()), tuple(adds_T.tolist())
