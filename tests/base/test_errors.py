"""Errors of readers: a file that the user named is to blame for each that nobody foresaw."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.base.errors import (
    MAX_PROBLEMS,
    BadConfig,
    BadFile,
    BadRecords,
    bad_records,
    blame_file,
    blame_folder,
    require,
)


@blame_file
def read(path: Path, error: Exception | None = None) -> str:
    if error is not None:
        raise error
    return path.name


def test_an_unforeseen_error_names_the_file_and_others_pass() -> None:
    assert read(Path("good")) == read(path=Path("good")) == "good"
    for error in (RecursionError("maximum depth"), KeyError("a"), ZeroDivisionError(), MemoryError()):
        with pytest.raises(BadFile, match=rf"^spoilt: cannot be read \({type(error).__name__}: ") as caught:
            read(error=error, path=Path("spoilt"))
        assert caught.value.__cause__ is error
    for known in (BadConfig("a flag"), FileNotFoundError("file"), ImportError("pyarrow")):
        with pytest.raises(type(known)) as passed:
            read(Path("file"), known)
        assert passed.value is known


def test_a_folder_of_a_model_is_blamed_for_what_is_in_it(tmp_path: Path) -> None:
    for error, said in (
        (FileNotFoundError(2, "no", "deep/state.pt"), "state.pt is missing. Train."),
        (KeyError("x"), "not readable as a saved network ('x'). Train."),
    ):
        with pytest.raises(BadFile) as caught, blame_folder(tmp_path, "network", "Train."):
            raise error
        assert str(caught.value) == f"{tmp_path}: {said}"


def test_several_problems_of_a_file_are_listed_up_to_a_number() -> None:
    one = bad_records("f", [("row 1", "bad", "Fix.")])
    assert isinstance(bad_records("f", [("row 1", "bad", "Fix.")] * 2), BadRecords)
    assert str(one) == "f, row 1: bad. Fix." and not isinstance(one, BadRecords)
    many = bad_records("f", [(f"row {n}", "bad", "Fix.") for n in range(MAX_PROBLEMS + 2)], "Write it anew.")
    assert isinstance(many, BadRecords)
    assert many.lines[:2] == ("f: 22 problems", "row 0: bad. Fix.") and len(many.lines) == MAX_PROBLEMS + 3
    assert many.lines[-2:] == ("And 2 more.", "Write it anew.") and str(many).startswith("f: 22 problems: row 0: bad.")


def test_require() -> None:
    require(True, "never said")
    with pytest.raises(BadConfig, match="Make it above 0"):
        require(False, "Make it above 0.")
