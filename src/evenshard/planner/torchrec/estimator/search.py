"""The search of TorchRec's planner: a proposer that climbs by ratings of plans, an enumerator of several widths.

Exported files hold this module too. It works with any estimator and any ``PerfModel``.
"""

import random
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from heapq import heapify, heapreplace
from itertools import chain, cycle, islice
from operator import add
from typing import Any

from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    Proposer,
    ShardEstimator,
    ShardingOption,
    Topology,
)

WIDTHS = (128, 64, 32, 16)
"""Columns of the narrowest part; TorchRec's planner is given one of them, by default the first."""
PROPOSALS = 500
"""Plans to rate: a few seconds."""
PATIENCE = 16
"""Changes of one table, the most promising first, that may be worse before the climb begins elsewhere."""
KICKED_TABLES = 3
"""Tables of the best plan that are changed at random to begin elsewhere."""


class WidthsEnumerator(EmbeddingEnumerator):  # type: ignore[misc]  # TorchRec has no types
    """TorchRec's enumerator, which offers tables cut by columns in several widths at once.

    Tables whose constraints name a ``min_partition`` keep it.
    """

    _constraints: dict[str, ParameterConstraints] | None
    _estimators: list[ShardEstimator]
    _last_stored_module: nn.Module | None
    _last_stored_sharders: list[Any] | None

    def __init__(
        self,
        topology: Topology,
        batch_size: int,
        constraints: dict[str, ParameterConstraints] | None = None,
        estimator: ShardEstimator | list[ShardEstimator] | None = None,
        widths: tuple[int, ...] = WIDTHS,
    ) -> None:
        """As ``EmbeddingEnumerator``.

        Args:
            topology: of the planner.
            batch_size: samples of a rank.
            constraints: of the planner.
            estimator: of times and storage.
            widths: values of ``min_partition``.
        """
        super().__init__(topology, batch_size, constraints, estimator)
        self._widths = widths

    def enumerate(self, module: nn.Module, sharders: list[Any]) -> list[ShardingOption]:
        """All ways to shard each table, each once."""
        if self._last_stored_module == module and self._last_stored_sharders == sharders:
            return super().enumerate(module, sharders)  # type: ignore[no-any-return]
        given, estimators, self._estimators = self._constraints, self._estimators, []
        found: dict[tuple[Any, ...], ShardingOption] = {}
        try:
            names = {option.name for option in super().enumerate(module, sharders)}
            for width in self._widths:
                self._constraints = {name: _of_width((given or {}).get(name), width) for name in names}
                self._last_stored_module = None  # else it would answer as before
                for option in super().enumerate(module, sharders):
                    sizes = tuple(tuple(shard.size) for shard in option.shards)
                    found.setdefault((option.fqn, option.sharding_type, option.compute_kernel, sizes), option)
        finally:
            self._constraints, self._estimators = given, estimators
            self._last_stored_module = None
        options = sorted(found.values(), key=lambda one: one.fqn)
        self.populate_estimates(options)
        self._last_stored_module, self._last_stored_sharders = module, sharders
        self._last_stored_search_space = deepcopy(options)
        return options


def _of_width(given: ParameterConstraints | None, width: int) -> ParameterConstraints:
    constraints = given or ParameterConstraints()
    return replace(constraints, min_partition=constraints.min_partition or width)


class Loads:
    """Times of ranks: of shards, and of kernel calls that shards of a kind on a rank share."""

    def __init__(self, topology: Topology) -> None:
        self._world, self._host = topology.world_size, topology.intra_group_size
        self.own = [0.0] * self._world
        self.calls: dict[str, list[float]] = {}

    def copied(self) -> "Loads":
        """A copy to change."""
        other = object.__new__(Loads)
        other._world, other._host = self._world, self._host
        other.own, other.calls = list(self.own), {kind: list(of_ranks) for kind, of_ranks in self.calls.items()}
        return other

    def add(self, option: ShardingOption, ranks: list[int]) -> None:
        """Puts the shards of a table on ranks."""
        for shard, rank in zip(option.shards, ranks, strict=True):
            perf = shard.perf
            call_ms = getattr(perf, "call_ms", 0.0)
            self.own[rank] += perf.own_ms if call_ms else perf.total
            if call_ms:
                of_ranks = self.calls.setdefault(perf.kind, [0.0] * self._world)
                of_ranks[rank] = max(of_ranks[rank], call_ms)

    def totals(self) -> list[float]:
        """Of each rank, ms."""
        return [sum(times) for times in zip(self.own, *self.calls.values(), strict=True)]

    def place(self, option: ShardingOption) -> None:
        """Puts a table where a greedy partitioner might."""
        if option.partition_by == "uniform":
            self.add(option, list(range(self._world)))
            return
        totals, among = self.totals(), list(range(self._world))
        if option.partition_by != "device":
            hosts = [among[at : at + self._host] for at in range(0, self._world, self._host)]
            hosts.sort(key=lambda ranks: sum(totals[rank] for rank in ranks))
            if option.sharding_type != "table_column_wise":
                self.add(option, list(islice(cycle(chain(*hosts)), len(option.shards))))
                return
            among = hosts[0]
        heap = [(totals[rank], rank) for rank in among]
        heapify(heap)
        chosen = []
        for shard in option.shards:
            total, rank = heap[0]
            heapreplace(heap, (total + shard.perf.total, rank))
            chosen.append(rank)
        self.add(option, chosen)


