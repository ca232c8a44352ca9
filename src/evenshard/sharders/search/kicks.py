"""Kicks: a few groups changed at random, where no step helps.

A kicked group goes to random devices with room for it: the least busy ones are where the descent has left it.
"""

from __future__ import annotations

import numpy as np

from evenshard.sharders.search.moves import Moves
from evenshard.sharders.search.neighbours import Neighbours
from evenshard.sharders.search.state import Choice, State


class Kicks:
    """The kicks of a search.

    Args:
        changes: says which options a group may have.
        rng: what is random.
        most: groups that a kick changes.
    """

    def __init__(self, changes: Neighbours, rng: np.random.Generator, most: int) -> None:
        self._changes, self._pieces, self._rng, self._most = changes, changes.pieces, rng, most

    def kick(self, state: State) -> bool:
        """Changes a few groups at random; False where none of them could change."""
        is_changed = False
        slow = state.slow_devices[0]
        movable, spread = self._pieces.groups_on(state, slow)
        near = [*movable, *spread]
        for _ in range(1 + int(self._rng.integers(self._most))):
            if near and self._rng.random() < 0.5:
                group = near[int(self._rng.integers(len(near)))]
            else:
                group = int(self._rng.integers(len(state.choices)))
            numbers = [
                n for n in range(len(self._pieces.space.groups[group].options)) if self._changes.may_be(group, n)
            ]
            number = numbers[int(self._rng.integers(len(numbers)))]
            order_D = self._rng.random(state.task.num_devices)
            choice = next(iter(self._pieces.place_options(state, group, [number], order_D)), None)
            if state.moves is not None:
                group, choice = self._kicked_near(state, state.moves, group, choice)
            if choice is None or choice == state.choices[group]:
                continue
            state.replace(group, choice)
            is_changed = True
        return is_changed

    def _kicked_near(self, state: State, moves: Moves, group: int, choice: Choice | None) -> tuple[int, Choice | None]:
        """Kick within the bound on moves: instead of a kick that moves too much, bring another group home."""
        if choice is not None and moves.affords(state, [(group, choice)]):
            return group, choice
        away = list(moves.away(state))
        if not away:
            return group, None
        group = away[int(self._rng.integers(len(away)))]
        home = moves.homes[group]
        assert home is not None
        is_legal = np.isfinite(self._changes.scores(state, [[(group, home)]])[0])
        return group, home if is_legal else None
