"""A training job of two ranks on CPUs, gloo between them, that names no device: its plans are for CPUs, and train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchrec.distributed.planner import EmbeddingShardingPlanner

import evenshard
from evenshard.torchrec import EvenshardPlanner, load_plan, save_plan, sharding_plan
from support.ranks import run_ranks
from support.request_builders import untrained
from support.torchrec_builders import META
from support.torchrec_training import Everything, Job, in_one_piece, module_sharders

WORLD_SIZE = 2
RUNS = ("no arguments", "callbacks", "fallback", "answer", "file")


def process(rank: int, out: Path) -> Any:
    """One rank: of every way to make a plan, the losses, the plan and what was said."""
    model, sharders = Everything(META), module_sharders()
    planners = {
        "no arguments": EvenshardPlanner(),
        "callbacks": EvenshardPlanner(callbacks=[lambda options: options], model=untrained()),
        "fallback": EvenshardPlanner(model=str(out / "no model"), fallback=True),
    }
    plans: dict[str, Any] = {name: (one.collective_plan(model, sharders), one.notes) for name, one in planners.items()}
    rules: dict[str, Any] = {"sharding_types": ["table_wise", "row_wise"], "host_memory_gb": 0}
    answer = evenshard.place(model, WORLD_SIZE, 1, model=untrained(), **rules)
    save_plan(answer, out / f"plan-{rank}.json")
    plans |= {"answer": (sharding_plan(answer, model), ()), "file": (load_plan(out / f"plan-{rank}.json", model), ())}
    notes = {name: (Job(plan).steps(), str(plan), said) for name, (plan, said) in plans.items()}
    return notes, str(EmbeddingShardingPlanner().collective_plan(model, sharders))


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], str]]:
    """What each rank saw."""
    return run_ranks(process, WORLD_SIZE, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("run", RUNS)
def test_a_plan_that_names_no_device_trains_on_cpus(notes: list[tuple[dict[str, Any], str]], run: str) -> None:
    expected, _ = in_one_piece(WORLD_SIZE)
    for of_rank, _ in notes:
        losses, plan, _ = of_rank[run]
        assert "cuda" not in plan and "cpu" in plan
        assert losses == pytest.approx(expected, rel=1e-5)


def test_what_stands_in_for_the_ranks_is_said(notes: list[tuple[dict[str, Any], str]]) -> None:
    """The times are of a GPU: rank 0, which plans, says so; and why TorchRec's planner made a plan."""
    (of_first, theirs), (_, theirs_too) = notes
    said, left_out = of_first["no arguments"][2]
    assert left_out.startswith("Replicas (data_parallel) of ")
    assert said == "The plan is for cpu ranks, but its times are for simulated:h100; another plan may be faster."
    (fell,) = of_first["fallback"][2]
    assert fell.startswith("TorchRec's planner makes this plan (fallback=True), because evenshard cannot: ")
    assert "no model" in fell and of_first["fallback"][1] == theirs == theirs_too
