"""evenshard's own sharder of whole tables: a search that minimizes the cost model's prediction.

The search (``search.PlanSearch``) starts from the best placements of greedy sharders and, if there is one, a trained
policy. These stay candidates, so the answer is never predicted to be slower than any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.base.errors import InfeasibleTask
from evenshard.base.knobs import knob
from evenshard.base.messages import cut
from evenshard.placement.moves import device_kinds
from evenshard.placement.placement import Placement, canonical_devices, check_placement, is_legal_sharding
from evenshard.placement.task import ShardingTask
from evenshard.price.step import PartCosts, PredictedParts
from evenshard.search.infeasibility import require_feasible
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.search import PlanSearch, PlanSearchEffort
from evenshard.sharders.catalog import MOST_PROPOSALS, TrainedSharder, roll_out
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.price import whole_costs
from evenshard.sharders.simple import expert_sharders

MOST_STARTS = 8  # best proposals from which the search starts


@dataclass(frozen=True)
class SearchConfig:
    """Settings that limit the effort of the search."""

    num_rollouts: int = knob(MOST_PROPOSALS, "placements sampled from the policy; fewer for large tasks")
    scores_per_table: int = knob(2_000, "changes that the search tries, per table of the task")
    seed: int = knob(0, "seed of rollouts and search")
    time_limit_s: float | None = knob(None, "seconds after which the search ends; None for no limit")
    packing_time_limit_s: float = knob(10.0, "seconds to find any legal placement if no proposal is legal")


@dataclass(frozen=True)
class SearchResult:
    """Placements found by the search."""

    # All considered placements by predicted cost; the first is the answer.
    candidates: tuple[Placement, ...]
    best: PredictedParts  # prediction of the answer, with the 90 % interval of the cost model alone
    lower_bound_ms: float  # lower bound on the predicted cost of every legal placement


class EvenshardSharder:
    """Sharder that searches with a cost model and optionally a policy.

    It is deterministic unless the search reaches ``SearchConfig.time_limit_s``.
    """

    name = "evenshard"

    def __init__(
        self, model: CostModel, policy: TrainedSharder | None = None, config: SearchConfig | None = None
    ) -> None:
        self.model = model
        self._policy = policy
        self._config = config or SearchConfig()

    def place(self, task: ShardingTask) -> Placement:
        """Return the placement with the lowest predicted cost found.

        Raises:
            InfeasibleTask: if there is no legal placement, or the search found none.
        """
        return self.search(task).candidates[0]

    def search(self, task: ShardingTask, known: Sequence[Placement] = ()) -> SearchResult:
        """Search, and return all candidates, which include the placements of ``known`` that are legal.

        Raises:
            InfeasibleTask: as ``place``.
        """
        require_feasible(task)
        costs, kinds = whole_costs(self.model, task), device_kinds(task)
        experts = _experts(task)
        starts = drop_duplicates([*known, *experts, *self._rollouts(task)], kinds)
        predicted = _predict_placements(costs, [*starts, *experts])
        best_starts = sorted(starts, key=lambda one: predicted[one].predicted_ms)[:MOST_STARTS]
        config = self._config
        effort = PlanSearchEffort(config.scores_per_table * len(task.tables), time_limit_s=config.time_limit_s)
        search = PlanSearch(costs, effort, config.seed, packing_s=config.packing_time_limit_s)
        try:
            result = search.run([one.parts(task.tables) for one in best_starts])
        except InfeasibleTask as error:
            raise InfeasibleTask(f"{cut(task.task_id)}: {error.problem}", error.remedy) from None
        found = [Placement.of(task, parts) for parts in result.candidates]
        candidates = drop_duplicates([*found, *starts], kinds)
        predicted |= _predict_placements(costs, [one for one in candidates if one not in predicted])
        candidates.sort(key=lambda one: predicted[one].predicted_ms)
        check_placement(task, candidates[0])
        best = predicted[candidates[0]]
        bound_ms = min(lower_bound_ms(search.space, best.predicted_ms), best.predicted_ms)
        return SearchResult(tuple(candidates), best, bound_ms)

    def _rollouts(self, task: ShardingTask) -> list[Placement]:
        """Return the legal placements among samples from the policy, which considers memory but no rules."""
        if self._policy is None:
            return []
        sampled = roll_out(self._policy, task, self._config.seed, self._config.num_rollouts)
        return [one for one in sampled if is_legal_sharding(task, one.parts(task.tables))]


def _predict_placements(costs: PartCosts, placements: Sequence[Placement]) -> dict[Placement, PredictedParts]:
    return dict(zip(placements, costs.predict_whole(placements), strict=True))


def _experts(task: ShardingTask) -> list[Placement]:
    placements = []
    for sharder in expert_sharders():
        try:
            placements.append(sharder.place(task))
        except InfeasibleTask:  # this sharder found no legal placement
            continue
    return placements


def drop_duplicates(placements: Sequence[Placement], kinds: Sequence[int] | None = None) -> list[Placement]:
    """Drop placements that differ from an earlier one only by a permutation of devices of the same kind."""
    found: dict[tuple[int, ...], Placement] = {}
    for one in placements:
        names = canonical_devices(one.device_of_table, kinds if kinds is not None else [0] * one.num_devices)
        found.setdefault(tuple(names), one)
    return list(found.values())
