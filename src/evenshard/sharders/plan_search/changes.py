"""Promising changes of a placement, which a step of the search tries out: moves, exchanges and other ways to shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.storage import ON_DEVICE
from evenshard.sharders.plan_search.pieces import Pieces
from evenshard.sharders.plan_search.state import Choice, State
from evenshard.sharders.plan_search.storages import other_storages

TRIED_HOMEWARD = 6
"""Units that a step tries to bring home."""
MOVE_TARGETS, SWAP_TARGETS = 16, 6
"""Devices, the least busy ones, that pieces of the slowest one may move to, or change places with."""
TRIED_MOVES, TRIED_SWAPS, MOST_OTHER_WAYS = 3, 4, 12
"""Changes of each kind that a step tries out."""
LEAST_STEP = 1e-4
"""Of the score, relatively: less is no step."""


class PromisingChanges:
    """The changes that a search thinks of.

    Attributes:
        types: sharding types that they use.
        usual_cuts_only: whether they cut columns as usual alone (``usual_cuts``).

    Args:
        pieces: what is known of pieces and devices.
        rng: chooses where there are too many.
    """

    def __init__(self, pieces: Pieces, rng: np.random.Generator) -> None:
        self.pieces, self._rng = pieces, rng
        self.types = set(SHARDING_TYPES)
        self.usual_cuts_only = False

    def of(self, state: State) -> Iterator[list[tuple[int, Choice]]]:
        """Promising changes, the cheapest to find first."""
        slow = int(state.device_ms_D.argmax())
        movable, spread = self.pieces.units_on(state, slow)
        if state.moves is not None:
            yield from self._homeward(state, slow)
        yield from self._moves(state, slow, movable)
        yield from other_storages(self.pieces, state, slow, [*movable, *spread])
        yield from self._swaps(state, slow, movable)
        yield from self._node_changes(state, slow)
        yield from self._other_ways(state, slow, [*movable, *spread])

    def _moves(self, state: State, slow: int, movable: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
        """The most promising moves of a piece to a less busy device."""
        if not movable:
            return
        targets = np.argsort(state.device_ms_D, kind="stable")[:MOVE_TARGETS]
        gains = self.pieces.gains_ms(state, movable, slow)
        pieces = [state.way(unit).pieces[self.pieces.piece_on(state, unit, slow)] for unit in movable]
        with_UN = state.device_ms_D[targets] + self.pieces.adds_ms(state, pieces, targets)
        found = []
        for unit, gain, piece, with_N in zip(movable, gains, pieces, with_UN, strict=True):
            may = np.array([self.pieces.may_go(state, unit, int(device)) for device in targets])
            may &= state.used_D[targets] + piece.size_bytes <= self.pieces.room_D[targets]
            if state.moves is not None:
                changes = ([(unit, _moved(state.choices[unit], slow, int(device)))] for device in targets)
                may &= [state.moves.affords(state, change) for change in changes]
            if not may.any():
                continue
            after = np.where(may, np.maximum(with_N, state.device_ms_D[slow] - gain), np.inf)
            best = int(after.argmin())
            found.append((float(after[best]), unit, int(targets[best])))
        found.sort()
        for expected, unit, device in found[:TRIED_MOVES]:
            if expected >= state.device_ms_D[slow] * (1 + LEAST_STEP):
                return
            yield [(unit, _moved(state.choices[unit], slow, device))]

    def _swaps(self, state: State, slow: int, movable: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
        """The most promising exchanges of a piece for a smaller one of a less busy device."""
        if not movable:
            return
        targets = np.argsort(state.device_ms_D, kind="stable")[:SWAP_TARGETS].tolist()
        gains = self.pieces.gains_ms(state, movable, slow)
        slow_ms = float(state.device_ms_D[slow])
        found = []
        for device in targets:
            if device == slow:
                continue
            theirs, _ = self.pieces.units_on(state, device)
            their_gains = self.pieces.gains_ms(state, theirs, device)
            fast_ms = float(state.device_ms_D[device])
            for unit, gain in zip(movable, gains, strict=True):
                for other, other_gain in zip(theirs, their_gains, strict=True):
                    if other == unit or other_gain >= gain:
                        continue
                    after = max(slow_ms - gain + other_gain, fast_ms + gain - other_gain)
                    if after < slow_ms:
                        found.append((after, unit, other, device))
        found.sort()
        tried = 0
        for _, unit, other, device in found:
            changes = [
                (unit, _moved(state.choices[unit], slow, device)),
                (other, _moved(state.choices[other], device, slow)),
            ]
            if state.moves is not None and not state.moves.affords(state, changes):
                continue
            tried += 1
            if tried > TRIED_SWAPS:
                return
            if self.pieces.may_go(state, unit, device, other) and self.pieces.may_go(state, other, slow, unit):
                yield changes

    def _homeward(self, state: State, slow: int) -> Iterator[list[tuple[int, Choice]]]:
        """Units back to where they were: those of the slow device; of all, where too much has moved."""
        assert state.moves is not None
        is_over = state.moved_bytes > state.moves.most_bytes
        movable, spread = self.pieces.units_on(state, slow)
        away = list(state.moves.away(state)) if is_over or state.moves.price else []
        if not is_over:
            away = [unit for unit in away if unit in movable or unit in spread]
        away.sort(key=lambda unit: -state.moves.bytes_of(unit, state.choices[unit]) if state.moves else 0)
        for unit in away[:TRIED_HOMEWARD]:
            yield self._home_of(state, unit)

    def _home_of(self, state: State, unit: int) -> list[tuple[int, Choice]]:
        """The change that brings a unit home."""
        home = None if state.moves is None else state.moves.homes[unit]
        assert home is not None
        return [(unit, home)]

    def _node_changes(self, state: State, slow: int) -> Iterator[list[tuple[int, Choice]]]:
        """Moves of rows from the node of the slow device to less busy nodes, and exchanges with what is there."""
        machine = self.pieces.costs.task.machine
        home = machine.node_of(slow)
        load_N = state.device_ms_D.reshape(machine.num_nodes, -1).max(axis=1)
        nodes = [node for node in np.argsort(load_N, kind="stable").tolist() if node != home][:SWAP_TARGETS]
        free_N = (self.pieces.room_D - state.used_D).reshape(machine.num_nodes, -1).min(axis=1)
        for unit in sorted(state.on_node[home]):
            size = state.way(unit).pieces[0].size_bytes
            for node in nodes:
                if node in state.choices[unit].places or not self.pieces.node_may(unit, node):
                    continue
                if size <= free_N[node]:
                    yield [(unit, _moved(state.choices[unit], home, node))]
                for other in sorted(state.on_node[node] - state.on_node[home])[:TRIED_SWAPS]:
                    if self.pieces.node_may(other, home):
                        yield [
                            (unit, _moved(state.choices[unit], home, node)),
                            (other, _moved(state.choices[other], node, home)),
                        ]

    def _other_ways(self, state: State, slow: int, units: Sequence[int]) -> Iterator[list[tuple[int, Choice]]]:
        """Other ways to shard the units of the slow device, each placed where least is to do."""
        if len(units) > MOST_OTHER_WAYS:
            units = [units[number] for number in self._rng.permutation(len(units))[:MOST_OTHER_WAYS].tolist()]
        for unit in units:
            kept = (state.way(unit).storage, ON_DEVICE)
            for number, way in enumerate(self.pieces.options.units[unit].ways):
                if number == state.choices[unit].way or way.storage not in kept or not self.may_be(unit, number):
                    continue
                for choice in self.choices_in(state, unit, number):
                    yield [(unit, choice)]

    def choices_in(self, state: State, unit: int, number: int) -> Iterator[Choice]:
        """A unit in another way, where least is to do; and where most of it is already, if moves have a bound."""
        choices = [self.pieces.placed(state, unit, number)]
        if state.moves is not None:
            choices = [state.moves.nearest(unit, number), *choices]
        for choice in dict.fromkeys(choices):
            if choice is None or choice == state.choices[unit]:
                continue
            if state.moves is None or state.moves.affords(state, [(unit, choice)]):
                yield choice

    def may_be(self, unit: int, number: int) -> bool:
        """Whether the types of this start have a way; all ways of a unit that they have none of."""
        ways = self.pieces.options.units[unit].ways
        if self.usual_cuts_only and not ways[number].is_usual and any(way.is_usual for way in ways):
            return False
        return ways[number].sharding_type in self.types or all(way.sharding_type not in self.types for way in ways)


def _moved(choice: Choice, old: int, new: int) -> Choice:
    return Choice(choice.way, tuple(new if place == old else place for place in choice.places))
