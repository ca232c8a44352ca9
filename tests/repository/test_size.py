"""``make check`` names docstrings of src that begin with a question word."""

from __future__ import annotations

import pytest

from tools import size

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
