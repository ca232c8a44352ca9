"""The SQLite file that MLflow keeps runs in where there is no server: it appears whole or not at all.

MLflow makes its tables in dozens of steps, in the file itself, and cannot go on where it was killed in one of them. So
a file that is missing is made in a folder beside it and linked into its place.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import TrackingFailed
from evenshard.utils.messages import reason_of, root_of

# Errors of SQLite that another try does not mend.
BROKEN_FILE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def usable_file(uri: str) -> Iterator[None]:
    """Makes the file of an address if it is missing, and within the block explains that it cannot be used.

    Raises:
        TrackingFailed: if it is damaged, half-made or no database; the message says what helps.
    """
    path = sqlite_file(uri)
    try:
        if path is not None and not path.exists():
            _make(path)
        yield
    except Exception as error:
        root = root_of(error)
        if path is None or isinstance(root, OSError) or getattr(root, "sqlite_errorcode", 1) not in BROKEN_FILE:
            raise
        raise TrackingFailed(
            f"{path}: MLflow cannot use this file ({reason_of(root)}). If there are runs in it, copy it and try "
            f"`mlflow db upgrade {uri}`; otherwise move it away, and the next command makes a new one."
        ) from None


def sqlite_file(uri: str) -> Path | None:
    """The file of ``sqlite:///mlflow.db``; None of other addresses, and of those with a query string."""
    scheme, _, path = uri.partition(":///")
    is_file = scheme.partition("+")[0] == "sqlite" and path not in ("", ":memory:") and "?" not in path
    return Path(path) if is_file else None


def _make(path: Path) -> None:
    """Makes the file. If several processes do so at once, the first to be done has made it."""
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
