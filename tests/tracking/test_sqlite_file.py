"""The SQLite file of MLflow: wherever its making is killed, the next command works, and what was logged stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from evenshard import tracking
from evenshard.tracking import sqlite_file as module
from evenshard.tracking.client import connect
from evenshard.tracking.sqlite_file import holds_nothing, make_whole, sqlite_file
from evenshard.utils.errors import TrackingFailed
from support.tracking_builders import empty_file

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process here is slow."""
    monkeypatch.setattr(module, "STILL_S", 0.1)


def by_mlflow(path: Path) -> None:
    """Makes the file as MLflow does."""
    import mlflow

    mlflow.MlflowClient(f"sqlite:///{path}")


def killed_at(statement: int, make: Callable[[Path], None], path: Path) -> None:
    """Lets a process make the file that is killed at one of its SQL statements (about 900 change the file)."""

    def run() -> None:
        left = iter(range(statement))

        @sqlalchemy.event.listens_for(sqlalchemy.Engine, "before_cursor_execute")
        def count(connection: object, cursor: object, text: str, *more: object) -> None:
            if text.lstrip().startswith(("CREATE", "ALTER", "INSERT", "UPDATE", "DROP")) and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        make(path)

    process = FORK.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("statement", [0, 4, 30, 120])
def test_a_file_that_was_left_half_made_is_made_again(workdir: Path, statement: int) -> None:
    path = workdir / "mlflow.db"
    killed_at(statement, by_mlflow, path)
    assert path.exists() and holds_nothing(path)
    client = connect(f"sqlite:///{path}")
    assert [one.name for one in client.search_experiments()] == ["Default"]


def test_a_kill_while_we_make_it_leaves_no_file(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = workdir / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")  # MLflow keeps what a name once meant
    killed_at(60, make_whole, path)
    assert not path.exists()
    (workdir / "mlflow.db-journal").write_bytes(b"of a file that was deleted")
    with tracking.stage_run("benchmark_1", {}, {}):
        pass
    [loop] = tracking.find_runs()
    assert [one.name for one in loop.children] == ["benchmark_1"]
    assert sorted(one.name for one in workdir.iterdir()) == ["mlflow.db", "params.yaml", "work"]


def test_of_two_that_make_it_at_once_none_loses_what_it_logs(workdir: Path) -> None:
    path = workdir / "mlflow.db"

    def log(name: str) -> None:
        connect(f"sqlite:///{path}").create_experiment(name)

    processes = [FORK.Process(target=log, args=(name,)) for name in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    names = {one.name for one in connect(f"sqlite:///{path}").search_experiments()}
    assert names == {"Default", "one", "two"}


def test_a_file_that_another_process_is_making_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mlflow.db"
    monkeypatch.setattr(module, "LOOKS", 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as maker:
        maker.execute("CREATE TABLE experiments (name TEXT)")
        maker.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="another process"):
            make_whole(path)
        maker.execute("INSERT INTO experiments VALUES ('mine')")
        maker.execute("COMMIT")
    make_whole(path)
    assert not holds_nothing(path)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE guardrails; UPDATE alembic_version SET version_num = 'cbc13b556ace'",  # an upgrade that was killed
        "UPDATE alembic_version SET version_num = 'later'",
    ],
)
def test_a_broken_file_with_runs_stays_and_the_message_says_what_helps(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    path = empty_file(workdir)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")  # MLflow keeps what a name once meant
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statement)
    before = path.stat().st_ino
    with pytest.raises(TrackingFailed, match=r"mlflow.db: MLflow cannot use this file \(.*mlflow db upgrade.*move it"):
        tracking.find_runs()
    assert path.stat().st_ino == before


def test_a_file_that_is_no_database_is_named(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workdir}/mlflow.db")
    Path("mlflow.db").write_text("no database" * 100)
    with tracking.stage_run("benchmark_1", {}, {}):
        pass
    [done] = tracking.sync()
    for said in (caplog.text, done.problem):
        assert "mlflow.db: MLflow cannot use this file (file is not a database)" in said and "move it away" in said


def test_the_tables_of_somebody_else_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mine (name TEXT)")
    make_whole(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


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
