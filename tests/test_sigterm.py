"""SIGTERM inside and after the block."""

from __future__ import annotations

import os
import signal

from evenshard.sigterm import on_sigterm


def test_the_order_to_end_is_heard_inside_the_block_and_not_after_it() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with on_sigterm(lambda: heard.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [1]
    assert signal.getsignal(signal.SIGTERM) is before
