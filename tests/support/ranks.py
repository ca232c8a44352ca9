"""A training of several ranks, each a process of its own, and what each of them saw.

The ranks are forks of one process for each pytest worker, which has imported torch and TorchRec: that takes longer than
most trainings do. They have its seed of hashes, too: TorchRec tags messages with hashes of names.
"""

from __future__ import annotations

import importlib.util
import inspect
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "torch.distributed.checkpoint",
        "torchrec.distributed.model_parallel",
        "torchrec.distributed.planner",
        "evenshard.torchrec",
        "support.effort",
        "support.training_job",
        "support.sharding_cases",
    ]
)


def run_ranks(
    process: Callable[[int, Path], Any],
    world_size: int,
    out: Path,
    flags: Sequence[str] = (),
    join: bool = True,
    lost: Sequence[int] = (),
    **env: str,
) -> list[Any]:
    """Runs a function on all ranks at once, with a process group of gloo between them.

    Args:
        process: a function of the test's own file; takes the rank and ``out``.
        world_size: number of ranks.
        out: folder that they share.
        flags: of python; ranks that have any are forks of a process of their own.
        join: whether the ranks are in a process group; otherwise the function makes one.
        lost: ranks that are killed or stopped; nobody waits for them, and what they return is None.
        env: more of the environment.

    Returns:
        what each rank returned, by rank.
    """
    named = (process.__module__, inspect.getfile(process), process.__name__)
    if flags:
        assert join
        command = [sys.executable, *flags, "-m", "support.ranks", *named, str(world_size), str(out)]
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    else:
        _launch(*named, world_size, out, join, env, lost)
    return [None if rank in lost else pickle.loads(_notes(out, rank).read_bytes()) for rank in range(world_size)]


def _launch(
    module: str,
    file: str,
    name: str,
    world_size: int,
    out: Path,
    join: bool,
    env: Mapping[str, str],
    lost: Sequence[int] = (),
) -> None:
    ranks = [
        _FORKS.Process(target=_rank, args=(module, file, name, rank, world_size, out, join, env))
        for rank in range(world_size)
    ]
    for one in ranks:
        one.start()
    try:
        expected = [one for rank, one in enumerate(ranks) if rank not in lost]
        for one in expected:
            one.join(PATIENCE_S)
        said = [_said(out, rank).read_text()[-3000:] for rank in range(world_size)]
        assert all(one.exitcode == 0 for one in expected), "\n".join(said)
    finally:
        for one in ranks:
            one.kill()
            one.join()


def _rank(
    module: str, file: str, name: str, rank: int, world_size: int, out: Path, join: bool, env: Mapping[str, str]
) -> None:
    """One of the ranks. It knows the test's file by the name that pytest gave it, so that both read pickles."""
    said = os.open(_said(out, rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    import torch
    import torch.distributed as dist

    from support.effort import LITTLE, search_with

    search_with(LITTLE)  # as in pytest itself: what is trained does not depend on how good a plan is
    os.environ.update(env)
    torch.set_num_threads(1)
    if join:
        store, patience = f"file://{out}/store", timedelta(seconds=PATIENCE_S)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=patience)
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None and spec.loader is not None
    sys.modules[module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[module])
    notes = getattr(sys.modules[module], name)(rank, out)
    _notes(out, rank).write_bytes(pickle.dumps(notes))
    if join:
        dist.destroy_process_group()


def _said(out: Path, rank: int) -> Path:
    return out / f"said-{rank}"


def _notes(out: Path, rank: int) -> Path:
    return out / f"notes-{rank}.pickle"


if __name__ == "__main__":
    _launch(*sys.argv[1:4], int(sys.argv[4]), Path(sys.argv[5]), True, {})
