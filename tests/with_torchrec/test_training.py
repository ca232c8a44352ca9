"""Plans for TorchRec, proven by training: 2 ranks with gloo on the CPU, against the same model in one piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from evenshard.cli import main
from evenshard.torchrec import EvenshardPlanner, TablePart, load_plan, sharding_plan, shards_of, tables_of
from support.ranks import run_ranks
from support.torchrec_builders import (
    GREEDY,
    META,
    NAMES,
    PATHS,
    ROWS_OF_FEATURE,
    SPLIT,
    WORLD_SIZE,
    Fixed,
    Model,
    gb,
    part_of,
)

# In the ranks ---------------------------------------------------------------------------------------------------------

LOCAL_BATCH = 6
NUM_STEPS = 5
LEARNING_RATE = 0.05
EPS = 1e-6
DEVICE_OF_TABLE = (1, 0, 1, 0, 1)


def batches() -> list[tuple[list[KeyedJaggedTensor], KeyedJaggedTensor, torch.Tensor]]:
    """Of each step: the features of each rank, of all ranks together, and the labels [global batch]."""
    rng = torch.Generator().manual_seed(3)
    result = []
    for _ in range(NUM_STEPS):
        bags = [
            [
                torch.randint(0, rows, (int(torch.randint(0, 6, (), generator=rng)),), generator=rng)
                for _ in range(WORLD_SIZE * LOCAL_BATCH)
            ]
            for rows in ROWS_OF_FEATURE.values()
        ]

        def jagged(first: int, stop: int, bags: list[list[torch.Tensor]] = bags) -> KeyedJaggedTensor:
            mine = [bag for of_feature in bags for bag in of_feature[first:stop]]
            lengths = torch.tensor([len(bag) for bag in mine])
            return KeyedJaggedTensor.from_lengths_sync(list(ROWS_OF_FEATURE), torch.cat(mine), lengths)

        local = [jagged(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH) for rank in range(WORLD_SIZE)]
        labels = torch.rand(WORLD_SIZE * LOCAL_BATCH, generator=rng)
        result.append((local, jagged(0, WORLD_SIZE * LOCAL_BATCH), labels))
    return result


def unsharded_losses(optimizer: str) -> list[float]:
    """The losses of the model in one piece."""
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    torch.manual_seed(0)
    model = Model()
    tables = [*model.user.parameters(), *model.item.parameters()]
    optimizers = [torch.optim.SGD(model.over.parameters(), lr=LEARNING_RATE)]
    if optimizer == "sgd":
        optimizers.append(torch.optim.SGD(tables, lr=LEARNING_RATE))
    else:
        optimizers.append(RowWiseAdagrad(tables, lr=LEARNING_RATE, eps=EPS))
    losses = []
    for _, features, labels in batches():
        loss = nn.functional.mse_loss(model(features), labels)
        for one in optimizers:
            one.zero_grad()
        loss.backward()
        for one in optimizers:
            one.step()
        losses.append(loss.item())
    return losses


def module_sharders(optimizer: str) -> list[Any]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    kind = EmbOptimType.EXACT_SGD if optimizer == "sgd" else EmbOptimType.EXACT_ROWWISE_ADAGRAD
    return [EmbeddingBagCollectionSharder({"optimizer": kind, "learning_rate": LEARNING_RATE, "eps": EPS})]


def sharded_run(plan: ShardingPlan, optimizer: str, rank: int) -> dict[str, Any]:
    """The losses of the sharded model, and the table, first row, rows, first column and columns of each local shard."""
    import torch.distributed as dist
    from torchrec.distributed.model_parallel import DistributedModelParallel

    torch.manual_seed(0)
    whole = Model()
    weights = {name: weight.detach().clone() for name, weight in whole.state_dict().items()}
    model = DistributedModelParallel(whole, plan=plan, sharders=module_sharders(optimizer))
    lives = []
    for name, value in model.state_dict().items():
        for shard in value.local_shards() if hasattr(value, "local_shards") else ():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(weights[name][row : row + rows, column : column + columns])
            assert tuple(shard.tensor.shape) == (rows, columns) and shard.metadata.placement.rank() == rank
            lives.append((name.removesuffix(".weight"), row, rows, column, columns))
    dense = torch.optim.SGD([weight for name, weight in model.named_parameters() if "over" in name], lr=LEARNING_RATE)
    losses = []
    for local, _, labels in batches():
        mine = labels[rank * LOCAL_BATCH : (rank + 1) * LOCAL_BATCH]
        loss = nn.functional.mse_loss(model(local[rank]), mine)
        dense.zero_grad()
        loss.backward()
        dense.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / WORLD_SIZE)
    return {"losses": losses, "lives": sorted(lives)}


def explain_failure(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def process(rank: int, out: Path) -> Any:
    """One rank of the session."""

    notes: dict[str, Any] = {}
    planner = EvenshardPlanner(sharder=Fixed(DEVICE_OF_TABLE), compute_device="cpu", memory_cap_gb=1)
    plan = planner.collective_plan(Model(), module_sharders("sgd"))
    notes["plan"] = str(plan)
    notes["sgd"] = sharded_run(plan, "sgd", rank)
    notes["adagrad"] = sharded_run(planner.collective_plan(Model()), "adagrad", rank)
    model = Model(META)
    split = sharding_plan(SPLIT, tables_of(model), model, WORLD_SIZE)  # for CPUs, as the process group is of gloo
    notes["split"] = sharded_run(split, "sgd", rank)
    notes["split_adagrad"] = sharded_run(split, "adagrad", rank)
    plan = load_plan(out / "plan.json", model)
    notes["parts"] = shards_of(plan, tables_of(model))
    notes["command"] = sharded_run(plan, "sgd", rank)
    own = EvenshardPlanner(sharding_types=["table_wise"])
    notes["own"] = sharded_run(own.collective_plan(model), "sgd", rank)
    notes["planned"] = own.answer is not None
    small = EvenshardPlanner(
        sharder=GREEDY, compute_device="cpu", memory_cap_gb=gb(100), training_pipeline="", dense_gb=0.0
    )
    notes["no_room"] = explain_failure(lambda: small.collective_plan(model))
    wrong = EvenshardPlanner(sharder=GREEDY, compute_device="cpu", pooling_factors={"nobody": 1.0})
    notes["wrong"] = explain_failure(lambda: wrong.collective_plan(model))
    return notes


# In pytest ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    command(out)
    return run_ranks(process, WORLD_SIZE, out)


PINNED = {"user.ebc.id": 0, "item.id": 0, "clicks": 1, "tags": 1}
# Beside the pinned tables, no rank has room for the 2880 bytes of the widest one.
CAPS_GB = f"{gb(5000)},{gb(4400)}"


def command(folder: Path) -> None:
    """Places the model's tables as an engineer does, who has them in a file: plan.json."""
    configs = [module_path_of(name)[1] for name in NAMES]
    columns = ["name,num_rows,embedding_dim,pooling_factor"]
    rows = [f"{name},{one.num_embeddings},{one.embedding_dim},2.5" for name, one in zip(NAMES, configs, strict=True)]
    (folder / "tables.csv").write_text("\n".join(columns + rows))
    pins = [word for name, device in PINNED.items() for word in ("--pin", f"{name}={device}")]
    machine = ["--devices", str(WORLD_SIZE), "--memory-cap-gb", CAPS_GB, "--batch-size", "2048", "--optimizer", "sgd"]
    machine += ["--reserved-gb", "0", "--training-pipeline", ""]  # weights alone, of which there are few
    output = ["--allow-column-split", "--format", "torchrec", "-o", str(folder / "plan.json")]
    assert main(["place", str(folder / "tables.csv"), *machine, *pins, *output]) == 0


