"""The interval of the time that one placement saves against another.

Two kinds of error count. A learned model's error of a step is mostly the error of the slowest device. If that device
does the same work in both placements, the error cancels in the difference; for different work the errors differ
(benchmarks/measured_once_202611.md). Errors of a simulated device and its links are in their constants, which are the
same for all placements, so they scale the savings of kernels and of exchanges. Different work has an additional error,
and so has work that a device model lacks, as timed kernels of plans show (docs/decisions/0042).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

from evenshard.placement.parts import TablePart
from evenshard.planner.answer import DifferenceInterval, PricedParts, model_interval_ms, slowest_device
from evenshard.planner.pricing import link_error, price_parts
from evenshard.planner.request import PlacementRequest
from evenshard.price.evidence import DeviceError
from evenshard.price.step import PartCosts, step_shares_ms
from evenshard.sharders.model import Model

# Correlation of a learned model's errors of two placements whose slowest devices do the same work.
MOST_ALIKE = 0.8
# Fraction of the error variance of a device, and of its links, that two placements without common work do not share;
# and the fraction of a device's that no two placements share.
KERNELS_UNLIKE, EXCHANGES_UNLIKE = 0.2, 0.08
KERNELS_OWN = 0.02


def difference_interval(
    old: PricedParts,
    new: PricedParts,
    pipelines: tuple[str, str],
    tables: Collection[str],
    errors: tuple[DeviceError | None, DeviceError | None],
) -> DifferenceInterval:
    """Return the time that the new placement saves, with its interval, of width 0 if nothing differs.

    Args:
        old, new: two placements.
        pipelines: training pipelines that combine their phases to a step.
        tables: names of the tables with the same lookups in both.
        errors: errors of the device and of its links; the first is None for real hardware, the second if exchanges have
            the same error as kernels.
    """
    if set(old.parts) == set(new.parts) and model_interval_ms(old) == model_interval_ms(new):
        return DifferenceInterval(0.0, 0.0, 0.0)
    shared = shared_work(old, new, tables)
    saves = old.predicted_ms - new.predicted_ms
    alike = MOST_ALIKE * shared**2
    below = difference_error(old.predicted_ms - old.model_low_ms, new.model_high_ms - new.predicted_ms, alike)
    above = difference_error(old.model_high_ms - old.predicted_ms, new.predicted_ms - new.model_low_ms, alike)
    kernels, links = errors
    kernels_unlike = KERNELS_UNLIKE * (1 - shared**2) + KERNELS_OWN
    shares = [(old.predicted_ms, new.predicted_ms, kernels, kernels_unlike)]
    if links is not None:
        pairs = zip(
            *(step_shares_ms(one.devices, of) for one, of in zip((old, new), pipelines, strict=True)), strict=True
        )
        unlike = ((kernels, kernels_unlike), (links, EXCHANGES_UNLIKE * (1 - shared**2)))
        shares = [(*pair, *of) for pair, of in zip(pairs, unlike, strict=True)]
    for old_ms, new_ms, error, unlike_share in shares:
        if error is not None:
            saves_ms, larger, smaller = old_ms - new_ms, error.factor - 1, 1 - 1 / error.factor
            own_ms = math.log(error.factor) * math.sqrt(unlike_share) * math.hypot(old_ms, new_ms)
            below = math.hypot(below, abs(saves_ms) * (smaller if saves_ms > 0 else larger), own_ms)
            above = math.hypot(above, abs(saves_ms) * (larger if saves_ms > 0 else smaller), own_ms)
    return DifferenceInterval(saves, saves - below, saves + above)


def interval_against(
    request: PlacementRequest, model: Model, costs: PartCosts, new: PricedParts, parts: Sequence[TablePart]
) -> DifferenceInterval:
    """Return the time that an answer to a request saves against other parts of its tables."""
    old, _ = price_parts(request, model, costs, costs.predict(parts))
    names, errors = [table.name for table in request.tables], (model.device_error, link_error(request, model))
    return difference_interval(old, new, (costs.pipeline,) * 2, names, errors)


def shared_work(old: PricedParts, new: PricedParts, tables: Collection[str]) -> float:
    """Return the share, 0 to 1, of the slowest devices' work that is common, for tables with equal lookups."""
    one, other = _work(old), _work(new)
    both_ms = sum(min(one[name], other[name]) for name in tables)
    all_ms = math.sqrt(sum(one.values()) * sum(other.values()))
    return min(both_ms / all_ms, 1.0) if all_ms > 0 else 0.0


def difference_error(one: float, other: float, correlation: float) -> float:
    """Return the error of a difference from the errors of two values, in any unit; 0 if both are the same."""
    return math.sqrt(max(one**2 + other**2 - 2 * correlation * one * other, 0.0))


def _work(priced: PricedParts) -> defaultdict[str, float]:
    """Return the time alone of the parts of each table on the slowest device, ms."""
    slowest = slowest_device(priced.devices)
    work: defaultdict[str, float] = defaultdict(float)
    for part, ms in zip(priced.parts, priced.alone_ms, strict=True):
        if slowest in part.devices:
            work[part.table] += ms
    return work
