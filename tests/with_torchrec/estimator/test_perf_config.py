"""Ratings of whole plans, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace

from torchrec.distributed.planner.types import Shard, Topology

from evenshard.torchrec.estimator.perf_config import FittedPerf, FittedPerfModel, received_beyond_sent


def test_what_is_received() -> None:
    """Two domains of two ranks. Rank 0 sends 3 ms within its domain and 2 ms out of it, rank 2 sends 4 ms out."""
    assert received_beyond_sent([3.0, 0.0, 0.0, 0.0], [2.0, 0.0, 4.0, 0.0], 2) == [0.0, 3.0 + 2.0, 0.0, 1.0]
    assert received_beyond_sent([3.0, 1.0], [0.0, 0.0], 2) == [0.0, 2.0]
    assert received_beyond_sent([0.0], [0.0], 1) == [0.0]


def shard(rank: int, own_ms: float, intra_ms: float) -> Shard:
    perf = FittedPerf(0.0, 0.0, 0.0, 0.0, kind="table_wise", own_ms=own_ms, call_ms=0.5, intra_ms=intra_ms)
    return Shard([1, 1], [0, 0], perf=perf, rank=rank)


def test_a_plan_takes_as_long_as_its_slowest_rank() -> None:
    """Shards on a rank share a kernel call of 0.5 ms; rank 1 sends 1 ms and receives the 3 ms that rank 0 sends."""
    model = FittedPerfModel(Topology(world_size=2, compute_device="cuda"))
    first, second, third = shard(0, 3.0, 1.5), shard(0, 2.0, 1.5), shard(1, 4.0, 1.0)
    plan = [SimpleNamespace(shards=[first, second]), SimpleNamespace(shards=[third])]
    assert model.rate(plan) == 4.0 + (3.0 - 1.0) + 0.5  # rank 0 takes 5.5
    third.perf.own_ms = 2.5
    assert model.rate(plan) == 3.0 + 2.0 + 0.5  # rank 1 takes 5.0
