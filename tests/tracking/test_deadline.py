"""Calls that end: what is silent is left behind, what works is not."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenshard.tracking import deadline
from evenshard.tracking.deadline import DeadlineClient, NoAnswer, with_deadline
from support.patience import PATIENCE_S


def test_an_answer_or_an_error_is_handed_on() -> None:
    assert with_deadline(lambda: 5, PATIENCE_S, "server") == 5
    with pytest.raises(ZeroDivisionError):
        with_deadline(lambda: 1 / 0, PATIENCE_S, "server")

    def timed_out() -> None:
        raise TimeoutError("of a socket")

    with pytest.raises(TimeoutError, match="of a socket"):
        with_deadline(timed_out, PATIENCE_S, "slow")
    with pytest.raises(NoAnswer):
        with_deadline(lambda: 5, PATIENCE_S, "slow")


def test_a_call_that_is_silent_is_left_behind() -> None:
    with pytest.raises(NoAnswer, match=r"no answer within 0\.3 s"):
        with_deadline(threading.Event().wait, 0.3, "silent")


class Looks:
    """A clock that moves by the looks at a call alone, and a call that works a little between two of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now, self._looked, self._worked = 0.0, threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(deadline, "wait", self._look)
        clock = SimpleNamespace(monotonic=lambda: self._now, process_time=time.process_time)
        monkeypatch.setattr(deadline, "time", clock)
        monkeypatch.setattr(deadline, "_SILENT_UNTIL", {})

    def until_looked(self) -> None:
        """Ends a piece of work, and waits for the next look."""
        self._worked.release()
        self._looked.acquire()

    def _look(self, futures: list[Future[str]], pause_s: float) -> Any:
        """Sees the call done, or a piece of its work."""
        while not (done := wait(futures, 0.01)).done and not self._worked.acquire(blocking=False):
            pass
        self._now += pause_s
        self._looked.release()
        return done


@pytest.mark.parametrize("work", ["reading", "computing", "nothing"])
def test_a_call_that_works_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Ten looks at a call that is given up after the silence of two, in time that passes from look to look alone."""
    (tmp_path / "file").write_bytes(b"x" * 2_000_000)
    looks = Looks(monkeypatch)

    def call() -> str:
        for _ in range(10):
            if work == "reading":
                (tmp_path / "file").read_bytes()
            elif work == "computing":
                ends = time.process_time() + 0.2
                while time.process_time() < ends:
                    sum(range(1000))
            looks.until_looked()
        return "done"

    if work == "nothing":
        with pytest.raises(NoAnswer):
            with_deadline(call, 2 * deadline.LOOK_S, "server")
    else:
        assert with_deadline(call, 2 * deadline.LOOK_S, "server") == "done"


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
    patient = DeadlineClient(server, PATIENCE_S, "a hanging server")
    assert patient.name("a", end="b") == "ab"
    for _ in range(2):
        with pytest.raises(NoAnswer, match=r"no answer within 0\.1 s"):
            client.wait()
    with pytest.raises(NoAnswer):
        patient.name("a")
    assert server.calls == 1
    monkeypatch.setattr(deadline, "_SILENT_UNTIL", {"a hanging server": time.monotonic() - 1})
    assert patient.name("a") == "a"