def module_path_of(name: str) -> tuple[str, EmbeddingBagConfig]:
    """TorchRec's key of one of ``NAMES``, and its configuration."""
    path, config = [(path, config) for path, configs in PATHS.items() for config in configs][NAMES.index(name)]
    return f"{path}.embedding_bags.{config.name}", config


def lives(parts: Sequence[TablePart], rank: int) -> list[tuple[str, int, int, int, int]]:
    """What a rank should hold."""
    keys = [(*module_path_of(one.table), one) for one in parts if one.device == rank]
    return sorted((key, 0, config.num_embeddings, one.columns.start, one.columns.size) for key, config, one in keys)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_each_table_lives_where_the_placement_says(notes: list[dict[str, Any]], optimizer: str) -> None:
    parts = [
        part_of(name, device, 0, module_path_of(name)[1].embedding_dim)
        for name, device in zip(NAMES, DEVICE_OF_TABLE, strict=True)
    ]
    assert [of_rank[optimizer]["lives"] for of_rank in notes] == [lives(parts, rank) for rank in range(WORLD_SIZE)]


@pytest.mark.slow
def test_each_part_of_a_split_table_lives_where_its_shard_says(notes: list[dict[str, Any]]) -> None:
    assert [of_rank["split"]["lives"] for of_rank in notes] == [lives(SPLIT, rank) for rank in range(WORLD_SIZE)]


