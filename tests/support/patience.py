"""How long tests wait for what must come: however busy the machine is, it has come by then, or it never does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Returns once the condition holds. Raises AssertionError, with ``what``, if it never does."""
    ends, pause_s = time.monotonic() + PATIENCE_S, 0.02
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.1)  # to ask takes time from what is waited for
