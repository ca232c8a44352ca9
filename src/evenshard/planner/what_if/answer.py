"""Answer of ``evenshard.what_if``: a placement on each machine (option), the best options, and their JSON.

An option is called better than another only if prediction errors cannot reverse the order. Options on different
hardware have independent errors, each with its own interval. Options on the same hardware share the device's error: the
order must hold within the cost model's own intervals, and with all kernels, or all communication, scaled by that error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.knobs import check_knobs, check_ranges
from evenshard.base.outputs import write_text
from evenshard.base.units import bytes_to_gb
from evenshard.placement.nodes import Nodes
from evenshard.planner.answer import PlacementAnswer, fullest_device
from evenshard.planner.knobs import Training, WhatIf
from evenshard.planner.pricing import model_of, resolve_model
from evenshard.planner.request import caps_of
from evenshard.planner.what_if.machines import (
    build_machine,
    layouts_of,
    map_to_hardware,
    replicas_ms,
    sizes_of,
    sum_synced_bytes,
    sync_of,
)
from evenshard.planner.what_if.option import SAMPLES_OF_COST, PredictedInterval, Prices, WhatIfOption, load_prices
from evenshard.price.hardware import DEFAULT_HARDWARE, HardwareName, measured_or_simulated
from evenshard.price.step_time import round_for_sorting

# The fullest device determines the time of averaging weights over groups. If it holds more than UNEVEN_GROUP times the
# mean, a placement with at most EVEN times the mean is tried, too.
UNEVEN_GROUP, EVEN = 1.2, 1.1
WORTH_EVENING = 0.02  # share of a step that averaging must take for this second search, which doubles the search time


# Function that places the tables on the devices of one group, optionally with another memory cap.
PlaceOn = Callable[..., PlacementAnswer]


def answer_what_if(
    asked: WhatIf,
    shared: Mapping[str, Any],
    place: Callable[..., PlacementAnswer],
    progress: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
) -> WhatIfAnswer:
    """Place the tables on each requested machine, with each group size and memory size.

    Args:
        shared: knobs of ``evenshard.place`` that apply to every machine.
        place: ``evenshard.place`` for the tables.
        progress: iterator over a list that shows its progress.

    Raises:
        BadInput: if a knob is invalid.
    """
    asked = _resolve(asked)
    models, machines = map_to_hardware("model", asked.model, asked.hardware), list(_machines(asked))
    loaded = {name: model_of(models.get(name), name) for name in asked.hardware}
    prices = load_prices(asked.price) if isinstance(asked.price, str | Path) else asked.price
    wanted = [one for machine in machines for one in _options_on(asked, *machine, prices)]
    if shared.get("host_memory_gb") and any(one.num_groups > 1 for one in wanted):
        raise BadConfig(
            "host_memory_gb is not supported with group_sizes: averaging weights in host memory over the hosts' links "
            "is not modelled. Leave one of the two out."
        )

    def place_on(option: WhatIfOption, group: Nodes, **memory: float) -> PlacementAnswer:
        return place(
            group.num_devices,
            hardware=option.hardware,
            model=loaded[option.hardware],
            batch_size=-(-option.batch_size * group.num_devices // option.num_devices),
            devices_per_node=group.devices_per_node,
            nodes_per_domain=group.nodes_per_domain,
            intra=group.intra,
            inter=group.inter,
            **{**shared, "memory_cap_gb": option.memory_cap_gb, **memory},
        )

    options = (_in_groups(one, place_on, asked.sync_every) for one in (progress or iter)(wanted))
    return WhatIfAnswer(tuple(keep_faster_placements(options)), asked, prices)


def _resolve(asked: WhatIf) -> WhatIf:
    """Return the request with full names of hardware, the batch size, and a dense time for each hardware."""
    if not asked.devices:
        raise BadConfig("devices is empty. Give numbers of devices, such as 8.")
    if asked.batch_size is not None and asked.batch_per_device is not None:
        raise BadConfig("batch_size and batch_per_device are both given. Give one of the two.")
    check_knobs(asked)
    if asked.max_step_ms is not None and asked.price is None:
        raise BadConfig(
            f"max_step_ms is {asked.max_step_ms:g}, but the cheapest machine is unknown without prices. Give price."
        )
    kinds: Iterable[str] = asked.hardware
    if not kinds and isinstance(asked.model, Mapping):
        kinds = asked.model
    elif not kinds:
        assert not isinstance(asked.model, Mapping)
        kinds = (resolve_model(asked.model, None)[1] or DEFAULT_HARDWARE,)
    hardware = tuple(dict.fromkeys(str(HardwareName.parse(name)) for name in kinds))
    dense_ms = map_to_hardware("dense_ms", asked.dense_ms, hardware)
    if lacking := [name for name in hardware if name not in dense_ms]:
        raise BadConfig(f"dense_ms has no time for {lacking[0]}. Add it: {lacking[0]}=12.")
    for own_ms in dense_ms.values():
        check_ranges(dense_ms=own_ms)
    if asked.dense_batch is not None and not any(dense_ms.values()):
        raise BadConfig(
            f"dense_batch is {asked.dense_batch}, but dense_ms is not given. Give dense_ms, or leave dense_batch out."
        )
    batch_size = asked.batch_size or Training.batch_size if asked.batch_per_device is None else None
    return replace(asked, hardware=hardware, dense_ms=dense_ms, batch_size=batch_size)


def _machines(asked: WhatIf) -> Iterator[tuple[str, Nodes]]:
    hosts: dict[str, dict[str, Any]] = {
        name: map_to_hardware(name, getattr(asked, name), asked.hardware)
        for name in ("devices_per_node", "nodes_per_domain", "intra", "inter")
    }
    for hardware in asked.hardware:
        host: dict[str, Any] = {name: of_kind[hardware] for name, of_kind in hosts.items() if hardware in of_kind}
        for count in dict.fromkeys(asked.devices):
            yield hardware, build_machine(hardware, count, **host)


def _options_on(asked: WhatIf, hardware: str, machine: Nodes, prices: Prices | None) -> Iterator[WhatIfOption]:
    batch_size = asked.batch_size or (asked.batch_per_device or 0) * machine.num_devices
    scale = 1.0 if asked.dense_batch is None else batch_size / machine.num_devices / asked.dense_batch
    price, caps = None if prices is None else prices.price_of(hardware), asked.memory_cap_gb
    sizes = sorted(set(caps)) if isinstance(caps, Sequence) else [caps]
    for group_size in sizes_of(machine, asked.group_sizes):
        for memory_cap_gb in sizes or [None]:
            yield WhatIfOption(
                hardware,
                machine,
                batch_size,
                group_size,
                dense_ms=scale * map_to_hardware("dense_ms", asked.dense_ms, asked.hardware)[hardware],
                overlap=asked.overlap,
                price_per_hour=None if price is None else price.per_hour(machine.num_devices, machine.num_nodes),
                memory_cap_gb=memory_cap_gb,
            )


def _in_groups(option: WhatIfOption, place_on: PlaceOn, sync_every: int) -> WhatIfOption:
    found = [
        _in_layout(replace(option, layout=layout), group, place_on, sync_every)
        for layout, group in layouts_of(option.machine, option.group_size)
    ]
    return min(found, key=lambda one: round_for_sorting(one.step_ms.value) if one.fits else float("inf"))


def _in_layout(option: WhatIfOption, group: Nodes, place_on: PlaceOn, sync_every: int) -> WhatIfOption:
    try:
        answer = place_on(option, group)
    except InfeasibleTask as error:
        return replace(option, problem=str(error))
    if not option.layout:
        return replace(option, answer=answer)
    first = _with_groups(option, answer, sync_every)
    held = sum_synced_bytes(answer)
    if first.sync_ms < WORTH_EVENING * first.step_ms.value or max(held) < UNEVEN_GROUP * sum(held) / len(held):
        return first
    try:
        even = place_on(option, group, **_even_caps(answer))
    except InfeasibleTask:
        return first
    second = _with_groups(option, replace(even, request=answer.request), sync_every)  # with the full memory
    return min(first, second, key=lambda one: round_for_sorting(one.step_ms.value))


def _with_groups(option: WhatIfOption, answer: PlacementAnswer, sync_every: int) -> WhatIfOption:
    return replace(
        option,
        answer=answer,
        sync=sync_of(answer, option.machine, option.layout, sync_every),
        replicas_ms=replicas_ms(answer, option.machine),
    )


def keep_faster_placements(options: Iterable[WhatIfOption]) -> Iterator[WhatIfOption]:
    """Replace a placement by that of the same machine with less memory if the latter is faster.

    Each machine's options must be in ascending order of memory; legal placements stay legal with more memory.
    """
    less: WhatIfOption | None = None
    machine_of = attrgetter("hardware", "machine", "group_size")
    for one in options:
        if less is not None and machine_of(less) == machine_of(one) and less.answer is not None:
            assert one.memory_cap_gb is not None, "options of a machine differ only in memory"
            if one.answer is None or less.step_ms.value < one.step_ms.value:
                caps = caps_of(one.memory_cap_gb, less.answer.num_devices)
                bound_ms = 0.0 if one.answer is None else min(one.answer.lower_bound_ms, less.answer.predicted_ms)
                request = replace(less.answer.request, caps_bytes=caps)
                answer = replace(less.answer, request=request, lower_bound_ms=bound_ms)
                one = replace(less, answer=answer, memory_cap_gb=one.memory_cap_gb)
        yield one
        less = one


def _even_caps(answer: PlacementAnswer) -> dict[str, float]:
    """Return a memory cap that leaves each device slightly more than an even share of the tables' memory."""
    request, used = answer.request, answer.used_bytes
    not_tables = request.dense_bytes + request.sample_memory.total
    reserved = max(request.reserves_bytes)
    available = EVEN * sum(used) / len(used)
    cap = min(not_tables + reserved + available, *request.caps_bytes)
    return {"memory_cap_gb": bytes_to_gb(cap), "reserved_gb": bytes_to_gb(reserved)}


