"""Checks of ``make check``: first words of docstrings, and recorded CPU seconds, generated files; and the mutations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tools import mutations, size
from tools.generate import generated_files

MODULE = '''"""Whether a module is odd."""
class Part:
    """A part of a table; which device holds it is in ``device``."""
def cost():
    """`How`, a cost is computed."""
async def name():
    return "What is no docstring."
'''


def test_docstrings_that_begin_with_a_question_word_are_found() -> None:
    assert [*size.find_question_docstrings(MODULE)] == [(1, "Whether"), (5, "How")]


def test_a_question_word_fails_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = size.ROOT / "tools/size.py"
    monkeypatch.setattr(size, "list_files", lambda *_: [file])
    monkeypatch.setattr(size, "find_executed_files", set)
    monkeypatch.setattr(size, "find_import_cycle", list)
    assert size.main() == 0
    monkeypatch.setattr(size, "QUESTION_WORDS", {"check"})
    assert size.main() == 1 and "tools/size.py:1 (Check)" in capsys.readouterr().out


def test_the_record_of_cpu_seconds_covers_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {
        "start and collection": {"fast": 1.0, "all": 2.0},
        "tests/base/test_units.py": {"fast": 0.5},
        "tests/repository/test_size.py": {"fast": 10.0, "slow": 100.0, "nightly": 1000.0},
    }
    (tmp_path / "record.json").write_text(json.dumps(record))
    monkeypatch.setattr(size, "RECORD", tmp_path / "record.json")
    assert size.recorded_seconds() == (11.5, 112.5)
    tests = [size.ROOT / name for name in ("tests/base/test_units.py", "tests/base/test_knobs.py", "tests/conftest.py")]
    nightly = size.ROOT / "tests/benchmarks/test_fit_links.py"
    assert size.find_unrecorded([*tests, nightly]) == ["tests/base/test_knobs.py"]


def test_every_mutation_can_be_applied() -> None:
    listed = [mutations.Mutation(**one) for one in yaml.safe_load(mutations.MUTATIONS.read_text())]
    assert len(listed) == 40 and not [problem for one in listed if (problem := mutations.find_problem(one))]


def test_generated_files_fit_their_sources() -> None:
    assert not [path for path, text in generated_files() if path.read_text() != text], "run: make generate"
