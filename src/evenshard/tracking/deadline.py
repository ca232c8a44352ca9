"""Calls with a deadline: they return, or fail once the server has been silent for too long.

A server that hangs takes a connection and never answers. PostgreSQL's client cannot give up on one, boto3 does after
minutes. So each call runs in a thread of its own, which is left behind when its time is up. What counts is silence: a
call that computes, or reads a file that it uploads, is at work and may take as long as it needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
LOOK_S = 0.25


class NoAnswer(Exception):
    """The other side was silent for too long."""


class Patient:
    """An object whose methods are called with ``answered``; after a silence, it is not asked again."""

    def __init__(self, asked: Any, patience_s: float) -> None:
        self._asked = asked
        self._patience_s = patience_s
        self._silent: NoAnswer | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._asked, name)

        def call(*args: Any, **named: Any) -> Any:
            if self._silent is not None:
                raise self._silent
            try:
                return answered(lambda: method(*args, **named), self._patience_s)
            except NoAnswer as error:
                self._silent = error
                raise

        return call


def answered(call: Callable[[], Result], patience_s: float) -> Result:
    """What a call returns or raises.

    Raises:
        NoAnswer: it has done nothing for ``patience_s``. Its thread ends with the process, or by itself.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    since, done = time.monotonic(), _work_done()
    while not wait([future], LOOK_S).done:
        now = _work_done()
        if now - done >= 1:
            since, done = time.monotonic(), now
        elif time.monotonic() - since >= patience_s:
            raise NoAnswer(f"no answer within {patience_s:g} s")
    return future.result()


def _work_done() -> float:
    """What this process has done so far: a megabyte read or written is one, as is 0.1 s of computing."""
    done = 10 * time.process_time()
    with suppress(OSError):  # no Linux
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        done += (int(counts["rchar"]) + int(counts["wchar"])) / 1e6
    return done
