"""Plans in the place of TorchRec's planner: balance, module sharders, small memory, no room, falling back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, planners, storage_reservations
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType, Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.base.errors import BadFile
from evenshard.torchrec import EvenshardPlanner
from support.request_builders import untrained
from support.torchrec_builders import MB, META, WARNINGS, Only, Sparse, bags, entries, planner, two_gpus


def test_ranks_of_whole_tables_exist_and_share_the_work() -> None:
    one = planner()
    plan = one.plan(Sparse(bags(4)), [Only("table_wise")])
    assert {name: entry.sharding_type for name, entry in entries(plan).items()} == {
        f"table_{at}": "table_wise" for at in range(4)
    }
    assert sorted(rank for entry in entries(plan).values() for rank in entry.ranks) == [0, 0, 1, 1]


def test_a_module_sharder_says_how_its_tables_may_be_sharded() -> None:
    """Sharders of TorchRec's own classes leave all types to evenshard."""
    model = Sparse(bags(3))
    own = entries(planner().plan(model, [Only("row_wise", "table_wise")]))
    assert {entry.sharding_type for entry in own.values()} <= {"table_wise", "row_wise"}
    assert {entry.sharding_type for entry in entries(planner().plan(model)).values()} == {"data_parallel"}
    with pytest.raises(
        PlannerError, match=r"table 'table_0': its module sharder .* allows table_wise on fused, but the rules"
    ):
        planner(sharding_types=["row_wise"]).plan(model, [Only("table_wise")])


class Named(Only):
    """Takes tables with a name of its list alone."""

    def shardable_parameters(self, module: EmbeddingBagCollection) -> dict[str, nn.Parameter]:
        found = super().shardable_parameters(module)
        return {name: one for name, one in found.items() if name in ("table_0", "table_1")}


def test_the_plan_has_the_modules_whose_tables_are_sharded() -> None:
    """TorchRec checks that."""
    model = Sparse(bags(2))
    model.other = EmbeddingBagCollection(
        tables=[replace(bags(1)[0], name="other", feature_names=["other"])], is_weighted=True, device=META
    )
    plan = planner().plan(model, [Named("table_wise")])
    assert list(plan.plan) == ["sparse.ebc"] and list(planner().plan(model).plan) == ["sparse.ebc", "other"]
    planners.validate_modules_inclusion_in_sharding_plan(plan, model, [Named("table_wise")])
    with pytest.raises(PlannerError):
        planners.validate_modules_inclusion_in_sharding_plan(plan, model, [Only("table_wise")])


@WARNINGS
def test_torchrecs_planner_plans_where_evenshard_cannot_if_asked(caplog: pytest.LogCaptureFixture) -> None:
    """Without a cost model, and where tables find no room by evenshard's count; with the same arguments."""
    model, machine = Sparse(bags(2)), two_gpus(100)
    constraints = {"table_0": ParameterConstraints(sharding_types=["row_wise"])}
    with pytest.raises(PlannerError, match="no/such/model") as caught:
        planner(machine, model="no/such/model").plan(model)
    assert isinstance(caught.value.__cause__, BadFile)
    one = planner(machine, model="no/such/model", fallback=True, constraints=constraints, batch_size=64)
    plan = one.plan(model)
    theirs = EmbeddingShardingPlanner(machine, constraints=constraints, batch_size=64)
    assert plan == theirs.plan(model, get_default_sharders())
    assert one.answer is None and len(one.notes) == 1
    assert one.notes[0].startswith("TorchRec's planner makes this plan (fallback=True), because evenshard cannot: ")
    assert "no/such/model" in one.notes[0] and one.notes[0] in caplog.messages
    assert one._best_plan is not None
    tight = planner(machine, dense_gb=10, fallback=True)
    assert entries(tight.plan(model)) and "Raise memory_cap_gb" in tight.notes[0]


def test_an_error_of_both_is_torchrecs() -> None:
    one = planner(fallback=True)
    with pytest.raises(PlannerError, match="Unable to find a plan") as caught:
        one.plan(Sparse(bags(2, rows=10_000_000, dim=4096)))
    assert isinstance(caught.value.__context__, PlannerError), "evenshard's"


def of_two_mb(**given: object) -> EvenshardPlanner:
    """With everything that counts by default: 15 % are kept, and training holds inputs of several batches."""
    return EvenshardPlanner(two_gpus(2), model=untrained(), **given)  # type: ignore[arg-type]


def test_small_tables_fit_small_memory_with_less_kept() -> None:
    """Two outputs of 256 KB on each rank, sent as many again, 512 KB received: 1.98 MB are more than 85 % of 2."""
    one = of_two_mb()
    plan = one.plan(Sparse(bags(4)), [Only("table_wise")])
    assert sorted(rank for entry in entries(plan).values() for rank in entry.ranks) == [0, 0, 1, 1]
    note = one.notes[0]
    assert note.startswith("The tables fit only if 0.0 % of each device's memory is reserved, not")
    assert "not 15 %. " in note and "own samples (672 KB)" in note
    assert one.answer is not None and one.answer.request.reserved_share == 0


def test_what_the_user_keeps_is_kept() -> None:
    for kept in ({"reserved_gb": 0.15 * 2 / 1024}, {"heuristical_storage_reservation_percentage": 0.15}):
        with pytest.raises(PlannerError):
            of_two_mb(**kept).plan(Sparse(bags(4)), [Only("table_wise")])


def test_a_single_rank_is_a_node_whatever_its_topology_says() -> None:
    """TorchRec's own default for one rank."""
    one = EvenshardPlanner(Topology(world_size=1, local_world_size=8, compute_device="cuda"), model=untrained())
    plan = one.plan(Sparse(bags(2)))
    assert [entry.ranks for entry in entries(plan).values()] == [[0], [0]]
    assert one.answer is not None and one.answer.request.nodes.devices_per_node == 1


TOO_WIDE = 10_000_000  # of which evenshard says so where there is memory
DENSE = r"the dense model needs 16\.\d MB per device, but only 1\.70 MB of 2\.00 MB are not reserved"
KEPT = {"storage_reservation": storage_reservations.FixedAbsoluteStorageReservation(512 * MB)}


@pytest.mark.parametrize(
    ("mb", "dim", "given", "message", "error_type"),
    [
        (2, TOO_WIDE, {}, DENSE, PlannerErrorType.INSUFFICIENT_STORAGE),
        (2, 16, KEPT, r"reserves 0\.50 GB of the 2\.00 MB per device", PlannerErrorType.INSUFFICIENT_STORAGE),
        (100, TOO_WIDE, {}, "table 'table_0': embedding_dim is 10000000", PlannerErrorType.INPUT_VALIDATION),
    ],
)
def test_a_model_that_cannot_be_planned_is_torchrecs_error(
    mb: int, dim: int, given: dict[str, object], message: str, error_type: PlannerErrorType
) -> None:
    model = Sparse(bags(2, dim=dim))
    model.over = nn.Linear(1024, 1024, device=META)
    with pytest.raises(PlannerError, match=message) as caught:
        EvenshardPlanner(two_gpus(mb), model=untrained(), **given).plan(model)  # type: ignore[arg-type]
    assert caught.value.error_type is error_type
