"""``evenshard what-if``: what it refuses, and what its outputs replace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenshard.cli import main
from support.repository import ROOT


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_output_is_replaced_but_no_input(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "what_if.json").write_text("{}")
    (here / "link.yaml").write_text("{}")
    flags = ["--hardware", "h100", "--devices", "1", "--batch-size", "4096", "-o"]
    assert main(["what-if", "examples/tables.yaml", *flags, "what_if.json"]) == 0
    assert json.loads((here / "what_if.json").read_text())["options"]
    assert main(["what-if", "examples/tables.yaml", "--intra", "h100=link.yaml", *flags, "link.yaml"]) == 2
    assert "is an output (-o/--out) and also an input (--intra)" in capsys.readouterr().err


def test_flags_that_are_no_values_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--dense-ms", "h100=1,h100=2"], ["--dense-ms", "h100=x"], ["--devices", "8,x"]):
        with pytest.raises(SystemExit) as raised:
            main(["what-if", "examples/tables.yaml", *flags])
        assert raised.value.code == 2 and capsys.readouterr().err.count("\n") == 1
