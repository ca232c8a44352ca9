"""Modules that evenshard does not place, in one plan with those that it does: TorchRec places them in what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.torchrec import EvenshardPlanner, predicted
from support.ranks import run_ranks
from support.request_builders import untrained
from support.torchrec_builders import META, config, gb
from support.torchrec_training import LOCAL_BATCH, Job, in_one_piece, module_sharders

WORLD_SIZE = 2
BAGS = [config("b_long", 50, 8), config("b_wide", 30, 16)]
SEQUENCES = [EmbeddingConfig(name="s", feature_names=["s"], num_embeddings=20, embedding_dim=4)]
POSITIONAL, COLLISIONS = [config("p", 40, 8)], [config("c", 16, 4)]
OWN_BYTES = 4 * (50 * 8 + 30 * 16 + 20 * 4)
MAX_LENGTH = 5


class Mixed(nn.Module):
    """Collections of both kinds, and one with a feature processor."""

    rows = {one.name: one.num_embeddings for one in (*BAGS, *SEQUENCES, *POSITIONAL)}  # noqa: RUF012

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(tables=BAGS, device=device)
        self.sequences = EmbeddingCollection(tables=SEQUENCES, device=device)
        self.tower = nn.Module()
        self.tower.positional = FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection(tables=POSITIONAL, is_weighted=True, device=device),
            PositionWeightedModuleCollection({"p": MAX_LENGTH}, device=device),
        )
        self.over = nn.Linear(8 + 16 + 4 + 8, 1, bias=False, device=device)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        sequence = torch.stack([rows.sum(dim=0) for rows in self.sequences(features)["s"].to_dense()])
        bags = self.bags(features).to_dict()  # in the order of ranks
        found = [*(bags[one.name] for one in BAGS), sequence, *self.tower.positional(features).to_dict().values()]
        return self.over(torch.cat(found, dim=1)).squeeze(1)


def with_collisions(buckets: int) -> Mixed:
    """The model with managed collisions, whose rows these buckets divide among ranks."""
    model = Mixed(META)
    managed = MCHManagedCollisionModule(
        zch_size=16,
        device=META,
        eviction_policy=DistanceLFU_EvictionPolicy(),
        eviction_interval=2,
        input_hash_size=1000,
        buckets=buckets,
    )
    model.collisions = ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(tables=COLLISIONS, device=META), ManagedCollisionCollection({"c": managed}, COLLISIONS)
    )
    return model


def planner(**kwargs: Any) -> EvenshardPlanner:
    """Of ranks with little memory, of which weights and optimizer state alone count."""
    given = {"world_size": WORLD_SIZE, "compute_device": "cpu", "memory_cap_gb": gb(10**6), "batch_size": LOCAL_BATCH}
    given |= {"reserved_gb": 0.0, "training_pipeline": "", "dense_gb": 0.0}
    return EvenshardPlanner(**{"model": untrained(), **given, **kwargs})


# In the ranks ---------------------------------------------------------------------------------------------------------


def process(rank: int, out: Path) -> Any:
    """One rank: the losses under a merged plan."""
    plan = planner().collective_plan(Mixed(META), module_sharders())
    return Job(plan, kind=Mixed).steps(), plan


# In pytest ------------------------------------------------------------------------------------------------------------


def test_the_merged_plan_trains_as_the_model_in_one_piece(tmp_path: Path) -> None:
    expected, _ = in_one_piece(WORLD_SIZE, kind=Mixed)
    (losses, plan), (same, same_plan) = run_ranks(process, WORLD_SIZE, tmp_path)
    assert losses == same == pytest.approx(expected, rel=1e-5)
    assert plan == same_plan and "tower.positional" in plan.plan


def test_the_plan_has_all_modules_and_the_answer_says_who_placed_them(caplog: pytest.LogCaptureFixture) -> None:
    made = planner(compute_device="cuda")
    plan = made.plan(with_collisions(buckets=WORLD_SIZE))
    tables = {path: set(of) for path, of in plan.plan.items()}
    own = {"bags": {"b_long", "b_wide"}, "sequences": {"s"}}
    assert tables == {**own, "tower.positional": {"p"}, "collisions": {"c"}}
    assert made.answer is not None
    note = made.answer.notes[-1]
    assert note in caplog.messages
    assert note.startswith("TorchRec's planner placed the tables of modules that evenshard does not place")
    assert "collisions.c (row_wise, fused)" in note and "tower.positional.p (" in note
    assert {table.module for table in made.answer.request.tables} == set(own)
    assert predicted(plan, made.answer, untrained()).predicted_ms == pytest.approx(made.answer.predicted_ms)


def test_others_get_the_memory_that_is_left() -> None:
    """Rank 0 is full with evenshard's tables; TorchRec's own estimate of its table is the 1280 bytes and more."""
    full: dict[str, Any] = {"pinned": dict.fromkeys(("b_long", "b_wide", "s"), 0), "sharding_types": ["table_wise"]}
    memory = [gb(OWN_BYTES + 60), gb(10**6)]
    plan = planner(**full, memory_cap_gb=memory).plan(Mixed(META)).plan
    assert {rank for one in plan["bags"].values() for rank in one.ranks} == {0}
    assert set(plan["tower.positional"]["p"].ranks) == {1}
    with pytest.raises(
        PlannerError, match=r"no plan for tower.positional, .* 60 bytes to 1000 bytes left per rank"
    ) as own:
        planner(**full, memory_cap_gb=[gb(OWN_BYTES + 60), gb(1000)]).plan(Mixed(META))
    assert own.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE
    with pytest.raises(PlannerError, match=r"no plan for the model, which .* 20 bytes to 20 bytes"):
        planner(memory_cap_gb=gb(1020), reserved_gb=gb(1000)).plan(Mixed(META).tower.positional)


def test_rows_are_cut_evenly_however_uneven_the_memory_is() -> None:
    """TorchRec trains other blocks wrongly."""
    made = planner(compute_device="cuda", memory_cap_gb=[gb(10**5), gb(10**6)])
    spec = made.plan(with_collisions(buckets=WORLD_SIZE)).plan["collisions"]["c"].sharding_spec
    assert [shard.shard_sizes for shard in spec.shards] == [[8, 4], [8, 4]]


def test_constraints_are_of_every_table_of_that_name() -> None:
    model = Mixed(META)
    model.plain = EmbeddingBagCollection(tables=POSITIONAL, device=META)
    plan = planner(constraints={"p": ParameterConstraints(sharding_types=["column_wise"], min_partition=4)}).plan(model)
    assert {plan.plan[path]["p"].sharding_type for path in ("tower.positional", "plain")} == {"column_wise"}


def test_a_model_of_such_modules_alone_is_torchrecs() -> None:
    made = planner()
    assert set(made.plan(Mixed(META).tower).plan) == {"positional"} and made.answer is None
    assert set(made.plan(Mixed(META).tower.positional).plan) == {""}


def test_what_torchrec_cannot_plan_is_named() -> None:
    with pytest.raises(PlannerError, match=r"cannot plan tower.positional, collisions: Table 'c' has uneven buckets"):
        planner(compute_device="cuda").plan(with_collisions(buckets=1))