# More devices pay while they process at least this share of what as many earlier devices process.
LEAST_PAYING = 0.5
WHAT_IF_VERSION = 1  # version of the JSON's keys
# Weight of a step's milliseconds in a comparison, such as 1 / batch size for throughput or cost per ms for prices.
StepWeight = Callable[[WhatIfOption], float]


@dataclass(frozen=True)
class Best:
    """The option with the best prediction, and ``equals``, options that may be as good given prediction errors."""

    option: WhatIfOption
    equals: tuple[WhatIfOption, ...] = ()


def fastest_option(options: Sequence[WhatIfOption]) -> Best | None:
    """Return the option with the most samples per second; None if none fits."""
    return _best([one for one in options if one.fits], lambda one: 1 / one.batch_size)


def cheapest_option(options: Sequence[WhatIfOption], max_step_ms: float | None = None) -> Best | None:
    """Return the option with the lowest cost per sample and a step of at most ``max_step_ms``; None without prices."""
    limit_ms = math.inf if max_step_ms is None else max_step_ms
    able = [one for one in options if one.fits and one.cost_per_ms is not None and one.step_ms.value <= limit_ms]
    return _best(able, lambda one: one.cost_per_ms or 0.0)


def are_separable(one: WhatIfOption, other: WhatIfOption, weight: StepWeight = lambda _: 1.0) -> bool:
    """Return True if prediction errors cannot reverse which of two options has the smaller weighted step time."""
    apart = math.log(weight(one) / weight(other)) if weight(one) > 0 < weight(other) else 0.0
    if one.hardware != other.hardware:
        return _is_apart(apart + math.log(one.step_ms.value / other.step_ms.value), one.step_ms, other.step_ms)
    kernels, links = max(one.device_factor, other.device_factor), max(one.link_factor, other.link_factor)
    # Factors on kernels and on communication: as predicted, and each scaled up and down by its common error.
    cases = ((1.0, 1.0), (kernels, 1.0), (1 / kernels, 1.0), (1.0, links), (1.0, 1 / links))
    logs = [apart + math.log(one.scale_step_ms(*case) / other.scale_step_ms(*case)) for case in cases]
    same_sign = all(log > 0 for log in logs) or all(log < 0 for log in logs)
    return same_sign and all(_is_apart(log, one.model_ms, other.model_ms) for log in logs)