class RatingProposer(Proposer):  # type: ignore[misc]
    """Climbs by the ratings of whole plans, one table's way at a time.

    It begins with each table's way of the least time of all ranks together, of the least time of a rank, and of the
    least memory, and then with the best plan so far in which some tables are changed at random. Which change to propose
    is guessed: all other tables stay on their ranks, and the changed one goes to those with the least to do. The plan
    that the planner makes of it decides.
    """

    def __init__(self, topology: Topology, proposals: int = PROPOSALS, patience: int = PATIENCE, seed: int = 0) -> None:
        """A proposer to be given to ``EmbeddingShardingPlanner(proposer=...)``.

        Args:
            topology: of the planner.
            proposals: after which it ends.
            patience: proposals without a better rating, after which it begins elsewhere.
            seed: of the changes at random.
        """
        self._topology, self._proposals, self._patience, self._seed = topology, proposals, patience, seed
        self.load([])

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        """Begins anew, with these ways to shard tables."""
        self._random = random.Random(self._seed)
        self._left = self._proposals
        self._options: dict[str, list[ShardingOption]] = defaultdict(list)
        rooms = [device.storage for device in self._topology.devices]
        for option in search_space:
            if all(any(shard.storage.fits_in(room) for room in rooms) for shard in option.shards):
                self._options[option.fqn].append(option)
        self._seen: set[tuple[int, ...]] = set()
        self._best: tuple[float, tuple[int, ...]] | None = None
        self._changes: list[tuple[int, ...]] = []
        self._failed = 0
        self._rating = float("inf")
        complete = len(self._options) == len({option.fqn for option in search_space})
        self._starts = [self._all_by(key) for key in (_memory, _largest, _sum)] if search_space and complete else []
        self._proposed = self._next()

    def propose(self) -> list[ShardingOption] | None:
        """The next plan to rate, or None at the end."""
        if self._proposed is None:
            return None
        return self._chosen(self._proposed)

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        """Goes on from the proposed plan if it is better, and otherwise from the one before."""
        if self._proposed is None:
            return
        self._left -= 1
        if partitionable and plan is not None and perf_rating is not None and perf_rating < self._rating:
            self._rating, self._failed = perf_rating, 0
            if self._best is None or perf_rating < self._best[0]:
                self._best = perf_rating, self._proposed
            self._changes = self._promising(self._proposed, plan)
        else:
            self._failed += 1
        self._proposed = self._next()

    def _next(self) -> tuple[int, ...] | None:
        if self._left <= 0:
            return None
        while self._changes and self._failed < self._patience:
            change = self._changes.pop()
            if change not in self._seen:
                self._seen.add(change)
                return change
        self._changes, self._failed, self._rating = [], 0, float("inf")
        while self._starts:
            start = self._starts.pop()
            if start not in self._seen:
                self._seen.add(start)
                return start
        return self._kicked()

    def _kicked(self) -> tuple[int, ...] | None:
        if self._best is None:
            return None
        for _ in range(100):
            choice = list(self._best[1])
            for table in self._random.sample(range(len(choice)), min(KICKED_TABLES, len(choice))):
                choice[table] = self._random.randrange(len(list(self._options.values())[table]))
            if tuple(choice) not in self._seen:
                self._seen.add(tuple(choice))
                return tuple(choice)
        return None  # few plans, all of them seen

    def _all_by(self, key: Any) -> tuple[int, ...]:
        return tuple(min(range(len(of_table)), key=lambda at: key(of_table[at])) for of_table in self._options.values())

    def _chosen(self, choice: tuple[int, ...]) -> list[ShardingOption]:
        return [of_table[at] for of_table, at in zip(self._options.values(), choice, strict=True)]

    def _promising(self, choice: tuple[int, ...], plan: list[ShardingOption]) -> list[tuple[int, ...]]:
        """All changes of one table, the most promising last.

        The mean of ranks counts beside their largest time, as the planner places all tables anew and balances them.
        """
        ranks = {option.fqn: [shard.rank for shard in option.shards] for option in plan}
        chosen = self._chosen(choice)
        guessed: list[tuple[float, tuple[int, ...]]] = []
        for table, of_table in enumerate(self._options.values()):
            others = Loads(self._topology)
            for other, option in enumerate(chosen):
                if other == table:
                    continue
                if None in ranks[option.fqn]:  # a plan that the planner remembers has none
                    others.place(option)
                else:
                    others.add(option, ranks[option.fqn])
            for at, option in enumerate(of_table):
                change = (*choice[:table], at, *choice[table + 1 :])
                if change not in self._seen:
                    loads = others.copied()
                    loads.place(option)
                    totals = loads.totals()
                    guessed.append((max(totals) + sum(totals) / len(totals), change))
        return [change for _, change in sorted(guessed, reverse=True)]


def _sum(option: ShardingOption) -> float:
    return float(sum(shard.perf.total for shard in option.shards))


def _largest(option: ShardingOption) -> float:
    return float(max(shard.perf.total for shard in option.shards))


def _memory(option: ShardingOption) -> tuple[Any, ...]:
    total = reduce(add, (shard.storage for shard in option.shards))
    return max(shard.storage.hbm for shard in option.shards), total.hbm, total.ddr, _sum(option)
