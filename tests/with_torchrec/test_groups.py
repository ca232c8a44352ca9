"""A group's answer as a plan for TorchRec's ``DMPCollection``: 4 ranks in 2 groups train as one model does.

Three things keep DMPCollection off CPUs: it asserts CUDA or MTIA; it gives each shard's device an index, which tensors
on a CPU do not have; and it averages with an operation that gloo lacks. The ranks run without asserts (python -O), take
the index away, and average with a hook, which it offers. All the rest is TorchRec's as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import evenshard
from evenshard.planner.what_if.machines import sum_synced_bytes
from evenshard.torchrec import save_plan
from support.documented import snippet
from support.ranks import run_ranks

WORLD_SIZE, GROUP_SIZE = 4, 2
LOCAL_BATCH, NUM_STEPS, LEARNING_RATE = 3, 4, 0.5
ROWS = {"whole": 40, "columns": 30, "rows": 50, "replicas": 7}
TYPES = {"whole": "table_wise", "columns": "column_wise", "rows": "row_wise", "replicas": "data_parallel"}
DIM = 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=DIM)
                for name, rows in ROWS.items()
            ]
        )
        self.over = nn.Linear(DIM * len(ROWS), 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found: torch.Tensor = self.over(self.tables(features).values())
        return found.squeeze(1)


def batches() -> list[tuple[list[KeyedJaggedTensor], KeyedJaggedTensor, torch.Tensor]]:
    """Of each step: the features of each rank, of all together, and the labels."""
    rng = torch.Generator().manual_seed(5)
    samples, found = WORLD_SIZE * LOCAL_BATCH, []
    for _ in range(NUM_STEPS):
        looked_up = {name: torch.randint(0, rows, (samples, 2), generator=rng) for name, rows in ROWS.items()}

        def jagged(first: int, stop: int, looked_up: dict[str, torch.Tensor] = looked_up) -> KeyedJaggedTensor:
            values = torch.cat([one[first:stop].reshape(-1) for one in looked_up.values()])
            return KeyedJaggedTensor.from_lengths_sync(
                list(ROWS), values, torch.full((len(ROWS) * (stop - first),), 2, dtype=torch.int32)
            )

        local = [jagged(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH) for rank in range(WORLD_SIZE)]
        found.append((local, jagged(0, samples), torch.rand(samples, generator=rng)))
    return found


def unsharded_losses() -> list[float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for _, features, labels in batches():
        loss = nn.functional.mse_loss(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# In the ranks ---------------------------------------------------------------------------------------------------------


def without_index() -> None:
    """Takes the index of ``cpu:3`` away, where DMPCollection moves a plan to the ranks of a group."""
    from torch.distributed.remote_device import _remote_device
    from torchrec.distributed.model_parallel import DMPCollection

    remap = DMPCollection._remap_sharding_plan

    def remapped(self: Any, plan: Any, *args: Any, **more: Any) -> None:
        remap(self, plan, *args, **more)
        for module in plan.plan.values():
            for table in module.values():
                for shard in getattr(table.sharding_spec, "shards", ()):
                    shard.placement = _remote_device(f"rank:{shard.placement.rank()}/cpu")

    DMPCollection._remap_sharding_plan = remapped


def wrapped(optimizer: str, layout: str) -> Any:
    """The model as the snippet of the docs wraps it, with an average that gloo has."""
    import torch.distributed as dist
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    torch.manual_seed(0)
    known: dict[str, Any] = {
        "model": Model(),
        "device": torch.device("cpu"),
        "sharders": [EmbeddingBagCollectionSharder({"optimizer": EmbOptimType[optimizer], "learning_rate": 0.5})],
        "group_size": GROUP_SIZE,
        "layout": layout,
    }
    whole = {name: weight.detach().clone() for name, weight in known["model"].state_dict().items()}
    exec(snippet("docs/what_if.md", "model = DMPCollection("), known)
    model = known["model"]

    def average(tensors: list[torch.Tensor]) -> None:
        for one in tensors:
            dist.all_reduce(one, group=model._default_ctx.replica_pg)
            one /= WORLD_SIZE // GROUP_SIZE

    model.set_all_reduce_hook(average)
    for name, value in model.state_dict().items():
        local = value.to_local() if hasattr(value, "to_local") else value
        if not hasattr(local, "local_shards"):
            local.copy_(whole[name])
            continue
        for tensor, (row, column) in zip(local.local_shards(), local.local_offsets(), strict=False):
            rows, columns = tensor.shape
            tensor.copy_(whole[name][row : row + rows, column : column + columns])
    return model


def grouped_losses(layout: str, rank: int, sync: bool) -> list[float]:
    import torch.distributed as dist

    model = wrapped("EXACT_SGD", layout)
    fused = set(model.fused_optimizer.params)
    dense = torch.optim.SGD([one for name, one in model.named_parameters() if name not in fused], lr=LEARNING_RATE)
    losses = []
    for local, _, labels in batches():
        mine = labels[rank * LOCAL_BATCH : (rank + 1) * LOCAL_BATCH]
        loss = nn.functional.mse_loss(model(local[rank]), mine)
        dense.zero_grad()
        loss.backward()
        dense.step()
        if sync:
            model.sync()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / WORLD_SIZE)
    return losses


def process(rank: int, out: Path) -> Any:
    """One rank of the session."""

    os.chdir(out)
    without_index()
    notes: dict[str, Any] = {}
    for layout in ("contiguous", "strided"):
        notes[layout] = grouped_losses(layout, rank, sync=True)
    notes["never"] = grouped_losses("strided", rank, sync=False)
    try:
        wrapped("ADAM", "strided")
    except KeyError as error:
        notes["adam"] = str(error)
    model = wrapped("EXACT_ROWWISE_ADAGRAD", "strided")
    ctx = model._default_ctx
    kinds = (ctx.weights_by_dtype, ctx.optimizer_tensors_by_dtype)
    notes["sent"] = [sum(one.numel() * one.element_size() for held in kind.values() for one in held) for kind in kinds]
    return notes


# In pytest ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[evenshard.PlacementAnswer, list[dict[str, Any]]]:
    """The answer for a group, and what each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    found = evenshard.what_if(
        Model(), ["h100"], [WORLD_SIZE], group_sizes=[GROUP_SIZE], batch_size=4096, optimizer="rowwise_adagrad",
        table_types=TYPES,
    )  # fmt: skip
    answer = found.options[0].answer
    assert answer is not None
    save_plan(answer, out / "plan.json", compute_device="cpu")
    return answer, run_ranks(process, WORLD_SIZE, out, ("-O",), LOCAL_WORLD_SIZE=str(WORLD_SIZE))


