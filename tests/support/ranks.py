"""A training of several ranks, each a process of the test's own file, and what each of them saw."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S


def run_ranks(script: str, world_size: int, out: Path, flags: Sequence[str] = (), **env: str) -> list[Any]:
    """Runs ``python SCRIPT RANK OUT`` for all ranks at once.

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
    said = [out / f"said-{rank}" for rank in range(world_size)]
    started = []
    for rank, path in enumerate(said):
        with path.open("w") as errors:
            command = [sys.executable, *flags, script, str(rank), str(out)]
            started.append(subprocess.Popen(command, env=environment, stderr=errors))
    try:
        codes = [one.wait(timeout=PATIENCE_S) for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert not any(codes), "\n".join(path.read_text()[-3000:] for path in said)
    return [pickle.loads(_notes(out, rank).read_bytes()) for rank in range(world_size)]


def save_notes(out: Path, rank: int, notes: Any) -> None:
    """Keeps what a rank saw for the test."""
    _notes(out, rank).write_bytes(pickle.dumps(notes))


def _notes(out: Path, rank: int) -> Path:
    return out / f"notes-{rank}.pickle"
