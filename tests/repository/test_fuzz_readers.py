"""Whatever is in a user's file: an answer, or one line that says what is wrong. A sample of ``make fuzz``."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.base.errors import BadFile
from support import fuzz
from support.fuzz import find_problem, spoil
from support.fuzz_readers import READERS

SEED, INPUTS = 20, 12
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", READERS)
def test_a_spoilt_input_gets_an_answer_or_one_line(name: str, tmp_path: Path) -> None:
    found = {number: find_problem(name, spoil(name, SEED, number), tmp_path / str(number)) for number in range(INPUTS)}
    assert not {number: problem for number, problem in found.items() if problem}


def test_problems_are_seen(tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        error = BadFile(path, "", "")
        error.args = ("two\nlines",)
        raise error

    assert "two" in find_problem("x", b"", tmp_path, refuse)
    assert "ZeroDivisionError" in find_problem("x", b"", tmp_path, lambda path: 1 / 0)


def test_the_command_reads_in_another_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--count", "2", "--readers", "rules.yaml", "--seed", "3", "--out", str(tmp_path)]
    assert fuzz.main(words) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "0 of 1 stretches of inputs failed (seed 3)"
    assert not list(tmp_path.iterdir())
