"""Which machine is the cheapest or the fastest, as far as predictions can tell.

One option is called better than another only where the difference is larger than the uncertainty. On different hardware
both intervals count in full. On the same hardware the error of the device is common to both: the order must hold with
the cost model's own interval, also if all kernels, or all exchanges, take longer or shorter by that error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenshard.planner.what_if.option import PredictedInterval, WhatIfOption

StepWeight = Callable[[WhatIfOption], float]
"""What a millisecond of an option's step counts."""


@dataclass(frozen=True)
class Best:
    """The best of some options.

    Attributes:
        option: the best one by its predicted number.
        equals: options of which predictions do not tell that they are worse, in their order.
    """

    option: WhatIfOption
    equals: tuple[WhatIfOption, ...] = ()


def fastest_option(options: Sequence[WhatIfOption]) -> Best | None:
    """The option that trains on most samples in a second; None where none fits."""
    return _best([one for one in options if one.fits], lambda one: 1 / one.batch_size)


def cheapest_option(options: Sequence[WhatIfOption], max_step_ms: float | None = None) -> Best | None:
    """The option with the lowest cost of a sample; None where none fits and has a price.

    Args:
        max_step_ms: options whose predicted step takes longer are left out.
    """
    limit_ms = math.inf if max_step_ms is None else max_step_ms
    able = [one for one in options if one.fits and one.cost_per_ms is not None and one.step_ms.value <= limit_ms]
    return _best(able, lambda one: one.cost_per_ms or 0.0)


def separable(one: WhatIfOption, other: WhatIfOption, weight: StepWeight = lambda _: 1.0) -> bool:
    """Whether predictions tell which of two options has the smaller step time, each times its weight."""
    apart = math.log(weight(one) / weight(other)) if weight(one) > 0 < weight(other) else 0.0
    if one.hardware != other.hardware:
        return _is_apart(apart + math.log(one.step_ms.value / other.step_ms.value), one.step_ms, other.step_ms)
    kernels, links = max(one.device_factor, other.device_factor), max(one.link_factor, other.link_factor)
    cases = ((1.0, 1.0), (kernels, 1.0), (1 / kernels, 1.0), (1.0, links), (1.0, 1 / links))
    logs = [apart + math.log(one.step_if_ms(*case) / other.step_if_ms(*case)) for case in cases]
    same_sign = all(log > 0 for log in logs) or all(log < 0 for log in logs)
    return same_sign and all(_is_apart(log, one.model_ms, other.model_ms) for log in logs)


def _best(options: Sequence[WhatIfOption], weight: StepWeight) -> Best | None:
    if not options:
        return None
    best = min(options, key=lambda one: weight(one) * one.step_ms.value)
    return Best(best, tuple(one for one in options if one is not best and not separable(best, one, weight)))


def _is_apart(log: float, one: PredictedInterval, other: PredictedInterval) -> bool:
    """Whether the logarithm of a ratio exceeds both independent errors, towards each other."""
    upper, lower = (one, other) if log > 0 else (other, one)
    return abs(log) > math.hypot(math.log(upper.value / upper.low), math.log(lower.high / lower.value))
