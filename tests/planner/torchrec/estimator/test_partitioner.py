"""The partitioner of an exported estimator: changes of ranks counted by hand, and memory that is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.planner.types import Perf, PlannerError, Shard, ShardingOption, Storage, Topology

from evenshard.planner.torchrec.estimator.partitioner import RatingPartitioner, promising


def option(name: str, ms: float, hbm: int = 1, partition_by: str = "device", shards: int = 1) -> ShardingOption:
    kind = {"device": "table_wise" if shards == 1 else "column_wise", "uniform": "row_wise"}[partition_by]
    made = [
        Shard([4, 4], [0, 4 * at], storage=Storage(hbm, 0), perf=Perf(ms, 0.0, 0.0, 0.0), rank=None)
        for at in range(shards)
    ]
    weights = torch.empty((4, 4 * shards), device="meta")
    return ShardingOption(name, weights, ("", nn.Module()), [1.0], 4, kind, partition_by, "fused", made)


class Sums:
    """Rates as TorchRec does."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.rated = ranks, 0

    def times(self, plan: list[ShardingOption]) -> list[float]:
        self.rated += 1
        found = [0.0] * self.ranks
        for one in plan:
            for shard in one.shards:
                found[shard.rank] += shard.perf.total
        return found


def partitioned(options: list[ShardingOption], hbm: int = 100, **more: Any) -> list[float]:
    model = Sums(2)
    RatingPartitioner(model, **more).partition(options, Topology(2, "cuda", hbm_cap=hbm, ddr_cap=100))
    return sorted(model.times(options))


def sixes() -> list[ShardingOption]:
    """Greedily, the largest first, 3 + 2 + 2 and 3 + 2."""
    return [option(f"t{at}", ms) for at, ms in enumerate((3.0, 3.0, 2.0, 2.0, 2.0))]


def test_shards_change_places() -> None:
    """3 + 3 and 2 + 2 + 2 take a change of 3 for 2, which no greedy order finds."""
    assert partitioned(sixes(), changes=0) == [5.0, 7.0]
    assert partitioned(sixes()) == [6.0, 6.0]


def test_memory_is_kept() -> None:
    """The two that would belong together take 3 + 2, beside which a rank of 4 has no room."""
    full = [option("large", 3.0, 3), option("other", 3.0, 2), *(option(f"s{at}", 2.0, 1) for at in range(3))]
    assert partitioned(full, hbm=4) == [5.0, 7.0]
    assert partitioned(full, hbm=5) == [6.0, 6.0]


def test_the_better_order_counts() -> None:
    """By storage the slow table comes last, on top of another."""
    options = [option("large", 1.0, 9), option("small", 1.0, 8), option("slow", 2.0, 1)]
    assert partitioned(options, changes=0) == [2.0, 2.0]


def test_rows_and_replicas_stay() -> None:
    rows = option("rows", 5.0, partition_by="uniform", shards=2)
    for shard, rank in zip(rows.shards, (0, 1), strict=True):
        shard.rank = rank
    whole = option("whole", 1.0)
    whole.shards[0].rank = 1
    assert promising([rows, whole], [5.0, 6.0]) == [[(whole.shards[0], 0)]]


def test_a_plan_far_from_the_best_is_left_as_it_is() -> None:
    model, topology = Sums(2), Topology(2, "cuda", hbm_cap=100, ddr_cap=100)
    partitioner = RatingPartitioner(model)
    partitioner.partition(sixes(), topology)
    slower = sixes()
    for one in slower:
        one.shards[0].perf = Perf(2 * one.shards[0].perf.total, 0.0, 0.0, 0.0)
    rated = model.rated
    partitioner.partition(slower, topology)
    assert model.rated == rated + 2  # both orders
    partitioner.partition(slower[:2], topology)  # of another model
    assert model.rated > rated + 5


def test_no_room() -> None:
    with pytest.raises(PlannerError):
        partitioned([option("large", 1.0, 101)])
