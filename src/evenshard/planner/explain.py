"""Explanation of a placement: the slowest device, its times, and the three best changes of its tables.

A change moves or swaps a part of a table, changes its sharding type, or its compute kernel. The model of the answer
predicts whole placements, because a change of one table affects the communication of all devices.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, cut, names_text
from evenshard.base.process import one_thread
from evenshard.base.typed import check_arguments
from evenshard.placement.parts import TablePart, part_table, storages_of
from evenshard.placement.placement import is_legal_sharding
from evenshard.placement.sharding import TABLE_WISE, TYPES
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.changed_parts import ChangedPlacement, ChangeOutcome, Changes, devices_text
from evenshard.planner.pricing import device_error, hardware_of_devices
from evenshard.price.evidence import device_text
from evenshard.price.kernel_calls import ROUNDING
from evenshard.price.step import STEP_PARTS, predicted_step_times
from evenshard.search.sharding_option import Choice, ShardingOption
from evenshard.sharders.model import Model


@dataclass(frozen=True)
class DeviceTime:
    """Time of a phase, such as ``backward``, on the slowest device, and the mean over all devices."""

    name: str
    time_ms: float
    mean_ms: float


@dataclass(frozen=True)
class TableChange:
    """A legal change of a table: another device, a swap, another sharding type or another compute kernel.

    ``step_ms`` is the step time after the change; ``change_ms`` is negative if it is faster than before; ``helps`` is
    True if the step time drops by more than rounding error.
    """

    table: str
    change: str
    step_ms: float
    change_ms: float
    helps: bool


@dataclass(frozen=True)
class Explanation:
    """The slowest device, and the best changes: one of each kind if the user named a table, else one per table."""

    model: str
    device: str  # evidence for the simulated device; empty for real hardware
    step_ms: float
    slowest_device: int  # the first of ties
    num_devices: int
    times: tuple[DeviceTime, ...]  # of the slowest device, in the order of a step
    table: str  # empty for all tables of the slowest device
    sharding_type: str
    devices: tuple[int, ...]  # devices with a part of the table
    adds_ms: float  # time that a device saves without its part, the largest over parts
    num_tried: int  # tables whose changes were tried
    changes: tuple[TableChange, ...]  # the fastest step first


# Changes that an explanation lists.
NUM_CHANGES = 3
# Tables of the slowest device whose changes are tried: those that add most to its time. More tables take longer.
MOST_TABLES_TRIED = 24
# Parts on other devices that are tried as swaps: those that most reduce the slower of the two devices.
PRICED_SWAPS = 64
# Load factors of caches that are tried, each twice the previous.
LOAD_FACTORS_TRIED = (0.05, 0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True)
class _Candidate:
    """A change that may be illegal, with the approximate step time and device times after it, ms."""

    words: str
    step_ms: float
    ms_D: npt.NDArray[np.float64]
    changes: Changes | Sequence[TablePart]


@one_thread()
@check_arguments()
def explain(answer: PlacementAnswer, model: Model, table: str = "") -> Explanation:
    """Find the slowest device, and the best legal changes.

    The model predicts all times again; the answer's own times are not used. ``table`` is a table or a part such as
    "clicks[64:128]"; by default, changes are tried for the tables of the slowest device.

    Raises:
        BadConfig: if the answer has no such table, or separates tables that its own rules keep together.
    """
    changed = ChangedPlacement(answer, model)
    slowest = int(changed.now.ms_D.argmax())
    _, adds_ms = changed.costs.part_ms(answer.parts)
    numbers = _find_parts(answer, table) if table else answer.parts_on_device[slowest]
    part_of_table: dict[str, list[int]] = {}
    for number in sorted(numbers, key=lambda one: -adds_ms[one]):
        part_of_table.setdefault(answer.parts[number].table, []).append(number)
    names = list(part_of_table)[:MOST_TABLES_TRIED]
    tables = _TableChanges(answer, changed, adds_ms)
    found = [sorted(tables.best(name, part_of_table[name]), key=lambda one: one.step_ms) for name in names]
    best = found[0] if table else [changes[0] for changes in found if changes]
    predicted, hardware = changed.costs.predict(answer.parts), hardware_of_devices(answer.request)
    devices = [predicted_step_times(one) for one in predicted.devices]
    means = np.mean(devices, axis=0).tolist()
    return Explanation(
        model=model.source,
        device=device_text(", ".join((model.hardware, *hardware)), device_error(answer.request, model, predicted)),
        step_ms=changed.now.step_ms,
        slowest_device=slowest,
        num_devices=answer.num_devices,
        times=tuple(map(DeviceTime, STEP_PARTS, devices[slowest], means)),
        table=names[0] if table else "",
        sharding_type=answer.type_of_table[names[0]] if table else "",
        devices=tuple(dict.fromkeys(one for number in sorted(numbers) for one in answer.parts[number].devices))
        if table
        else (),
        adds_ms=max(adds_ms[number] for number in numbers) if table else 0.0,
        num_tried=len(names),
        changes=tuple(sorted(best, key=lambda one: one.step_ms)[:NUM_CHANGES]),
    )


def _find_parts(answer: PlacementAnswer, table: str) -> list[int]:
    by_name = {one.name: one for one in answer.request.tables}
    found = [
        number
        for number, part in enumerate(answer.parts)
        if part.table == table or (table not in by_name and part_table(part, by_name[part.table]).name == table)
    ]
    if not found:
        close = get_close_matches(cut(table), by_name) or [one for one in by_name if one.lower() == table.lower()]
        hint = f"Did you mean {' or '.join(map(brief, close))}?" if close else f"It has {names_text(list(by_name))}."
        raise BadConfig(f"there is no table {brief(table)} in this placement. {hint}")
    return found


class _TableChanges:
    def __init__(self, answer: PlacementAnswer, changed: ChangedPlacement, adds_ms: Sequence[float]) -> None:
        self._answer, self._changed, self._adds_ms = answer, changed, adds_ms
        self._position = {one.name: number for number, one in enumerate(answer.request.tables)}
        self._movable = [
            number for number, part in enumerate(answer.parts) if changed.option(self._position[part.table]).span == 1
        ]

    def best(self, name: str, numbers: Iterable[int]) -> Iterator[TableChange]:
        """Yield, for each kind of change, the legal change with the fastest step."""
        changed, position = self._changed, self._position[name]
        grain_ms = ROUNDING * changed.now.step_ms
        moves = [one for number in numbers if number in self._movable for one in self._moves(number)]
        for candidates in (moves, *self._types(position), list(self._kernels(position))):
            for one in sorted(
                candidates, key=lambda one: (round(one.step_ms / grain_ms), round(float(one.ms_D.sum()) / grain_ms))
            ):
                parts = changed.parts_after(one.changes) if isinstance(one.changes, Mapping) else one.changes
                if is_legal_sharding(changed.task, parts):
                    step_ms = changed.costs.predict(parts).predicted_ms
                    change_ms = step_ms - changed.now.step_ms
                    yield TableChange(name, one.words, step_ms, change_ms, change_ms < -grain_ms)
                    break

    # Devices ----------------------------------------------------------------------------------------------------------

    def _moves(self, number: int) -> list[_Candidate]:
        """Return the moves and swaps of a part, without those that only rename devices."""
        part = self._answer.parts[number]
        is_cut = self._changed.option(self._position[part.table]).sharding_type != TABLE_WISE
        home, of_part = part.device, f" its columns {part.columns}" if is_cut else ""
        tried: list[tuple[str, Changes]] = [
            (f"move{of_part} to device {device}", self._move(number, device))
            for device in range(self._answer.num_devices)
            if device != home
        ]
        for other in self._swap_candidates(number):
            device, names = self._answer.parts[other].device, names_text(tuple(self._names(other)))
            changes = {**self._move(number, device), **self._move(other, home)}
            tried.append((f"swap{of_part} with {names} on device {device}", changes))
        found, now_D = self._candidates(tried), np.sort(self._changed.now.ms_D)
        return [one for one in found if not np.allclose(np.sort(one.ms_D), now_D, rtol=ROUNDING, atol=0)]

    def _candidates(self, tried: Sequence[tuple[str, Changes]]) -> list[_Candidate]:
        outcomes = self._changed.try_each([changes for _, changes in tried])
        pairs = zip(tried, outcomes, strict=True)
        return [_Candidate(words, outcome.step_ms, outcome.ms_D, changes) for (words, changes), outcome in pairs]

    def _move(self, number: int, device: int) -> dict[int, Choice]:
        home = self._answer.parts[number].device
        changes = {}
        for one in self._changed.list_kept_together(self._position[self._answer.parts[number].table]):
            choice = self._changed.choices[one]
            changes[one] = Choice(choice.option, tuple(device if place == home else place for place in choice.places))
        return changes

    def _swap_candidates(self, number: int) -> list[int]:
        own, ms_D = self._answer.parts[number], self._changed.now.ms_D

        def then_ms(other: int) -> float:
            more_ms = self._adds_ms[number] - self._adds_ms[other]
            there = self._answer.parts[other].device
            return max(float(ms_D[own.device]) - more_ms, float(ms_D[there]) + more_ms)

        others = [
            other
            for other in self._movable
            if self._answer.parts[other].device != own.device and self._answer.parts[other].table != own.table
        ]
        return sorted(others, key=then_ms)[:PRICED_SWAPS]

    def _names(self, number: int) -> Iterator[str]:
        part, tables = self._answer.parts[number], self._answer.request.tables
        position = self._position[part.table]
        with_it = self._changed.list_kept_together(position)
        if len(with_it) == 1:
            yield part_table(part, tables[position]).name
        else:
            yield from (tables[one].name for one in with_it)

    # Sharding types and compute kernels -------------------------------------------------------------------------------

    def _types(self, position: int) -> Iterator[list[_Candidate]]:
        changed, without = self._changed, self._changed.without(position)
        for name in changed.types(position):
            if name == changed.option(position).sharding_type:
                continue
            choices = dict.fromkeys(_choices(changed, position, name, without))
            words = [f"shard it {name} on {devices_text(changed.devices(position, choice))}" for choice in choices]
            yield self._candidates([(one, {position: choice}) for one, choice in zip(words, choices, strict=True)])

    def _kernels(self, position: int) -> Iterator[_Candidate]:
        changed, table = self._changed, self._answer.request.tables[position]
        if TYPES[self._answer.type_of_table[table.name]].is_replicated:
            return
        now = self._answer.storage_of_table[table.name]
        for kernel in changed.task.kernels_of(position):
            for storage in storages_of(kernel, LOAD_FACTORS_TRIED):
                if storage != now:
                    parts = [
                        replace(part, storage=storage) if part.table == table.name else part
                        for part in self._answer.parts
                    ]
                    predicted = changed.costs.predict(parts)
                    ms_D = np.array([one.predicted_total_ms for one in predicted.devices])
                    yield _Candidate(f"switch it to {storage}", predicted.predicted_ms, ms_D, parts)


def _choices(what_if: ChangedPlacement, position: int, name: str, without: ChangeOutcome) -> Iterator[Choice]:
    """Yield legal placements of a table with sharding type ``name``, with its current compute kernel if possible."""
    may_D, kept = what_if.allowed_devices(position), what_if.option(position).storage
    options = [option for option in enumerate(what_if.space.options(position)) if option[1].sharding_type == name]
    alike = [option for option in options if option[1].storage == kept]
    if not alike and not TYPES[name].is_replicated:
        alike = list(what_if.add_storage_options(position, [option for _, option in options], kept))
    for number, option in alike or options:
        if option.span == len(may_D) > 1:
            yield Choice(number)
            continue
        fits_D = without.used_D + what_if.space.shard_arrays.size_P[[*option.shards]].max() <= what_if.memory_D
        for places in _places(what_if, option, without, may_D & fits_D):
            yield Choice(number, places)


def _places(
    what_if: ChangedPlacement, option: ShardingOption, without: ChangeOutcome, allowed_D: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, ...]]:
    """Yield the shards' positions to try: every allowed one for a single shard, the least busy ones for several.

    A shard at position p is on the ``option.span`` devices from device ``p * option.span``.
    """
    load = np.where(allowed_D, without.ms_D, np.inf).reshape(-1, option.span).max(axis=1)
    size = option.home_span // option.span if len(option.shards) > 1 else len(load)
    for group in (range(first, first + size) for first in range(0, len(load), size)):
        order = [place for place in sorted(group, key=lambda place: float(load[place])) if np.isfinite(load[place])]
        if len(option.shards) == 1:
            yield from ((place,) for place in order)
        elif len(order) >= len(option.shards):
            yield tuple(order[: len(option.shards)])
