"""Modules that evenshard does not place, in one plan with those that it does: TorchRec places them in what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
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
from support.torchrec_builders import META, gb
from support.torchrec_training import LEARNING_RATE, jagged, module_sharders

WORLD_SIZE, LOCAL_BATCH, NUM_STEPS = 2, 5, 3
BAGS = [
    EmbeddingBagConfig(name="b_long", feature_names=["b_long"], num_embeddings=50, embedding_dim=8),
    EmbeddingBagConfig(name="b_wide", feature_names=["b_wide"], num_embeddings=30, embedding_dim=16),
]
SEQUENCES = [EmbeddingConfig(name="s", feature_names=["s"], num_embeddings=20, embedding_dim=4)]
POSITIONAL = [EmbeddingBagConfig(name="p", feature_names=["p"], num_embeddings=40, embedding_dim=8)]
COLLISIONS = [EmbeddingBagConfig(name="c", feature_names=["c"], num_embeddings=16, embedding_dim=4)]
ROWS = {one.name: one.num_embeddings for one in (*BAGS, *SEQUENCES, *POSITIONAL)}
OWN_BYTES = 4 * (50 * 8 + 30 * 16 + 20 * 4)
MAX_LENGTH = 5


class Mixed(nn.Module):
    """Collections of both kinds, and one with a feature processor."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(tables=BAGS, device=device)
        self.sequences = EmbeddingCollection(tables=SEQUENCES, device=device)
        self.tower = nn.Module()
        self.tower.positional = FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection(tables=POSITIONAL, is_weighted=True, device=device),
            PositionWeightedModuleCollection({"p": MAX_LENGTH}, device=device),
        )
        self.over = nn.Linear(8 + 16 + 4 + 8, 1, device=device)

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


def batches() -> list[tuple[list[KeyedJaggedTensor], KeyedJaggedTensor, torch.Tensor]]:
    """Of each step: the features of each rank, of all ranks together, and the labels."""
    rng = torch.Generator().manual_seed(5)
    samples = WORLD_SIZE * LOCAL_BATCH
    result = []
    for _ in range(NUM_STEPS):
        lengths = torch.randint(0, MAX_LENGTH, (len(ROWS), samples), generator=rng).tolist()
        bags = {
            name: [torch.randint(0, rows, (length,), generator=rng) for length in own]
            for (name, rows), own in zip(ROWS.items(), lengths, strict=True)
        }
        local = [
            jagged(bags, list(ROWS), slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)) for rank in range(WORLD_SIZE)
        ]
        result.append((local, jagged(bags, list(ROWS), slice(samples)), torch.rand(samples, generator=rng)))
    return result


def sharders() -> list[Any]:
    from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder

    own = module_sharders()
    return [*own, FeatureProcessedEmbeddingBagCollectionSharder(own[0])]


def planner(**kwargs: Any) -> EvenshardPlanner:
    """Of ranks with little memory, of which weights and optimizer state alone count."""
    given = {"world_size": WORLD_SIZE, "compute_device": "cpu", "memory_cap_gb": gb(10**6), "batch_size": LOCAL_BATCH}
    given |= {"reserved_gb": 0.0, "training_pipeline": "", "dense_gb": 0.0}
    return EvenshardPlanner(**{"model": untrained(), **given, **kwargs})


# In the ranks ---------------------------------------------------------------------------------------------------------


def process(rank: int, out: Path) -> Any:
    """One rank: the losses under a merged plan."""
    import torch.distributed as dist
    from torchrec.distributed.model_parallel import DistributedModelParallel

    torch.manual_seed(0)
    whole = Mixed()
    weights = {name: weight.detach().clone() for name, weight in whole.state_dict().items()}
    plan = planner().collective_plan(whole, sharders())
    model = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan, sharders=sharders())
    for name, value in model.state_dict().items():
        if not hasattr(value, "local_shards"):
            value.copy_(weights[name])
            continue
        for shard in value.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(weights[name][row : row + rows, column : column + columns])
    fused = set(model.fused_optimizer.params)
    dense = torch.optim.SGD([one for name, one in model.named_parameters() if name not in fused], lr=LEARNING_RATE)
    losses = []
    for local, _, labels in batches():
        loss = nn.functional.mse_loss(model(local[rank]), labels[rank * LOCAL_BATCH : (rank + 1) * LOCAL_BATCH])
        dense.zero_grad()
        loss.backward()
        dense.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / WORLD_SIZE)
    return (losses, plan)


# In pytest ------------------------------------------------------------------------------------------------------------


def unsharded_losses() -> list[float]:
    torch.manual_seed(0)
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for _, features, labels in batches():
        loss = nn.functional.mse_loss(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_the_merged_plan_trains_as_the_model_in_one_piece(tmp_path: Path) -> None:
    expected, plans = unsharded_losses(), []
    for losses, plan in run_ranks(process, WORLD_SIZE, tmp_path):
        assert losses == pytest.approx(expected, rel=1e-5)
        plans.append(plan)
    assert plans[0] == plans[1] and "tower.positional" in plans[0].plan


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


def test_constraints_of_their_tables_are_torchrecs() -> None:
    constraints = {"p": ParameterConstraints(sharding_types=["column_wise"], min_partition=4)}
    made = planner(constraints=constraints)
    assert made.plan(Mixed(META)).plan["tower.positional"]["p"].sharding_type == "column_wise"


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
