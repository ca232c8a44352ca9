"""evenshard's own sharder of whole tables: other sharders propose, the cost model predicts, the search improves.

Proposals are the greedy experts and rollouts of a trained policy where there is one. They are among the starts of the
search (``plan_search``), and stay in the race, so the answer is never predicted worse than any of them. With a budget
for measuring, the best few are measured, and the measured best wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evenshard.measure.collectives import Links
from evenshard.measure.costs import PlacementCost
from evenshard.measure.hardware import Measure
from evenshard.measure.price.step import DeviceKind, PartCosts
from evenshard.measure.step_time import LARGEST_SUM
from evenshard.placement.items import Items, canonical_devices
from evenshard.placement.placement import Placement, placement_of_whole
from evenshard.placement.plan import check_placement
from evenshard.placement.refusal import require_room
from evenshard.placement.renaming import device_kinds
from evenshard.placement.task import ShardingTask
from evenshard.sharders.base import TrainedSharder
from evenshard.sharders.cost_model.cost_model import CostModel
from evenshard.sharders.cost_model.prediction import PredictedPlacement
from evenshard.sharders.cost_model.price import LearnedPrice
from evenshard.sharders.greedy import expert_sharders
from evenshard.sharders.learned import MOST_PROPOSALS, rollouts
from evenshard.sharders.packing.legal_parts import any_placement
from evenshard.sharders.search.search import PlanSearch, PlanSearchEffort
from evenshard.utils.errors import BadConfig, InfeasibleTask

# Devices scored for each change that counts: a change scores two, and of a large step about a fifth of the changes
# count (``MOST_COUNTED``).
SCORES_PER_CHANGE = 10
# Proposals, the best ones by the cost model, that the search starts from.
MOST_STARTS = 8


@dataclass(frozen=True)
class SearchConfig:
    """How to look for a placement.

    Attributes:
        num_rollouts: sampled from the policy, fewer where tables and devices are many.
        scores_per_table: the search ends when it has scored about so many devices for each table of the task.
        seed: seed of rollouts and search.
        time_limit_s: the search ends after so many seconds at the latest; None for no limit.
        packing_time_limit_s: time to find any legal placement if no proposal is one; see ``any_placement``.
    """

    num_rollouts: int = MOST_PROPOSALS
    scores_per_table: int = 2_000
    seed: int = 0
    time_limit_s: float | None = None
    packing_time_limit_s: float = 10.0


@dataclass(frozen=True)
class SearchResult:
    """What the search found.

    Attributes:
        best: the answer.
        candidates: all placements that were considered, lowest predicted cost first; ``best.placement`` is the first.
        predicted_ms: predicted time of each.
        expert: the experts' placement with the lowest predicted cost; None where none of them found room.
    """

    best: PredictedPlacement
    candidates: tuple[Placement, ...]
    predicted_ms: tuple[float, ...]
    expert: Placement | None


class EvenshardSharder:
    """Places a task with a cost model, with or without a policy. The same arguments give the same placement.

    (With ``SearchConfig.time_limit_s``, that holds as long as the limit is not reached.)
    """

    name = "evenshard"

    def __init__(
        self,
        model: CostModel,
        policy: TrainedSharder | None = None,
        config: SearchConfig | None = None,
    ) -> None:
        self.model = model
        self._policy = policy
        self._config = config or SearchConfig()

    def place(self, task: ShardingTask) -> Placement:
        """The placement with the lowest predicted cost that was found.

        Raises:
            InfeasibleTask: if there is no legal placement, or none was found.
        """
        return self.search(task).best.placement

    def search(self, task: ShardingTask, known: Sequence[Placement] = ()) -> SearchResult:
        """The same with all that is known about it.

        Args:
            task: the task to place.
            known: legal placements; the answer is not predicted worse than any of them.

        Raises:
            InfeasibleTask: as ``place``.
        """
        require_room(task)
        generator = torch.Generator().manual_seed(self._config.seed)
        experts, kinds = _experts(task), device_kinds(task)
        starts = distinct([*known, *experts, *self._rollouts(task, generator)], kinds)
        start_ms = self.model.overall_ms(task, starts)[0] if starts else torch.zeros(0)
        found = self._searched(task, [starts[n] for n in start_ms.argsort(stable=True)[:MOST_STARTS].tolist()])
        if not found:
            found = [any_placement(task, self._config.seed, self._config.packing_time_limit_s)]
        candidates = distinct([*found, *starts], kinds)
        predicted_ms = self.model.overall_ms(task, candidates)[0]
        order = predicted_ms.argsort(stable=True).tolist()
        best = candidates[order[0]]
        check_placement(task, best)
        expert_ms = self.model.overall_ms(task, experts)[0]
        return SearchResult(
            best=PredictedPlacement.of(self.model, task, best),
            candidates=tuple(candidates[n] for n in order),
            predicted_ms=tuple(predicted_ms[order].tolist()),
            expert=experts[int(expert_ms.argmin())] if experts else None,
        )

    def _searched(self, task: ShardingTask, starts: Sequence[Placement]) -> list[Placement]:
        """What the search among whole tables found, from these starts and its own; nothing where nothing has room."""
        costs = whole_costs(self.model, task)
        changes = self._config.scores_per_table * len(task.tables) // SCORES_PER_CHANGE
        effort = PlanSearchEffort(changes, time_limit_s=self._config.time_limit_s)
        try:
            result = PlanSearch(costs, effort, self._config.seed).run([one.parts(task.tables) for one in starts])
        except InfeasibleTask:
            return []
        return [placement_of_whole(task, parts) for parts in result.candidates]

    def place_measured(
        self, task: ShardingTask, measure: Measure, num_measured: int, found: SearchResult | None = None
    ) -> tuple[PredictedPlacement, PlacementCost]:
        """The best of a few candidates, by measuring them: the best predicted ones, and the best expert's.

        Args:
            measure: measures placements, such as ``SimulatedHardware.measure_many``.
            num_measured: number of placements to measure.
            found: earlier result of ``search`` for the task; None searches.

        Raises:
            InfeasibleTask: as ``place``, or if every candidate ran out of memory.
            BadConfig: if nothing may be measured.
        """
        if num_measured < 1:
            raise BadConfig(f"The measuring budget is {num_measured}. Make it at least 1 placement.")
        found = found or self.search(task)
        candidates = list(found.candidates[:num_measured])
        if found.expert is not None and num_measured > 1:
            kinds = device_kinds(task)
            candidates = distinct([*candidates[: num_measured - 1], found.expert, candidates[-1]], kinds)
            candidates = candidates[:num_measured]
        costs = measure([(task, placement) for placement in candidates])
        placement, cost = min(zip(candidates, costs, strict=True), key=lambda pair: pair[1].max_device_ms)
        if not cost.fits:
            raise InfeasibleTask(
                f"{task.task_id}: all {len(candidates)} candidates ran out of memory. Lower memory_cap_gb, "
                f"so that what a device cannot hold is not tried, or raise num_devices."
            )
        return PredictedPlacement.of(self.model, task, placement), cost

    def _rollouts(self, task: ShardingTask, generator: torch.Generator) -> list[Placement]:
        if self._policy is None:
            return []
        items = Items.of(task)  # the policy knows memory, and no other rule
        sampled = rollouts(self._policy, task, generator, self._config.num_rollouts)
        return [one for one in sampled if items.is_legal(one)]


def whole_costs(model: CostModel, task: ShardingTask) -> PartCosts:
    """What placements of whole tables cost by the model, as the costs that it learned from count: the largest sum.

    Its own exchanges are included; these have none of indices.
    """
    exchange = model.exchange.link("fitted to the exchanges of the training data")
    kind = DeviceKind(LearnedPrice(model), float("inf"))
    return PartCosts(task, [kind], [0] * task.num_devices, Links(exchange, counts_inputs=False), LARGEST_SUM)


def _experts(task: ShardingTask) -> list[Placement]:
    """The placements of those that found room."""
    placements = []
    for sharder in expert_sharders():
        try:
            placements.append(sharder.place(task))
        except InfeasibleTask:  # a dead end of this one
            continue
    return placements


def distinct(placements: Sequence[Placement], kinds: Sequence[int] | None = None) -> list[Placement]:
    """The placements without those that differ from an earlier one in nothing but the names of like devices.

    Args:
        placements: placements of one task.
        kinds: kinds of its devices, from ``renaming.device_kinds``; None: all are alike.
    """
    found: dict[tuple[int, ...], Placement] = {}
    for one in placements:
        names = canonical_devices(one.device_of_table, kinds if kinds is not None else [0] * one.num_devices)
        found.setdefault(tuple(names), one)
    return list(found.values())
