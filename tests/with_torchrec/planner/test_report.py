"""TorchRec's statistics, callbacks, estimates and stored plans, of evenshard's plans."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.stats import EmbeddingStats, NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import (
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import PlanLoader, PlannerError, PlannerErrorType, ShardingOption
from torchrec.distributed.sharding_plan import get_default_sharders

from support.torchrec_builders import MB, WARNINGS, Only, Sparse, bags, entries, planner, topology, two_gpus


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


def test_other_statistics_none_and_several() -> None:
    model = Sparse(bags(2))
    for stats, number in (([], 0), (NoopEmbeddingStats(), 1), ([NoopEmbeddingStats(), EmbeddingStats()], 2)):
        one = planner(stats=stats)
        one.plan(model)
        assert len(one._stats) == number
    given: dict[str, Any] = {}
    kept, reservation = SimpleNamespace(log=given.update), FixedPercentageStorageReservation(0.5)
    one = planner(two_gpus(100), stats=[kept], batch_size=64, storage_reservation=reservation)
    assert one.plan(model) == given["sharding_plan"]
    assert given["best_plan"] is one._best_plan and given["batch_size"] == 64
    assert given["storage_reservation"]._percentage == 0.5 and given["num_plans"] >= 1
    for option in given["best_plan"]:
        assert all(shard.perf.total > 0 and shard.storage.hbm > 0 for shard in option.shards)
    planner(two_gpus(100), stats=[kept]).plan(model)
    assert given["storage_reservation"]._percentage == 0.15


@pytest.mark.parametrize("way", ["table_wise", "data_parallel", "grid_shard"])
def test_statistics_are_torchrecs_of_every_type(way: str, caplog: pytest.LogCaptureFixture) -> None:
    one = planner(topology(4, local_world_size=2, hbm_cap_bytes=100 * MB), sharding_types=[way])
    with caplog.at_level(logging.INFO, logger="torchrec"):
        plan = one.plan(Sparse(bags(4, rows=4000)))
    assert {entry.sharding_type for entry in entries(plan).values()} == {way} and one.notes == ()
    rows = one._stats[0]._stats_table  # type: ignore[attr-defined]
    assert any("Parameter Info:" in row for row in rows) and set(rows) <= set(caplog.messages)


def test_torchrec_rates_the_options_as_its_own() -> None:
    """Shards that TorchRec's enumerator has too get the same times and memory there."""
    machine, model = two_gpus(100), Sparse(bags(3))
    enumerator = EmbeddingEnumerator(machine, batch_size=512)
    theirs = {
        (one.name, one.sharding_type, one.compute_kernel): one
        for one in enumerator.enumerate(model, [Only("row_wise", "table_wise")])
    }
    one = planner(machine)
    one.plan(model, [Only("row_wise", "table_wise")])
    assert one._best_plan
    for option in one._best_plan:
        same = theirs[option.name, option.sharding_type, option.compute_kernel]
        assert [(shard.perf, shard.storage) for shard in option.shards] == [
            (shard.perf, shard.storage) for shard in same.shards
        ]
    assert NoopPerfModel(machine).rate(one._best_plan) > 0


class Stored(PlanLoader):  # type: ignore[misc]
    """A stored plan, or none."""

    def __init__(self, options: dict[int, ShardingOption] | None, context: str | None = None) -> None:
        self.options, self.context = options, context

    def load(self) -> dict[int, ShardingOption] | None:
        return self.options

    def plan_context_hash(self) -> str | None:
        return self.context

    def get_plan_id(self) -> str:
        return "stored"


def test_a_stored_plan_is_loaded_by_torchrec() -> None:
    """A plan of evenshard's own, with the ranks changed by hand: it is what counts."""
    machine, model, sharders = two_gpus(100), Sparse(bags(4)), [Only("table_wise")]
    first = planner(machine)
    plan = first.plan(model, sharders)
    stored = {option.storage_hash(): option for option in first._best_plan or ()}
    for option in stored.values():
        for shard in option.shards:
            shard.rank = 1 - shard.rank
    context = first.hash_planner_context_inputs_str()
    second = planner(machine, plan_loader=Stored(stored, context))
    loaded = entries(second.plan(model, sharders))
    assert {name: entry.ranks for name, entry in loaded.items()} == {
        name: [1 - rank for rank in entry.ranks] for name, entry in entries(plan).items()
    }
    assert second.notes == ("plan_loader has a stored plan. TorchRec's planner loads it; evenshard makes no plan.",)
    with pytest.raises(PlannerError) as caught:
        planner(machine, plan_loader=Stored(stored, "another")).plan(model, sharders)
    assert caught.value.error_type is PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH
    nothing = planner(machine, plan_loader=Stored(None, context))
    assert nothing.plan(model, sharders) == plan and nothing.notes == ()


@WARNINGS
def test_the_hash_of_the_context_is_torchrecs() -> None:
    machine, model, sharders = two_gpus(100), Sparse(bags(2)), get_default_sharders()
    enumerator = EmbeddingEnumerator(machine, batch_size=128)
    enumerator.enumerate(model, sharders)
    reservation = HeuristicalStorageReservation(0.15)
    reservation.reserve(machine, 128, model, sharders)
    given = {"batch_size": 128, "enumerator": enumerator, "storage_reservation": reservation}
    own, theirs = planner(machine, **given), EmbeddingShardingPlanner(machine, **given)
    assert own.hash_planner_context_inputs() == theirs.hash_planner_context_inputs()
    other = planner(machine, **{**given, "batch_size": 256})
    assert other.hash_planner_context_inputs() != own.hash_planner_context_inputs()
