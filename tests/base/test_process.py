"""Threads and variables inside the block, and as before after it; SIGTERM and Ctrl-C inside the block and after it."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from evenshard.base import process
from evenshard.base.process import (
    TERMINATED,
    delay_sigterm,
    environment,
    machine_bytes,
    on_interrupt,
    on_sigterm,
    one_thread,
    terminate,
)
from support.patience import PATIENCE_S


def test_one_thread_inside_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_variables_hold_inside_and_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENSHARD_KNOWN", "before")
    with pytest.raises(ValueError), environment({"EVENSHARD_KNOWN": "inside", "EVENSHARD_NEW": "1"}):
        assert (os.environ["EVENSHARD_KNOWN"], os.environ["EVENSHARD_NEW"]) == ("inside", "1")
        raise ValueError
    assert os.environ["EVENSHARD_KNOWN"] == "before" and "EVENSHARD_NEW" not in os.environ


def test_the_order_to_end_is_heard_inside_the_block_alone_or_at_its_end() -> None:
    heard: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with on_sigterm(lambda: heard.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [1]
    assert signal.getsignal(signal.SIGTERM) is before
    done: list[str] = []
    with on_sigterm(terminate):
        with pytest.raises(SystemExit) as ended, delay_sigterm():
            signal.raise_signal(signal.SIGTERM)
            done.append("the block")
            raise ValueError  # the order comes first
        with delay_sigterm():  # it is ending: another order changes nothing
            signal.raise_signal(signal.SIGTERM)
            done.append("what comes after it")
    assert ended.value.code == TERMINATED
    assert done == ["the block", "what comes after it"]


@pytest.mark.parametrize("is_dropped", [True, False])
def test_an_order_to_end_that_python_drops_is_given_again(monkeypatch: pytest.MonkeyPatch, is_dropped: bool) -> None:
    """In a weakref callback Python drops exceptions; a dropped exception of something else is reported as ever."""
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: reported.append(dropped.exc_type))

    def fail(_: Any) -> None:
        raise ValueError

    def end(_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    with on_sigterm(terminate):
        with pytest.raises(SystemExit) as ended:
            if is_dropped:
                owner = {1}
                watched = weakref.ref(owner, end)
                del owner
                time.sleep(PATIENCE_S)
            end(None)
        other = {1}
        watched = weakref.ref(other, fail)
        del other
    assert ended.value.code == TERMINATED and reported == [ValueError] and watched() is None


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


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/memory.max": "3000", "a/b/memory.max": "5000"}, 3000),
        ("0::/a/b\n", {"memory.max": "7000", "a/memory.max": "max", "a/b/memory.max": "5000"}, 5000),
        ("4:cpu,memory:/pod\n3:pids:/x\n", {"memory/pod/memory.limit_in_bytes": "6000"}, 6000),
        ("0::/\n", {"memory.max": "max"}, None),
    ],
)
def test_the_lowest_memory_limit_of_its_control_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, limits: dict[str, str], expected: int | None
) -> None:
    """Of both versions, and of all groups above its own; None: only the machine's own memory."""
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{limit}\n")
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(process, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(process, "OWN_GROUPS", tmp_path / "own")
    assert machine_bytes() == (expected or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
