"""``make check`` names docstrings of src that begin with a question word."""

from __future__ import annotations

from tools.size import find_question_docstrings


def test_docstrings_that_begin_with_a_question_word_are_found() -> None:
    module = '"""Whether a module is odd."""\nclass Part:\n    """A part of a table; which device holds it."""\n'
    module += (
        'def cost():\n    """`How`, a cost is computed."""\nasync def name():\n    return "What is no docstring."\n'
    )
    assert [*find_question_docstrings(module)] == [(1, "Whether"), (5, "How")]
