"""Threads and variables inside the block, and as before after it; SIGTERM and Ctrl-C inside the block and after it."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from evenshard.base.process import (
    TERMINATED,
    environment,
    on_interrupt,
    on_sigterm,
    one_thread,
    sigterm_waits,
    terminate,
)


def test_one_thread_inside_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError), one_thread():
            raise ValueError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_variables_hold_inside_and_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENSHARD_KNOWN", "before")
    with pytest.raises(ValueError), environment({"EVENSHARD_KNOWN": "inside", "EVENSHARD_NEW": "1"}):
        assert (os.environ["EVENSHARD_KNOWN"], os.environ["EVENSHARD_NEW"]) == ("inside", "1")
        raise ValueError
    assert os.environ["EVENSHARD_KNOWN"] == "before" and "EVENSHARD_NEW" not in os.environ


def test_the_order_to_end_is_heard_inside_the_block_and_not_after_it() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with on_sigterm(lambda: heard.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_order_to_end_may_wait_for_the_end_of_a_block() -> None:
    done: list[str] = []
    with on_sigterm(terminate):
        with pytest.raises(SystemExit) as ended, sigterm_waits():
            signal.raise_signal(signal.SIGTERM)
            done.append("the block")
            raise ValueError  # the order comes first
        with sigterm_waits():  # it is ending: another order changes nothing
            signal.raise_signal(signal.SIGTERM)
            done.append("what comes after it")
    assert ended.value.code == TERMINATED
    assert done == ["the block", "what comes after it"]


def test_the_first_ctrl_c_is_handled_and_the_second_ends_the_work() -> None:
    heard: list[int] = []
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with it ignored
    try:
        with on_interrupt(lambda: heard.append(1)):
            signal.raise_signal(signal.SIGINT)
            assert heard == [1]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert heard == [1]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, ours)
