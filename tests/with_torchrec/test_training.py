"""Plans for TorchRec, proven by training: 2 ranks with gloo on the CPU, against the same model in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from evenshard.cli import main
from evenshard.placement.placement import Placement
from evenshard.placement.task import ShardingTask
from evenshard.torchrec import EvenshardPlanner, load_plan, sharding_plan, shards_of, tables_of
from support.ranks import run_ranks
from support.torchrec_builders import GREEDY, ITEM, META, NAMES, SPLIT, USER, Model, gb
from support.torchrec_training import Everything, Job, held, in_one_piece, module_sharders, piece

WORLD_SIZE = 2
DEVICE_OF_TABLE = (1, 0, 1, 0, 1)
PINNED = {"user.ebc.id": 0, "item.id": 0, "clicks": 1, "tags": 1}


class Fixed:
    """A sharder that knows the answer."""

    name = "fixed"

    def place(self, task: ShardingTask) -> Placement:
        return Placement(DEVICE_OF_TABLE, task.num_devices)


def by_fixed(out: Path) -> ShardingPlan:
    planner = EvenshardPlanner(sharder=Fixed(), compute_device="cpu", memory_cap_gb=1)
    return planner.collective_plan(Model(META), module_sharders())


def split(out: Path) -> ShardingPlan:
    return sharding_plan(SPLIT, tables_of(Model(META)), Model(META), WORLD_SIZE)  # for CPUs, as the group is of gloo


def with_means(*tables: str) -> Callable[[Path], ShardingPlan]:
    """Types of single MEAN tables, which the tables of their collections must then have too."""
    given: dict[str, Any] = {"memory_cap_gb": 1.0, "table_types": dict.fromkeys(tables, "row_wise")}
    return lambda out: EvenshardPlanner(**given).collective_plan(Everything(META), module_sharders())


def fused(kind: type[torch.optim.Optimizer], **settings: float) -> Callable[[nn.Module], None]:
    """Gives all tables an optimizer in the backward pass."""

    def prepare(model: Any) -> None:
        apply_optimizer_in_backward(kind, [*model.user.parameters(), *model.item.parameters()], dict(settings))

    return prepare


SGD, ADAGRAD = fused(torch.optim.SGD, lr=0.5), fused(torch.optim.Adagrad, lr=0.05, eps=1e-8)


def planned(prepare: Callable[[nn.Module], None], **given: Any) -> Callable[[Path], ShardingPlan]:
    """Of a model with fused optimizers."""

    def plan(out: Path) -> ShardingPlan:
        model = Model(META)
        prepare(model)
        return EvenshardPlanner(**given).collective_plan(model)

    return plan


@dataclass(frozen=True)
class Run:
    """A training; ``prepare`` and ``dense_rate`` as of a ``Job``."""

    plan: Callable[[Path], ShardingPlan]
    optimizer: str = "sgd"
    kind: Any = Model
    prepare: Callable[[nn.Module], None] | None = None
    dense_rate: float | None = None


# What trains as the model in one piece does.
ALIKE: dict[str, Run] = {
    "whole tables": Run(by_fixed),
    "whole tables with row-wise states": Run(by_fixed, "rowwise_adagrad"),
    "split tables": Run(split),
    "the command's plan": Run(lambda out: load_plan(out / "plan.json", Model(META))),
    "left to the planner": Run(lambda out: EvenshardPlanner().collective_plan(Model(META))),
    "means by rows": Run(with_means("m_long", "p_mean"), kind=Everything),
    "sums with means by rows": Run(with_means("p_mean"), kind=Everything),
    "SGD in the backward pass": Run(planned(SGD), prepare=SGD),
    "Adagrad in the backward pass": Run(planned(ADAGRAD), "adagrad", prepare=ADAGRAD),
    "replicas, the same dense optimizer": Run(
        planned(SGD, dense_optimizer="sgd", sharding_types=["data_parallel"]), prepare=SGD
    ),
}
OTHERS: dict[str, Run] = {
    "replicas by name": Run(planned(SGD, sharding_types=["data_parallel"]), prepare=SGD, dense_rate=0.0),
}


def process(rank: int, out: Path) -> Any:
    """One rank: of each run, losses, what it holds of the weights at the end, and sharding types; and errors."""
    notes: dict[str, Any] = {}
    for name, run in (ALIKE | OTHERS).items():
        plan = run.plan(out)
        job = Job(plan, None, run.optimizer, run.kind, run.prepare, run.dense_rate)
        types = {table: one.sharding_type for of in plan.plan.values() for table, one in of.items()}
        notes[name] = (job.steps(), held(job.model), types)
    notes["command"] = shards_of(load_plan(out / "plan.json", Model(META)), tables_of(Model(META)))
    small: dict[str, Any] = {"memory_cap_gb": gb(100), "training_pipeline": "", "dense_gb": 0.0}
    for name, more in (("no room", small), ("wrong", {"pooling_factors": {"nobody": 1.0}})):
        with pytest.raises(PlannerError) as caught:
            EvenshardPlanner(sharder=GREEDY, compute_device="cpu", **more).collective_plan(Model(META))
        notes[name] = caught.value
    return notes


def command(folder: Path) -> None:
    """Places the model's tables as an engineer does, who has them in a file. The widest fits nowhere in one piece."""
    rows = [
        f"{name},{one.num_embeddings},{one.embedding_dim},2.5" for name, one in zip(NAMES, (*USER, *ITEM), strict=True)
    ]
    (folder / "tables.csv").write_text("\n".join(["name,num_rows,embedding_dim,pooling_factor", *rows]))
    pins = [word for name, device in PINNED.items() for word in ("--pin", f"{name}={device}")]
    machine = ["--devices", "2", "--memory-cap-gb", f"{gb(5000)},{gb(4400)}", "--batch-size", "2048"]
    machine += ["--optimizer", "sgd", "--reserved-gb", "0", "--training-pipeline", ""]
    output = ["--allow-column-split", "--format", "torchrec", "-o", str(folder / "plan.json")]
    assert main(["place", str(folder / "tables.csv"), *machine, *pins, *output]) == 0


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    command(out)
    return run_ranks(process, WORLD_SIZE, out)


