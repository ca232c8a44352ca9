"""Temporary folders that are removed when their block ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder in the system's temporary folder (TMPDIR), which is removed when the block ends."""
    with TemporaryDirectory(prefix="evenshard-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
