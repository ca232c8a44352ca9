"""Calls that end: what is silent is left behind, what works is not."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from evenshard.tracking.deadline import NoAnswer, Patient, answered


def test_an_answer_or_an_error_is_handed_on() -> None:
    assert answered(lambda: 5, 1) == 5
    with pytest.raises(ZeroDivisionError):
        answered(lambda: 1 / 0, 1)

    def timed_out() -> None:
        raise TimeoutError("of a socket")

    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="of a socket"):
        answered(timed_out, 5)
    assert time.monotonic() - begin < 5


def test_a_call_that_is_silent_is_left_behind() -> None:
    with pytest.raises(NoAnswer, match=r"no answer within 0\.3 s"):
        answered(threading.Event().wait, 0.3)


def test_a_slow_upload_is_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 20_000_000)

    def upload() -> str:
        pause = threading.Event()
        with (tmp_path / "file").open("rb") as file:
            while file.read(2_000_000):
                pause.wait(0.1)
        return "sent"

    assert answered(upload, 0.5) == "sent"


def test_a_long_computation_is_not_cut_off() -> None:
    def compute() -> str:
        ends = time.process_time() + 1.0
        while time.process_time() < ends:
            sum(range(1000))
        return "done"

    assert answered(compute, 0.8) == "done"


def test_what_has_been_silent_is_not_asked_again() -> None:
    class Server:
        asked = 0

        def name(self, text: str, end: str = "") -> str:
            return text + end

        def wait(self) -> None:
            self.asked += 1
            threading.Event().wait()

    server = Server()
    patient = Patient(server, 0.1)
    assert patient.name("a", end="b") == "ab"
    for _ in range(2):
        with pytest.raises(NoAnswer):
            patient.wait()
    with pytest.raises(NoAnswer):
        patient.name("a")
    assert server.asked == 1
