"""Parts of tables and what a model predicts of them: all of an answer that its parts alone decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from evenshard.measure.price.step import PartCosts, PredictedDevice, PredictedParts
from evenshard.placement.parts import TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
from evenshard.sharders.trained_on import TrainedOn
from evenshard.utils.process import one_thread


@dataclass(frozen=True)
class PricedParts:
    """Fields of ``PlacementAnswer``, with its names; the interval is wider where the model has seen nothing like it."""

    parts: tuple[TablePart, ...]
    alone_ms: tuple[float, ...]
    adds_ms: tuple[float, ...]
    devices: tuple[PredictedDevice, ...]
    predicted_ms: float
    model_low_ms: float
    model_high_ms: float

    @staticmethod
    def of(answer: PlacementAnswer) -> PricedParts:
        """Those of an answer."""
        return PricedParts(*(getattr(answer, one.name) for one in fields(PricedParts)))

    @property
    def of_answer(self) -> dict[str, Any]:
        """The fields by name, for an answer."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def priced(
    request: PlacementRequest, model: Model, costs: PartCosts, found: PredictedParts
) -> tuple[PricedParts, str | None]:
    """A prediction as an answer has it, and a sentence about its interval where that is wider than the model's own.

    Args:
        request: that the parts are a placement of.
        model: that predicted them.
        costs: of the request by the model.
        found: their prediction.
    """
    alone_ms, adds_ms = costs.part_ms(found.parts)
    below = above = 1.0
    if model.trained_on is not None:
        below, above = interval_factors(request, model.trained_on, found.parts, found.devices, alone_ms)
    parts = PricedParts(
        parts=found.parts,
        alone_ms=alone_ms,
        adds_ms=adds_ms,
        devices=found.devices,
        predicted_ms=found.predicted_ms,
        model_low_ms=found.low_ms / below,
        model_high_ms=found.high_ms * above,
    )
    return parts, widening_note(below, above)


@one_thread()
def repriced(answer: PlacementAnswer, parts: Sequence[TablePart], model: Model) -> PlacementAnswer:
    """The answer with other parts of the same tables, and what these are predicted to cost.

    Raises:
        BadConfig: if the parts are not those of the answer's tables.
    """
    costs = part_costs(answer.request, model)
    now, _ = priced(answer.request, model, costs, costs.predict(parts))
    return replace(
        answer,
        **now.of_answer,
        lower_bound_ms=min(answer.lower_bound_ms, now.predicted_ms),
        measured=None,
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
        request: tables, batch and machine.
        learned: training data of the model.
        parts: the placement.
        devices: predicted times, by device id.
        alone_ms: of each part, which says how much of its device's compute time is the part's.
    """
    factor_of = {table.name: learned.table_factor(table) for table in request.tables}
    load = learned.load_factor(request.tables, request.num_devices, request.batch_size)
    exchange = learned.exchange_factor(request.num_devices)
    if load == exchange == 1 and set(factor_of.values()) == {1.0}:
        return 1.0, 1.0
    sums = [[0.0, 0.0, 0.0] for _ in devices]  # as predicted, as fast and as slow as may be
    for part, ms in zip(parts, alone_ms, strict=True):
        factor = factor_of[part.table] * load
        for device in part.devices:
            for number, times in enumerate((1.0, 1 / factor, factor)):
                sums[device][number] += ms * times
    ends = []
    for end, times in ((1, 1 / exchange), (2, exchange)):
        ends.append(
            max(
                _compute_ms(device) * (sums_3[end] / sums_3[0] if sums_3[0] else 1.0)
                + (device.predicted_total_ms - _compute_ms(device)) * times
                for device, sums_3 in zip(devices, sums, strict=True)
            )
        )
    predicted_ms = max(device.predicted_total_ms for device in devices)
    return (predicted_ms / ends[0], ends[1] / predicted_ms) if predicted_ms else (1.0, 1.0)


def widening_note(below: float, above: float) -> str | None:
    """A sentence about an interval that is wider than the model's own; None of one that is not."""
    if below == above == 1:
        return None
    return (
        f"The interval is {below:.3g} times wider below and {above:.3g} times above than where the model has seen "
        "tables, batch and devices like these: beyond, times may fall or grow in proportion."
    )


def _compute_ms(device: PredictedDevice) -> float:
    return device.predicted_fwd_compute_ms + device.predicted_bwd_compute_ms