@pytest.mark.parametrize("name", ALIKE)
def test_losses_and_weights_are_those_of_the_model_in_one_piece(notes: list[dict[str, Any]], name: str) -> None:
    run = ALIKE[name]
    losses, weights = in_one_piece(WORLD_SIZE, run.optimizer, run.kind)
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)
    assert notes[0][name][2] == notes[1][name][2], "the plan of rank 0"
    for of_rank in notes:
        found, shards, _ = of_rank[name]
        assert found == pytest.approx(losses, rel=1e-4)
        for key, (row, column, tensor) in ((key, one) for key, of in shards.items() for one in of):
            torch.testing.assert_close(tensor, piece(weights[key], row, column, tensor), rtol=1e-4, atol=1e-4)


def test_parts_live_where_the_placement_says(notes: list[dict[str, Any]]) -> None:
    for rank, of_rank in enumerate(notes):
        shards = {key.split(".")[-2]: of for key, of in of_rank["split tables"][1].items() if "embedding_bags" in key}
        lives = {
            (name, column, column + one.shape[1])
            for name, of in shards.items()
            for _, column, one in of
            if name != "id"
        }
        assert lives == {
            (one.table, *one.columns) for one in SPLIT if one.device == rank and not one.table.endswith("id")
        }


def test_the_commands_plan_has_its_pins_and_splits_what_fits_nowhere(notes: list[dict[str, Any]]) -> None:
    parts = notes[0]["command"]
    assert {part.table: part.device for part in parts if part.table != "wide"} == PINNED
    assert {part.device for part in parts if part.table == "wide"} == {0, 1}


def test_types_are_those_that_train(notes: list[dict[str, Any]]) -> None:
    """All tables of a collection with a MEAN table by rows are cut so; a fused optimizer leaves no replicas."""
    types = {name: notes[0][name][2] for name in (*ALIKE, *OTHERS)}
    for name, cut in (("means by rows", "mp"), ("sums with means by rows", "p")):
        assert {way for table, way in types[name].items() if table[0] in cut} == {"row_wise"}
    assert types["sums with means by rows"]["m_long"] not in ("row_wise", "table_row_wise")
    for name, replicated in (
        ("SGD in the backward pass", False),
        ("Adagrad in the backward pass", False),
        ("replicas, the same dense optimizer", True),
        ("replicas by name", True),
    ):
        assert ("data_parallel" in types[name].values()) is replicated, name


def test_replicas_are_trained_by_the_dense_optimizer(notes: list[dict[str, Any]]) -> None:
    """Whose learning rate is 0 here: no weight changes, whatever the fused optimizer is."""
    _, before = in_one_piece(WORLD_SIZE, kind=Model, num_steps=0)
    for key, shards in notes[0]["replicas by name"][1].items():
        for row, column, tensor in shards:
            torch.testing.assert_close(tensor, piece(before[key], row, column, tensor), rtol=0, atol=0)


def test_all_ranks_learn_that_rank_0_cannot_plan(notes: list[dict[str, Any]]) -> None:
    for of_rank in notes:
        assert of_rank["no room"].error_type is PlannerErrorType.INSUFFICIENT_STORAGE
        assert str(of_rank["no room"]).startswith("the model: table wide needs 2.81 KB, more than a whole device")
        assert "pooling_factors is given for 'nobody'" in str(of_rank["wrong"])
