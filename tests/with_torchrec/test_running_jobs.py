"""Jobs that change their plan, while they run or from a checkpoint, with the losses of the job that stays as it is.

Sums, means, weighted bags and sequences, with shared features and few rows; test_every_pair.py has all pairs of types.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint

from evenshard.base.errors import BadConfig
from evenshard.planner.file import save_answer
from evenshard.torchrec import load_delta, reshard, reshard_delta, save_delta
from support.documented import snippet
from support.ranks import run_ranks
from support.sharding_cases import MIXED, TWO_NODES, TWO_RANKS, Case, answer_of
from support.training_job import Job

PAGE = "docs/torchrec.md"
NUM_STEPS, CHANGES_BEFORE = 6, 3
REPLICA = {"p_tiny": "data_parallel"}
# All types but replicas are left and gone to, from ``MIXED``.
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


@dataclass(frozen=True)
class Change:
    """A change of plan between two steps."""

    old: Case
    new: Case
    optimizer: str = "sgd"


TWO_WHOLE = Case({}, machine=TWO_RANKS)
COLUMNS = {"p_sum": "column_wise", "p_mean": "column_wise"}
CHANGES = {
    "4 ranks, all types": Change(Case(MIXED), Case(OTHERWISE), "adagrad"),
    "2 ranks, whole to columns": Change(TWO_WHOLE, Case(COLUMNS, machine=TWO_RANKS), "adagrad"),
    "2 ranks, columns of other widths": Change(
        Case(COLUMNS, machine=TWO_RANKS), Case(COLUMNS, {"p_sum": (12, 4)}, TWO_RANKS)
    ),
}

ELSEWHERE = replace(TWO_WHOLE, first=1)
# What TorchRec's own reshard is asked for, and the collections of it.
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


# In the ranks ---------------------------------------------------------------------------------------------------------


def snippet_with(containing: str, group: Any) -> str:
    """A snippet of the page, for ranks that are not all."""
    return snippet(PAGE, containing).replace("checkpoint_id=", "process_group=group, checkpoint_id=")


def losses_of(change: Change, group: Any, folder: Path) -> dict[str, Any]:
    """Of the job that stays, of the one that moves, and of the one that starts again: as the page shows them."""
    from torchrec.optim.keyed import CombinedOptimizer

    job = Job(change.old.plan(), group, change.optimizer)
    losses = job.steps(0, CHANGES_BEFORE)
    names = {"torch": torch, "CombinedOptimizer": CombinedOptimizer, "group": group}
    names |= {"model": job.model, "dense_optimizer": job.dense, "folder": folder / "checkpoint"}
    exec(snippet_with("checkpoint.save", group), names)
    found: dict[str, Any] = {"staying": losses + job.steps(CHANGES_BEFORE, NUM_STEPS)}
    job = Job(change.old.plan(), group, change.optimizer)
    losses = job.steps(0, CHANGES_BEFORE)
    exec(snippet(PAGE, "reshard(model"), {"model": job.model, "delta_json": folder / "delta.json"})
    found["moving"] = losses + job.steps(CHANGES_BEFORE, NUM_STEPS)
    job = Job(change.new.plan(), group, change.optimizer)
    names |= {"model": job.model, "optimizer": CombinedOptimizer([job.model.fused_optimizer, job.dense])}
    exec(snippet_with("checkpoint.load", group), names)
    found["checkpoint"] = losses + job.steps(CHANGES_BEFORE, NUM_STEPS)
    return found


def row_states(group: Any) -> list[list[torch.Tensor]]:
    """Row-wise states on this rank after one step: of whole tables, and of parts by columns that became whole."""
    ways = ("table_wise", "column_wise")
    cases = [Case({"p_sum": way, "p_mean": way, "s": way}, {"p_sum": (12, 4)}, TWO_RANKS) for way in ways]
    whole, parts = (answer_of(case, "rowwise_adagrad") for case in cases)
    found = []
    for case in cases:
        job = Job(case.plan(), group, "rowwise_adagrad")
        job.steps(0, 1)
        if case is cases[1]:
            reshard(job.model, load_delta(reshard_delta(parts, whole), job.model))
        states = sorted(job.model.fused_optimizer.state_dict()["state"].items())
        sharded = [one for _, of_table in states for one in of_table.values() if hasattr(one, "local_shards")]
        found.append([shard.tensor for one in sharded for shard in one.local_shards()])
    return found


def torchrec_alone(old: Case, new: Case, paths: tuple[str, ...], group: Any) -> tuple[list[float], list[float]] | str:
    """Losses as in ``losses_of``, by TorchRec's own reshard; or its error."""
    staying, job = Job(old.plan(), group), Job(old.plan(), group)
    losses = job.steps(0, CHANGES_BEFORE)
    delta = load_delta(reshard_delta(answer_of(old, "sgd"), answer_of(new, "sgd")), job.model)
    try:
        for path in paths:
            job.model.reshard(delta, path)
    except Exception as error:
        return type(error).__name__
    return staying.steps(0, NUM_STEPS), losses + job.steps(CHANGES_BEFORE, NUM_STEPS)


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


