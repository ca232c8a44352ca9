"""A checkpoint with weights and optimizer state in two folders, as TorchEasyRec writes it, under another plan.

The columns of two tables are cut differently, so that torch.distributed.checkpoint refuses their row-wise states. A job
that loads them under the old plan and reshards goes on as the one that moved.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.api import CheckpointException

from evenshard.torchrec import load_delta, reshard, reshard_delta
from support.ranks import run_ranks
from support.sharding_cases import TWO_RANKS, Case, answer_of
from support.training_job import Job

OPTIMIZER = "rowwise_adagrad"
OLD = Case({"p_sum": "column_wise", "p_mean": "column_wise"}, {"p_sum": (12, 4)}, TWO_RANKS)
NEW = Case({"p_sum": "row_wise"}, machine=TWO_RANKS)


def process(rank: int, out: Path) -> Any:
    """One of two ranks: losses of the job that moves and of the one that resumes, and what is logged."""
    import torch.distributed as dist
    from torchrec.optim.keyed import CombinedOptimizer

    group = dist.group.WORLD

    def folders(job: Job) -> dict[str, Any]:
        optimizer = CombinedOptimizer([job.model.fused_optimizer, job.dense])
        state = {name: one for name, one in optimizer.state_dict()["state"].items() if one}
        return {"model": job.model.state_dict(), "optimizer": {"state": state}}

    def move(job: Job) -> list[float]:
        reshard(job.model, load_delta(reshard_delta(*(answer_of(one, OPTIMIZER) for one in (OLD, NEW))), job.model))
        return job.steps(2, 4)

    job = Job(OLD.plan(), group, OPTIMIZER)
    job.steps(0, 2)
    for name, state in folders(job).items():
        save(state, checkpoint_id=out / name)
    moved = move(job)
    with pytest.raises(CheckpointException, match="Size mismatch"):
        load(folders(Job(NEW.plan(), group, OPTIMIZER))["optimizer"], checkpoint_id=out / "optimizer")
    job = Job(OLD.plan(), group, OPTIMIZER)
    for name, state in folders(job).items():
        load(state, checkpoint_id=out / name)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenshard").addHandler(handler)
    return moved, move(job), said


@pytest.mark.slow
def test_a_job_resumes_under_another_plan_from_two_folders(tmp_path: Path) -> None:
    (*_, said), (*_, said_by_others) = of_ranks = run_ranks(process, 2, tmp_path)
    (order,) = said
    assert order.startswith("The order of the pooled output of pooled changes: ")
    assert not said_by_others
    for moved, resumed, _ in of_ranks:
        assert resumed == pytest.approx(moved)
