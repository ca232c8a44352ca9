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
from evenshard.base.errors import BadConfig, TrackingFailed
from evenshard.base.process import on_sigterm, terminate
from evenshard.tracking import client
from evenshard.tracking.client import connect, ensure_file
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


def test_a_broken_file_with_runs_stays_and_the_message_says_what_helps(workdir: Path) -> None:
    path = empty_file(workdir)
    with closing(sqlite3.connect(path)) as database:
        database.executescript("UPDATE alembic_version SET version_num = 'later'")
    before = path.stat().st_ino
    with pytest.raises(TrackingFailed, match=r"mlflow.db: MLflow cannot use this file \(.*mlflow db upgrade.*move it"):
        connect()
    assert path.stat().st_ino == before


def test_a_file_that_is_no_database_is_named(workdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("mlflow.db").write_text("no database" * 100)
    with tracking.stage_run("benchmark_1", {}, {}):
        pass
    assert "mlflow.db: MLflow cannot use this file (file is not a database)" in caplog.text


@pytest.mark.parametrize("uri", ["sqlite:///:memory:", "sqlite://", "sqlite:///file:x?mode=ro", "http://a/sqlite:///x"])
def test_which_addresses_are_files(uri: str) -> None:
    assert client.sqlite_file(uri) is None
    assert client.sqlite_file("sqlite+pysqlite:////var/mlflow.db") == Path("/var/mlflow.db")


@pytest.mark.parametrize(
    ("uri", "limits"),
    [
        ("postgresql+psycopg://me:p%40ss@db/x", "connect_timeout=7&keepalives_idle=7&tcp_user_timeout=7000"),
        ("postgresql://db/x?connect_timeout=3", "connect_timeout=3&keepalives_idle=7&tcp_user_timeout=7000"),
        ("mysql+pymysql://db/x", "connect_timeout=7&read_timeout=7&write_timeout=7"),
        ("mssql+pyodbc://db/x", ""),
        ("http://me:secret@mlflow:5000", ""),
    ],
)
def test_a_database_has_time_limits_of_its_own(monkeypatch: pytest.MonkeyPatch, uri: str, limits: str) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    assert client.add_time_limits(uri) == (f"{uri.partition('?')[0]}?{limits}" if limits else uri)


@pytest.mark.parametrize(("uri", "waits"), [("http://a", False), ("https://a", False), ("sqlite:///a.db", True)])
def test_an_order_to_end_waits_for_a_database_but_not_for_a_server(
    monkeypatch: pytest.MonkeyPatch, uri: str, waits: bool
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    done: list[str] = []
    with on_sigterm(terminate), pytest.raises(SystemExit), client.protect_database():
        signal.raise_signal(signal.SIGTERM)
        done.append("the block")
    assert bool(done) == waits


def test_of_a_chain_of_errors_the_first_says_what_happened() -> None:
    for first, says in (
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "attempt to write a readonly database"),
        (ValueError("a detail"), "a long way"),
    ):
        error = RuntimeError("a long way\nand more")
        error.__cause__ = first
        assert client.first_line(error).startswith(says)


def test_a_password_with_a_slash_is_told_to_be_written_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:s3cr/et@127.0.0.1:9")
    with pytest.raises(BadConfig, match="write / as %2F"):
        connect()
