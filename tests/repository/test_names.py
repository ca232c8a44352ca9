"""The words of the code: each module says in a statement what it is."""

from __future__ import annotations

import ast

from support.repository import ROOT

FOLDERS = ("src/evenshard", "benchmarks", "components", "pipelines", "tests", "docs")
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if path.read_text().strip()]


def test_every_module_says_what_it_is() -> None:
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in MODULES}
    assert [str(path) for path, text in docstrings.items() if not text] == [], "without a docstring"
    asking = [str(path) for path, text in docstrings.items() if "?" in text.partition("\n\n")[0]]
    assert asking == [], "whose docstring opens with a question"
