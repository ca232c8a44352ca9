"""On how many cores does torch compute? On one, wherever a second would cost more than it brings."""

from __future__ import annotations

from collections.abc import Iterator
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
