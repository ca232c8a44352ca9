"""Parts of tables and what a model predicts of them: all of an answer that its parts alone decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from evenshard.measure.price.step import PartCosts, PredictedDevice, PredictedParts
from evenshard.placement.parts import TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.extrapolation import interval_factors, widening_note
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.sharders.model import Model
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
