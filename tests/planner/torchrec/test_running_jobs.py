"""Jobs that change their plan: they move tables while they run, with the losses of the job that stays as it is.

Run by pytest, this file starts itself four times; started so, it is one of the ranks (``process``).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from evenshard.planner.torchrec import load_delta, reshard_delta, save_delta
from evenshard.utils.errors import BadConfig
from support.documented import snippet
from support.sharding_cases import MIXED, TWO_NODES, TWO_RANKS, Case, answer_of
from support.training_job import Job

PATIENCE = timedelta(seconds=150)
NUM_STEPS, MOVES_BEFORE = 6, 3
REPLICA = {"p_tiny": "data_parallel"}
OTHERWISE = {
    "p_sum": "table_wise",
    "p_mean": "table_wise",
    "p_shared": "grid_shard",
    "p_tiny": "data_parallel",
    "m_long": "row_wise",
    "m_short": "table_row_wise",
    "w_long": "grid_shard",
    "w_short": "column_wise",
    "s_shared": "table_wise",
    "s_own": "row_wise",
}
"""All types but replicas are left and gone to, from ``MIXED`` and back to it."""
ROWS = {"p_sum": "row_wise", "p_shared": "table_row_wise", "m": "row_wise", "w_long": "table_row_wise", "s": "row_wise"}


@dataclass(frozen=True)
class Move:
    """A change of plan between two steps."""

    old: Case
    new: Case
    optimizer: str = "sgd"


TWO_WHOLE = Case({}, machine=TWO_RANKS)
COLUMNS = {"p_sum": "column_wise", "p_mean": "column_wise"}
MOVES = {
    "4 ranks, all types": Move(Case(MIXED), Case(OTHERWISE)),
    "4 ranks, all types, back": Move(Case(OTHERWISE), Case(MIXED), "adagrad"),
    "4 ranks, rows with a state each": Move(Case(REPLICA), Case({**ROWS, **REPLICA}), "rowwise_adagrad"),
    "2 ranks, whole to columns": Move(TWO_WHOLE, Case(COLUMNS, machine=TWO_RANKS), "adagrad"),
    "2 ranks, columns of other widths": Move(
        Case(COLUMNS, machine=TWO_RANKS), Case(COLUMNS, {"p_sum": (12, 4)}, TWO_RANKS)
    ),
}

ELSEWHERE = replace(TWO_WHOLE, first=1)
TORCHRECS_OWN: dict[str, tuple[Case, Case, tuple[str, ...]]] = {
    "whole tables elsewhere": (TWO_WHOLE, ELSEWHERE, ("pooled", "means")),
    "weighted tables elsewhere": (TWO_WHOLE, ELSEWHERE, ("weighted",)),
    "sequences elsewhere": (TWO_WHOLE, ELSEWHERE, ("sequences",)),
    "another type": (TWO_WHOLE, Case({"p_sum": "column_wise"}, machine=TWO_RANKS), ("pooled",)),
    "replicas in the collection": (
        Case(REPLICA, machine=TWO_RANKS),
        replace(Case(REPLICA, machine=TWO_RANKS), first=1),
        ("pooled",),
    ),
}
"""What TorchRec's own reshard is asked for, and the collections of it."""


# In the ranks ---------------------------------------------------------------------------------------------------------


def losses_of(move: Move, group: Any, path: Path) -> tuple[list[float], list[float]]:
    """Of the job that stays, and of the one that moves: as the docs show it."""
    staying = Job(move.old.plan(), group, move.optimizer)
    job = Job(move.old.plan(), group, move.optimizer)
    losses = job.steps(0, MOVES_BEFORE)
    exec(snippet("docs/running_jobs.md", "reshard(model"), {"model": job.model, "delta_json": str(path)})
    return staying.steps(0, NUM_STEPS), losses + job.steps(MOVES_BEFORE, NUM_STEPS)


def torchrec_alone(old: Case, new: Case, paths: tuple[str, ...], group: Any) -> tuple[list[float], list[float]] | str:
    """Losses as in ``losses_of``, by TorchRec's own reshard; or its error."""
    staying, job = Job(old.plan(), group), Job(old.plan(), group)
    losses = job.steps(0, MOVES_BEFORE)
    delta = load_delta(reshard_delta(answer_of(old, "sgd"), answer_of(new, "sgd")), job.model)
    try:
        for path in paths:
            job.model.reshard(delta, path)
    except Exception as error:
        return type(error).__name__
    return staying.steps(0, NUM_STEPS), losses + job.steps(MOVES_BEFORE, NUM_STEPS)


