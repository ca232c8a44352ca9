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

from evenshard.utils.messages import root_of

_Result = TypeVar("_Result")
LOOK_S = 0.25
SILENCE_S = 60.0
_SILENT_UNTIL: dict[str, float] = {}
"""When a server that was silent may be called again."""


class NoAnswer(Exception):
    """The other side was silent for too long."""


class DeadlineClient:
    """An object whose methods are called with ``with_deadline``.

    Args:
        client: the object.
        patience_s: see ``with_deadline``.
        server: address of the server.
    """

    def __init__(self, client: Any, patience_s: float, server: str) -> None:
        self._client, self._patience_s, self._server = client, patience_s, server

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **named: Any) -> Any:
            return with_deadline(lambda: method(*args, **named), self._patience_s, self._server)

        return call


def with_deadline(call: Callable[[], _Result], patience_s: float, server: str) -> _Result:
    """What a call returns or raises.

    Args:
        patience_s: seconds of silence after which the call is given up.
        server: server of the call. After a silence, nothing calls it again for a minute.

    Raises:
        NoAnswer: the server is silent. The call's thread ends with the process, or by itself.
    """
    silence = NoAnswer(f"no answer within {patience_s:g} s")
    if time.monotonic() < _SILENT_UNTIL.get(server, 0.0):
        raise silence
    future: Future[_Result] = Future()

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
            _SILENT_UNTIL[server] = time.monotonic() + SILENCE_S
            raise silence
    try:
        return future.result()
    except Exception as error:
        if isinstance(root_of(error), TimeoutError):  # the call's own timeout was shorter
            _SILENT_UNTIL[server] = time.monotonic() + SILENCE_S
        raise


def _work_done() -> float:
    """What this process has done so far: a megabyte read or written is one, as is 0.1 s of computing."""
    done = 10 * time.process_time()
    with suppress(OSError):  # no Linux
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        done += (int(counts["rchar"]) + int(counts["wchar"])) / 1e6
    return done