def _best(options: Sequence[WhatIfOption], weight: StepWeight) -> Best | None:
    if not options:
        return None
    best = min(options, key=lambda one: weight(one) * one.step_ms.value)
    return Best(best, tuple(one for one in options if one is not best and not are_separable(best, one, weight)))


def _is_apart(log: float, one: PredictedInterval, other: PredictedInterval) -> bool:
    # Independent errors of two logarithms add in quadrature; the interval ends that face each other count.
    upper, lower = (one, other) if log > 0 else (other, one)
    return abs(log) > math.hypot(math.log(upper.value / upper.low), math.log(lower.high / lower.value))


@dataclass(frozen=True)
class WhatIfAnswer:
    """The answer of ``evenshard.what_if``.

    Attributes:
        options: machines by hardware, number of devices, group size and memory.
        question: the request, with defaults filled in.
        prices: hourly prices; None if not given.
    """

    options: tuple[WhatIfOption, ...]
    question: WhatIf = field(repr=False)
    prices: Prices | None = field(default=None, repr=False)

    @property
    def dense_ms(self) -> dict[str, float]:
        """Return the step time without embeddings, by hardware."""
        return map_to_hardware("dense_ms", self.question.dense_ms, self.question.hardware)

    @cached_property
    def fastest(self) -> Best | None:
        """Return the machine with the most samples per second; None if the tables fit on none."""
        return fastest_option(self.options)

    @cached_property
    def cheapest(self) -> Best | None:
        """Return the machine with the lowest cost; None if none has a price."""
        return cheapest_option(self.options)

    @cached_property
    def cheapest_in_time(self) -> Best | None:
        """Return the cheapest machine within ``max_step_ms``; None if there is none, or no limit was given."""
        most_ms = self.question.max_step_ms
        return None if most_ms is None else cheapest_option(self.options, most_ms)

    @property
    def has_dense(self) -> bool:
        """Return True if times include the dense part of a step."""
        return any(self.dense_ms.values()) or any(one.step is not None for one in self.options)

    @cached_property
    def stops(self) -> tuple[tuple[WhatIfOption, WhatIfOption | None], ...]:
        """Return, for each hardware, the largest machine whose devices all pay, and the next larger one.

        Additional devices pay while they process at least ``LEAST_PAYING`` of the samples per second that as many
        devices of the smaller machine process. With several group or memory sizes, the fastest option counts. The next
        machine is None if all devices pay. Hardware with a single number of devices is left out.
        """
        found = []
        for hardware in dict.fromkeys(option.hardware for option in self.options):
            fitting = [option for option in self.options if option.fits and option.hardware == hardware]
            fitting.sort(key=lambda option: (option.num_devices, option.samples_per_s.value))
            ordered = list({option.num_devices: option for option in fitting}.values())
            pairs = ((fewer, more) for fewer, more in pairwise(ordered) if not _pays(fewer, more))
            if len(ordered) > 1:
                found.append(next(pairs, (ordered[-1], None)))
        return tuple(found)

    @property
    def has_groups(self) -> bool:
        """Return True if an option has several groups."""
        return any(one.num_groups > 1 for one in self.options)

    def record(self) -> dict[str, Any]:
        """Return the answer as a JSON record."""
        asked, prices = self.question, self.prices
        number = {id(one): at for at, one in enumerate(self.options)}

        def best_record(best: Best | None) -> dict[str, Any] | None:
            others = [] if best is None else [number[id(one)] for one in best.equals]
            return None if best is None else {"option": number[id(best.option)], "not_separable": others}

        return {
            "schema_version": WHAT_IF_VERSION,
            **{name: getattr(asked, name) for name in ("batch_size", "batch_per_device")},
            "dense_ms": self.dense_ms,
            **{name: getattr(asked, name) for name in ("dense_batch", "overlap", "sync_every", "max_step_ms")},
            "cost_is_of_samples": SAMPLES_OF_COST,
            "currency": None if prices is None else prices.currency,
            "price_note": None if prices is None else prices.note,
            "options": [_option_record(one) for one in self.options],
            **{name: best_record(getattr(self, name)) for name in ("fastest", "cheapest", "cheapest_in_time")},
            "stops_paying": [number[id(fewer)] for fewer, more in self.stops if more is not None],
        }