@pytest.mark.slow
def test_the_commands_plan_puts_tables_where_they_are_pinned(notes: list[dict[str, Any]]) -> None:
    """The table that fits nowhere is split over both ranks."""
    parts = notes[0]["parts"]
    assert [of_rank["command"]["lives"] for of_rank in notes] == [lives(parts, rank) for rank in range(WORLD_SIZE)]
    assert {part.table: part.device for part in parts if part.table != "wide"} == PINNED
    assert {part.device for part in parts if part.table == "wide"} == {0, 1}


@pytest.mark.slow
def test_without_a_machine_the_planner_places_all_tables(notes: list[dict[str, Any]]) -> None:
    """Rank 0 plans, with the model that comes with evenshard."""
    assert [of_rank["planned"] for of_rank in notes] == [True, False]
    held = sorted(name for of_rank in notes for name, *_ in of_rank["own"]["lives"])
    assert held == sorted(module_path_of(name)[0] for name in NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "optimizer"),
    [("sgd", "sgd"), ("adagrad", "adagrad"), ("split", "sgd"), ("command", "sgd"), ("own", "sgd")],
)
def test_losses_are_those_of_the_model_in_one_piece(notes: list[dict[str, Any]], run: str, optimizer: str) -> None:
    expected = unsharded_losses(optimizer)
    assert len(set(expected)) == NUM_STEPS
    for of_rank in notes:
        assert of_rank[run]["losses"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_parts_of_a_table_have_their_own_row_wise_state(notes: list[dict[str, Any]]) -> None:
    """So says the package: the first loss, before any step, is that of the whole table, the others are near it."""
    split, whole = notes[0]["split_adagrad"]["losses"], unsharded_losses("adagrad")
    assert split[0] == pytest.approx(whole[0], rel=1e-5)
    assert split != pytest.approx(whole, rel=1e-4) and split == pytest.approx(whole, rel=0.1)


@pytest.mark.slow
def test_all_ranks_get_the_plan_of_rank_0(notes: list[dict[str, Any]]) -> None:
    assert notes[0]["plan"] == notes[1]["plan"] and "table_wise" in notes[0]["plan"]


@pytest.mark.slow
def test_all_ranks_learn_that_there_is_no_room(notes: list[dict[str, Any]]) -> None:
    for of_rank in notes:
        assert type(of_rank["no_room"]) is PlannerError
        assert of_rank["no_room"].error_type is PlannerErrorType.INSUFFICIENT_STORAGE
        assert str(of_rank["no_room"]).startswith("the model: table wide needs 2.81 KB, more than a whole device")


@pytest.mark.slow
def test_no_rank_waits_for_a_rank_0_that_cannot_plan(notes: list[dict[str, Any]]) -> None:
    assert [type(of_rank["wrong"]) for of_rank in notes] == [PlannerError, PlannerError]
    assert all("pooling_factors is given for 'nobody'" in str(of_rank["wrong"]) for of_rank in notes)
