"""Stored plans, and the hash of what a plan depends on."""

from __future__ import annotations

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import PlanLoader, PlannerError, PlannerErrorType, ShardingOption
from torchrec.distributed.sharding_plan import get_default_sharders

from support.drop_in_builders import WARNINGS, Sparse, TableWise, bags, entries, planner, two_gpus


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
    machine, model, sharders = two_gpus(100), Sparse(bags(4)), [TableWise()]
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
