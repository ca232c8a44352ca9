"""Tries and pauses: time lost to failures is bounded, time in which a server answers is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.tracking import patience
from evenshard.tracking.patience import Patience, stage_patience_s
from evenshard.utils.errors import BadConfig


class Server:
    """Fails so many times before it answers."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "stored"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES_S", (0.01,))


def test_what_fails_is_tried_until_the_time_for_it_is_lost() -> None:
    server = Server(3, ConnectionError("away"))
    assert Patience(60.0)(server) == "stored" and server.calls == 4
    impatient, away = Patience(0.05), Server(1000, ConnectionError("away"))
    with pytest.raises(ConnectionError):
        impatient(away)
    assert away.calls <= 7
    once = Server(1, ConnectionError("away"))
    with pytest.raises(ConnectionError):
        impatient(once)
    assert once.calls == 1, "what one call has lost, the next one does not have"


def test_a_refusal_is_not_tried_again() -> None:
    server = Server(1, ValueError("no such run"))
    with pytest.raises(ValueError):
        Patience(60.0)(server)
    assert server.calls == 1


def test_files_add_to_the_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PER_FILE_S", 60.0)
    (tmp_path / "weights").write_bytes(b"1")
    server = Server(5, ConnectionError("away"))
    assert Patience(0.005)(server, [tmp_path / "weights"]) == "stored"
    with pytest.raises(ConnectionError):
        Patience()(Server(1, ConnectionError("away")), [tmp_path / "weights"])


@pytest.mark.parametrize("said", ["soon", "nan", "inf", "-1"])
def test_the_variable_must_be_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("EVENSHARD_MLFLOW_PATIENCE", said)
    with pytest.raises(BadConfig, match=r"EVENSHARD_MLFLOW_PATIENCE is .*, not a valid number of seconds"):
        stage_patience_s()
    monkeypatch.setenv("EVENSHARD_MLFLOW_PATIENCE", "600")
    assert stage_patience_s() == 600
