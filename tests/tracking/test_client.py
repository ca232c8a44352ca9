"""The SQLite file of MLflow: wherever its making is killed, the next command works, and what was logged stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from evenshard import tracking
from evenshard.base.errors import TrackingFailed
from evenshard.tracking.client import connect, ensure_file, sqlite_file
from support.tracking_builders import empty_file, loops

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _uri(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workdir}/mlflow.db")  # MLflow keeps what a name once meant


def killed_at(statement: int, path: Path) -> None:
    """Lets a process make the file that is killed at one of its SQL statements (about 900 change the file)."""

    def run() -> None:
        left = iter(range(statement))

        @sqlalchemy.event.listens_for(sqlalchemy.Engine, "before_cursor_execute")
        def count(connection: object, cursor: object, text: str, *more: object) -> None:
            if text.lstrip().startswith(("CREATE", "ALTER", "INSERT", "UPDATE", "DROP")) and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        with ensure_file(f"sqlite:///{path}"):
            pass

    process = FORK.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_a_kill_while_we_make_it_leaves_no_file(workdir: Path) -> None:
    path = workdir / "mlflow.db"
    killed_at(60, path)
    assert not path.exists()
    (workdir / "mlflow.db-journal").write_bytes(b"of a file that was deleted")
    with tracking.stage_run("benchmark_1", {}, {}):
        pass
    [loop] = loops()
    assert [one.info.run_name for one in loop.children] == ["benchmark_1"]
    there = {one.name for one in workdir.iterdir() if not one.name.startswith(".evenshard-")}
    assert there == {"mlflow.db", "params.yaml", "work"}, "and what the killed one had made beside it"


@pytest.mark.slow
def test_of_two_that_make_it_at_once_none_loses_what_it_logs(workdir: Path) -> None:
    def log(name: str) -> None:
        connect().create_experiment(name)

    processes = [FORK.Process(target=log, args=(name,)) for name in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    names = {one.name for one in connect().search_experiments()}
    assert names == {"Default", "one", "two"}


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE guardrails; UPDATE alembic_version SET version_num = 'cbc13b556ace'",  # an upgrade that was killed
        "UPDATE alembic_version SET version_num = 'later'",
    ],
)
def test_a_broken_file_with_runs_stays_and_the_message_says_what_helps(workdir: Path, statement: str) -> None:
    path = empty_file(workdir)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statement)
    before = path.stat().st_ino
    with pytest.raises(TrackingFailed, match=r"mlflow.db: MLflow cannot use this file \(.*mlflow db upgrade.*move it"):
        connect()
    assert path.stat().st_ino == before


def test_a_file_that_is_no_database_is_named(workdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("mlflow.db").write_text("no database" * 100)
    with tracking.stage_run("benchmark_1", {}, {}):
        pass
    assert "mlflow.db: MLflow cannot use this file (file is not a database)" in caplog.text


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:///mlflow.db", "mlflow.db"),
        ("sqlite+pysqlite:////var/mlflow.db", "/var/mlflow.db"),
        ("sqlite:///:memory:", None),
        ("sqlite://", None),
        ("sqlite:///file:x?mode=ro&uri=true", None),
        ("http://host/sqlite:///x", None),
        ("postgresql:///db", None),
    ],
)
def test_which_addresses_are_files(uri: str, path: str | None) -> None:
    assert sqlite_file(uri) == (None if path is None else Path(path))
