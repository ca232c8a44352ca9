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
from collections.abc import Callable, Mapping
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
        "support.torchrec_training",
    ]
)


def run_ranks(
    process: Callable[[int, Path], Any], world_size: int, out: Path, join: bool = True, **env: str
) -> list[Any]:
    """Runs a function of the test's own file on all ranks at once, and returns what it returned on each.

    The function takes the rank and ``out``, a folder of all ranks. They are in a process group of gloo if ``join``.
    """
    _launch(process.__module__, inspect.getfile(process), process.__name__, world_size, out, join, env)
    return [pickle.loads((out / f"notes-{rank}.pickle").read_bytes()) for rank in range(world_size)]


def _launch(module: str, file: str, name: str, world_size: int, out: Path, join: bool, env: Mapping[str, str]) -> None:
    given = [(module, file, name, rank, world_size, out, join, env) for rank in range(world_size)]
    ranks = [_FORKS.Process(target=_rank, args=one) for one in given]
    for one in ranks:
        one.start()
    try:
        for one in ranks:
            one.join(PATIENCE_S)
        said = [(out / f"said-{rank}").read_text()[-3000:] for rank in range(world_size)]
        assert not any(one.exitcode for one in ranks), "\n".join(said)
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
    (out / f"notes-{rank}.pickle").write_bytes(pickle.dumps(notes))
    if join:
        dist.destroy_process_group()