@pytest.mark.slow
def test_groups_train_as_one_model_where_they_are_averaged_in_each_step(
    session: tuple[evenshard.PlacementAnswer, list[dict[str, Any]]],
) -> None:
    _, notes = session
    expected = unsharded_losses()
    for one in notes:
        assert one["contiguous"] == pytest.approx(expected, rel=1e-5)
        assert one["strided"] == pytest.approx(expected, rel=1e-5)
        assert one["never"][0] == pytest.approx(expected[0]) and one["never"] != pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_what_a_sync_sends_is_what_is_priced(
    session: tuple[evenshard.PlacementAnswer, list[dict[str, Any]]],
) -> None:
    """Ranks 0 and 1 have the first part of their group's plan, 2 and 3 the second: weights, and AdaGrad's sums."""
    answer, notes = session
    assert dict(answer.type_of_table) == TYPES
    sent = [sum(one["sent"]) for one in notes]
    assert sent == [size for size in sum_synced_bytes(answer) for _ in range(WORLD_SIZE // GROUP_SIZE)]


@pytest.mark.slow
def test_adam_is_refused(session: tuple[evenshard.PlacementAnswer, list[dict[str, Any]]]) -> None:
    assert [one["adam"] for one in session[1]] == ["'sum'"] * WORLD_SIZE
