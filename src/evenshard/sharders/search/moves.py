"""What a placement under search moves from an earlier one: bytes of every group, their bound and their price.

Legend: D devices, O devices of the earlier placement, N devices of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evenshard.placement.machine import Machine
from evenshard.placement.memory import SGD
from evenshard.placement.moves import SharedPiece, best_names, device_kinds, larger_machine, shared_pieces
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import broken_limit, parts_by_table
from evenshard.sharders.search.choices import choice_like, parts_of_group
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.state import Change, State
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig

# Least cost of bytes beyond the bound, in steps of the start: no placement with them beats one without.
_OVER = 2.0


@dataclass(frozen=True)
class EarlierPlacement:
    """A placement that has weights.

    Attributes:
        parts_of_table: parts of the tables whose weights can be used, by name.
        machine: that they are on.
        optimizer_of: whose state moves with them, by table; nothing of tables that are missing.
    """

    parts_of_table: Mapping[str, tuple[TablePart, ...]]
    machine: Machine
    optimizer_of: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Moves:
    """The moves of a search.

    Attributes:
        space: groups and options of the search.
        earlier: where the weights are.
        most_bytes: that may move.
        price: of a byte, ms.
        step_ms: time of a step to measure what is over the bound by.
        homes: the choice of each group with which nothing of it moves; None where it has none.
    """

    space: SearchSpace
    earlier: EarlierPlacement
    most_bytes: float = float("inf")
    price: float = 0.0
    step_ms: float = 1.0
    homes: list[Choice | None] = field(init=False)
    _known: dict[tuple[int, Choice], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Looks for the homes, which may add options to the space."""
        self._machine = larger_machine(self.earlier.machine, self.space.task.machine)
        self.homes = [self._home(group) for group in range(len(self.space.groups))]
        tables = self.space.task.tables
        self.all_bytes = sum(table.size_bytes for table in tables if table.name in self.earlier.parts_of_table)

    def _home(self, group: int) -> Choice | None:
        task = self.space.task
        position = self.space.groups[group].tables[0]
        before = self.earlier.parts_of_table.get(task.tables[position].name)
        if before is None or any(device >= task.num_devices for part in before for device in part.devices):
            return None
        try:
            choice = choice_like(self.space, group, before)
        except BadConfig:  # another machine: its rows are on other devices than all
            return None
        if choice is None or self.bytes_of(group, choice) or not self.is_allowed(group, choice):
            return None
        return choice

    def is_allowed(self, group: int, choice: Choice) -> bool:
        """Whether the limits of a group's tables allow a choice; memory and other tables left aside."""
        parts = parts_of_group(self.space, group, choice)
        return all(broken_limit(self.space.task, position, own) is None for position, own in parts.items())

    def bytes_of(self, group: int, choice: Choice) -> int:
        """What moves of a group; nothing of a table that has no weights yet."""
        key = (group, choice)
        if key not in self._known:
            self._known[key] = self._count_bytes(group, choice)
        return self._known[key]

    def _count_bytes(self, group: int, choice: Choice) -> int:
        of_tables = parts_of_group(self.space, group, choice)
        return sum(self._bytes_of_table(position, after) for position, after in of_tables.items())

    def parts_bytes(self, parts: Sequence[TablePart]) -> int:
        """What moves of a whole placement."""
        of_tables = parts_by_table(self.space.task, parts).values()
        return sum(self._bytes_of_table(position, after) for position, after in enumerate(of_tables))

    def _bytes_of_table(self, position: int, after: Sequence[TablePart]) -> int:
        table = self.space.task.tables[position]
        before = self.earlier.parts_of_table.get(table.name)
        if before is None or list(before) == list(after):
            return 0
        return sum(piece.moved_bytes for piece in self._shared_pieces(table, before, after))

    def _shared_pieces(
        self, table: Table, before: Sequence[TablePart], after: Sequence[TablePart]
    ) -> Iterator[SharedPiece]:
        return shared_pieces(table, before, after, self._machine, self.earlier.optimizer_of.get(table.name, SGD))

    def earlier_parts(self) -> tuple[TablePart, ...] | None:
        """The earlier placement, where every table has one on these devices."""
        task = self.space.task
        found = [self.earlier.parts_of_table.get(table.name, ()) for table in task.tables]
        parts = tuple(part for own in found for part in own)
        gone = any(device >= task.num_devices for part in parts for device in part.devices)
        return None if gone or not all(found) else parts

    def price_ms(self, moved_bytes: int) -> float:
        """What moves cost a search, ms."""
        over = moved_bytes - self.most_bytes
        over_ms = self.step_ms * (_OVER + over / max(self.all_bytes, 1)) if over > 0 else 0.0
        return self.price * moved_bytes + over_ms

    def moved_after(self, state: State, change: Change) -> int:
        """Bytes that have moved after a change."""
        more = sum(
            self.bytes_of(group, choice) - self.bytes_of(group, state.choices[group]) for group, choice in change
        )
        return state.moved_bytes + more

    def affords(self, state: State, change: Change) -> bool:
        """Whether a change stays within the bound, or leads towards it."""
        moved = self.moved_after(state, change)
        return moved <= state.moved_bytes or moved <= self.most_bytes

    def away(self, state: State) -> Iterator[int]:
        """The groups that are not at home, as far as they have one."""
        for group, home in enumerate(self.homes):
            if home is not None and state.choices[group] != home and self.bytes_of(group, state.choices[group]):
                yield group

    def nearest(self, group: int, number: int) -> Choice | None:
        """A group with an option, each piece where most of it is already; None where that is not clear."""
        option = self.space.groups[group].options[number]
        count = self.space.task.num_devices // option.span
        if option.span > 1 and count == 1:
            return Choice(number)
        held_P = self._sizes_before(group, count, option.span)
        if held_P is None or len(option.pieces) > count:
            return None
        order = [int(one) for one in np.argsort(-held_P, kind="stable")[: len(option.pieces)]]
        places = sorted(order, key=lambda one: self._first_column(group, one, option.span))
        choice = Choice(number, tuple(places))
        return choice if self.is_allowed(group, choice) else None

    def _sizes_before(self, group: int, count: int, span: int) -> np.ndarray | None:
        """Return a group's former columns and rows on each place of ``span`` devices."""
        held = np.zeros(count)
        tables = self.space.task.tables
        for position in self.space.groups[group].tables:
            for part in self.earlier.parts_of_table.get(tables[position].name, ()):
                for device in part.devices:
                    if device // span < count:
                        held[device // span] += part.rows.size * part.columns.size
        return held if held.any() else None

    def _first_column(self, group: int, place: int, span: int) -> int:
        tables = self.space.task.tables
        before = self.earlier.parts_of_table.get(tables[self.space.groups[group].tables[0]].name, ())
        of_place = [part.columns.start for part in before for device in part.devices if device // span == place]
        return min(of_place, default=2**31)

    def rename_devices(self, choices: Sequence[Choice]) -> list[Choice]:
        """The placement with its devices renamed so that the least moves."""
        task, machine = self.space.task, self.space.task.machine
        held_NO = np.zeros((task.num_devices, task.num_devices), dtype=np.int64)
        for group, choice in enumerate(choices):
            if 1 < self.space.groups[group].options[choice.option].span == task.num_devices:
                continue
            for position, after in parts_of_group(self.space, group, choice).items():
                table = task.tables[position]
                before = self.earlier.parts_of_table.get(table.name)
                if before is None:
                    continue
                for piece in self._shared_pieces(table, before, after):
                    old = [device for device in piece.reach if device < task.num_devices]
                    held_NO[np.ix_(piece.new_devices, old)] += piece.num_bytes
        names = best_names(held_NO, device_kinds(task), machine)
        return [self._rename_choice(group, choice, names) for group, choice in enumerate(choices)]

    def _rename_choice(self, group: int, choice: Choice, names: np.ndarray) -> Choice:
        span = self.space.groups[group].options[choice.option].span
        return Choice(choice.option, tuple(int(names[place * span]) // span for place in choice.places))
