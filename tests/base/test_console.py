"""The console of answers: as wide as the terminal, or as wide as an answer needs."""

from __future__ import annotations

import io
import logging
import time

import pytest

from evenshard.base import console
from evenshard.base.console import plain_console
from support.patience import PATIENCE_S


@pytest.mark.parametrize(("terminal", "least", "width"), [(60, 80, 80), (120, 80, 120), (60, 0, 60)])
def test_a_console_is_as_wide_as_its_terminal_and_never_narrower_than_asked(
    terminal: int, least: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(terminal))
    file = io.StringIO()
    plain_console(file, least).print("x " * 100)
    assert max(map(len, file.getvalue().splitlines())) == width


def test_a_search_whose_output_is_piped_says_once_that_it_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(console, "SAY_AFTER_S", 0.0)
    line = "searching; Ctrl-C returns the best placement so far"
    with caplog.at_level(logging.INFO, "evenshard"), console.best_so_far() as progress:
        deadline = time.monotonic() + PATIENCE_S
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    assert progress is None and [one.getMessage() for one in caplog.records] == [line]
    with caplog.at_level(logging.INFO, "evenshard"), console.without_progress(), console.best_so_far():
        pass
    assert len(caplog.records) == 1
