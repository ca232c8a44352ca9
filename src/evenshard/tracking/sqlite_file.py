"""The SQLite file that holds MLflow's runs where there is no server, created whole or not at all.

MLflow makes its tables in dozens of steps, in the file itself, and cannot go on where it was killed in one of them. A
file that is missing is therefore made in a folder beside it and linked into its place, and one that was left half-made
and holds nothing is made again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from evenshard.utils.atomic import atomic_path

MADE_BY_MLFLOW = ("alembic_version", "workspaces")
"""Tables that MLflow fills while it makes the file; the first experiment, which each file has, comes last."""
STILL_S = 1.5
"""A file that nothing has written for so long is not being made, by ``mlflow ui`` for one."""
LOOKS = 8


def sqlite_file(uri: str) -> Path | None:
    """The file of ``sqlite:///mlflow.db``; None of other addresses, and of those with a query string."""
    scheme, _, path = uri.partition(":///")
    is_file = scheme.partition("+")[0] == "sqlite" and path not in ("", ":memory:") and "?" not in path
    return Path(path) if is_file else None


def make_whole(path: Path) -> None:
    """Makes the file if it is missing, or was left half-made.

    Raises:
        OSError: if its folder may not be written, or the disk is full.
        sqlite3.Error: if it cannot be read.
        Exception: what MLflow raises.
    """
    if path.exists() and _left_half_made(path):
        _remove(path)
    if not path.exists():
        _make(path)


def holds_nothing(path: Path) -> bool:
    """Whether it has MLflow's tables, some or all, or none at all, and no row that was logged."""
    with closing(sqlite3.connect(path, timeout=STILL_S)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if tables and not any("experiments" in name for name in tables):
            return False
        ours = [name for name in tables if name not in MADE_BY_MLFLOW and not name.startswith("sqlite_")]
        return not any(database.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() for name in ours)


def _left_half_made(path: Path) -> bool:
    """Whether it holds nothing, and no process is at work in it."""
    seen: tuple[int, int] | None = None
    for _ in range(LOOKS):
        if not holds_nothing(path):
            return False
        before, seen = seen, _written(path)
        if seen is not None and seen == before:
            return True
        time.sleep(STILL_S)
    raise sqlite3.OperationalError("another process has been making its tables for long")


def _written(path: Path) -> tuple[int, int] | None:
    """When it was written last, and its size; None while a process is writing."""
    with closing(sqlite3.connect(path, timeout=0.1, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                return None
            raise
    info = path.stat()
    return info.st_mtime_ns, info.st_size


def _remove(path: Path) -> None:
    """Removes a half-made file, unless another process has just made it again."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            path.unlink()


def _make(path: Path) -> None:
    """Of several processes that make it at once, the first to be done has made it."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with suppress(FileNotFoundError), atomic_path(path) as draft:  # which finds no draft to put over the file
        draft.mkdir()
        store = SqlAlchemyStore(f"sqlite:///{draft}/new.db", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)  # type: ignore[no-untyped-call]
        store.engine.dispose()
        for ending in ("-journal", "-wal", "-shm"):  # of a file that was deleted: SQLite would believe them of this one
            path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)
        with suppress(OSError):  # made by another process; or the disk knows no links, and MLflow makes it in its place
            os.link(draft / "new.db", path)
        shutil.rmtree(draft)
