"""The search over all ways to shard: many constructions, the best of them improved step by step.

A step looks at the slowest device: pieces on it may move, change places with others, or their tables may be sharded
another way; tables that live on many devices may change too. What makes the score better is kept. Where nothing does, a
kick changes a few tables at random and the descent starts over; it is undone if that ended worse. The same arguments
give the same placement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from evenshard.measure.price.step import PartCosts, PredictedParts
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import DEVICE, NODE, SHARDING_TYPES
from evenshard.sharders.plan_search.changes import LEAST_STEP, PromisingChanges
from evenshard.sharders.plan_search.construction import Construction, Works
from evenshard.sharders.plan_search.kicks import Kicks
from evenshard.sharders.plan_search.moves import Moves
from evenshard.sharders.plan_search.options import Options
from evenshard.sharders.plan_search.pieces import Pieces
from evenshard.sharders.plan_search.starts import Start, constructed
from evenshard.sharders.plan_search.state import Choice, State, choices_of
from evenshard.sharders.plan_search.usual_cuts import MOST_SLOWER, UsualCuts, num_odd_cuts
from evenshard.utils.errors import InfeasibleTask
from evenshard.utils.process import on_interrupt

MOST_LARGE_STARTS = 4
"""Of a large task, starts that are counted."""
_STAGES = ((0.5, 0.45), (0.15, 0.35), (0.0, 0.2))
"""Share of the starts that is improved, at least one, and of all changes that are tried for it; stage after stage.
Known placements count as starts, too; they are improved in the end, if they are worth it."""
MOST_COUNTED_DEVICES = 128
"""Devices from which on a search takes four times as many changes as on one."""
OFFLOAD_CHANGES = 3
"""Times as many where every table comes again for every cache."""
MOST_FOR_CUTS, SHARE_FOR_CUTS = 4, 0.15
"""Placements in which usual cuts are tried, and the changes for it, as a share of all: for all cuts, and for each."""
NEARLY, SHARE_FOR_KNOWN = 1.03, 0.2
"""Times what the search found, below which a placement that it was given is improved; and the changes for it, as a
share of all, on top of them."""
ALIKE = 1.005
"""Times the least cost, up to which placements that have ended are predicted: sums of a state are rounded."""
MOST_CANDIDATES = 16
"""Placements that a search gives back."""
MOST_BESIDE = 64
"""Units that are placed beside others by trying all their ways; of more, one way."""


@dataclass(frozen=True)
class PlanSearchEffort:
    """How long to look.

    Attributes:
        changes: changes that are tried out, all together, whatever becomes of them; more where devices are more.
        idle_kicks: kicks, one after the other, that made nothing better, until the search ends.
        kicked: units that a kick changes at most.
        time_limit_s: the search ends after so many seconds at the latest; None for no limit.
    """

    changes: int = 1_500
    idle_kicks: int = 100
    kicked: int = 3
    time_limit_s: float | None = None


@dataclass(frozen=True)
class PlanSearchResult:
    """What the search found.

    Attributes:
        best: the answer.
        candidates: placements that ended well, the answer first, the others by their cost.
        is_interrupted: Ctrl-C ended the search, which answers with the best until then.
    """

    best: PredictedParts
    candidates: tuple[tuple[TablePart, ...], ...]
    is_interrupted: bool = False


Progress = Callable[[float], None]
"""Takes the best cost so far, ms."""


class PlanSearch:
    """The search on one task.

    Args:
        costs: what placements cost.
        effort: how long to look.
        seed: of the kicks.
        progress: called with the best cost so far.
        offloads: whether tables may be kept outside of device memory; where left out, where that is short.
    """

    def __init__(
        self,
        costs: PartCosts,
        effort: PlanSearchEffort | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        offloads: bool | None = None,
    ) -> None:
        self.costs, self.effort = costs, effort or PlanSearchEffort()
        self.options = Options(costs, offloads)
        self.room_D = np.array(costs.task.room_bytes, dtype=np.int64)
        self.construction = Construction(self.options, Works.of(self.options), self.room_D)
        self.pieces, rng = Pieces(self.construction), np.random.default_rng(seed)
        self._changes = PromisingChanges(self.pieces, rng)
        self._kicks = Kicks(self._changes, rng, self.effort.kicked)
        self._changes_left = self._changes_in_all = self._scaled(self.effort.changes)
        self._progress = progress
        limit_s = self.effort.time_limit_s
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        self._is_interrupted = False
        self._best_ms = float("inf")

    def run(self, known: Sequence[Sequence[TablePart]] = ()) -> PlanSearchResult:
        """The best placement that was found.

        Args:
            known: legal placements; the answer is not predicted to take longer than any of them.

        Raises:
            InfeasibleTask: if none was found.
        """
        own = constructed(self.construction, self._deadline)
        starts, count = own or list(self._starts_at(known)), len(own) + len(known)
        if not starts and known:  # its rows are uneven, as its memory is
            return PlanSearchResult(self.costs.predict(known[0]), tuple(map(tuple, known)))
        if not starts:
            raise InfeasibleTask("no placement was found: the tables' pieces found no room.", "Raise memory_cap_gb.")
        with on_interrupt(self.interrupt):
            for improved, of_changes in _STAGES:
                starts = sorted(starts, key=lambda one: one.cost_ms)
                kept = max(1, round(improved * (count if self.options.is_small else min(count, MOST_LARGE_STARTS))))
                for start in starts[:kept]:
                    self._changes_left = int(self._changes_in_all * of_changes / kept)
                    self._changes.types = start.types if improved else set(SHARDING_TYPES)
                    state = State(self.options, start.choices)
                    self._report(state)
                    self._improve(state)
                    start.choices, start.cost_ms = list(state.choices), state.cost_ms
            starts = sorted(starts, key=lambda one: one.cost_ms)[:MOST_CANDIDATES]
            states = [State(self.options, start.choices) for start in starts]
            found = {state.parts(): state for state in reversed(states)}
            ended = self._predicted(found)
            best = self._with_usual_cuts(ended)
        others = (*(one.parts for one, _ in ended), *reversed(found))
        candidates = dict.fromkeys((best.parts, *(parts for parts in others if parts != ended[0][0].parts)))
        return self.with_known(PlanSearchResult(best, tuple(candidates)), known, NEARLY)

    def _predicted(self, found: Mapping[tuple[TablePart, ...], State]) -> list[tuple[PredictedParts, State]]:
        """The cheapest of these placements and those that cost hardly more, the best prediction first."""
        costs_ms = sorted(state.cost_ms for state in found.values())
        most_ms = max(costs_ms[0] * ALIKE, *costs_ms[:MOST_FOR_CUTS])
        chosen = [(self.costs.predict(parts), state) for parts, state in found.items() if state.cost_ms <= most_ms]
        return sorted(chosen, key=lambda one: one[0].predicted_ms)

    def with_known(
        self, result: PlanSearchResult, known: Sequence[Sequence[TablePart]], nearly: float = 1.0
    ) -> PlanSearchResult:
        """The result of this search, or legal placements that are better: as they are, or after some changes.

        Args:
            result: what was found.
            known: legal placements.
            nearly: times the best one found, below which a known one is worth the changes.
        """
        for parts in known:
            begun = self.costs.predict(parts)
            if begun.predicted_ms >= nearly * result.best.predicted_ms:
                continue
            ended = [result.best, *self._improved(begun)]
            ended.sort(key=lambda one: one.predicted_ms)
            candidates = dict.fromkeys((*(one.parts for one in ended), *result.candidates))
            result = PlanSearchResult(ended[0], tuple(candidates)[:MOST_CANDIDATES])
        return replace(result, is_interrupted=self._is_interrupted)

    def _improved(self, begun: PredictedParts) -> Iterator[PredictedParts]:
        """A placement as it is, unless it has odd cuts, and after some changes."""
        state = self._state_of(begun.parts)
        if state is None or not num_odd_cuts(state):
            yield begun
        if state is not None:
            self.improve(state, round(SHARE_FOR_KNOWN * self._changes_in_all))
            yield self._with_usual_cuts([(self.costs.predict(state.parts()), state)])

    def _with_usual_cuts(self, ended: Sequence[tuple[PredictedParts, State]]) -> PredictedParts:
        """The best of these placements, or one with usual cuts in the place of odd ones that costs hardly more."""
        best, state = ended[0]
        odd, most_ms = num_odd_cuts(state), best.predicted_ms * (1 + MOST_SLOWER)
        changes = round(SHARE_FOR_CUTS * self._changes_in_all)
        cuts = UsualCuts(self._changes, partial(self.improve, changes=changes))
        usual = best
        for _, other in ended[:MOST_FOR_CUTS]:
            if not odd or self._is_interrupted or time.monotonic() >= self._deadline:
                break
            cuts.apply(other, most_ms)
            found = self.costs.predict(other.parts())
            if num_odd_cuts(other) < odd and found.predicted_ms <= most_ms:
                usual, odd = found, num_odd_cuts(other)
        return usual

    def _starts_at(self, known: Sequence[Sequence[TablePart]]) -> Iterator[Start]:
        for parts in known:
            state = self._state_of(parts)
            if state is not None:
                yield Start(list(state.choices), set(SHARDING_TYPES))

    def _state_of(self, parts: Sequence[TablePart]) -> State | None:
        """A placement as a state; None where no choices stand for it, or not in this memory: its rows are uneven."""
        choices = choices_of(self.options, parts)
        state = None if choices is None else State(self.options, choices)
        return state if state is not None and state.fits(self.room_D) else None

    def _scaled(self, changes: int) -> int:
        """More changes for more devices, and where tables may leave device memory; of a large task each takes long."""
        devices = min(self.costs.task.num_devices, MOST_COUNTED_DEVICES)
        changes *= OFFLOAD_CHANGES if self.options.offloads else 1
        return round(changes * (1 + 3 * devices / MOST_COUNTED_DEVICES)) if self.options.is_small else 2 * changes

    def interrupt(self) -> None:
        """Ends the search: it answers with the best until then."""
        self._is_interrupted = True

    def _report(self, state: State) -> None:
        """Calls ``progress`` where the state is the best so far."""
        if self._progress is not None and state.cost_ms < self._best_ms:
            self._best_ms = state.cost_ms
            self._progress(self._best_ms)

    # For the search near an earlier placement -------------------------------------------------------------------------

    def improve(self, state: State, changes: int, kicks: bool = True) -> None:
        """Makes a placement better by trying so many changes, of all types; without kicks until no step helps."""
        self._changes_left, self._changes.types = changes, set(SHARDING_TYPES)
        with on_interrupt(self.interrupt):
            if kicks:
                self._improve(state)
            else:
                self._descend(state)

    def beside(self, choices: Sequence[Choice], units: Sequence[int], moves: Moves) -> list[Choice]:
        """Choices of some units where least is to do beside the others, which stay; memory may not suffice.

        Args:
            choices: of all units; those of the units to place do not count.
            units: to place.
            moves: prices what moves.
        """
        self._changes.types = set(SHARDING_TYPES)
        state = State(
            self.options, [self._anywhere(one) if one in units else own for one, own in enumerate(choices)], moves
        )
        numbers_U = self.construction.ways(self.construction.even_ms, SHARDING_TYPES)
        by_size = sorted(units, key=lambda unit: -sum(piece.size_bytes for piece in state.way(unit).pieces))
        for unit in (*by_size, *by_size):
            count = len(self.options.units[unit].ways)
            numbers = range(count) if len(units) <= MOST_BESIDE else (int(numbers_U[unit]),)
            found = [one for number in numbers for one in self._changes.choices_in(state, unit, number)]
            scores: list[tuple[bool, float, int]] = []
            for choice in (state.choices[unit], *found):
                old, times = state.choices[unit], state.times()
                state.replace(unit, choice)
                is_legal = state.fits(self.room_D) and self.pieces.keeps_apart(state, unit, choice)
                scores.append((not is_legal, state.score, len(scores)))
                state.undo([(unit, old)], times)
            state.replace(unit, (state.choices[unit], *found)[min(scores)[2]])
        return list(state.choices)

    def _anywhere(self, unit: int) -> Choice:
        """A unit in its first way on the first devices that it may live on."""
        own, machine = self.options.units[unit], self.costs.task.machine
        way, pieces = own.ways[0], len(own.ways[0].pieces)
        if way.scope == DEVICE:
            allowed = range(machine.num_devices) if own.allowed_D is None else np.flatnonzero(own.allowed_D).tolist()
            return Choice(0, tuple(allowed[:pieces]))
        return Choice(0, tuple(range(pieces)) if way.scope == NODE else ())

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C has ended it."""
        return self._is_interrupted

    @property
    def changes_in_all(self) -> int:
        """That a search tries out."""
        return self._changes_in_all

    # Improvement ------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        return self._changes_left <= 0 or self._is_interrupted or time.monotonic() >= self._deadline

    def _improve(self, state: State) -> None:
        """Descends, kicks and descends again; the state ends as the best that was seen."""
        self._descend(state)
        best, times, idle = state.score, state.times(), 0
        while not self._over() and idle < self.effort.idle_kicks:
            undo = self._kicks.kick(state)
            undo += self._descend(state)
            if state.score < best * (1 - LEAST_STEP):
                best, times, idle = state.score, state.times(), 0
                self._report(state)
                continue
            idle += 1
            state.undo(undo, times)

    def _descend(self, state: State) -> list[tuple[int, Choice]]:
        """Takes steps until none helps; what it takes to undo them."""
        undo: list[tuple[int, Choice]] = []
        while not self._over():
            steps = self._step(state)
            if not steps:
                break
            undo += steps
            self._report(state)
        return undo

    def _step(self, state: State) -> list[tuple[int, Choice]]:
        """One step that makes the score better, or none; what it takes to undo it."""
        for changes in self._changes.of(state):
            undo = self._try(state, changes)
            if undo:
                return undo
            if self._over():
                break
        return []

    def _try(self, state: State, changes: Sequence[tuple[int, Choice]]) -> list[tuple[int, Choice]]:
        before, times = state.score, state.times()
        undo = [(unit, state.choices[unit]) for unit, _ in changes]
        state.replace_all(changes)
        self._changes_left -= 1
        if state.moves is not None and not all(
            self.pieces.keeps_apart(state, unit, choice) for unit, choice in changes
        ):
            state.undo(undo, times)
            return []
        if state.score < before * (1 - LEAST_STEP) and state.fits(self.room_D):
            return undo
        state.undo(undo, times)
        return []