def refusals(group: Any) -> list[str]:
    """What is said of deltas that are not for the running job."""
    model = Job(Case(MIXED).plan(), group).model
    mixed, otherwise = Case(MIXED), Case(OTHERWISE)
    means = Case({**MIXED, "m_long": "table_wise"})  # beside m_short, which is cut by rows
    two = (Case({}, machine=TWO_RANKS), Case({"p_sum": "row_wise"}, machine=TWO_RANKS))
    said = []
    for old, new in ((otherwise, mixed), two, (mixed, means)):
        with pytest.raises(BadConfig) as caught:
            load_delta(reshard_delta(answer_of(old, "sgd"), answer_of(new, "sgd")), model)
        said.append(str(caught.value))
    return said


def process(rank: int, out: Path) -> None:
    """One rank of the session. The first two are a group of their own, too."""
    import torch.distributed as dist

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=4, timeout=PATIENCE)
    group_of = {TWO_RANKS: dist.new_group([0, 1]), TWO_NODES: dist.group.WORLD}
    notes: dict[str, Any] = {}
    for number, (name, move) in enumerate(MOVES.items()):
        machine = move.old.machine
        if rank < machine.num_devices:
            notes[name] = losses_of(move, group_of[machine], out / f"delta-{number}.json")
    if rank < 2:
        for name, (old, new, paths) in TORCHRECS_OWN.items():
            notes[name] = torchrec_alone(old, new, paths, group_of[TWO_RANKS])
    notes["refusals"] = refusals(dist.group.WORLD)
    (out / f"notes-{rank}.pickle").write_bytes(pickle.dumps(notes))
    dist.destroy_process_group()


# In pytest ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    for number, move in enumerate(MOVES.values()):
        delta = reshard_delta(answer_of(move.old, move.optimizer), answer_of(move.new, move.optimizer))
        save_delta(delta, out / f"delta-{number}.json")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}  # TorchRec tags messages with hashes of names
    said = [out / f"said-{rank}" for rank in range(TWO_NODES.num_devices)]
    started = []
    for rank, path in enumerate(said):
        with path.open("w") as errors:
            started.append(subprocess.Popen([sys.executable, __file__, str(rank), str(out)], env=env, stderr=errors))
    try:
        codes = [one.wait(timeout=300) for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert not any(codes), "\n".join(path.read_text()[-3000:] for path in said)
    return [pickle.loads((out / f"notes-{rank}.pickle").read_bytes()) for rank in range(TWO_NODES.num_devices)]


@pytest.mark.parametrize("name", MOVES)
def test_a_job_that_moves_its_tables_has_the_losses_of_the_one_that_stays(
    notes: list[dict[str, Any]], name: str
) -> None:
    for of_rank in notes[: MOVES[name].old.machine.num_devices]:
        staying, moving = of_rank[name]
        assert moving == pytest.approx(staying, rel=1e-5)
        assert staying[0] != pytest.approx(staying[-1], rel=1e-3)  # it learns


def test_torchrecs_own_reshard_takes_a_delta(notes: list[dict[str, Any]]) -> None:
    """Of pooled tables that stay whole and have no weights; other moves fail in it, or train on wrongly."""
    for of_rank in notes[:2]:
        staying, moving = of_rank["whole tables elsewhere"]
        assert moving == pytest.approx(staying, rel=1e-5)
        staying, moving = of_rank["weighted tables elsewhere"]
        assert moving[MOVES_BEFORE] != pytest.approx(staying[MOVES_BEFORE], rel=1e-3)
        failed = ("another type", "replicas in the collection", "sequences elsewhere")
        assert [of_rank[one] for one in failed] == ["IndexError", "AttributeError", "KeyError"]


def test_a_delta_for_another_job_is_refused(notes: list[dict[str, Any]]) -> None:
    for of_rank in notes:
        other_plan, other_ranks, untrainable = of_rank["refusals"]
        assert "does not live where the old placement says. Write the delta from the placement that" in other_plan
        assert "the delta is for 2 ranks, the job has 4. To change them, save a checkpoint" in other_ranks
        assert "table 'm_short' is sharded row_wise, which TorchRec trains with means only where" in untrainable


if __name__ == "__main__":
    process(int(sys.argv[1]), Path(sys.argv[2]))
