"""A training job of two ranks on CPUs, gloo between them, that names no device: its plans are for CPUs, and train."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.types import ShardingPlan

import evenshard
from evenshard.torchrec import EvenshardPlanner, load_plan, save_plan, sharding_plan
from support.ranks import run_ranks
from support.request_builders import untrained
from support.torchrec_training import Everything, module_sharders, sharded_losses, unsharded_losses

WORLD_SIZE = 2
RUNS = ("no arguments", "callbacks", "fallback", "answer", "file")


def plans(folder: Path) -> dict[str, tuple[ShardingPlan, tuple[str, ...]]]:
    """A plan of every way to make one, none of which names a device, and what was said."""
    model, sharders = Everything(torch.device("meta")), module_sharders()
    failing = EvenshardPlanner(model=str(folder / "no model"), fallback=True)
    planners = {
        "no arguments": EvenshardPlanner(),
        "callbacks": EvenshardPlanner(callbacks=[lambda options: options], model=untrained()),
        "fallback": failing,
    }
    found = {name: (one.collective_plan(model, sharders), one.notes) for name, one in planners.items()}
    rules: dict[str, Any] = {"sharding_types": ["table_wise", "row_wise"], "host_memory_gb": 0}
    answer = evenshard.place(model, WORLD_SIZE, 1, model=untrained(), **rules)
    found["answer"] = (sharding_plan(answer, model), ())
    path = folder / f"plan-{os.getpid()}.json"
    save_plan(answer, path)
    found["file"] = (load_plan(path, model), ())
    return found


def process(rank: int, out: Path) -> Any:
    """One rank of the job."""
    import torch.distributed as dist

    notes: dict[str, Any] = {}
    for name, (plan, said) in plans(out).items():
        notes[name] = (sharded_losses(plan, dist.group.WORLD), str(plan), said)
    theirs = EmbeddingShardingPlanner().collective_plan(Everything(torch.device("meta")), module_sharders())
    notes["theirs"] = str(theirs)
    return notes


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    return run_ranks(process, WORLD_SIZE, out)


@pytest.fixture(scope="module")
def expected() -> list[float]:
    return unsharded_losses(WORLD_SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_a_plan_that_names_no_device_trains_on_cpus(
    notes: list[dict[str, Any]], expected: list[float], run: str
) -> None:
    for of_rank in notes:
        losses, plan, _ = of_rank[run]
        assert "cuda" not in plan and "cpu" in plan
        assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_what_stands_in_for_the_ranks_is_said(notes: list[dict[str, Any]]) -> None:
    """The times are of a GPU: rank 0, which plans, says so; and why TorchRec's planner made a plan."""
    said, left_out = notes[0]["no arguments"][2]
    assert left_out.startswith("Replicas (data_parallel) of ")
    assert said == "The plan is for cpu ranks, but its times are for simulated:h100; another plan may be faster."
    (fell,) = notes[0]["fallback"][2]
    assert fell.startswith("TorchRec's planner makes this plan (fallback=True), because evenshard cannot: ")
    assert "no model" in fell
    assert notes[0]["fallback"][1] == notes[0]["theirs"] == notes[1]["fallback"][1]
