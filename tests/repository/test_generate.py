"""``make generate`` writes every generated file, and ``make check`` names those that are out of date."""

from __future__ import annotations

from tools.generate import generated_files


def test_generated_files_fit_their_sources() -> None:
    assert not [path for path, text in generated_files() if path.read_text() != text], "run: make generate"
