"""The console of answers, and what long work says of its progress."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace

import pytest

from evenshard.base import console
from evenshard.base.console import plain_console, plain_grid, print_whole, progress
from support.patience import wait_until


@pytest.mark.parametrize(("terminal", "least", "width"), [(60, 80, 80), (120, 80, 120), (60, 0, 60)])
def test_a_console_is_as_wide_as_its_terminal_and_never_narrower_than_asked(
    terminal: int, least: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(terminal))
    file = io.StringIO()
    narrow = plain_console(file, least)
    narrow.print("x " * 100)
    assert max(map(len, file.getvalue().splitlines())) == width
    grid = plain_grid("ms", texts=("name",))
    grid.add_row("1.25", "[red]" + "y" * 150)
    print_whole(narrow, grid)
    assert file.getvalue().splitlines()[-1].rstrip() == "1.25  [red]" + "y" * 150 and narrow.width == width


def test_a_search_whose_output_is_piped_says_once_that_it_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(console, "SAY_AFTER_S", 0.0)
    with caplog.at_level(logging.INFO, "evenshard"), console.best_so_far() as show:
        wait_until(lambda: bool(caplog.records), "no line")
    assert show is None and caplog.messages == ["searching; Ctrl-C returns the best placement so far"]
    with caplog.at_level(logging.INFO, "evenshard"), console.without_progress(), console.best_so_far():
        pass
    assert len(caplog.records) == 1


def test_a_terminal_shows_the_best_so_far_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    clock = iter([100.0, 101.0, 102.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(console, "SAY_AFTER_S", 2.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    with console.best_so_far() as show:
        assert show is not None
        show(9.0, 0.1)  # after 1 s
        show(1.5, 0.25)
    shown = sys.stderr.getvalue()
    assert (
        "25% searched, about 6 s left, best so far 1.50 ms of embedding work per step" in shown and "9.0" not in shown
    )


def test_piped_work_logs_its_progress(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = iter([0.0, 1.0, 4.0, 4.0, 13.9, 14.1, 14.1])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(console, "SAY_AFTER_S", 3.0)
    with caplog.at_level(logging.INFO, "evenshard"):
        assert [*progress("abcd", "reading")] == [*"abcd"]
    assert caplog.messages == ["reading: 1 of 4 (25 %)", "reading: 3 of 4 (75 %)"]