def process(rank: int, out: Path) -> Any:
    """One rank of the session. The first two are a group of their own, too."""
    import torch.distributed as dist

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    group_of = {TWO_RANKS: dist.new_group([0, 1]), TWO_NODES: dist.group.WORLD}
    notes: dict[str, Any] = {}
    for number, (name, change) in enumerate(CHANGES.items()):
        machine = change.old.machine
        if rank < machine.num_devices:
            notes[name] = losses_of(change, group_of[machine], out / str(number))
    if rank < 2:
        notes["row states"] = row_states(group_of[TWO_RANKS])
        for name, (old, new, paths) in TORCHRECS_OWN.items():
            notes[name] = torchrec_alone(old, new, paths, group_of[TWO_RANKS])
    notes["refusals"] = refusals(dist.group.WORLD)
    return notes


# In pytest ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    out = tmp_path_factory.mktemp("ranks")
    for number, change in enumerate(CHANGES.values()):
        folder = out / str(number)
        folder.mkdir()
        old, new = answer_of(change.old, change.optimizer), answer_of(change.new, change.optimizer)
        save_answer(old, folder / "old.json")
        save_answer(new, folder / "new.json")
        save_delta(reshard_delta(old, new), folder / "delta.json")
    return run_ranks(process, TWO_NODES.num_devices, out)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_job_has_the_losses_of_the_one_that_stays(notes: list[dict[str, Any]], name: str) -> None:
    """Whether its tables move, or it starts again from the checkpoint."""
    for of_rank in notes[: CHANGES[name].old.machine.num_devices]:
        staying = of_rank[name]["staying"]
        for way in ("moving", "checkpoint"):
            assert of_rank[name][way] == pytest.approx(staying, rel=1e-5)
        assert staying[0] != pytest.approx(staying[-1], rel=1e-3)  # it learns


@pytest.mark.slow
def test_the_state_of_parts_by_columns_becomes_that_of_the_whole(notes: list[dict[str, Any]]) -> None:
    """After a step from the same weights."""
    for of_rank in notes[:2]:
        whole, resharded = of_rank["row states"]
        assert len(whole) == len(resharded) and sum(bool(one.any()) for one in whole) > 1
        for one, other in zip(whole, resharded, strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=0)


@pytest.mark.slow
def test_torchrecs_own_reshard_takes_a_delta(notes: list[dict[str, Any]]) -> None:
    """Of pooled tables that stay whole and have no weights; other moves fail in it, or train on wrongly."""
    for of_rank in notes[:2]:
        staying, moving = of_rank["whole tables elsewhere"]
        assert moving == pytest.approx(staying, rel=1e-5)
        staying, moving = of_rank["weighted tables elsewhere"]
        assert moving[CHANGES_BEFORE] != pytest.approx(staying[CHANGES_BEFORE], rel=1e-3)
        failed = ("another type", "replicas in the collection", "sequences elsewhere")
        assert [of_rank[one] for one in failed] == ["IndexError", "AttributeError", "KeyError"]


@pytest.mark.slow
def test_a_delta_for_another_job_is_refused(notes: list[dict[str, Any]]) -> None:
    for of_rank in notes:
        other_plan, other_ranks, untrainable = of_rank["refusals"]
        assert "is not on the ranks of the old placement. Write the delta from the placement that" in other_plan
        assert "the delta is for 2 ranks, but the job has 4. To change them, save a checkpoint" in other_ranks
        assert "table 'm_short' is sharded row_wise: TorchRec trains row-wise MEAN correctly only" in untrainable
