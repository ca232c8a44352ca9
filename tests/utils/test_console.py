"""The console of answers: as wide as the terminal, or as wide as an answer needs."""

from __future__ import annotations

import io

import pytest

from evenshard.utils.console import plain_console


@pytest.mark.parametrize(("terminal", "least", "width"), [(60, 80, 80), (120, 80, 120), (60, 0, 60)])
def test_a_console_is_as_wide_as_its_terminal_and_never_narrower_than_asked(
    terminal: int, least: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(terminal))
    file = io.StringIO()
    plain_console(file, least).print("x " * 100)
    assert max(map(len, file.getvalue().splitlines())) == width