def _pays(fewer: WhatIfOption, more: WhatIfOption) -> bool:
    gained = more.samples_per_s.value / fewer.samples_per_s.value - 1
    return gained >= LEAST_PAYING * (more.num_devices / fewer.num_devices - 1)


def save_what_if(found: WhatIfAnswer, path: str | Path) -> None:
    """Write the answer as JSON, atomically."""
    write_text(path, json.dumps(found.record(), indent=1, allow_nan=False) + "\n")


_OF_MACHINE = ("num_devices", "num_nodes", "devices_per_node", "nodes_per_domain", "intra", "inter")
_OF_OPTION = ("batch_size", "group_size", "layout", "memory_cap_gb", "price_per_hour", "fits", "problem")


def _option_record(one: WhatIfOption) -> dict[str, Any]:
    record: dict[str, Any] = {
        "hardware": one.hardware,
        "times": measured_or_simulated(one.hardware),
        **{name: getattr(one.machine, name) for name in _OF_MACHINE},
        **{name: getattr(one, name) for name in _OF_OPTION},
    }
    if one.answer is None:
        return record
    fullest = fullest_device(one.answer)
    return record | {
        "embeddings_ms": asdict(one.embeddings_ms),
        "dense_ms": one.dense_part_ms,
        "sync": None if one.sync is None else {**asdict(one.sync), "step_ms": one.sync.step_ms},
        "step_ms": asdict(one.step_ms),
        "samples_per_s": asdict(one.samples_per_s),
        "cost": None if one.cost is None else asdict(one.cost),
        "lower_bound_ms": one.answer.lower_bound_ms,
        "memory": {"fullest_bytes": fullest.most_bytes, "limit_bytes": fullest.limit_bytes},
        "model": one.answer.lineage.get("model"),
        "warnings": [*one.answer.warnings, *one.answer.memory_warnings],
    }
