"""An answer with other parts of the same tables: what a model predicts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evenshard.placement.parts import TablePart
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.extrapolation import interval_factors
from evenshard.planner.pricing import part_costs
from evenshard.sharders.models import PlacementModel
from evenshard.utils.process import one_thread


@one_thread()
def repriced(answer: PlacementAnswer, parts: Sequence[TablePart], model: PlacementModel) -> PlacementAnswer:
    """The answer with other parts of the same tables, and what these are predicted to cost.

    Raises:
        BadConfig: if the parts are not those of the answer's tables.
    """
    costs = part_costs(answer.request, model)
    found = costs.predict(parts)
    alone_ms, adds_ms = costs.part_ms(parts)
    below, above = interval_factors(answer.request, model.trained_on, parts, found.devices, alone_ms)
    return replace(
        answer,
        parts=tuple(parts),
        alone_ms=alone_ms,
        adds_ms=adds_ms,
        devices=found.devices,
        predicted_ms=found.predicted_ms,
        model_low_ms=found.low_ms / below,
        model_high_ms=found.high_ms * above,
        lower_bound_ms=min(answer.lower_bound_ms, found.predicted_ms),
        measured=None,
    )
