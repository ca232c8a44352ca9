"""The search over all sharding options and devices: greedy starts, improved by simulated annealing.

A search with more effort begins like a search with less effort and continues from its best placements, so it never
gives a worse answer. Effort is a number of tried changes, so the same arguments give the same placement.

Legend: N placements, G groups, S shards of an option (padded).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.base.process import on_interrupt
from evenshard.placement.parts import TablePart
from evenshard.placement.task import restrict_to_row_wise
from evenshard.price.loads import Indices
from evenshard.price.step import PartCosts, PredictedParts
from evenshard.price.step_time import round_for_sorting
from evenshard.search.annealing import PHASES, Annealing, Best, Phases
from evenshard.search.chains import Chains
from evenshard.search.greedy import GreedyStarts, select_starts
from evenshard.search.legal_parts import TIME_LIMIT_S, legal_parts
from evenshard.search.lower_bound import ENOUGH, lower_bound_ms
from evenshard.search.placer import GreedyPlacer
from evenshard.search.proposals import Proposals
from evenshard.search.sharding_option import Choice, arrays_of, choices_from
from evenshard.search.space import SearchSpace, choices_of, parts_of

if TYPE_CHECKING:  # only the search near a placement needs it
    from evenshard.search.moves import Moves

# Greedy starts of a search.
MOST_STARTS = 20
# Groups times devices below which a search stops at the lower bound, or after a run without improvement; its first run
# has the given number of changes for each, and each further run doubles all changes.
SMALL_SIZE, CHANGES_OF_SIZE, LEAST_CHANGES = 64, 500, 12_000
MOST_CANDIDATES = 16  # placements that a search returns


@dataclass(frozen=True)
class PlanSearchEffort:
    """Search effort: number of tried changes, reduced for small tasks, and an optional time limit."""

    changes: int = 200_000
    time_limit_s: float | None = None


QUICK, NORMAL, LONG = "quick", "normal", "long"
# Numbers of tried changes; each effort begins like the lesser efforts.
EFFORTS = {QUICK: PlanSearchEffort(50_000), NORMAL: PlanSearchEffort(), LONG: PlanSearchEffort(1_000_000)}


def get_effort(name: str) -> PlanSearchEffort:
    """Return the effort with this name from ``EFFORTS``.

    Raises:
        BadConfig: if the name is unknown.
    """
    if name not in EFFORTS:
        raise BadConfig(f"effort is {brief(name)}. Choose from {', '.join(EFFORTS)}.")
    return EFFORTS[name]


@dataclass(frozen=True)
class PlanSearchResult:
    """Search result: the best placement, and distinct candidates by cost, with the best first."""

    best: PredictedParts
    candidates: tuple[tuple[TablePart, ...], ...]
    is_interrupted: bool = False


# Called with the predicted time of the best placement so far, ms, and the share of the changes that are done.
Progress = Callable[[float, float], None]


@dataclass
class _Pool:
    """Pool of the best distinct placements so far; costs include a penalty for unusual cuts."""

    space: SearchSpace
    found: dict[bytes, tuple[float, Indices, Indices]] = field(default_factory=dict)

    def add(self, best: Best) -> None:
        for cost, option_G, place_GS in zip(best.cost_N.tolist(), best.option_NG, best.place_NGS, strict=True):
            if cost < np.inf:
                self.found.setdefault(option_G.tobytes() + place_GS.tobytes(), (cost, option_G, place_GS))
        kept = sorted(self.found.items(), key=lambda item: item[1][0])[:MOST_CANDIDATES]
        self.found = dict(kept)

    @property
    def cost(self) -> float:
        return min((cost for cost, _, _ in self.found.values()), default=float("inf"))

    @property
    def best(self) -> Best:
        cost, option_G, place_GS = next(iter(self.found.values()))
        return Best(np.array([cost]), option_G[None], place_GS[None])

    @property
    def choices(self) -> list[list[Choice]]:
        """Return the placements, best first, each as a ``Choice`` for every table group."""
        return [choices_from(self.space.table, option_G, place_GS) for _, option_G, place_GS in self.found.values()]


class PlanSearch:
    """Search for the best placement of one task, with normal effort by default.

    Args:
        packing_s: time limit of the solver that looks for a legal placement if nothing else finds any.
    """

    def __init__(
        self,
        costs: PartCosts,
        effort: PlanSearchEffort | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        packing_s: float = TIME_LIMIT_S,
    ) -> None:
        self.costs, self.effort, self.seed = costs, effort or EFFORTS[NORMAL], seed
        self.space = SearchSpace(costs)
        self.is_interrupted = False
        self._progress, self._packing_s = progress, packing_s
        limit_s = self.effort.time_limit_s
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        self._tried, self._planned, self._percent = 0, 0, -1
        self._size = len(self.space.groups) * costs.task.num_devices
        self._is_small = self._size < SMALL_SIZE and not self.space.offloads
        self._best_ms = float("inf")

    def run(self, known: Sequence[Sequence[TablePart]] = ()) -> PlanSearchResult:
        """Search and return the best placement found.

        Args:
            known: legal placements to start from; the predicted time of the answer does not exceed theirs.

        Raises:
            InfeasibleTask: if there is no legal placement, or none was found.
        """
        with on_interrupt(self.interrupt):
            pool = self._search(known)
            if not pool.found:
                task = self.costs.task
                legal = restrict_to_row_wise(task, self.space.means.names)  # rows are easiest to pack
                known = known or (legal_parts(legal, self._packing_s),)
                if task.may_offload and not self.space.offloads:  # it had seemed that all tables fit
                    self.space = SearchSpace(self.costs, True)
                pool = self._search(known)
        ordered = [parts_of(self.space, choices) for choices in pool.choices]
        # Known placements may have uneven rows, which no option has.
        predicted = [self.costs.predict(parts) for parts in (*ordered[:1], *map(tuple, known))]
        more_ms = self.costs.divisions_ms
        best = min(predicted, key=lambda one: round_for_sorting(one.predicted_ms + more_ms(one.parts)))
        candidates = tuple(dict.fromkeys((best.parts, *ordered)))
        return PlanSearchResult(best, candidates[:MOST_CANDIDATES], self.is_interrupted)

    def interrupt(self) -> None:
        """End the search with the best placement so far."""
        self.is_interrupted = True

    def _search(self, known: Sequence[Sequence[TablePart]]) -> _Pool:
        choices = [one for one in (choices_of(self.space, parts) for parts in known) if one is not None]
        placer = GreedyPlacer(self.space)
        makes = GreedyStarts(placer)
        greedy = select_starts(placed := makes.make_all(), MOST_STARTS) + makes.cut_means_by_rows(placed)
        arrays = [(one.start.option_G, one.place_GS) for one in greedy] + [
            arrays_of(self.space.table, one) for one in choices
        ]
        pool = _Pool(self.space)
        if not arrays:
            return pool
        option_NG, place_NGS = map(np.stack, zip(*arrays, strict=True))
        starts = self.legal_starts(placer, option_NG, place_NGS)
        pool.add(starts)
        self._report(pool.cost, 0.0)
        runs = self._runs if len(starts.cost_N) else []
        self._planned, self._tried = sum(runs), 0
        for number, changes in enumerate(runs):
            if self._is_over() or (number and self._is_optimal(pool)):
                break
            before = pool.cost
            start = Best.join([starts, pool.best]) if number and pool.found else starts
            for found in self.anneal(start, changes, number, placer):
                pool.add(found)
            if number and self._is_small and pool.cost == before:
                break
        return pool

    def legal_starts(
        self, placer: GreedyPlacer, option_NG: Indices, place_NGS: Indices, moves: Moves | None = None
    ) -> Best:
        """Return the given placements that violate no rule; they may exceed memory."""
        chains = Chains(self.space, option_NG, place_NGS, moves=moves)
        return Best.of(chains).select(np.flatnonzero(placer.is_legal(chains)))

    def anneal(
        self,
        start: Best,
        changes: int,
        number: int,
        placer: GreedyPlacer,
        phases: Phases = PHASES,
        moves: Moves | None = None,
    ) -> list[Best]:
        """Anneal placements; return the best of each phase.

        Args:
            number: index of the run, which seeds its random numbers.
            phases: settings of each phase, such as ``PHASES``.
            moves: cost of moving from an earlier placement, if any.
        """
        rng = np.random.default_rng((self.seed, number))
        annealing = Annealing(Proposals(placer, rng), rng, self._is_over, self._note)
        return annealing.run(start, changes, partial(Chains, self.space, moves=moves), phases)

    @property
    def num_changes(self) -> int:
        """Return the total number of changes that the search tries."""
        return sum(self._runs)

    @property
    def _runs(self) -> list[int]:
        """Return the changes of each annealing run; runs end where searches with less effort end, or sooner."""
        if self.costs.task.num_devices == 1 and self.space.table.num_options_G.max() == 1:
            return []
        ends = {one.changes for one in EFFORTS.values()}
        if self._is_small:
            first = max(CHANGES_OF_SIZE * self._size, LEAST_CHANGES)
            ends |= {first * 2**number for number in range((max(ends) // first).bit_length())}
        ends = {end for end in ends if end < self.effort.changes} | {self.effort.changes}
        return [int(count) for count in np.diff([0, *sorted(ends)])]

    def _is_optimal(self, pool: _Pool) -> bool:
        return self._is_small and pool.cost <= lower_bound_ms(self.space, pool.cost) * (1 + ENOUGH)

    def _is_over(self) -> bool:
        return self.is_interrupted or time.monotonic() >= self._deadline

    def _note(self, tried: int, best: Best) -> None:
        self._tried += tried
        self._report(float(best.cost_N.min()), min(self._tried / max(self._planned, 1), 1.0))

    def _report(self, cost_ms: float, done: float) -> None:
        is_better = cost_ms < self._best_ms
        self._best_ms = min(cost_ms, self._best_ms)
        if self._progress is not None and np.isfinite(self._best_ms) and (is_better or int(100 * done) > self._percent):
            self._percent = int(100 * done)
            self._progress(self._best_ms, done)
