"""The search over all sharding options: many constructions, the best of them improved step by step.

A step looks at the slowest device: pieces on it may move or change places with others, or their tables may take another
sharding option; tables that live on many devices may change too. What makes the score better is kept. Where nothing
does, a kick changes a few tables at random and the descent starts over; it is undone if that ended worse. The same
arguments give the same placement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from evenshard.measure.price.step import PartCosts, PredictedParts
from evenshard.measure.step_time import without_last_digits
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.sharders.search.construction import Construction, Works
from evenshard.sharders.search.kicks import Kicks
from evenshard.sharders.search.moves import Moves
from evenshard.sharders.search.neighbours import LEAST_STEP, Neighbours
from evenshard.sharders.search.pieces import Pieces
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.starts import Start, construct_starts
from evenshard.sharders.search.state import Choice, State, choices_of, scores_of
from evenshard.sharders.search.usual_cuts import MOST_SLOWER, MOST_SLOWER_LONG, UsualCuts, num_odd_cuts
from evenshard.utils.errors import BadConfig, InfeasibleTask
from evenshard.utils.messages import brief
from evenshard.utils.process import on_interrupt

MOST_LARGE_STARTS = 4
# (share of all changes, most starts, kicks in a row that may fail); known placements count as starts.
_STAGES = ((0.15, 64, 0), (0.4, 4, 40), (0.45, 1, 200))
# Placements that share each half of the further changes; kicks in a row that may fail.
LONG_KEPT, LONG_IDLE = (4, 1), 2_000
# From this many devices on, a search makes four times as many changes as on one.
MOST_COUNTED_DEVICES = 128
# Factor on the changes where every table comes again for every cache.
OFFLOAD_CHANGES = 3
# Placements in which usual cuts are tried, and the share of all changes that this takes at most, in all of them.
MOST_FOR_CUTS, SHARE_FOR_CUTS = 4, 0.15
# Improve a given placement up to this many times the best, with this share of all changes on top.
NEARLY, SHARE_FOR_KNOWN = 1.03, 0.2
# Placements that have ended are predicted up to this many times the least cost: sums of a state are rounded.
ALIKE = 1.005
MOST_CANDIDATES = 16
# Improve a start with devices for narrow pieces beside one without, up to this ratio of their costs.
RIVALS = 1.1
# Up to this many groups are placed beside others by trying all their options; of more, one option.
MOST_BESIDE = 64


@dataclass(frozen=True)
class PlanSearchEffort:
    """How long to look.

    Attributes:
        changes: changes that are tried out, all together, whatever becomes of them; more where devices are more.
        idle_kicks: kicks, one after the other, that made nothing better, until the search ends.
        kicked: groups that a kick changes at most.
        share: the share of ``changes`` after which the search ends; above 1, it goes on from its best placements. The
            search is the same until then, so a larger share never answers worse.
        time_limit_s: the search ends after so many seconds at the latest; None for no limit.
    """

    changes: int = 12_000
    idle_kicks: int = 100
    kicked: int = 5
    share: float = 1.0
    time_limit_s: float | None = None


QUICK, NORMAL, LONG = "quick", "normal", "long"
EFFORTS = {QUICK: PlanSearchEffort(share=0.2), NORMAL: PlanSearchEffort(), LONG: PlanSearchEffort(share=20.0)}


def effort_called(name: str) -> PlanSearchEffort:
    """One of ``EFFORTS``.

    Raises:
        BadConfig: if there is none of this name.
    """
    if name not in EFFORTS:
        raise BadConfig(f"effort is {brief(name)}. Choose from {', '.join(EFFORTS)}.")
    return EFFORTS[name]


def stops_before(effort: PlanSearchEffort) -> list[float]:
    """Shares of all changes at which the lesser ``EFFORTS`` end, ascending; none with a limit on the time."""
    shares = (one.share for one in EFFORTS.values())
    return [] if effort.time_limit_s is not None else sorted(share for share in shares if share < effort.share)


@dataclass(frozen=True)
class PlanSearchResult:
    """What the search found.

    Attributes:
        best: the answer.
        candidates: placements that ended well, the answer first, the others by their cost.
        is_interrupted: Ctrl-C ended the search, which answers with the best until then.
        at_stops: what searches with less effort answer, the least first.
        random_state: state of the random numbers at the end, from which a search goes on.
    """

    best: PredictedParts
    candidates: tuple[tuple[TablePart, ...], ...]
    is_interrupted: bool = False
    at_stops: tuple[PlanSearchResult, ...] = ()
    random_state: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def by_effort(self) -> tuple[PlanSearchResult, ...]:
        """This result after those of less effort."""
        return (*self.at_stops, self)

    @staticmethod
    def of_efforts(results: Sequence[PlanSearchResult]) -> PlanSearchResult:
        """The last result, which knows what less effort answers: it is no slower, and neither are those between.

        Args:
            results: of more and more effort, at least one.
        """
        ended: list[PlanSearchResult] = []
        for one in results:
            best = min(
                (one.best, *(less.best for less in ended)), key=lambda one: without_last_digits(one.predicted_ms)
            )
            if best is not one.best:
                candidates = dict.fromkeys((best.parts, *one.candidates))
                one = replace(one, best=best, candidates=tuple(candidates)[:MOST_CANDIDATES])
            ended.append(replace(one, at_stops=tuple(ended)))
        return ended[-1]


@dataclass
class _Run:
    """The placements found, and the one being improved; ``at_stops`` has the answers of runs with less effort."""

    starts: list[Start]
    known: Sequence[Sequence[TablePart]]
    begun: tuple[PredictedParts, State]
    improved: Start
    at_stops: list[PlanSearchResult] = field(default_factory=list)


Progress = Callable[[float], None]


class PlanSearch:
    """The search on one task.

    Args:
        costs: what placements cost.
        effort: how long to look; normally where left out.
        seed: of the kicks.
        progress: called with the best cost so far.
        offloads: whether tables may be kept outside of device memory; where left out, where that is short.
        stops: shares of all changes, ascending and below the effort's, at which searches with less effort end; the
            result also says what those answer. See ``stops_before``.
    """

    def __init__(
        self,
        costs: PartCosts,
        effort: PlanSearchEffort | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        offloads: bool | None = None,
        stops: Sequence[float] = (),
    ) -> None:
        self.costs, self.effort = costs, effort or EFFORTS[NORMAL]
        self.space = SearchSpace(costs, offloads)
        self.construction = Construction(self.space, Works.of(self.space))
        self.pieces, self._rng = Pieces(self.construction), np.random.default_rng(seed)
        self.neighbours = Neighbours(self.pieces, self._rng)
        self._kicks = Kicks(self.neighbours, self._rng, self.effort.kicked)
        self._stops = stops
        self._run: _Run | None = None
        self._tries = self._scale_changes(self.effort.changes)
        self._last_change: float = self._tries
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
        starts = [*construct_starts(self.construction, self._deadline), *self._starts_at(known)]
        if not starts and known:  # its rows are uneven, as its memory is
            result = PlanSearchResult(self.costs.predict(known[0]), tuple(map(tuple, known)))
            return replace(result, at_stops=(result,) * len(self._stops))
        if not starts:
            raise InfeasibleTask("no placement was found: the tables' pieces found no room.", "Raise memory_cap_gb.")
        starts.sort(key=lambda one: without_last_digits(one.cost_ms))
        alike = [one for one in starts[:MOST_CANDIDATES] if one.cost_ms <= ALIKE * starts[0].cost_ms]
        run = self._run = _Run(starts, known, self._predict_cheapest(self._states(alike), 1)[0], starts[0])
        with on_interrupt(self.interrupt):
            # A step tries many changes at once: together, the starts' shares take more than all changes.
            last_of_all = self._tries * self.effort.share if self.effort.share < 1 else float("inf")
            for number, (share, kept, idle) in enumerate(self._stages()):
                if number == len(_STAGES):  # without more than the usual changes, it ends here
                    self._note_answer(run, run.starts, len(self._stops))
                    self.neighbours.shifts_columns = True
                run.starts.sort(key=lambda one: without_last_digits(one.cost_ms))
                kept = kept if self.space.is_small else min(kept, MOST_LARGE_STARTS)
                chosen = _best_of_both_kinds(run.starts, kept)
                for start in chosen:
                    last_change = self.neighbours.tried + int(self._tries * share / min(len(chosen), kept))
                    self._last_change = min(last_change, last_of_all)
                    self.neighbours.types = start.types if len(chosen) > 1 else set(SHARDING_TYPES)
                    state = State(self.space, start.choices)
                    self._report(state)
                    run.improved = start
                    self._improve(state, idle)
                    start.choices, start.cost_ms = list(state.choices), state.cost_ms
            self._run = None
            result = self._end(run, run.starts)
            self.neighbours.shifts_columns = False  # answers with less effort are improved as they would be without it
        missing = len(self._stops) - len(run.at_stops)  # those searches end as this one does
        return PlanSearchResult.of_efforts((*run.at_stops, *[result] * missing, result))

    def _end(self, run: _Run, starts: Sequence[Start]) -> PlanSearchResult:
        found = self._states(sorted(starts, key=lambda one: without_last_digits(one.cost_ms))[:MOST_CANDIDATES])
        begun, state = run.begun
        ended = [*self._predict_cheapest(found, MOST_FOR_CUTS), (begun, state.copy())]
        ended.sort(key=lambda one: without_last_digits(one[0].predicted_ms))
        best = self._with_usual_cuts(ended, begun.predicted_ms)
        others = (*(one.parts for one, _ in ended), *reversed(found))
        candidates = dict.fromkeys((best.parts, *(parts for parts in others if parts != ended[0][0].parts)))
        return self.with_known(PlanSearchResult(best, tuple(candidates)), run.known, NEARLY)

    def _note_answer(self, run: _Run, starts: Sequence[Start], count: int) -> None:
        """Note the answers of runs that end here, until ``count`` are noted, without another trace."""
        if len(run.at_stops) >= count:
            return
        neighbours, random_state = self.neighbours, self._rng.bit_generator.state
        before = neighbours.types, neighbours.tried, self._last_change
        self._run = None
        run.at_stops += [self._end(run, starts)] * (count - len(run.at_stops))
        self._run, self._rng.bit_generator.state = run, random_state
        neighbours.types, neighbours.tried, self._last_change = before

    def _note_at_stop(self, state: State) -> None:
        """Note the answer if the next stop is reached."""
        run = self._run
        if run is None or len(run.at_stops) == len(self._stops):
            return
        share = self._stops[len(run.at_stops)]
        if share < 1 and self.neighbours.tried >= self._tries * share:
            improved = replace(run.improved, choices=list(state.choices), cost_ms=state.cost_ms)
            starts = [improved if one is run.improved else one for one in run.starts]
            self._note_answer(run, starts, len(run.at_stops) + 1)

    def _stages(self) -> Iterator[tuple[float, int, int]]:
        """Yield (share of the changes, placements to improve, kicks in a row that may fail)."""
        yield from _STAGES
        left = self.effort.share - sum(share for share, _, _ in _STAGES)
        if left > 0:
            yield from ((left / 2, kept, LONG_IDLE) for kept in LONG_KEPT)

    def _states(self, starts: Sequence[Start]) -> dict[tuple[TablePart, ...], State]:
        states = [State(self.space, start.choices) for start in starts]
        return {state.parts(): state for state in reversed(states)}

    def _predict_cheapest(
        self, found: Mapping[tuple[TablePart, ...], State], least: int
    ) -> list[tuple[PredictedParts, State]]:
        """Predict the cheapest placements and those that cost hardly more, best first."""
        costs_ms = sorted(state.cost_ms for state in found.values())
        most_ms = max(costs_ms[0] * ALIKE, *costs_ms[:least])
        chosen = [(self.costs.predict(parts), state) for parts, state in found.items() if state.cost_ms <= most_ms]
        return sorted(chosen, key=lambda one: without_last_digits(one[0].predicted_ms))

    def with_known(
        self, result: PlanSearchResult, known: Sequence[Sequence[TablePart]], nearly: float = 1.0
    ) -> PlanSearchResult:
        """The result of this search, or legal placements that are better: as they are, or after some changes.

        Args:
            result: what was found.
            known: legal placements.
            nearly: times the best one found, below which a known one is worth the changes.
        """
        if result.random_state is not None:
            self._rng.bit_generator.state = result.random_state
        for parts in known:
            begun = self.costs.predict(parts)
            if begun.predicted_ms >= nearly * result.best.predicted_ms:
                continue
            ended = [result.best, *self._improve_start(begun)]
            ended.sort(key=lambda one: one.predicted_ms)
            candidates = dict.fromkeys((*(one.parts for one in ended), *result.candidates))
            result = replace(result, best=ended[0], candidates=tuple(candidates)[:MOST_CANDIDATES])
        return replace(result, is_interrupted=self._is_interrupted, random_state=self._rng.bit_generator.state)

    def _improve_start(self, begun: PredictedParts) -> Iterator[PredictedParts]:
        yield begun
        state = self._state_of(begun.parts)
        if state is not None:
            self.improve(state, round(SHARE_FOR_KNOWN * self._tries))
            yield self._with_usual_cuts([(self.costs.predict(state.parts()), state)], begun.predicted_ms)

    def _with_usual_cuts(self, ended: Sequence[tuple[PredictedParts, State]], most_ms: float) -> PredictedParts:
        """Prefer usual cuts that cost hardly more, up to ``most_ms``, the cost at the start."""
        best, state = ended[0]
        slower = MOST_SLOWER_LONG if self.neighbours.shifts_columns else MOST_SLOWER
        odd, most_ms = num_odd_cuts(state), min(best.predicted_ms * (1 + slower), most_ms)
        tried = ended[:MOST_FOR_CUTS]
        attempts = sum(1 + num_odd_cuts(other) for _, other in tried)
        changes = round(SHARE_FOR_CUTS * self._tries / attempts)
        cuts = UsualCuts(self.neighbours, partial(self.improve, changes=changes))
        usual = best
        for _, other in tried:
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
                yield Start(list(state.choices), set(SHARDING_TYPES), state.cost_ms)

    def _state_of(self, parts: Sequence[TablePart]) -> State | None:
        """Return None where no choices stand for the parts: uneven rows, or too little memory."""
        choices = choices_of(self.space, parts)
        state = None if choices is None else State(self.space, choices)
        return state if state is not None and state.fits() else None

    def _scale_changes(self, changes: int) -> int:
        """Make more changes for more devices and for offload, fewer for a large task."""
        devices = min(self.costs.task.num_devices, MOST_COUNTED_DEVICES)
        changes *= OFFLOAD_CHANGES if self.space.offloads else 1
        return round(changes * (1 + 3 * devices / MOST_COUNTED_DEVICES)) if self.space.is_small else 2 * changes

    def interrupt(self) -> None:
        """Ends the search: it answers with the best until then."""
        self._is_interrupted = True

    def _report(self, state: State) -> None:
        if self._progress is not None and state.cost_ms < self._best_ms:
            self._best_ms = state.cost_ms
            self._progress(self._best_ms)

    def improve(self, state: State, changes: int, kicks: bool = True) -> None:
        """Makes a placement better by trying so many changes, of all types; without kicks until no step helps."""
        self._last_change, self.neighbours.types = self.neighbours.tried + changes, set(SHARDING_TYPES)
        with on_interrupt(self.interrupt):
            if kicks:
                self._improve(state, self.effort.idle_kicks)
            else:
                self._descend(state)

    def beside(self, choices: Sequence[Choice], groups: Sequence[int], moves: Moves) -> list[Choice]:
        """Choices of some groups where least is to do beside the others, which stay; memory may not suffice.

        Args:
            choices: of all groups; those of the groups to place do not count.
            groups: to place.
            moves: prices what moves.
        """
        self.neighbours.types = set(SHARDING_TYPES)
        state = State(
            self.space, [self._anywhere(one) if one in groups else own for one, own in enumerate(choices)], moves
        )
        numbers_G = self.construction.options(self.construction.even_ms, SHARDING_TYPES)
        by_size = sorted(groups, key=lambda group: -sum(piece.size_bytes for piece in state.option(group).pieces))
        for group in (*by_size, *by_size):
            count = len(self.space.groups[group].options)
            numbers = range(count) if len(groups) <= MOST_BESIDE else (int(numbers_G[group]),)
            (without_D,) = self.neighbours.without(state, [group])
            choices = [state.choices[group], *self.neighbours.choices_in(state, group, numbers, without_D)]
            pieces = state.piece_changes([[(group, choice)] for choice in choices])
            windows_WND, fits_N = state.after(pieces, len(choices))
            scores_N = scores_of(windows_WND) + [
                moves.price_ms(moves.moved_after(state, [(group, choice)])) for choice in choices
            ]
            is_legal_N = fits_N & [self.pieces.keeps_apart(state, group, choice) for choice in choices]
            state.replace(group, choices[int(np.lexsort((scores_N, ~is_legal_N))[0])])
        return list(state.choices)

    def _anywhere(self, group: int) -> Choice:
        """Choose the first option on the first devices allowed."""
        own = self.space.groups[group]
        pieces = len(own.options[0].pieces)
        if own.options[0].span == 1 and own.allowed_D is not None:
            return Choice(0, tuple(np.flatnonzero(own.allowed_D)[:pieces].tolist()))
        return Choice(0, tuple(range(pieces)))

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C has ended it."""
        return self._is_interrupted

    @property
    def tries(self) -> int:
        """Changes that the search tries out."""
        return self._tries

    def _over(self) -> bool:
        return self.neighbours.tried >= self._last_change or self._is_interrupted or time.monotonic() >= self._deadline

    def _improve(self, state: State, most_idle: int) -> None:
        """Descend and kick in turn; end in the best state seen."""
        self._descend(state)
        idle = 0
        while not self._over() and idle < most_idle:
            self._note_at_stop(state)
            trial = state.copy()
            idle += 1
            if not self._kicks.kick(trial):
                continue
            self._descend(trial, state)
            if _is_better(trial, state):
                state.become(trial)
                self._report(state)
                idle = 0

    def _descend(self, state: State, best: State | None = None) -> None:
        while not self._over():
            self._note_at_stop(state if best is None or _is_better(state, best) else best)
            change = self.neighbours.step(state)
            if change is None:
                return
            state.replace_all(change)
            self._report(state)


def _best_of_both_kinds(starts: Sequence[Start], kept: int) -> list[Start]:
    """Keep the first starts, half of each kind as far as these are good."""
    best = starts[0]
    rivals = [one for one in starts if one.is_narrow != best.is_narrow and one.cost_ms <= RIVALS * best.cost_ms]
    if kept >= len(starts) or not rivals:
        return list(starts[:kept])
    rivals = rivals[: max(kept // 2, 1)]
    own = [one for one in starts if one.is_narrow == best.is_narrow][: max(kept - len(rivals), 1)]
    return [*own, *rivals]


def _is_better(state: State, other: State) -> bool:
    return state.score < other.score * (1 - LEAST_STEP)
