"""Errors of readers: a file that the user named is to blame for each that nobody foresaw."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.cli import main


@blame_file
def read(path: Path, error: Exception | None = None) -> str:
    if error is not None:
        raise error
    return path.name


def test_an_unforeseen_error_names_the_file() -> None:
    assert read(Path("good")) == read(path=Path("good")) == "good"
    for error in (RecursionError("maximum depth"), KeyError("a"), ZeroDivisionError(), MemoryError()):
        with pytest.raises(BadFile, match=rf"^spoilt: cannot be read \({type(error).__name__}: ") as caught:
            read(error=error, path=Path("spoilt"))
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [BadConfig("a flag"), FileNotFoundError("file"), ImportError("pyarrow")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        read(Path("file"), error)
    assert caught.value is error


def test_absurd_input_is_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absurd = tmp_path / "tables.yaml"
    for text in ("[" * 1_000_000, "- {name: a, num_rows: 0x" + "f" * 9000 + ", embedding_dim: 4, pooling_factor: 1}\n"):
        absurd.write_text(text)
        assert main(["place", str(absurd), "--devices", "2"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"evenshard place: {absurd}")


def test_a_fault_of_ours_stays_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = tmp_path / "tables.csv"
    tables.write_text("name,num_rows,embedding_dim,pooling_factor\na,10,4,1\n")
    monkeypatch.setattr("evenshard.cli.place.place", None)
    with pytest.raises(TypeError):
        main(["place", str(tables), "--devices", "2"])
