"""What is asked of every machine, and the answer for one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenshard.compare.what_if.machines import layouts_of, replicas_ms, sync_of, synced_bytes
from evenshard.compare.what_if.option import WhatIfOption
from evenshard.compare.what_if.prices import Prices
from evenshard.measure.step_time import without_last_digits
from evenshard.placement.machine import Machine
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.request import caps_of
from evenshard.sharders.model import Model
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief
from evenshard.utils.units import bytes_to_gb

ALL_SIZES = "all"
# If the fullest device holds more than this many times the mean, a placement with at most the second number is tried
# too: the fullest device decides how long an average over groups takes.
UNEVEN_GROUP, EVEN = 1.2, 1.1
# Share of a step that this average must take for that.
WORTH_EVENING = 0.02


@dataclass(frozen=True)
class Question:
    """What is asked of every machine.

    Attributes:
        place: ``evenshard.place``, or what answers as it does.
        tables: as it takes them.
        models: cost model of each kind of hardware.
        prices: by the hour; None for none.
        batch_size: samples of a step over all devices; None where each device has its own number.
        batch_per_device: samples of a step on each device; None where all have one number together.
        dense_ms: of each kind of hardware.
        dense_batch: samples of a device that ``dense_ms`` is of; None to take it as it is.
        overlap: see ``WhatIfOption``.
        sync_every: see ``Sync``.
        knobs: of ``evenshard.place``.
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
        self, hardware: str, machine: Machine, group_size: int, memory_cap_gb: float | None = None
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
        self, hardware: str, machine: Machine, layout: str, group: Machine, memory_cap_gb: float | None
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
        group: Machine,
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

    A placement that is legal with less memory is legal with more.

    Args:
        options: those of one machine in ascending order of memory.
    """
    less: WhatIfOption | None = None
    for one in options:
        if less is not None and _differ_in_memory(less, one) and less.answer is not None:
            assert one.memory_cap_gb is not None, "only memory that is asked for differs"
            if one.answer is None or less.step_ms.value < one.step_ms.value:
                caps = caps_of(one.memory_cap_gb, less.answer.num_devices)
                bound_ms = 0.0 if one.answer is None else min(one.answer.lower_bound_ms, less.answer.predicted_ms)
                request = replace(less.answer.request, caps_bytes=caps)
                answer = replace(less.answer, request=request, lower_bound_ms=bound_ms)
                one = replace(less, answer=answer, memory_cap_gb=one.memory_cap_gb)
        yield one
        less = one


def _differ_in_memory(one: WhatIfOption, other: WhatIfOption) -> bool:
    return (one.hardware, one.machine, one.group_size) == (other.hardware, other.machine, other.group_size)


def sizes_of(machine: Machine, group_sizes: Sequence[int] | str) -> Iterator[int]:
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


def _is_even(machine: Machine, size: int) -> bool:
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
