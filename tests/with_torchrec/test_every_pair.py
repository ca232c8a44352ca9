"""Every change of sharding type, of a job that runs and from a checkpoint: losses table by table as if nothing changed.

A table for each of the 42 ordered pairs of types, and of the 6 that sequences have on the CPU, goes from its first type
to its second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.api import CheckpointException

from evenshard.cli import main
from evenshard.planner.file import load_answer, save_answer
from evenshard.torchrec import sharding_plan
from evenshard.torchrec.running.delta_file import read_delta
from support.documented import command, snippet
from support.pair_model import PAIRS, EveryPair, pair_answer, pair_batches
from support.ranks import run_ranks
from support.sharding_cases import META, TWO_NODES
from support.training_job import Job, losses_in_one_piece

PAGE = "docs/torchrec.md"
DELTA = command(PAGE, "evenshard diff old.json new.json --reshard-delta")
NUM_STEPS, CHANGES_BEFORE = 4, 2
SHARDED = [name for name, pair in PAIRS.items() if "data_parallel" not in pair]
# In halves, each of which has a row-wise state of its own.
BY_COLUMNS = ("column_wise", "table_column_wise", "grid_shard")
SAME_CUTS = [name for name, (old, new) in PAIRS.items() if (old in BY_COLUMNS) == (new in BY_COLUMNS)]
# The tables whose checkpoint loads as it is.
LOADS = {"sgd": list(PAIRS), "adagrad": SHARDED, "rowwise_adagrad": [one for one in SHARDED if one in SAME_CUTS]}
# More of them, and what torch.distributed.checkpoint says to that.
REFUSED = {"adagrad": (list(PAIRS), "Missing key"), "rowwise_adagrad": (SHARDED, "Size mismatch")}
Losses = dict[str, list[float]]


# In the ranks ---------------------------------------------------------------------------------------------------------


def job_by(placement: Path, optimizer: str, group: Any) -> Job:
    """A training by a placement."""
    plan = sharding_plan(load_answer(placement), EveryPair(META), compute_device="cpu")
    return Job(plan, group, optimizer, EveryPair, pair_batches)


def by_table(losses: list[list[float]]) -> Losses:
    """Of each table, its losses of all steps."""
    return {name: [step[at] for step in losses] for at, name in enumerate(PAIRS)}


def types_of(job: Job) -> dict[str, str]:
    """The sharding type that TorchRec has for each table."""
    return {name: one.sharding_type for of in job.model.plan.plan.values() for name, one in of.items()}


def load(names: dict[str, Any], folder: Path, tables: list[str]) -> None:
    """Loads a checkpoint as the page shows it; of the optimizer's states, those of these tables."""
    state_of = names["state_of"]

    def some(model: Any, optimizer: Any) -> dict[str, Any]:
        state = state_of(model, optimizer)
        states = state.get("optimizer", {"state": {}})["state"]
        for key in list(states):
            if key.endswith(".weight") and key.split(".")[-2] not in tables:
                del states[key]
        return state

    exec(snippet(PAGE, "checkpoint.load"), names | {"folder": folder, "state_of": some})


def changed(folder: Path, optimizer: str, group: Any) -> dict[str, Any]:
    """Losses of the job that stays, of the one that moves, and of those that start again: as the page shows them."""
    from torchrec.optim.keyed import CombinedOptimizer

    job = job_by(folder / "old.json", optimizer, group)
    before = job.steps(0, CHANGES_BEFORE)
    names = {"torch": torch, "CombinedOptimizer": CombinedOptimizer}
    names |= {"model": job.model, "dense_optimizer": job.dense, "folder": folder / "checkpoint"}
    exec(snippet(PAGE, "checkpoint.save"), names)
    found: dict[str, Any] = {"staying": by_table(before + job.steps(CHANGES_BEFORE, NUM_STEPS))}
    found["old types"] = types_of(job)
    if optimizer != "sgd":  # which has no states to move or convert
        job = job_by(folder / "old.json", optimizer, group)
        assert job.steps(0, CHANGES_BEFORE) == before
        exec(snippet(PAGE, "reshard(model"), {"model": job.model, "delta_json": folder / "delta.json"})
        found["moving"] = by_table(before + job.steps(CHANGES_BEFORE, NUM_STEPS))
        found["moved types"] = types_of(job)
        job = job_by(folder / "old.json", optimizer, group)
        names |= {"model": job.model, "optimizer": CombinedOptimizer([job.model.fused_optimizer, job.dense])}
        load(names, folder / "checkpoint", list(PAIRS))
        exec(snippet(PAGE, "reshard(model"), {"model": job.model, "delta_json": folder / "delta.json"})
        found["resumed"] = by_table(before + job.steps(CHANGES_BEFORE, NUM_STEPS))
    job = job_by(folder / "new.json", optimizer, group)
    found["new types"] = types_of(job)
    names |= {"model": job.model, "optimizer": CombinedOptimizer([job.model.fused_optimizer, job.dense])}
    if optimizer in REFUSED:
        with pytest.raises(CheckpointException, match=REFUSED[optimizer][1]):
            load(names, folder / "checkpoint", REFUSED[optimizer][0])
    load(names, folder / "checkpoint", LOADS[optimizer])
    found["loaded"] = by_table(before + job.steps(CHANGES_BEFORE, NUM_STEPS))
    return found


