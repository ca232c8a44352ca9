"""The proposer and the enumerator of an exported estimator, in TorchRec's planner."""

from __future__ import annotations

from typing import Any

import pytest
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.proposers import GridSearchProposer
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.planner.torchrec.estimator.search import RatingProposer, WidthsEnumerator

GB = 2**30
SHARDERS = [EmbeddingBagCollectionSharder()]
MODEL = EmbeddingBagCollection(
    tables=[
        EmbeddingBagConfig(name=f"t{number}", feature_names=[f"f{number}"], num_embeddings=rows, embedding_dim=64)
        for number, rows in enumerate((4_000_000, 1_000_000, 3_000))
    ],
    device="meta",  # type: ignore[arg-type]
)
KERNELS = ["fused", "dense"]
CONSTRAINTS = {
    "t0": ParameterConstraints(compute_kernels=KERNELS, pooling_factors=[40.0]),
    "t1": ParameterConstraints(compute_kernels=KERNELS, pooling_factors=[25.0], min_partition=32),
    "t2": ParameterConstraints(compute_kernels=KERNELS),
}


def topology(hbm_bytes: int = 32 * GB) -> Topology:
    return Topology(world_size=4, compute_device="cuda", local_world_size=2, hbm_cap=hbm_bytes)


def rating(machine: Topology, proposer: Any) -> float:
    enumerator = WidthsEnumerator(machine, 512, CONSTRAINTS, widths=(64, 32))
    planner = EmbeddingShardingPlanner(
        machine,
        512,
        enumerator,
        FixedPercentageStorageReservation(0.0),
        constraints=CONSTRAINTS,
        proposer=proposer,
        debug=False,
    )
    planner.plan(MODEL, SHARDERS)
    assert planner._best_plan is not None
    return float(NoopPerfModel(machine).rate(planner._best_plan))


@pytest.mark.parametrize("hbm_bytes", [32 * GB, GB])
def test_the_proposer_finds_the_best_of_all_plans(hbm_bytes: int) -> None:
    """With a part of the proposals, also where the largest table does not fit on a rank."""
    machine = topology(hbm_bytes)
    space = WidthsEnumerator(machine, 512, CONSTRAINTS, widths=(64, 32)).enumerate(MODEL, SHARDERS)
    of_each = [sum(option.name == name for option in space) for name in ("t0", "t1", "t2")]
    assert of_each[0] * of_each[1] * of_each[2] > 300
    best = rating(machine, GridSearchProposer())
    assert rating(machine, RatingProposer(machine, proposals=100)) == pytest.approx(best)
    assert rating(machine, RatingProposer(machine, proposals=1)) > 1.05 * best


def test_it_ends_where_nothing_fits() -> None:
    with pytest.raises(PlannerError):
        rating(topology(GB // 16), RatingProposer(topology(GB // 16)))


def test_it_goes_on_from_better_plans() -> None:
    """Each table has one good option, the last one, and a plan is rated by how many tables have theirs."""
    machine = topology()
    space = WidthsEnumerator(machine, 512, CONSTRAINTS).enumerate(MODEL, SHARDERS)
    good = {option.name: option for option in space}
    proposer = RatingProposer(machine, proposals=len(space) * len(good), patience=len(space))
    proposer.load(space)
    ratings = []
    while (plan := proposer.propose()) is not None:
        ratings.append(1.0 + sum(option is not good[option.name] for option in plan))
        proposer.feedback(True, plan, ratings[-1])
        if ratings[-1] == 1.0:
            break
    assert ratings[0] > 2.0
    assert ratings[-1] == 1.0


def test_it_changes_the_slowest_rank_first() -> None:
    """All tables are whole on one rank; the one with the most lookups is divided."""
    machine = topology()
    options = WidthsEnumerator(machine, 512, CONSTRAINTS).enumerate(MODEL, SHARDERS)
    whole, rows = ([one for one in options if one.sharding_type == way] for way in ("table_wise", "row_wise"))
    proposer = RatingProposer(machine)
    proposer.load([*whole, *rows])
    plan = proposer.propose() or []
    assert [option.sharding_type for option in plan] == ["table_wise"] * 3
    for option in plan:
        option.shards[0].rank = 3
    proposer.feedback(True, plan, 1.0)
    assert {option.name: option.sharding_type for option in proposer.propose() or []} == {
        "t0": "row_wise",
        "t1": "table_wise",
        "t2": "table_wise",
    }


def test_it_proposes_no_plan_twice_and_ends_when_all_are_seen() -> None:
    machine = topology()
    proposer = RatingProposer(machine)
    space = WidthsEnumerator(machine, 512, CONSTRAINTS).enumerate(MODEL, SHARDERS)
    few = [option for option in space if option.name == "t2"]
    proposer.load(few)
    seen = []
    while (plan := proposer.propose()) is not None:
        seen.append(id(plan[0]))
        proposer.feedback(True, plan, 1.0 + len(seen))
    assert sorted(seen) == sorted(map(id, few))


def test_widths_are_options_of_one_search_space() -> None:
    machine = topology()
    enumerator = WidthsEnumerator(machine, 512, CONSTRAINTS, widths=(64, 32, 16))
    options = enumerator.enumerate(MODEL, SHARDERS)
    parts = {
        name: sorted(
            len(option.shards) for option in options if option.name == name and option.sharding_type == "column_wise"
        )
        for name in ("t0", "t1", "t2")
    }
    assert parts == {"t0": [1, 2, 4], "t1": [2], "t2": [1, 2, 4]}  # t1 keeps the width of its constraints
    assert sum(option.name == "t0" and option.sharding_type == "row_wise" for option in options) == 1
    assert all(shard.perf is not None and shard.storage is not None for option in options for shard in option.shards)
    assert len(enumerator.enumerate(MODEL, SHARDERS)) == len(options)
