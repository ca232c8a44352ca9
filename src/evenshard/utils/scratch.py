"""Temporary folders: removed when the block ends, or, if the process was killed, by the next such block.

Whoever uses one holds a lock on it, which ends with the process, however it ends; so one that can be locked by another
is no longer in use.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "evenshard-scratch-"
_OURS = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder in the system's temporary folder (TMPDIR)."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder, descriptor = _locked_folder()
    try:
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):  # another one has removed it before it was locked
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            # Shared: a file that is written whole into it takes the lock of a writer there (atomic.py). Where a
            # file system knows no locks, no process gets the other one either.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is gone meanwhile, in use, or of another user
            if _OURS.fullmatch(folder.name) and folder.lstat().st_uid == os.geteuid():
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                finally:
                    os.close(descriptor)
