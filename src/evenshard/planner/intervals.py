"""90 % interval of the step time that one placement saves relative to another.

The error of a learned model is mostly its error for the slowest device. It cancels in the difference as far as that
device does the same work in both placements (benchmarks/measured_once_202611.md). Errors of a simulated device and its
links are errors of their constants, so they scale the saved kernel and communication times. Different work and effects
that the device model lacks add errors; docs/decisions/0042 estimates them from timed kernels of plans.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence

from evenshard.placement.parts import TablePart
from evenshard.planner.answer import DifferenceInterval, PricedParts, model_interval_ms, slowest_device
from evenshard.planner.pricing import errors_of, price_parts
from evenshard.planner.request import PlacementRequest
from evenshard.price.evidence import DeviceError, Errors
from evenshard.price.step import PartCosts, step_shares_ms
from evenshard.sharders.model import Model

# Correlation of a learned model's errors for two placements whose slowest devices do the same work.
# Source of all four: docs/decisions/0042.
MOST_ALIKE = 0.8
# Fraction of the error variance of kernels, and of communication, that placements without common work do not share.
KERNELS_UNLIKE, COMMUNICATION_UNLIKE = 0.2, 0.08
# Fraction of the error variance of kernels that no two placements share.
KERNELS_OWN = 0.02
# Least errors of log kernel time for both fractions: effects that no fit of constants removes.
LEAST_UNLIKE, LEAST_OWN = 0.06, 0.03


def compute_difference_interval(
    old: PricedParts,
    new: PricedParts,
    pipelines: tuple[str, str],
    tables: Collection[str],
    errors: Errors,
) -> DifferenceInterval:
    """Return the step time that the new placement saves, with its 90 % interval.

    Args:
        pipelines: training pipeline of each placement, which decides how its phases overlap.
        tables: names of the tables that have the same lookups in both placements.
        errors: errors of the device and of its links.
    """
    if set(old.parts) == set(new.parts) and model_interval_ms(old) == model_interval_ms(new):
        return DifferenceInterval(0.0, 0.0, 0.0)
    shared = measure_common_work(old, new, tables)
    saves = old.predicted_ms - new.predicted_ms
    alike = MOST_ALIKE * shared**2
    below = compute_difference_error(old.predicted_ms - old.model_low_ms, new.model_high_ms - new.predicted_ms, alike)
    above = compute_difference_error(old.model_high_ms - old.predicted_ms, new.predicted_ms - new.model_low_ms, alike)
    kernels, links = errors
    kernels_own = compute_own_error(kernels, shared)
    shares = [(old.predicted_ms, new.predicted_ms, kernels, kernels_own)]
    if links is not None:
        pairs = zip(
            *(step_shares_ms(one.devices, of) for one, of in zip((old, new), pipelines, strict=True)), strict=True
        )
        links_own = math.log(links.factor) * math.sqrt(COMMUNICATION_UNLIKE * (1 - shared**2))
        shares = [(*pair, *of) for pair, of in zip(pairs, ((kernels, kernels_own), (links, links_own)), strict=True)]
    for old_ms, new_ms, error, own in shares:
        if error is not None:
            # The common error scales the saving by at most the factor or its inverse; the rest is independent.
            saves_ms, larger, smaller = old_ms - new_ms, error.factor - 1, 1 - 1 / error.factor
            own_ms = own * math.hypot(old_ms, new_ms)
            below = math.hypot(below, abs(saves_ms) * (smaller if saves_ms > 0 else larger), own_ms)
            above = math.hypot(above, abs(saves_ms) * (larger if saves_ms > 0 else smaller), own_ms)
    return DifferenceInterval(saves, saves - below, saves + above)


def predict_saving(
    request: PlacementRequest, model: Model, costs: PartCosts, new: PricedParts, parts: Sequence[TablePart]
) -> DifferenceInterval:
    """Return the step time that an answer saves relative to another placement of its tables, with its interval."""
    old, _ = price_parts(request, model, costs, costs.predict(parts))
    names, errors = [table.name for table in request.tables], errors_of(request, model, old, new)
    return compute_difference_interval(old, new, (costs.pipeline,) * 2, names, errors)


def measure_common_work(old: PricedParts, new: PricedParts, tables: Collection[str]) -> float:
    """Return the share, 0 to 1, of the slowest devices' work that is equal, among ``tables`` with equal lookups."""
    before, after = _work(old), _work(new)
    both_ms = sum(min(before[name], after[name]) for name in tables)
    all_ms = math.sqrt(sum(before.values()) * sum(after.values()))  # geometric mean: symmetric in both
    return min(both_ms / all_ms, 1.0) if all_ms > 0 else 0.0


def compute_own_error(kernels: DeviceError | None, shared: float) -> float:
    """Return the error of log kernel time that two placements with this share of common work do not share."""
    variance = 0.0 if kernels is None else math.log(kernels.factor) ** 2
    unlike = max(KERNELS_UNLIKE * variance, LEAST_UNLIKE**2) * (1 - shared**2)
    return math.sqrt(unlike + max(KERNELS_OWN * variance, LEAST_OWN**2))


def compute_difference_error(one: float, other: float, correlation: float) -> float:
    """Return the error of the difference of two values, given their errors and the correlation."""
    return math.sqrt(max(one**2 + other**2 - 2 * correlation * one * other, 0.0))


def _work(priced: PricedParts) -> defaultdict[str, float]:
    """Return the time of each table's parts on the slowest device, each part alone, ms."""
    slowest = slowest_device(priced.devices)
    work: defaultdict[str, float] = defaultdict(float)
    for part, ms in zip(priced.parts, priced.alone_ms, strict=True):
        if slowest in part.devices:
            work[part.table] += ms
    return work
