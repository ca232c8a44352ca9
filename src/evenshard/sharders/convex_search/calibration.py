"""The error of a cost model on placements that a search with it selected, which is larger than on any other placements.

A search chooses what the model is too optimistic about, so the errors of its choices are larger. They are known where
such choices were measured before the model learned from them.

Legend: N measured placements, K members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from evenshard.measure.costs import MeasuredPlacement
from evenshard.sharders.convex_search.cost_model import ConvexCostModel, log_spread_N
from evenshard.sharders.convex_search.fit import conformal_factor


def calibrate_for_chosen(model: ConvexCostModel, first: ConvexCostModel, own: Sequence[MeasuredPlacement]) -> None:
    """Widens the intervals of ``model``, if need be, to what the choices of ``first`` really cost.

    Args:
        first: the model before, which had not seen its choices measured.
        own: its choices, which ran.
    """
    if not own:
        return
    predicted_N = torch.cat([first.overall_ms(one.task, [one.placement])[0] for one in own])
    members_KN = torch.cat([model.overall_ms(one.task, [one.placement])[1] for one in own], dim=1)
    errors_N = (torch.tensor([one.cost.max_device_ms for one in own]) / predicted_N).log().abs()
    factor = conformal_factor(errors_N, model.calibration.deviation_N(log_spread_N(members_KN)))
    model.calibration = replace(model.calibration, factor=max(model.calibration.factor, factor))
