"""Cuts by columns that a reader of the plan expects: halves, powers of two, and parts as wide as a power of two.

The search weighs cuts into 3, 5, 6, ... parts as any others, and takes 44 + 44 + 40 of 128 columns for a gain that no
measurement could show. When it has ended, such cuts make way for usual ones wherever that costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from evenshard.sharders.search.neighbours import Neighbours
from evenshard.sharders.search.state import Choice, State

# Share of the cost that all usual cuts together may add: far less than a prediction is off by.
MOST_SLOWER = 0.01
# The same of a long search, which is asked for the last percent.
MOST_SLOWER_LONG = 0.001


class UsualCuts:
    """Puts usual cuts in the place of others.

    Args:
        changes: knows where the pieces of another option would live.
        improve: makes a state better, by a few changes.
    """

    def __init__(self, changes: Neighbours, improve: Callable[[State], None]) -> None:
        self._changes, self._improve = changes, improve

    def apply(self, state: State, most_ms: float) -> None:
        """Changes the state: all odd cuts at once where the cost stays below this, else one after the other."""
        self._changes.usual_cuts_only = True
        try:
            odd = _odd_groups(state)
            if not self._try_usual_cuts(state, odd, most_ms) and len(odd) > 1:
                for group in odd:
                    self._try_usual_cuts(state, [group], most_ms)
        finally:
            self._changes.usual_cuts_only = False

    def _try_usual_cuts(self, state: State, groups: Sequence[int], most_ms: float) -> bool:
        """Leave the state as it was if usual cuts cost more than ``most_ms``."""
        trial = state.copy()
        if not all([self._cut_as_usual(trial, group) for group in groups]):
            return False
        if trial.cost_ms > most_ms:
            self._improve(trial)
        if trial.cost_ms > most_ms or not trial.fits():
            return False
        state.become(trial)
        return True

    def _cut_as_usual(self, state: State, group: int) -> bool:
        choices = list(self._choices(state, group))
        if not choices:
            return False
        scores_N = self._changes.scores(state, [[(group, choice)] for choice in choices])
        best = int(scores_N.argmin())
        if np.isinf(scores_N[best]):
            return False
        state.replace(group, choices[best])
        return True

    def _choices(self, state: State, group: int) -> Iterator[Choice]:
        """Yield usual options that differ in the columns alone."""
        own, (without_D,) = state.option(group), self._changes.without(state, [group])
        numbers = [
            number
            for number, option in enumerate(self._changes.pieces.space.groups[group].options)
            if option.span == own.span and option.storage == own.storage and option.is_usual
        ]
        for choice in self._changes.choices_in(state, group, numbers, without_D):
            if self._changes.pieces.keeps_apart(state, group, choice):
                yield choice


def num_odd_cuts(state: State) -> int:
    """Groups that are cut otherwise."""
    return len(_odd_groups(state))


def _odd_groups(state: State) -> list[int]:
    return [group for group in range(len(state.choices)) if not state.option(group).is_usual]
