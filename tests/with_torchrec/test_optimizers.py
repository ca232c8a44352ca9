"""Tables keep their optimizer: ``EvenshardPlanner``'s plans train to the unsharded model's losses and weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from evenshard.placement.sharding import DATA_PARALLEL, SHARDING_TYPES
from evenshard.torchrec import EvenshardPlanner
from support.ranks import run_ranks
from support.torchrec_training import jagged

WORLD_SIZE, LOCAL_BATCH, NUM_STEPS = 4, 6, 3
ROWS = {"a": 40, "b": 23, "c": 57, "d": 31}
DIM = 16
RATE = 1.0
# The fused optimizers that FBGEMM has on the CPU, and torch too.
KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "sgd": (torch.optim.SGD, {"lr": RATE}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.3, "eps": 1e-8}),
}


class Sums(nn.Module):
    """Four tables, and a linear layer over their sums."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=DIM)
                for name, rows in ROWS.items()
            ]
        )
        self.over = nn.Linear(len(ROWS) * DIM, 1)

    def forward(self, features: Any) -> torch.Tensor:
        found = self.bags(features).to_dict()  # in the order of ranks
        return self.over(torch.cat([found[name] for name in ROWS], dim=1)).squeeze(1)


@dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
        planner: arguments of ``EvenshardPlanner``.
        kind: of the tables' optimizer, one of ``KINDS``.
        by_sharder: its ``fused_params`` say so; else ``apply_optimizer_in_backward``.
        dense_lr: learning rate of the dense model's SGD.
    """

    planner: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "sgd"
    by_sharder: bool = False
    dense_lr: float = 0.0


# What trains as the model in one piece does.
ALIKE = {
    **{
        f"{kind} {way}": Run({"sharding_types": [way]}, kind)
        for kind in KINDS
        for way in SHARDING_TYPES
        if way != DATA_PARALLEL
    },
    **{f"{kind} left to the planner": Run(kind=kind) for kind in KINDS},
    "sgd of fused_params": Run(by_sharder=True),
    "replicas, the same dense optimizer": Run({"dense_optimizer": "sgd"}, dense_lr=RATE),
}
REPLICAS_BY_NAME = "replicas by name"
RUNS = {**ALIKE, REPLICAS_BY_NAME: Run({"sharding_types": [DATA_PARALLEL]})}


def batches() -> list[tuple[Callable[[slice], Any], torch.Tensor]]:
    """Of each step: the features of some samples, and the labels of all."""
    rng = torch.Generator().manual_seed(7)
    samples, result = WORLD_SIZE * LOCAL_BATCH, []
    for _ in range(NUM_STEPS):
        lengths = torch.randint(0, 5, (len(ROWS), samples), generator=rng).tolist()
        bags = {
            name: [torch.randint(0, rows, (length,), generator=rng) for length in own]
            for (name, rows), own in zip(ROWS.items(), lengths, strict=True)
        }
        result.append(
            (lambda rows, bags=bags: jagged(bags, list(ROWS), rows), torch.rand(samples, generator=rng)),
        )
    return result


def unsharded(run: Run) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the model in one piece."""
    torch.manual_seed(0)
    model, (kind, settings) = Sums(), KINDS[run.kind]
    optimizers = [kind(model.bags.parameters(), **settings), torch.optim.SGD(model.over.parameters(), lr=run.dense_lr)]
    losses = []
    for features, labels in batches():
        loss = nn.functional.mse_loss(model(features(slice(len(labels)))), labels)
        model.zero_grad()
        loss.backward()
        for one in optimizers:
            one.step()
        losses.append(loss.item())
    return losses, {name: weight.detach() for name, weight in model.state_dict().items()}


# In the ranks ---------------------------------------------------------------------------------------------------------


