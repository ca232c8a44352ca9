"""The explanation of a table: each device with a part of it, the next best move, and every other way to shard it.

All of it is what the model of the answer predicts for whole placements: a change of one table changes what its devices
compute, and what all devices exchange.

Legend: D devices.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from evenshard.compare.explain.changed_parts import ChangeOutcome, Changes, WhatIf
from evenshard.compare.explain.explanation import DeviceOption, Explanation, Move, PartExplanation, WayOption
from evenshard.compare.explain.storage_options import kept_options
from evenshard.measure.evidence import device_text
from evenshard.measure.price.device_price import ROUNDING
from evenshard.placement.optimizer_state import state_bytes
from evenshard.placement.parts import part_table
from evenshard.placement.sharding import COLUMN_WISE, COLUMNS_ALONE, TYPES
from evenshard.placement.task import ruled_out
from evenshard.planner.answer import PlacementAnswer
from evenshard.sharders.model import Model
from evenshard.sharders.search.sharding_option import ShardingOption
from evenshard.sharders.search.state import Choice
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief, cut
from evenshard.utils.process import one_thread
from evenshard.utils.signature import check_arguments

# Parts elsewhere that a part may change places with: those after which the two devices promise most are priced.
PRICED_SWAPS = 64


@one_thread()
@check_arguments()
def explain(answer: PlacementAnswer, model: Model, table: str) -> Explanation:
    """What a table costs as it is sharded, and what it would elsewhere and otherwise.

    Args:
        model: predicts everything again; the answer's own figures are not used.
        table: its name, or that of a part such as "clicks[64:128]".

    Raises:
        BadConfig: if the answer has no such table, or keeps tables apart that its own rules keep together.
    """
    by_name = {one.name: one for one in answer.request.tables}
    names = [table] if table in by_name else [part.table for part in answer.parts]
    found = [
        (number, part)
        for number, part in enumerate(answer.parts)
        if part.table in names and table in (part.table, part_table(part, by_name[part.table]).name)
    ]
    if not found:
        raise BadConfig(f"there is no table {brief(table)} in this placement. {_close(table, list(by_name))}")
    what_if = WhatIf(answer, model)
    name = found[0][1].table
    position = list(by_name).index(name)
    without, explained = what_if.without(position), PartMoves(answer, what_if)
    return Explanation(
        table=name,
        model=model.source,
        device=device_text(model.hardware, model.device_error),
        step_ms=what_if.now.step_ms,
        slowest_device=int(what_if.now.ms_D.argmax()),
        sharding_type=answer.type_of_table[name],
        moves_with=tuple(
            answer.request.tables[other].name for other in what_if.moves_with(position) if other != position
        ),
        without_ms=without.step_ms,
        parts=tuple(explained.part(number) for number, _ in found),
        ways=tuple(way_options(what_if, position, without)),
        kept=kept_options(what_if, position),
    )


def _close(table: str, names: list[str]) -> str:
    close = difflib.get_close_matches(cut(table), names) or [one for one in names if one.lower() == table.lower()]
    if close:
        return f"Did you mean {' or '.join(map(brief, close))}?"
    return f"It has {len(names)}: {', '.join(map(cut, names[:3]))}{', ...' if len(names) > 3 else ''}."


# Places --------------------------------------------------------------------------------------------------------------


class PartMoves:
    """The parts of an answer, and what moving those that live on one device leads to."""

    def __init__(self, answer: PlacementAnswer, what_if: WhatIf) -> None:
        self._answer, self._what_if = answer, what_if
        self._alone_ms, self._adds_ms = what_if.costs.part_ms(answer.parts)
        self._position = {one.name: number for number, one in enumerate(answer.request.tables)}
        self._movable = [
            number for number, part in enumerate(answer.parts) if what_if.option(self._position[part.table]).span == 1
        ]

    def is_movable(self, number: int) -> bool:
        """Whether a part may go to another device by itself."""
        return number in self._movable

    def part(self, number: int) -> PartExplanation:
        """A part, where it is and elsewhere."""
        part, now = self._answer.parts[number], self._what_if.now
        as_table = part_table(part, self._answer.request.tables[self._position[part.table]])
        device_ms = float(now.ms_D[list(part.devices)].max())
        movable = number in self._movable
        return PartExplanation(
            name=as_table.name,
            rows=part.rows,
            columns=part.columns,
            devices=part.devices,
            weight_bytes=as_table.size_bytes,
            state_bytes=state_bytes(as_table, self._answer.task.optimizer_of(part.table)),
            alone_ms=self._alone_ms[number],
            adds_ms=self._adds_ms[number],
            device_ms=device_ms,
            on_slowest=device_ms >= float(now.ms_D.max()),
            options=tuple(self._options(number)) if movable else (),
            best=self.best(number) if movable else None,
        )

    def _move(self, number: int, device: int) -> Changes:
        """A part on another device, with all that must stay with it."""
        position = self._position[self._answer.parts[number].table]
        home = self._answer.parts[number].device
        changes = {}
        for one in self._what_if.moves_with(position):
            choice = self._what_if.choice(one)
            changes[one] = Choice(choice.option, tuple(device if place == home else place for place in choice.places))
        return changes

    def _options(self, number: int) -> Iterator[DeviceOption]:
        what_if, home = self._what_if, self._answer.parts[number].device
        for device in range(self._answer.num_devices):
            changes = self._move(number, device)
            outcome = what_if.now if device == home else what_if.after(changes)
            yield DeviceOption(
                device=device,
                device_ms=float(outcome.ms_D[device]),
                step_ms=outcome.step_ms,
                change_ms=outcome.step_ms - what_if.now.step_ms,
                used_bytes=int(outcome.used_D[device]),
                room_bytes=int(what_if.room_D[device]),
                illegal=what_if.illegal(changes, outcome),
            )

    def best(self, number: int) -> Move | None:
        """The legal move or swap with the fastest step; of equals, the one after which all devices work least."""
        what_if, home = self._what_if, self._answer.parts[number].device
        tried: list[tuple[int, int | None]] = [
            (device, None) for device in range(self._answer.num_devices) if device != home
        ]
        tried += [(self._answer.parts[other].device, other) for other in self._swap_candidates(number)]
        grain_ms = ROUNDING * what_if.now.step_ms
        best: tuple[tuple[int, int], Move] | None = None
        for device, other in tried:
            changes = self._move(number, device)
            if other is not None:
                changes = {**changes, **self._move(other, home)}
            outcome = what_if.after(changes)
            if _same(outcome, what_if.now) or what_if.illegal(changes, outcome):
                continue
            change_ms = outcome.step_ms - what_if.now.step_ms
            key = (round(outcome.step_ms / grain_ms), round(float(outcome.ms_D.sum()) / grain_ms))
            if best is None or key < best[0]:
                back = () if other is None else tuple(self._names(other))
                from_ms, to_ms = float(outcome.ms_D[home]), float(outcome.ms_D[device])
                best = key, Move(device, back, from_ms, to_ms, outcome.step_ms, change_ms, change_ms < -grain_ms)
        return None if best is None else best[1]

    def _swap_candidates(self, number: int) -> list[int]:
        """Parts elsewhere, those first that make the slower one of the two devices fastest, by what each part adds."""
        own, ms_D = self._answer.parts[number], self._what_if.now.ms_D

        def then_ms(other: int) -> float:
            more_ms = self._adds_ms[number] - self._adds_ms[other]
            there = self._answer.parts[other].device
            return max(float(ms_D[own.device]) - more_ms, float(ms_D[there]) + more_ms)

        elsewhere = [
            other
            for other in self._movable
            if self._answer.parts[other].device != own.device and self._answer.parts[other].table != own.table
        ]
        return sorted(elsewhere, key=then_ms)[:PRICED_SWAPS]

    def _names(self, number: int) -> Iterator[str]:
        part, tables = self._answer.parts[number], self._answer.request.tables
        position = self._position[part.table]
        with_it = self._what_if.moves_with(position)
        if len(with_it) == 1:
            yield part_table(part, tables[position]).name
        else:
            yield from (tables[one].name for one in with_it)


def _same(outcome: ChangeOutcome, now: ChangeOutcome) -> bool:
    """Whether devices trade what they take, and nothing else: then nothing but names changes."""
    return bool(np.allclose(np.sort(outcome.ms_D), np.sort(now.ms_D), rtol=ROUNDING, atol=0))


# Ways ----------------------------------------------------------------------------------------------------------------


def way_options(what_if: WhatIf, position: int, without: ChangeOutcome) -> Iterator[WayOption]:
    """The table with each type: at the fastest legal place that was found, or the fastest where none is legal."""
    now, machine = what_if.option(position), what_if.task.machine
    for name in what_if.types(position):
        if name == now.sharding_type:
            choices = [what_if.choice(position)]
        else:
            choices = list(dict.fromkeys(_choices(what_if, position, name, without)))
        if not choices:
            yield WayOption(name, False, (), (), (), 0, None, None, (_impossible(what_if, position, name),))
            continue
        found = []
        for choice in choices:
            outcome = what_if.now if name == now.sharding_type else what_if.after({position: choice})
            found.append((choice, outcome, what_if.illegal({position: choice}, outcome)))
        choice, outcome, illegal = min(found, key=lambda one: (bool(one[2]), one[1].step_ms))
        option = what_if.option(position, choice)
        step_ms = what_if.now.step_ms if name == now.sharding_type else what_if.step_ms(position, choice)
        yield WayOption(
            sharding_type=name,
            is_now=name == now.sharding_type,
            widths=tuple(piece.columns for piece in option.pieces),
            devices=what_if.devices(position, choice),
            nodes=choice.places if 1 < option.span == machine.devices_per_node < machine.num_devices else (),
            table_bytes=int(outcome.used_D.sum() - without.used_D.sum()),
            step_ms=step_ms,
            change_ms=step_ms - what_if.now.step_ms,
            illegal=illegal,
        )


def _choices(what_if: WhatIf, position: int, name: str, without: ChangeOutcome) -> Iterator[Choice]:
    """Places of a table with one sharding type: where it is allowed and fits, and as if it were allowed everywhere.

    It is kept as it is now, if it can be in that option.

    Args:
        without: the placement without the table.
    """
    everywhere = np.ones(len(without.ms_D), dtype=bool)
    may_D, kept = what_if.may_live(position), what_if.option(position).storage
    options = [
        option for option in enumerate(what_if.space.groups[position].options) if option[1].sharding_type == name
    ]
    alike = [option for option in options if option[1].storage == kept]
    if not alike and not TYPES[name].is_replicated:
        alike = list(what_if.with_storage(position, [option for _, option in options], kept))
    for number, option in alike or options:
        if option.span == len(everywhere) > 1:
            yield Choice(number)
            continue
        fits_D = without.used_D + max(piece.size_bytes for piece in option.pieces) <= what_if.room_D
        for allowed_D in (may_D & fits_D, everywhere):
            for places in _places(what_if, option, without, allowed_D):
                yield Choice(number, places)


def _places(
    what_if: WhatIf, option: ShardingOption, without: ChangeOutcome, allowed_D: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, ...]]:
    """Each place for one piece; the least busy ones for several."""
    load = np.where(allowed_D, without.ms_D, np.inf).reshape(-1, option.span).max(axis=1)
    size = option.home_span // option.span if len(option.pieces) > 1 else len(load)
    for group in (range(first, first + size) for first in range(0, len(load), size)):
        order = [place for place in sorted(group, key=lambda place: float(load[place])) if np.isfinite(load[place])]
        if len(option.pieces) == 1:
            yield from ((place,) for place in order)
        elif len(order) >= len(option.pieces):
            yield tuple(order[: len(option.pieces)])


def _impossible(what_if: WhatIf, position: int, name: str) -> str:
    """Why a table cannot be sharded with a type, whatever the rules are, a clause."""
    task = what_if.costs.task
    never = ruled_out(task, position)
    like = COLUMN_WISE if name in COLUMNS_ALONE else name
    alike = "device" if task.num_devices == 1 else "node"  # of which there is one, where a type is another one's too
    return never.get(name) or never.get(like) or f"there is one {alike}"
