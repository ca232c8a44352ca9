"""What do the processes of one measurement tell each other? Notes on a board, the key-value store of torchrun.

::

    beat/<rank>    counts up as long as the process lives     report/<rank>  lost touch with somebody, but lives itself
    here/<rank>    has come, with these settings              closed         rank 0 needs nobody any more
    job/<number>   what to do next; null: nothing             bye/<rank>     has read that
    lost           rank 0 misses somebody: report
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from evenshard.measure.distributed.exchange import PeerLost
from evenshard.utils.messages import reason_of

Answer = TypeVar("Answer")

MAX_BEAT_S = 2.0
BEATS_TO_TELL = 3  # a process that has not beaten for so many beats is stopped or dead


class Board:
    """What the processes tell each other outside the exchanges.

    Every method raises PeerLost when the store does not answer: torchrun, or without it rank 0, died or hangs.
    """

    def __init__(self, timeout_s: float, start_s: float) -> None:
        self.timeout_s = timeout_s
        self.beat_s = min(timeout_s / 5, MAX_BEAT_S)
        self.grace_s = BEATS_TO_TELL * self.beat_s
        try:
            store, self.rank, self.size = next(rendezvous("env://", timeout=timedelta(seconds=start_s)))
        except RuntimeError as error:
            raise PeerLost(f"no connection to the store of torchrun: {reason_of(error)}") from error
        self.store = PrefixStore("evenshard", store)
        self._gone = False
        self._questions: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._clerk, name="evenshard board", daemon=True).start()

    def say(self, key: str, content: bytes = b"") -> None:
        self._ask(lambda: self.store.set(key, content))  # type: ignore[arg-type]

    def has(self, key: str) -> bool:
        return self._ask(lambda: bool(self.store.check([key])))

    def read(self, key: str) -> bytes:
        return self._ask(lambda: bytes(self.store.get(key)))

    def wipe(self, key: str) -> None:
        self._ask(lambda: self.store.delete_key(key))

    def beats(self, rank: int) -> int:
        """Beats of that rank so far."""
        return self._ask(lambda: int(self.store.add(f"beat/{rank}", 0)))

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """The store itself would wait for ever for a host that hangs, so a thread of its own asks it."""
        if self._gone:
            raise PeerLost("the store of torchrun is gone")
        answer: Future[Answer] = Future()
        self._questions.put((question, answer))
        try:
            return answer.result(self.timeout_s)
        except (TimeoutError, RuntimeError) as error:
            self._gone = True
            raise PeerLost(f"the store of torchrun is gone: {reason_of(error)}") from error

    def _clerk(self) -> None:
        while True:
            question, answer = self._questions.get()
            try:
                answer.set_result(question())
            except RuntimeError as error:
                answer.set_exception(error)

    def wait_for(self, key: str, seconds: float) -> bool:
        """Whether the key stands there, at the latest after so many seconds."""
        deadline = time.monotonic() + seconds
        for _ in self.polls():
            if self.has(key):
                return True
            if time.monotonic() > deadline:
                return False
        raise AssertionError("polls end")

    def polls(self) -> Iterator[None]:
        """Endless; soon after each other at first, then every 20 ms. (Blocking waits of the store log each timeout.)"""
        pause_s = 0.0005
        while True:
            yield
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """This process beats during the block, in a thread with a connection of its own."""
        store = self.store.clone()  # type: ignore[attr-defined]
        stopped = threading.Event()

        def beat() -> None:
            with suppress(RuntimeError):  # without a store there is nobody to tell
                while not stopped.wait(self.beat_s):
                    store.add(f"beat/{self.rank}", 1)

        heart = threading.Thread(target=beat, name="evenshard heart", daemon=True)
        heart.start()
        try:
            yield
        finally:
            stopped.set()
            heart.join(self.beat_s)  # not for ever: the store may hang


class Pulse:
    """Whether another process still beats."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._beats = board.beats(rank)
        self._changed = time.monotonic()

    def silent_s(self) -> float:
        """Seconds since its last beat, as far as this has been asked."""
        beats = self._board.beats(self._rank)
        if beats != self._beats:
            self._beats, self._changed = beats, time.monotonic()
        return time.monotonic() - self._changed
