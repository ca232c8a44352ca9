"""Calibration of the cost model's intervals: how wide they must be to hold nine of ten measured costs.

Two kinds of errors are known without measuring more. Each member of the ensemble has left out some placements. And a
search chooses what a model is too optimistic about, so the errors of its choices are larger: where such choices were
measured before the model learned from them, they widen the intervals.

Legend: N measured placements, K members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from evenshard.measure.costs import RANDOM_SHARD, MeasuredPlacement
from evenshard.measure.price.step import PredictedParts
from evenshard.sharders.cost_model.cost_model import Calibration, CostModel, log_spread_N
from evenshard.sharders.cost_model.price import predict_whole

COVERAGE = 0.9
LEAST_FLOOR = 1e-3  # a model that fits its data exactly is still not sure


def calibrate(
    model: CostModel, measured: Sequence[MeasuredPlacement], held_out_by_N: torch.Tensor
) -> tuple[Calibration, float]:
    """What the held-out errors say about intervals, and their median in per cent.

    Whole placements count; random shards only where nothing else was measured. A single member errs more than the
    ensemble does, which makes up for the tables that the other placements share with a held-out one.
    """
    ran = [number for number, one in enumerate(measured) if one.cost.fits]
    chosen = [number for number in ran if measured[number].proposed_by != RANDOM_SHARD] or ran
    if not chosen:
        return Calibration(), math.nan
    members_KN = _members_KN(_predict_measured(model, [measured[n] for n in chosen]))
    actual_N = torch.tensor([measured[n].cost.max_device_ms for n in chosen])
    held_out_N = members_KN.gather(0, held_out_by_N[chosen][None])[0]
    errors_N = (held_out_N / actual_N).log().abs()
    floor = max(float(errors_N.median()), LEAST_FLOOR)
    deviations_N = Calibration(floor=floor).deviation_N(log_spread_N(members_KN))
    factor = conformal_factor(errors_N, deviations_N)
    return Calibration(factor, floor), float((held_out_N / actual_N - 1).abs().median()) * 100


def calibrate_for_chosen(model: CostModel, first: CostModel, own: Sequence[MeasuredPlacement]) -> None:
    """Widen the intervals of ``model`` to the measured costs of the choices of ``first``, the model before."""
    if not own:
        return
    predicted_N = torch.tensor([one.predicted_ms for one in _predict_measured(first, own)])
    members_KN = _members_KN(_predict_measured(model, own))
    errors_N = (torch.tensor([one.cost.max_device_ms for one in own]) / predicted_N).log().abs()
    factor = conformal_factor(errors_N, model.calibration.deviation_N(log_spread_N(members_KN)))
    model.calibration = replace(model.calibration, factor=max(model.calibration.factor, factor))


def _predict_measured(model: CostModel, measured: Sequence[MeasuredPlacement]) -> list[PredictedParts]:
    return predict_whole(model, [(one.task, one.placement) for one in measured])


def _members_KN(predicted: Sequence[PredictedParts]) -> torch.Tensor:
    return torch.tensor([one.members_ms for one in predicted]).T


def conformal_factor(errors_N: torch.Tensor, deviations_N: torch.Tensor) -> float:
    """How many deviations wide an interval must be to hold a new error nine times in ten.

    Of n errors and a new one, any order is as likely: that is why it is the 0.9 (n + 1)-th of them.
    """
    rank = min(math.ceil(COVERAGE * (len(errors_N) + 1)), len(errors_N))
    return float((errors_N / deviations_N).kthvalue(rank).values)
