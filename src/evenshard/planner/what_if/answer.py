"""Machines beside each other: the question, its options, the best of them, and all of it as JSON.

One option is called better than another only where the difference is larger than the uncertainty. On different hardware
both intervals count in full. On the same hardware the error of the device is common to both: the order must hold with
the cost model's own interval, also if all kernels, or all exchanges, take longer or shorter by that error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.messages import brief
from evenshard.base.outputs import write_text
from evenshard.base.units import bytes_to_gb
from evenshard.placement.nodes import Nodes
from evenshard.planner.answer import PlacementAnswer, fullest_device
from evenshard.planner.request import caps_of
from evenshard.planner.what_if.machines import layouts_of, replicas_ms, sync_of, synced_bytes
from evenshard.planner.what_if.option import SAMPLES_OF_COST, PredictedInterval, Prices, WhatIfOption
from evenshard.price.hardware import measured_or_simulated
from evenshard.price.step_time import without_last_digits
from evenshard.sharders.model import Model

ALL_SIZES = "all"
# If the fullest device holds more than this many times the mean, a placement with at most the second number is tried
# too: the fullest device decides how long an average over groups takes.
UNEVEN_GROUP, EVEN = 1.2, 1.1
# Share of a step that this average must take for that.
WORTH_EVENING = 0.02


@dataclass(frozen=True)
class Question:
    """The question about every machine.

    Attributes:
        place: ``evenshard.place``, or a function that answers as it does.
        tables: as it takes them.
        models, dense_ms: of each kind of hardware.
        batch_size, batch_per_device: samples of a step over all devices, or on each; None for the other one.
        dense_batch: samples of a device that ``dense_ms`` is of; None to take it as it is.
        knobs: those of ``evenshard.place``.
    """

    place: Callable[..., PlacementAnswer] = field(repr=False)
    tables: Any = field(repr=False)
    models: Mapping[str, Model] = field(repr=False)
    prices: Prices | None
    batch_size: int | None
    batch_per_device: int | None
    dense_ms: Mapping[str, float]
    dense_batch: int | None
    overlap: float
    sync_every: int
    knobs: Mapping[str, Any]

    def option(
        self, hardware: str, machine: Nodes, group_size: int, memory_cap_gb: float | None = None
    ) -> WhatIfOption:
        """Place the tables on a machine in groups of a size, in the faster layout."""
        if group_size < machine.num_devices and self.knobs.get("host_memory_gb"):
            raise BadConfig(
                "tables in host memory (host_memory_gb) are not priced in groups: their weights would be averaged "
                "over the hosts' links. Leave host_memory_gb or group_sizes out."
            )
        found = [
            self._in_layout(hardware, machine, layout, group, memory_cap_gb)
            for layout, group in layouts_of(machine, group_size)
        ]
        return min(found, key=lambda one: without_last_digits(one.step_ms.value) if one.fits else float("inf"))

    def _in_layout(
        self, hardware: str, machine: Nodes, layout: str, group: Nodes, memory_cap_gb: float | None
    ) -> WhatIfOption:
        batch = self.batch_size or (self.batch_per_device or 0) * machine.num_devices
        price = None if self.prices is None else self.prices.price_of(hardware)
        option = WhatIfOption(
            hardware,
            machine,
            batch,
            group.num_devices,
            layout,
            dense_ms=self._dense_ms(hardware, batch / machine.num_devices),
            overlap=self.overlap,
            price_per_hour=None if price is None else price.per_hour(machine.num_devices, machine.num_nodes),
            memory_cap_gb=memory_cap_gb,
        )
        try:
            answer = self._place_on(option, group)
        except InfeasibleTask as error:
            return replace(option, problem=str(error))
        if not layout:
            return replace(option, answer=answer)
        first = self._with_groups(option, answer)
        held = synced_bytes(answer)
        if first.sync_ms < WORTH_EVENING * first.step_ms.value or max(held) < UNEVEN_GROUP * sum(held) / len(held):
            return first
        try:
            even = self._with_groups(option, self._place_on(option, group, _even_caps(answer), answer))
        except InfeasibleTask:
            return first
        return min(first, even, key=lambda one: without_last_digits(one.step_ms.value))

    def _with_groups(self, option: WhatIfOption, answer: PlacementAnswer) -> WhatIfOption:
        return replace(
            option,
            answer=answer,
            sync=sync_of(answer, option.machine, option.layout, self.sync_every),
            replicas_ms=replicas_ms(answer, option.machine),
        )

    def _place_on(
        self,
        option: WhatIfOption,
        group: Nodes,
        memory: Mapping[str, Any] | None = None,
        like: PlacementAnswer | None = None,
    ) -> PlacementAnswer:
        """Place on a group; the answer to a request like another one has all of the memory."""
        answer = self.place(
            self.tables,
            group.num_devices,
            hardware=option.hardware,
            model=self.models[option.hardware],
            batch_size=-(-option.batch_size * group.num_devices // option.num_devices),
            devices_per_node=group.devices_per_node,
            nodes_per_domain=group.nodes_per_domain,
            intra=group.intra,
            inter=group.inter,
            **{**self.knobs, "memory_cap_gb": option.memory_cap_gb, **(memory or {})},
        )
        return answer if like is None else replace(answer, request=like.request)

    def _dense_ms(self, hardware: str, samples: float) -> float:
        scale = 1.0 if self.dense_batch is None else samples / self.dense_batch
        return scale * self.dense_ms[hardware]


def keep_faster_placements(options: Iterable[WhatIfOption]) -> Iterator[WhatIfOption]:
    """Give a machine the placement that the same machine with less memory has, if its own is slower.

    The options of a machine come in ascending order of memory. A placement that is legal with less is legal with more.
    """
    less: WhatIfOption | None = None
    machine_of = attrgetter("hardware", "machine", "group_size")
    for one in options:
        if less is not None and machine_of(less) == machine_of(one) and less.answer is not None:
            assert one.memory_cap_gb is not None, "only memory that is asked for differs"
            if one.answer is None or less.step_ms.value < one.step_ms.value:
                caps = caps_of(one.memory_cap_gb, less.answer.num_devices)
                bound_ms = 0.0 if one.answer is None else min(one.answer.lower_bound_ms, less.answer.predicted_ms)
                request = replace(less.answer.request, caps_bytes=caps)
                answer = replace(less.answer, request=request, lower_bound_ms=bound_ms)
                one = replace(less, answer=answer, memory_cap_gb=one.memory_cap_gb)
        yield one
        less = one


def sizes_of(machine: Nodes, group_sizes: Sequence[int] | str) -> Iterator[int]:
    """The sizes of groups to try on a machine, ascending; those that are larger than it are left out.

    Raises:
        BadConfig: if they are no numbers of devices.
    """
    devices = machine.num_devices
    if not group_sizes:
        yield devices
    elif group_sizes == ALL_SIZES:
        yield from (size for size in range(1, devices + 1) if devices % size == 0 and _is_even(machine, size))
    elif isinstance(group_sizes, str):
        raise BadConfig(f"group_sizes is {brief(group_sizes)}. Give numbers of devices, or all.")
    else:
        yield from sorted({size for size in group_sizes if size <= devices} or {devices})


def _is_even(machine: Nodes, size: int) -> bool:
    try:
        return bool(layouts_of(machine, size))
    except BadConfig:
        return False


def _even_caps(answer: PlacementAnswer) -> Mapping[str, Any]:
    """Memory of each device of which the parts of tables take little more than an even share."""
    request, used = answer.request, answer.used_bytes
    besides = request.dense_bytes + request.sample_memory.total
    reserved = max(request.reserves_bytes)
    room = EVEN * sum(used) / len(used)
    cap = min(besides + reserved + room, *request.caps_bytes)
    return {"memory_cap_gb": bytes_to_gb(cap), "reserved_gb": bytes_to_gb(reserved)}


WHAT_IF_VERSION = 1
# The weight of a millisecond of an option's step.
StepWeight = Callable[[WhatIfOption], float]


@dataclass(frozen=True)
class Best:
    """The best option by its predicted number, and those of which predictions do not tell that they are worse."""

    option: WhatIfOption
    equals: tuple[WhatIfOption, ...] = ()


def fastest_option(options: Sequence[WhatIfOption]) -> Best | None:
    """The option that trains on most samples in a second; None where none fits."""
    return _best([one for one in options if one.fits], lambda one: 1 / one.batch_size)


def cheapest_option(options: Sequence[WhatIfOption], max_step_ms: float | None = None) -> Best | None:
    """Return the option with the lowest cost of a sample and at most so long a step; None where none has a price."""
    limit_ms = math.inf if max_step_ms is None else max_step_ms
    able = [one for one in options if one.fits and one.cost_per_ms is not None and one.step_ms.value <= limit_ms]
    return _best(able, lambda one: one.cost_per_ms or 0.0)


def separable(one: WhatIfOption, other: WhatIfOption, weight: StepWeight = lambda _: 1.0) -> bool:
    """Return True if predictions tell which of two options has the smaller step time, each times its weight."""
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
    upper, lower = (one, other) if log > 0 else (other, one)
    return abs(log) > math.hypot(math.log(upper.value / upper.low), math.log(lower.high / lower.value))


@dataclass(frozen=True)
class WhatIfAnswer:
    """The answer of ``evenshard.what_if``: options by hardware, number of devices, size of groups and memory."""

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
        """The dense rest of a step is in the times; without it they are of embedding work alone."""
        return any(self.question.dense_ms.values())

    @property
    def has_groups(self) -> bool:
        """Sizes of groups were asked for."""
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
    write_text(path, json.dumps(found.record(), indent=1, allow_nan=False) + "\n")


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
