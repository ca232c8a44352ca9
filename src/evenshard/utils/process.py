"""This process: the number of cores that torch computes on, and a clean end when it is terminated."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """The block runs on one thread.

    Shards on a CPU, because one core stands for one device. Training, because the networks are small: several threads
    gain next to nothing on an idle machine, and on a busy one they spend their time waiting for each other.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def on_sigterm(do: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGTERM calls ``do``, which may raise; outside of the main thread signals are not ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: do())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
