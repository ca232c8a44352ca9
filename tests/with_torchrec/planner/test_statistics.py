"""TorchRec's statistics, callbacks and estimates of evenshard's plans."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.stats import EmbeddingStats, NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ShardingOption, Stats

from support.drop_in_builders import MB, Sparse, TableOrRowWise, TableWise, bags, entries, planner, two_gpus
from support.torchrec_builders import topology


def on_rank_0(options: list[ShardingOption]) -> list[ShardingOption]:
    for option in options:
        for shard in option.shards:
            shard.rank = 0
    return options


def test_callbacks_get_the_plan_and_may_change_it() -> None:
    seen: list[list[str]] = []

    def look(options: list[ShardingOption]) -> list[ShardingOption]:
        seen.append([option.name for option in options])
        return options

    model, more = Sparse(bags(4)), {"sharding_types": ["table_wise"]}
    same = planner(callbacks=[look, look], **more)
    assert same.plan(model) == planner(**more).plan(model)
    assert seen == [[f"table_{at}" for at in range(4)]] * 2 and same.notes == ()
    moved = planner(callbacks=[on_rank_0], **more)
    assert [entry.ranks for entry in entries(moved.plan(model)).values()] == [[0]] * 4
    assert moved.answer is not None
    before = f"{moved.answer.predicted_ms:.4g} before"
    assert moved.notes[0].startswith("callbacks changed the plan: ") and before in moved.notes[0]


class Kept(Stats):
    """Statistics that keep what they are given."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def log(self, **given: Any) -> None:  # type: ignore[override]
        self.given = given


def test_statistics_are_torchrecs(caplog: pytest.LogCaptureFixture) -> None:
    """The usual table is logged, of evenshard's plan."""
    one = planner()
    with caplog.at_level(logging.INFO, logger="torchrec"):
        one.plan(Sparse(bags(4)), [TableWise()])
    (stats,) = one._stats
    assert isinstance(stats, EmbeddingStats)
    rows = stats._stats_table
    assert rows[0].startswith("####") and set(rows) <= set(caplog.messages)
    for word in ("--- Planner Statistics ---", "Parameter Info:", "sparse.ebc.table_3", "TW: 2", "fused: 4"):
        assert any(word in row for row in rows), word


def test_short_statistics() -> None:
    one = planner(debug=False)
    one.plan(Sparse(bags(4)), [TableWise()])
    rows = one._stats[0]._stats_table  # type: ignore[attr-defined]
    assert rows and not any("Parameter Info:" in row for row in rows)


@pytest.mark.slow
def test_other_statistics_none_and_several() -> None:
    model = Sparse(bags(2))
    for stats, number in (([], 0), (NoopEmbeddingStats(), 1), ([NoopEmbeddingStats(), EmbeddingStats()], 2)):
        one = planner(stats=stats)
        one.plan(model)
        assert len(one._stats) == number
    kept = Kept()
    one = planner(
        two_gpus(100), stats=[kept], batch_size=64, storage_reservation=FixedPercentageStorageReservation(0.5)
    )
    plan = one.plan(model)
    assert kept.given["sharding_plan"] == plan
    assert kept.given["best_plan"] is one._best_plan and kept.given["batch_size"] == 64
    assert kept.given["storage_reservation"]._percentage == 0.5 and kept.given["num_plans"] >= 1
    for option in kept.given["best_plan"]:
        assert all(shard.perf.total > 0 and shard.storage.hbm > 0 for shard in option.shards)


@pytest.mark.parametrize(
    "ways", [["table_wise"], ["column_wise"], ["row_wise"], ["data_parallel"], ["table_row_wise"], ["grid_shard"]]
)
def test_statistics_know_every_type(ways: list[str]) -> None:
    one = planner(topology(4, local_world_size=2, hbm_cap_bytes=100 * MB), sharding_types=ways)
    plan = one.plan(Sparse(bags(4, rows=4000)))
    assert {entry.sharding_type for entry in entries(plan).values()} == set(ways)
    assert one._stats[0]._stats_table and one.notes == ()  # type: ignore[attr-defined]


def test_torchrec_rates_the_options_as_its_own() -> None:
    """Shards that TorchRec's enumerator has too get the same times and memory there."""
    machine, model = two_gpus(100), Sparse(bags(3))
    enumerator = EmbeddingEnumerator(machine, batch_size=512)
    theirs = {
        (one.name, one.sharding_type, one.compute_kernel): one
        for one in enumerator.enumerate(model, [TableOrRowWise()])
    }
    one = planner(machine)
    one.plan(model, [TableOrRowWise()])
    assert one._best_plan
    for option in one._best_plan:
        same = theirs[option.name, option.sharding_type, option.compute_kernel]
        assert [(shard.perf, shard.storage) for shard in option.shards] == [
            (shard.perf, shard.storage) for shard in same.shards
        ]
    assert NoopPerfModel(machine).rate(one._best_plan) > 0
