"""Whatever is in a file of others: an answer, or one line that says what is wrong. A sample of ``make fuzz``."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import fuzz
from support.fuzz_readers import READERS, Reader, bounded, problem_with, spoilt

SEED, INPUTS = 20, 25
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_spoilt_input_gets_an_answer_or_one_line(name: str, tmp_path: Path) -> None:
    problems = {}
    for number in range(INPUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        if (problem := problem_with(READERS[name], spoilt(name, SEED, number), folder)) is not None:
            problems[folder] = problem
    assert not problems


def _fails(tmp_path: Path, read: object) -> str | None:
    return problem_with(Reader("x", lambda rng: b"", read), b"", tmp_path)  # type: ignore[arg-type]


def test_what_is_no_answer_is_seen(tmp_path: Path) -> None:
    """The test's own eyes: exceptions, messages of several lines, memory and time."""
    from evenshard.base.errors import BadInput

    def failing_with(message: str) -> object:
        error = BadInput("")
        error.args = (message,)

        def read(path: Path) -> None:
            raise error

        return read

    assert _fails(tmp_path, lambda path: 1) is None
    assert _fails(tmp_path, failing_with("one line")) is None
    assert "not one printable line" in str(_fails(tmp_path, failing_with("a\nb")))
    assert "not one printable line" in str(_fails(tmp_path, failing_with("\x1b[31m")))
    assert "of 1201 characters" in str(_fails(tmp_path, failing_with("x" * 1201)))
    assert "ZeroDivisionError at " in str(_fails(tmp_path, lambda path: 1 / 0))
    assert "MemoryError" in str(_fails(tmp_path, lambda path: bytearray(2**36)))


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("support.fuzz_readers.SECONDS", 0.05)

    def loop(path: Path) -> None:
        while True:
            pass

    assert "TooSlow" in str(_fails(tmp_path, loop))
    with bounded():
        pass


@pytest.mark.slow
def test_inputs_are_the_same_again_and_mostly_spoilt() -> None:
    for name in READERS:
        if not READERS[name].file.endswith((".pt", ".pt.gz")):  # torch's older format writes addresses of memory
            assert spoilt(name, 1, 7) == spoilt(name, 1, 7)
        assert len({spoilt(name, 1, number) for number in range(20)}) > 10


@pytest.mark.slow
def test_a_failure_is_kept_and_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "rules-1-2"
    folder.mkdir()
    (folder / "problem.txt").write_text("rules\nRecursionError\n")
    (folder / "rules.yaml").write_text("[" * 100)
    assert fuzz.main(["--replay", str(folder)]) == 0
    assert capsys.readouterr().out == "rules\nthen: RecursionError\nnow: nothing\n"
    words = ["--count", "4", "--readers", "rules", "tasks.json", "--seed", "3", "--out", str(tmp_path / "out")]
    assert fuzz.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 of 4 inputs failed (seed 3)"
    assert not list((tmp_path / "out").iterdir())
