"""What happens when this process is told to end?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
