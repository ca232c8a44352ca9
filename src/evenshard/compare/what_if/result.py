"""Machines beside each other: the options of a question, which are the best, and all of it as JSON.

One option is called better than another only where the difference is larger than the uncertainty. On different hardware
both intervals count in full. On the same hardware the error of the device is common to both: the order must hold with
the cost model's own interval, also if all kernels, or all exchanges, take longer or shorter by that error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evenshard.compare.what_if.option import SAMPLES_OF_COST, PredictedInterval, WhatIfOption
from evenshard.compare.what_if.question import Question
from evenshard.measure.hardware import measured_or_simulated
from evenshard.planner.answer import fullest_device
from evenshard.utils.atomic import atomic_path

WHAT_IF_VERSION = 1
# The weight of a millisecond of an option's step.
StepWeight = Callable[[WhatIfOption], float]


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


@dataclass(frozen=True)
class WhatIfAnswer:
    """The answer of ``evenshard.what_if``.

    Attributes:
        options: by hardware, number of devices, size of groups and memory.
        question: what was asked of each.
        max_step_ms: the longest step that is wanted; None for any.
    """

    options: tuple[WhatIfOption, ...]
    question: Question = field(repr=False)
    max_step_ms: float | None = None

    @cached_property
    def fastest(self) -> Best | None:
        """The machine that trains on most samples in a second; None where the tables fit none."""
        return fastest_option(self.options)

    @cached_property
    def cheapest(self) -> Best | None:
        """The machine with the lowest cost; None where none has a price."""
        return cheapest_option(self.options)

    @cached_property
    def cheapest_in_time(self) -> Best | None:
        """The one of those whose step is short enough; None where none is, or nothing was said."""
        return None if self.max_step_ms is None else cheapest_option(self.options, self.max_step_ms)

    @property
    def has_dense(self) -> bool:
        """Whether the dense rest of a step is in the times; without it they are of embedding work alone."""
        return any(self.question.dense_ms.values())

    @property
    def has_groups(self) -> bool:
        """Whether sizes of groups were asked for."""
        return any(one.num_groups > 1 for one in self.options)

    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        asked, prices = self.question, self.question.prices
        number = {id(one): at for at, one in enumerate(self.options)}
        return {
            "schema_version": WHAT_IF_VERSION,
            "batch_size": asked.batch_size,
            "batch_per_device": asked.batch_per_device,
            "dense_ms": dict(asked.dense_ms),
            "dense_batch": asked.dense_batch,
            "overlap": asked.overlap,
            "sync_every": asked.sync_every,
            "max_step_ms": self.max_step_ms,
            "cost_is_of_samples": SAMPLES_OF_COST,
            "currency": None if prices is None else prices.currency,
            "price_note": None if prices is None else prices.note,
            "options": [_option_record(one) for one in self.options],
            **{
                name: None if best is None else _best_record(best, number)
                for name, best in (
                    ("fastest", self.fastest),
                    ("cheapest", self.cheapest),
                    ("cheapest_in_time", self.cheapest_in_time),
                )
            },
        }


def save_what_if(found: WhatIfAnswer, path: str | Path) -> None:
    """Writes the JSON as a whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(found.record(), indent=1, allow_nan=False) + "\n")


def _best_record(best: Best, number: Mapping[int, int]) -> dict[str, Any]:
    return {"option": number[id(best.option)], "not_separable": [number[id(one)] for one in best.equals]}


def _option_record(one: WhatIfOption) -> dict[str, Any]:
    record: dict[str, Any] = {
        "hardware": one.hardware,
        "times": measured_or_simulated(one.hardware),
        "num_devices": one.num_devices,
        "num_nodes": one.machine.num_nodes,
        "devices_per_node": one.machine.devices_per_node,
        "nodes_per_domain": one.machine.nodes_per_domain,
        "intra": one.machine.intra,
        "inter": one.machine.inter,
        "batch_size": one.batch_size,
        "group_size": one.group_size,
        "layout": one.layout,
        "memory_cap_gb": one.memory_cap_gb,
        "price_per_hour": one.price_per_hour,
        "fits": one.fits,
        "problem": one.problem,
    }
    if one.answer is None:
        return record
    fullest = fullest_device(one.answer)
    return record | {
        "embeddings_ms": asdict(one.embeddings_ms),
        "dense_ms": one.dense_ms,
        "sync": None if one.sync is None else {**asdict(one.sync), "step_ms": one.sync.step_ms},
        "step_ms": asdict(one.step_ms),
        "samples_per_s": asdict(one.samples_per_s),
        "cost": None if one.cost is None else asdict(one.cost),
        "lower_bound_ms": one.answer.lower_bound_ms,
        "memory": {"fullest_bytes": fullest.most_bytes, "limit_bytes": fullest.limit_bytes},
        "model": one.answer.lineage.get("model"),
        "warnings": [*one.answer.warnings, *one.answer.memory_warnings],
    }
