"""The partitioner of an exported estimator: TorchRec's greedy ones, then shards change ranks while the rating falls.

Exported files hold this module too.
"""

from typing import Any, Protocol

from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy
from torchrec.distributed.planner.types import Partitioner, PlannerError, Shard, ShardingOption, Storage, Topology

MARGIN = 0.03
"""Plans that are rated this much above the best so far are left as the greedy partitioners made them."""
MOST_CHANGES = 200
"""To rate for a plan."""
MOST_TRIES = 16
"""Changes that are rated, the most promising first, before the plan counts as good."""
RECEIVERS = 4
"""Ranks with the least to do, to which shards of the slowest one go."""


class RanksModel(Protocol):
    """Rates plans by the times of their ranks."""

    def times(self, plan: list[ShardingOption]) -> list[float]:
        """Of each rank, ms."""
        ...


class RatingPartitioner(Partitioner):  # type: ignore[misc]  # TorchRec has no types
    """Takes the better of what TorchRec's greedy partitioner makes in its two orders, and improves on it.

    A shard of the slowest rank moves to another rank, or changes places with one there, as long as the rating of the
    plan falls. Only whole tables and columns move: rows and replicas are on all ranks anyway, and what is kept within a
    node stays where the greedy partitioner has put it.
    """

    def __init__(self, model: RanksModel, margin: float = MARGIN, changes: int = MOST_CHANGES) -> None:
        """A partitioner to be given to ``EmbeddingShardingPlanner(partitioner=...)``.

        Args:
            model: rates plans; the planner's performance model.
            margin: how much worse than the best so far a plan may be rated to be improved, as a share of it.
            changes: to rate for a plan; 0 for none.
        """
        self._model, self._margin, self._changes = model, margin, changes
        self._tables: list[str] = []
        self._best = float("inf")

    def partition(self, proposal: list[ShardingOption], storage_constraint: Topology) -> list[ShardingOption]:
        """Gives every shard its rank.

        Raises:
            PlannerError: if the greedy partitioner finds no room in either order.
        """
        tables = [option.fqn for option in proposal]
        if tables != self._tables:  # another model
            self._tables, self._best = tables, float("inf")
        shards = [shard for option in proposal for shard in option.shards]
        found: list[tuple[float, list[int]]] = []
        for order in SortBy:
            for shard in shards:
                shard.rank = None
            try:
                GreedyPerfPartitioner(order).partition(proposal, storage_constraint)
            except PlannerError as error:
                refused = error
                continue
            found.append((max(self._model.times(proposal)), [shard.rank for shard in shards]))
        if not found:
            raise refused
        rating, ranks = min(found)
        for shard, rank in zip(shards, ranks, strict=True):
            shard.rank = rank
        if rating <= self._best * (1 + self._margin):
            rating = self._improved(proposal, storage_constraint)
        self._best = min(self._best, rating)
        return proposal

    def _improved(self, plan: list[ShardingOption], topology: Topology) -> float:
        """Changes ranks of shards for the better, and returns the rating."""
        free = [device.storage for device in topology.devices]
        for option in plan:
            for shard in option.shards:
                free[shard.rank] -= shard.storage
        times, left = self._model.times(plan), self._changes
        tried = 0
        changes = promising(plan, times)
        while tried < min(MOST_TRIES, len(changes), left):
            change = changes[tried]
            tried += 1
            freed = [shard.rank for shard, _ in change]
            after = _free_after(free, change)
            if after is None:
                continue
            for shard, rank in change:
                shard.rank = rank
            new_times = self._model.times(plan)
            if max(new_times) < max(times):
                times, free, left, tried = new_times, after, left - tried, 0
                changes = promising(plan, times)
                continue
            for (shard, _), rank in zip(change, freed, strict=True):
                shard.rank = rank
        return max(times)


def promising(plan: list[ShardingOption], times: list[float]) -> list[list[tuple[Shard, int]]]:
    """Changes that take work from the slowest rank, the most promising first: shards, each with its new rank.

    Args:
        plan: all shards have ranks.
        times: of each rank, ms.
    """
    by_time = sorted(range(len(times)), key=lambda rank: times[rank])
    slowest, receivers = by_time[-1], by_time[: min(RECEIVERS, len(times) - 1)]
    on: dict[int, list[tuple[Any, Shard]]] = {rank: [] for rank in by_time}
    for option in plan:
        if option.partition_by == "device" and option.dependency is None and option.compute_kernel != "key_value":
            for shard in option.shards:
                on[shard.rank].append((option.fqn, shard))
    guessed: list[tuple[float, int, list[tuple[Shard, int]]]] = []
    for table, shard in on[slowest]:
        own = shard.perf.total
        for rank in receivers:
            guessed.append((times[rank] + own, len(guessed), [(shard, rank)]))
            for other, theirs in on[rank]:
                less = own - theirs.perf.total
                if less > 0 and other != table:
                    guess = max(times[rank] + less, times[slowest] - less)
                    guessed.append((guess, len(guessed), [(shard, rank), (theirs, slowest)]))
    return [change for _, _, change in sorted(guessed, key=lambda one: one[:2])]


def _free_after(free: list[Storage], change: list[tuple[Shard, int]]) -> list[Storage] | None:
    """What is free of each rank's memory after a change; None where it does not fit."""
    after = list(free)
    for shard, rank in change:
        after[shard.rank] += shard.storage
        after[rank] -= shard.storage
    fits = all(Storage(0, 0, 0).fits_in(after[rank]) for _, rank in change)
    return after if fits else None
