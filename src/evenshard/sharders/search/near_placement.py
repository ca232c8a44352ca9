"""The search near an earlier placement: the best one that moves at most so many bytes of it.

It starts from two ends. One stays: every table where it is, new ones where least is to do; steps that save most for
their bytes come first, as a byte has a price that falls. The other returns: a placement that was found without a bound
gets the device names with which least moves, and its tables go home, those first that cost least for their bytes, until
the rest is within the bound. Both are improved within it, and before that within smaller bounds, which are the same for
every search, so that more room answers no worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from evenshard.measure.price.step import PredictedParts
from evenshard.placement.parts import TablePart
from evenshard.placement.plan import check_sharding
from evenshard.sharders.search.choices import choices_of
from evenshard.sharders.search.least_moves import least_moves
from evenshard.sharders.search.moves import EarlierPlacement, Moves
from evenshard.sharders.search.search import MOST_CANDIDATES, PlanSearch, PlanSearchResult
from evenshard.sharders.search.sharding_option import Choice
from evenshard.sharders.search.state import State
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief
from evenshard.utils.units import bytes_to_gb

# Prices of moving all bytes, in steps of the start: a search begins with the first and ends with the last.
PRICES = (16.0, 4.0, 1.0, 0.25, 0.06, 0.0)
# The price while a placement is improved: of two that take as long, the one that moves less is better.
LAST_PRICE = 1e-3
ALIKE = 1e-3
RETURNING = 3
# Parts of the free placement's moves: answers of small bounds are among those of large bounds.
RUNGS, LARGE_RUNGS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0), (0.0, 1 / 8)
# Shares of all changes that improve a placement within a rung, and within the bound of the search.
RUNG_SHARE, LAST_SHARE = 1 / 12, 1 / 2
# Number of rounds, about, in which the tables of a placement go home; and those of a large task.
RETURN_ROUNDS, LARGE_RETURN_ROUNDS = 64, 4


@dataclass(frozen=True)
class NearResult:
    """What the search found.

    Attributes:
        best: the answer.
        candidates: placements within the bound that ended well, the best first.
        moved_bytes: by the answer.
        stay: the best found that moves as little as is possible, as far as was found.
        stay_bytes: moved by it.
        free_bytes: moved by the best placement without a bound.
        is_interrupted: Ctrl-C ended it.
    """

    best: PredictedParts
    candidates: tuple[tuple[TablePart, ...], ...]
    moved_bytes: int
    stay: PredictedParts
    stay_bytes: int
    free_bytes: int
    is_interrupted: bool


@dataclass(frozen=True)
class _Found:
    parts: tuple[TablePart, ...]
    moved_bytes: int


class NearSearch:
    """The search near an earlier placement.

    Args:
        search: the search without a bound, which has run: its space, effort and seed.
        earlier: where the weights are.
        most_bytes: that may move; infinite for no bound.
    """

    def __init__(self, search: PlanSearch, earlier: EarlierPlacement, most_bytes: float = float("inf")) -> None:
        self._search, self._most_bytes = search, most_bytes
        self._moves = Moves(search.space, earlier)

    def run(self, free: PlanSearchResult) -> NearResult:
        """The best placement within the bound that was found.

        Args:
            free: what the search found without a bound.

        Raises:
            BadConfig: if more has to move; the message says how much, and which tables.
        """
        moves, space = self._moves, self._search.space
        renamed = [moves.rename_devices(choices) for choices in self._choices_without_bound(free)]
        free_bytes = self._moved_bytes(renamed[0]) if renamed else moves.parts_bytes(free.best.parts)
        found = list(self._as_they_are(free))
        begun = self._start_choices()
        if self._lacks(begun):
            if not found:
                raise self._nothing_near(begun)
            return self._result(free, found, min(found, key=lambda one: one.moved_bytes), free_bytes)
        assert begun is not None
        start = State(space, begun, moves)
        least = start.moved_bytes
        moves.step_ms = max(start.cost_ms, *(State(space, choices).cost_ms for choices in renamed), 1e-9)
        state, most = start, max(self._most_bytes, least)
        rungs = [least + share * max(free_bytes - least, 0) for share in (RUNGS if space.is_small else LARGE_RUNGS)]
        bounds = [*dict.fromkeys(one for one in rungs if one < most), most]
        if most <= least:
            renamed = []  # back at home is where the search began
        returned = [
            self._return_home(choices, bounds[1:] if number == 0 and space.is_small else bounds[-1:])
            for number, choices in enumerate(renamed[: None if space.is_small else 1])
        ]
        for bound in bounds:
            moves.most_bytes = bound
            states = [state, *(State(space, one[bound], moves) for one in returned if bound in one)]
            found += [self._result_of(one) for one in states[1:]]
            self._descend(state)
            for number, one in enumerate(states):
                self._improve(one, RUNG_SHARE if bound < most else LAST_SHARE / len(states) if number else LAST_SHARE)
            found += [self._result_of(one) for one in states]
            state = min(states, key=lambda one: one.score)
            if bound == bounds[0]:
                stay = found[-len(states)]
        return self._result(free, found, stay, free_bytes)

    def _result(self, free: PlanSearchResult, found: Sequence[_Found], stay: _Found, free_bytes: int) -> NearResult:
        costs = self._search.costs
        known = {one.parts: one for one in found}
        predicted = {parts: costs.predict(parts) for parts in known}
        best_ms = min(one.predicted_ms for one in predicted.values())
        order = sorted(
            known.values(),
            key=lambda one: (
                predicted[one.parts].predicted_ms > best_ms * (1 + ALIKE),
                one.moved_bytes if predicted[one.parts].predicted_ms <= best_ms * (1 + ALIKE) else 0,
                predicted[one.parts].predicted_ms,
            ),
        )
        return NearResult(
            best=predicted[order[0].parts],
            candidates=tuple(one.parts for one in order[:MOST_CANDIDATES]),
            moved_bytes=order[0].moved_bytes,
            stay=predicted[stay.parts],
            stay_bytes=stay.moved_bytes,
            free_bytes=free_bytes,
            is_interrupted=free.is_interrupted or self._search.is_interrupted,
        )

    def _result_of(self, state: State) -> _Found:
        return _Found(state.parts(), state.moved_bytes)

    def _choices_without_bound(self, free: PlanSearchResult) -> list[list[Choice]]:
        """Return choices that fit: even rows may not fit where uneven rows do."""
        space = self._search.space
        known = (choices_of(space, parts) for parts in free.candidates[:RETURNING])
        return [choices for choices in known if choices is not None and State(space, choices).fits()]

    def _as_they_are(self, free: PlanSearchResult) -> Iterator[_Found]:
        """Yield the earlier and the free placement, for which there may be no choices."""
        task, moves = self._search.costs.task, self._moves
        for parts in (moves.earlier_parts(), free.best.parts):
            if parts is None or (moved := moves.parts_bytes(parts)) > self._most_bytes:
                continue
            with suppress(InfeasibleTask, BadConfig):
                check_sharding(task, parts)
                yield _Found(tuple(parts), moved)

    def _start_choices(self) -> list[Choice] | None:
        """Keep groups at home and place the others where least is to do; else take the least moves."""
        greedy = self._stay_home()
        moved = float("inf") if greedy is None else self._moved_bytes(greedy)
        if moved == 0:
            return greedy
        fewer = least_moves(self._search.space, self._search.construction, self._moves)
        return fewer if fewer is not None and self._moved_bytes(fewer) < moved else greedy

    def _lacks(self, begun: Sequence[Choice] | None) -> bool:
        return begun is None or self._moved_bytes(begun) > self._most_bytes

    def _nothing_near(self, begun: Sequence[Choice] | None) -> BadConfig:
        if begun is None:
            return BadConfig("no placement near the earlier one was found. Leave near out.")
        groups, tables = self._search.space.groups, self._search.costs.task.tables
        away = [group for group, choice in enumerate(begun) if self._moves.bytes_of(group, choice)]
        names = [tables[groups[group].tables[0]].name for group in away]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        need = f"{np.ceil(bytes_to_gb(self._moved_bytes(begun)) * 1e4) / 1e4:.10g}"
        return BadConfig(
            f"max_move_gb is {bytes_to_gb(self._most_bytes):.4g}, but the earlier placement is not legal where it "
            f"is: {', '.join(map(brief, names[:3]))}{more} must move. Raise max_move_gb to {need}."
        )

    def _moved_bytes(self, choices: Sequence[Choice]) -> int:
        return sum(self._moves.bytes_of(group, choice) for group, choice in enumerate(choices))

    def _stay_home(self) -> list[Choice] | None:
        moves, search = self._moves, self._search
        homeless = [group for group, home in enumerate(moves.homes) if home is None]
        choices = [Choice(0) if home is None else home for home in moves.homes]
        if homeless:
            moves.most_bytes, moves.price = float("inf"), PRICES[0] / max(moves.all_bytes, 1)
            choices = search.beside(choices, homeless, moves)
        state = State(search.space, choices)
        try:
            check_sharding(search.costs.task, state.parts())
        except InfeasibleTask:
            return None
        return choices

    def _descend(self, state: State) -> None:
        """Take the steps that save most for their bytes first."""
        moves = self._moves
        for price in PRICES:
            moves.price = price * moves.step_ms / max(moves.all_bytes, 1)
            self._search.improve(state, self._search.tries // 6, kicks=False)

    def _improve(self, state: State, share: float) -> None:
        moves = self._moves
        moves.price = LAST_PRICE * moves.step_ms / max(moves.all_bytes, 1)
        self._search.improve(state, int(self._search.tries * share))

    def _return_home(self, choices: Sequence[Choice], bounds: Sequence[float]) -> dict[float, list[Choice]]:
        """Send groups home until the placement is within each bound, as far as memory and rules allow."""
        moves, search = self._moves, self._search
        moves.most_bytes, moves.price = float("inf"), 0.0
        state, found = State(search.space, choices, moves), dict[float, list[Choice]]()
        rounds = RETURN_ROUNDS if search.space.is_small else LARGE_RETURN_ROUNDS
        batch = max(1, len(list(moves.away(state))) // rounds)

        def note() -> bool:
            """Record the bounds that hold now, and return whether all do."""
            for bound in bounds:
                if bound not in found and state.moved_bytes <= bound:
                    found[bound] = list(state.choices)
            return len(found) == len(bounds)

        while not note():
            ranked = sorted(self._homeward(state))[:batch]
            if not ranked:
                break
            for _, group in ranked:  # all of them: what follows is the same for every bound
                home = moves.homes[group]
                assert home is not None
                if np.isfinite(search.neighbours.scores(state, [[(group, home)]])[0]):
                    state.replace(group, home)
                note()
        return found

    def _homeward(self, state: State) -> Iterator[tuple[float, int]]:
        """Yield what sending a group home costs per byte."""
        away = list(self._moves.away(state))
        homes = [home for home in (self._moves.homes[group] for group in away) if home is not None]
        changes = [[(group, home)] for group, home in zip(away, homes, strict=True)]
        scores_N = self._search.neighbours.scores(state, changes) if changes else np.zeros(0)
        for group, change, score in zip(away, changes, scores_N.tolist(), strict=True):
            if np.isfinite(score):
                saved = state.moved_bytes - self._moves.moved_after(state, change)
                yield (score - state.score) / max(saved, 1), group
