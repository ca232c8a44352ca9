"""What MLflow has missed of a pipeline: it goes with the artifacts of a stage to the pods that read them, which log it.

A pod's own files go with it, and other pods see nothing of it but the artifacts that they read. Where EVENSHARD_BACKLOG
names a folder on a volume, all pods share that one, the exit handler too, and nothing is carried.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evenshard.tracking import BACKLOG, BACKLOG_NAME
from evenshard.utils.process import environment
from evenshard.utils.scratch import scratch_folder


@contextmanager
def backlog_of(inputs: Iterable[Path], outputs: Iterable[Path]) -> Iterator[None]:
    """Give what runs in the block the backlog that its inputs brought along; the rest of it goes with its outputs.

    Args:
        inputs, outputs: artifacts. Of the outputs, the first that is a folder gets it.
    """
    if os.environ.get(BACKLOG):
        yield
        return
    with scratch_folder() as scratch:
        own = scratch / BACKLOG_NAME
        _carry(inputs, own)
        try:
            with environment({BACKLOG: str(own)}):
                yield
        finally:
            target = next(filter(Path.is_dir, outputs), None)
            if target is not None and own.is_dir():
                _carry([scratch], target / BACKLOG_NAME)


def _carry(folders: Iterable[Path], target: Path) -> None:
    """Move the backlogs of artifacts into a folder, which is made if there is something to move."""
    for backlog in filter(Path.is_dir, (folder / BACKLOG_NAME for folder in folders)):
        for run in sorted(backlog.glob("[!.]*")):
            target.mkdir(parents=True, exist_ok=True)
            if not (target / run.name).exists():
                shutil.move(run, target / run.name)
        shutil.rmtree(backlog)
