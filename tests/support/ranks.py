"""A training of several ranks, each a process of the test's own file, and what each of them saw."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_ranks(script: str, world_size: int, out: Path, flags: Sequence[str] = (), **env: str) -> list[Any]:
    """Runs ``python SCRIPT RANK OUT`` for all ranks at once; torch and TorchRec are imported once, before they part.

    Args:
        script: the test's file, which hands rank and folder to a function of its own.
        world_size: number of ranks.
        out: folder that they share.
        flags: of python.
        env: more of the environment.

    Returns:
        what each rank gave to ``save_notes``, by rank.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    command = [sys.executable, *flags, __file__, script, str(world_size), str(out)]
    said = [out / "said", *(_said(out, rank) for rank in range(world_size))]
    with (
        said[0].open("w") as errors,
        subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True) as ranks,
    ):
        try:
            code = ranks.wait(timeout=300)
        finally:
            if ranks.poll() is None:
                os.killpg(ranks.pid, signal.SIGKILL)
    assert code == 0, "\n".join(path.read_text()[-3000:] for path in said if path.exists())
    return [pickle.loads(_notes(out, rank).read_bytes()) for rank in range(world_size)]


def save_notes(out: Path, rank: int, notes: Any) -> None:
    """Keeps what a rank saw for the test."""
    _notes(out, rank).write_bytes(pickle.dumps(notes))


def _notes(out: Path, rank: int) -> Path:
    return out / f"notes-{rank}.pickle"


def _said(out: Path, rank: int) -> Path:
    return out / f"said-{rank}"


def _run_one(script: str, rank: int, out: Path) -> None:
    with _said(out, rank).open("w") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    sys.argv = [script, str(rank), str(out)]
    runpy.run_path(script, run_name="__main__")


def _run_all(script: str, world_size: int, out: Path) -> int:
    """The number of ranks that failed."""
    import torchrec.distributed.model_parallel  # noqa: F401  # once, not once in each rank

    runpy.run_path(script, run_name="imports")  # its own ones too
    processes = multiprocessing.get_context("fork")
    ranks = [processes.Process(target=_run_one, args=(script, rank, out)) for rank in range(world_size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return sum(rank.exitcode != 0 for rank in ranks)


if __name__ == "__main__":
    sys.exit(_run_all(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