def process(rank: int, out: Path) -> Any:
    """One rank."""
    import torch.distributed as dist

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    notes = {optimizer: changed(out / optimizer, optimizer, dist.group.WORLD) for optimizer in LOADS}
    return notes


# In pytest ------------------------------------------------------------------------------------------------------------


def save_placements(optimizer: str) -> None:
    """Writes old.json and new.json."""
    save_answer(pair_answer(0, optimizer), "old.json")
    save_answer(pair_answer(1, optimizer), "new.json")


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        for optimizer in LOADS:
            (out / optimizer).mkdir()
            patch.chdir(out / optimizer)
            save_placements(optimizer)
            assert main([*DELTA, "--partial"]) == 0
    return run_ranks(process, TWO_NODES.num_devices, out)


@pytest.fixture(scope="module")
def expected() -> dict[str, Losses]:
    """The losses of the model in one piece."""
    return {
        one: by_table(losses_in_one_piece(one, EveryPair, pair_batches, TWO_NODES.num_devices, NUM_STEPS))
        for one in LOADS
    }


@pytest.mark.slow
def test_every_type_is_what_it_says(notes: list[dict[str, Any]]) -> None:
    """A moved table that is a case of the type it had, is written as that one: it has then a single part by columns."""
    moved = {name: new if name in SHARDED else old for name, (old, new) in PAIRS.items()}
    moved |= {"column_wise_to_table_wise": "column_wise", "grid_shard_to_table_row_wise": "grid_shard"}
    for of_rank in notes:
        assert of_rank["adagrad"]["old types"] == {name: old for name, (old, _) in PAIRS.items()}
        assert of_rank["adagrad"]["new types"] == {name: new for name, (_, new) in PAIRS.items()}
        assert of_rank["adagrad"]["moved types"] == moved


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDED)
def test_a_table_that_moves_has_the_losses_of_the_one_that_stays(
    notes: list[dict[str, Any]], expected: dict[str, Losses], name: str
) -> None:
    """And those of the model in one piece."""
    for of_rank in notes:
        found = of_rank["adagrad"]
        assert found["moving"][name] == pytest.approx(found["staying"][name], rel=1e-5)
        assert found["moving"][name] == pytest.approx(expected["adagrad"][name], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_checkpoint_has_the_losses_of_the_job_that_goes_on(
    notes: list[dict[str, Any]], expected: dict[str, Losses], name: str
) -> None:
    """And those of the model in one piece. It is loaded under the new plan where that goes, and under the old one."""
    for of_rank in notes:
        found = of_rank["adagrad"]
        ways = [of_rank["sgd"]["loaded"], found["resumed"], *([found["loaded"]] if name in SHARDED else [])]
        for optimizer, way in zip(("sgd", "adagrad", "adagrad"), ways, strict=False):
            assert way[name] == pytest.approx(of_rank[optimizer]["staying"][name], rel=1e-5)
            assert way[name] == pytest.approx(expected[optimizer][name], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDED)
def test_row_wise_states_go_the_same_way_live_and_in_a_checkpoint(notes: list[dict[str, Any]], name: str) -> None:
    """Where columns are cut as before, the losses are those of the job that stays; else those of one another."""
    for of_rank in notes:
        found = of_rank["rowwise_adagrad"]
        wanted = found["staying" if name in SAME_CUTS else "moving"][name]
        assert found["resumed"][name] == pytest.approx(wanted, rel=1e-5)
        assert found["moving"][name] == pytest.approx(wanted, rel=1e-5)
        if name in LOADS["rowwise_adagrad"]:
            assert found["loaded"][name] == pytest.approx(wanted, rel=1e-5)


def test_replicas_do_not_move_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_placements("adagrad")
    assert main(DELTA) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(
        "evenshard diff: 12 of 48 changed tables cannot move while the job runs. Replicated (data_parallel) in the "
        "old or new placement, so the dense optimizer updates it: table_wise_to_data_parallel, "
    )
    assert said.endswith(
        "Keep them in place (--partial), or save a checkpoint and restart from it with the new plan "
        "(see docs/running_jobs.md)."
    )
    assert not Path("delta.json").exists()
    assert main([*DELTA, "--partial"]) == 0
    delta = read_delta("delta.json")
    assert set(delta.tables) == set(SHARDED) and set(delta.left) == set(PAIRS) - set(SHARDED)
