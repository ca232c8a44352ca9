"""Plans in the place of TorchRec's planner: balance, module sharders, no room, no tables, falling back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, planners
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from evenshard.base.errors import BadFile
from support.drop_in_builders import WARNINGS, Sparse, TableOrRowWise, TableWise, bags, entries, planner, two_gpus
from support.torchrec_builders import META


def test_ranks_of_whole_tables_exist_and_share_the_work() -> None:
    one = planner()
    plan = one.plan(Sparse(bags(4)), [TableWise()])
    assert {name: entry.sharding_type for name, entry in entries(plan).items()} == {
        f"table_{at}": "table_wise" for at in range(4)
    }
    assert sorted(rank for entry in entries(plan).values() for rank in entry.ranks) == [0, 0, 1, 1]


def test_a_module_sharder_says_how_its_tables_may_be_sharded() -> None:
    """Sharders of TorchRec's own classes leave all types to evenshard."""
    model = Sparse(bags(3))
    own = entries(planner().plan(model, [TableOrRowWise()]))
    assert {entry.sharding_type for entry in own.values()} <= {"table_wise", "row_wise"}
    assert {entry.sharding_type for entry in entries(planner().plan(model)).values()} == {"data_parallel"}
    with pytest.raises(
        PlannerError, match=r"table 'table_0': its module sharder .* allows table_wise on fused, but the rules"
    ):
        planner(sharding_types=["row_wise"]).plan(model, [TableWise()])


def test_tables_that_never_fit() -> None:
    with pytest.raises(PlannerError) as caught:
        planner().plan(Sparse(bags(2, rows=10_000_000, dim=4096)), [TableOrRowWise()])
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_a_planner_that_failed_plans_again() -> None:
    """A table as large as a rank: whole it fits neither; by rows it fits both."""
    one, model = planner(dense_gb=0, reserved_gb=0), Sparse(bags(1, rows=2 * 4096, dim=64))
    one = planner(two_gpus(1.5), dense_gb=0, reserved_gb=0)
    with pytest.raises(PlannerError) as caught:
        one.plan(model, [TableWise()])
    assert caught.value.error_type is PlannerErrorType.STRICT_CONSTRAINTS
    plan = one.plan(model, [TableOrRowWise()])
    assert [(entry.sharding_type, entry.ranks) for entry in entries(plan).values()] == [("row_wise", [0, 1])]


def test_without_sharders_or_tables_the_plan_is_empty() -> None:
    assert planner().plan(Sparse(bags(4)), []) == ShardingPlan({})
    assert planner().plan(nn.Linear(2, 2)) == ShardingPlan({})


class Named(TableWise):
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
    plan = planner().plan(model, [Named()])
    assert list(plan.plan) == ["sparse.ebc"] and list(planner().plan(model).plan) == ["sparse.ebc", "other"]
    planners.validate_modules_inclusion_in_sharding_plan(plan, model, [Named()])
    with pytest.raises(PlannerError):
        planners.validate_modules_inclusion_in_sharding_plan(plan, model, [TableWise()])


def test_sequences_and_shared_features_are_planned_together() -> None:
    model = nn.Module()
    model.ebc = EmbeddingBagCollection(
        tables=[replace(one, feature_names=["f", one.name]) for one in bags(2)], device=META
    )
    model.ec = EmbeddingCollection(
        tables=[EmbeddingConfig(name="s", feature_names=["left", "right"], num_embeddings=50, embedding_dim=16)],
        device=META,
    )
    sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    one = planner(two_gpus(100))
    plan = one.plan(model, sharders)
    assert {path: sorted(of) for path, of in plan.plan.items()} == {"ebc": ["table_0", "table_1"], "ec": ["s"]}  # type: ignore[call-overload]
    assert [len(option.input_lengths) for option in one._best_plan or ()] == [2, 2, 2]


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


def test_a_fallback_that_is_not_needed_changes_nothing() -> None:
    model = Sparse(bags(2))
    one = planner(fallback=True)
    assert one.plan(model) == planner().plan(model) and one.notes == () and one.answer is not None