def sharded(run: Run) -> tuple[list[float], dict[str, Any], dict[str, str]]:
    """Mean losses over the ranks, what this rank holds of the weights at the end, and the tables' types."""
    import torch.distributed as dist
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.optimizers import in_backward_optimizer_filter

    torch.manual_seed(0)
    whole, (kind, settings) = Sums(), KINDS[run.kind]
    weights = {name: weight.detach().clone() for name, weight in whole.state_dict().items()}
    fused: dict[str, Any] = {}
    if run.by_sharder:
        fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": settings["lr"]}
    else:
        apply_optimizer_in_backward(kind, whole.bags.parameters(), dict(settings))
    sharders: list[Any] = [EmbeddingBagCollectionSharder(fused)]
    planner = EvenshardPlanner(inter="ib_400g", batch_size=LOCAL_BATCH, **run.planner)
    plan = planner.collective_plan(whole, sharders)
    model = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan, sharders=sharders)
    for name, held in held_of(model).items():
        for (row, column), tensor in held:
            rows, columns = tensor.shape if tensor.dim() == 2 else (*tensor.shape, 0)
            tensor.copy_(weights[name][row : row + rows, column : column + columns] if columns else weights[name])
    dense = [weight for _, weight in in_backward_optimizer_filter(model.named_parameters())]
    optimizer, rank, losses = torch.optim.SGD(dense, lr=run.dense_lr), dist.get_rank(), []
    for features, labels in batches():
        own = slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)
        loss = nn.functional.mse_loss(model(features(own)), labels[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / WORLD_SIZE)
    types = {name: entry.sharding_type for name, entry in plan.plan["bags"].items()}
    return losses, held_of(model), types


def held_of(model: nn.Module) -> dict[str, list[tuple[tuple[int, int], torch.Tensor]]]:
    """What a rank has of each weight, with its first row and column."""
    found = {}
    for name, value in model.state_dict().items():
        shards = value.local_shards() if hasattr(value, "local_shards") else None
        if shards is None:
            found[name] = [((0, 0), value.detach())]
        else:
            found[name] = [(tuple(shard.metadata.shard_offsets), shard.tensor.detach()) for shard in shards]
    return found


def process(rank: int, out: Path) -> Any:
    """One rank of the session."""

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    return {name: sharded(run) for name, run in RUNS.items()}


# In pytest ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    return run_ranks(process, WORLD_SIZE, tmp_path_factory.mktemp("ranks"))


def joined(notes: list[dict[str, Any]], name: str) -> dict[str, torch.Tensor]:
    """The weights of all ranks together."""
    found = {key: torch.full(weight.shape, torch.nan) for key, weight in Sums().state_dict().items()}
    for of_rank in notes:
        for key, held in of_rank[name][1].items():
            for (row, column), tensor in held:
                if tensor.dim() == 1:
                    found[key] = tensor
                else:
                    found[key][row : row + tensor.shape[0], column : column + tensor.shape[1]] = tensor
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_losses_and_weights_are_those_of_the_model_in_one_piece(notes: list[dict[str, Any]], name: str) -> None:
    losses, weights = unsharded(ALIKE[name])
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)
    for of_rank in notes:
        assert of_rank[name][0] == pytest.approx(losses, rel=1e-4)
    for key, weight in joined(notes, name).items():
        torch.testing.assert_close(weight, weights[key], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_each_type_was_trained(notes: list[dict[str, Any]]) -> None:
    """Columns within a node are column_wise of a kind, and whole tables beside columns are called so."""
    for name, run in ALIKE.items():
        types = set(notes[0][name][2].values())
        if asked := run.planner.get("sharding_types"):
            assert types == set(asked)
    assert set(notes[0]["replicas, the same dense optimizer"][2].values()) == {DATA_PARALLEL}
    assert all(DATA_PARALLEL not in notes[0][f"{kind} left to the planner"][2].values() for kind in KINDS)


@pytest.mark.slow
def test_replicas_are_trained_by_the_dense_optimizer(notes: list[dict[str, Any]]) -> None:
    """Whose learning rate is 0 here: no weight changes, whatever the fused optimizer is."""
    torch.manual_seed(0)
    before = Sums().state_dict()
    for key, weight in joined(notes, REPLICAS_BY_NAME).items():
        torch.testing.assert_close(weight, before[key], rtol=0, atol=0)
    losses, _ = unsharded(RUNS[REPLICAS_BY_NAME])
    assert notes[0][REPLICAS_BY_NAME][0][1] != pytest.approx(losses[1], rel=1e-3)
