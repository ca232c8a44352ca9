"""``make generate`` writes every generated file, and ``make check`` names those that are out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.generate import generated_files, update


def test_generated_files_fit_their_sources() -> None:
    assert not [path for path, text in generated_files() if path.read_text() != text], "run: make generate"


def test_the_check_names_what_is_out_of_date_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "folder/new.txt"
    old.write_text("old")
    files = [(old, "now"), (new, "text")]
    assert update(files, check=True) == 1
    assert capsys.readouterr().err.splitlines() == [f"{path} is out of date. Run: make generate" for path, _ in files]
    assert old.read_text() == "old" and not new.exists()
    assert update(files, check=False) == 0 == update(files, check=True)
    assert [path.read_text() for path, _ in files] == ["now", "text"]
