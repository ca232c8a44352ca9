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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from support import cpu_seconds
from support.patience import PATIENCE_S

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "torch.distributed.checkpoint",
        "torchrec.distributed.model_parallel",
        "torchrec.distributed.planner",
        "evenshard.torchrec",
        "support.effort",
        "support.torchrec_training",
    ]
)


def run_ranks(
    process: Callable[[int, Path], Any],
    world_size: int,
    out: Path,
    join: bool = True,
    lost: Sequence[int] = (),
    **env: str,
) -> list[Any]:
    """Runs a function of the test's own file on all ranks at once, and returns what it returned on each.

    The function takes the rank and ``out``, a folder of all ranks. They are in a process group of gloo if ``join``.
    Nobody waits for ``lost`` ranks, which are killed or stopped; they return None.
    """
    named = process.__module__, inspect.getfile(process), process.__name__
    _launch(named, world_size, out, join, env, lost)
    files = {rank: out / f"notes-{rank}.pickle" for rank in range(world_size) if rank not in lost}
    notes = {rank: pickle.loads(file.read_bytes()) for rank, file in files.items()}
    cpu_seconds.of_forks += sum(seconds for _, seconds in notes.values())
    return [notes[rank][0] if rank in notes else None for rank in range(world_size)]


def _launch(
    named: tuple[str, str, str], world_size: int, out: Path, join: bool, env: Mapping[str, str], lost: Sequence[int]
) -> None:
    given = [(*named, rank, world_size, out, join, env) for rank in range(world_size)]
    ranks = [_FORKS.Process(target=_rank, args=one) for one in given]
    for one in ranks:
        one.start()
    try:
        expected = [one for rank, one in enumerate(ranks) if rank not in lost]
        for one in expected:
            one.join(PATIENCE_S)
        said = [(out / f"said-{rank}").read_text()[-3000:] for rank in range(world_size)]
        assert all(one.exitcode == 0 for one in expected), "\n".join(said)
    finally:
        for one in ranks:
            one.kill()
            one.join()


def _rank(
    module: str, file: str, name: str, rank: int, world_size: int, out: Path, join: bool, env: Mapping[str, str]
) -> None:
    """One of the ranks. It knows the test's file by the name that pytest gave it, so that both read pickles."""
    said = os.open(out / f"said-{rank}", os.O_WRONLY | os.O_CREAT)
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
    (out / f"notes-{rank}.pickle").write_bytes(pickle.dumps((notes, time.process_time())))
    if join:
        dist.destroy_process_group()
