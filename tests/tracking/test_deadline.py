"""Calls that end: what is silent is left behind, what works is not."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from evenshard.tracking import deadline
from evenshard.tracking.deadline import DeadlineClient, NoAnswer, with_deadline


def test_an_answer_or_an_error_is_handed_on() -> None:
    assert with_deadline(lambda: 5, 1, "server") == 5
    with pytest.raises(ZeroDivisionError):
        with_deadline(lambda: 1 / 0, 1, "server")

    def timed_out() -> None:
        raise TimeoutError("of a socket")

    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="of a socket"):
        with_deadline(timed_out, 5, "slow")
    assert time.monotonic() - begin < 5
    with pytest.raises(NoAnswer):
        with_deadline(lambda: 5, 1, "slow")


def test_a_call_that_is_silent_is_left_behind() -> None:
    with pytest.raises(NoAnswer, match=r"no answer within 0\.3 s"):
        with_deadline(threading.Event().wait, 0.3, "silent")


def test_a_slow_upload_is_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 20_000_000)

    def upload() -> str:
        pause = threading.Event()
        with (tmp_path / "file").open("rb") as file:
            while file.read(2_000_000):
                pause.wait(0.1)
        return "sent"

    assert with_deadline(upload, 0.5, "server") == "sent"


def test_a_long_computation_is_not_cut_off() -> None:
    def compute() -> str:
        ends = time.process_time() + 1.0
        while time.process_time() < ends:
            sum(range(1000))
        return "done"

    assert with_deadline(compute, 0.8, "server") == "done"


def test_a_server_that_was_silent_is_not_called_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        calls = 0

        def name(self, text: str, end: str = "") -> str:
            return text + end

        def wait(self) -> None:
            self.calls += 1
            threading.Event().wait()

    server = Server()
    client = DeadlineClient(server, 0.1, "a hanging server")
    assert client.name("a", end="b") == "ab"
    for _ in range(2):
        with pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"):
            client.wait()
    with pytest.raises(NoAnswer):
        DeadlineClient(server, 0.1, "a hanging server").name("a")
    assert server.calls == 1
    monkeypatch.setattr(deadline, "_SILENT_UNTIL", {"a hanging server": time.monotonic() - 1})
    assert client.name("a") == "a"
