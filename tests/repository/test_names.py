"""The words of the code: each module says in a statement what it is, and docstrings read alone."""

from __future__ import annotations

import ast
import re

from support.repository import ROOT

FOLDERS = ("src/evenshard", "benchmarks", "components", "pipelines", "tests", "docs")
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if path.read_text().strip()]

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# "Of a host." and "Likewise, of a model's folder." say nothing on an API page, where no name stands beside them.
FRAGMENT = re.compile(r"(As|By|For|From|In|Likewise|Of|On|That|With|Without)\b")


def test_every_module_says_what_it_is() -> None:
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in MODULES}
    assert [str(path) for path, text in docstrings.items() if not text] == [], "without a docstring"
    asking = [str(path) for path, text in docstrings.items() if "?" in text.partition("\n\n")[0]]
    assert asking == [], "whose docstring opens with a question"


def test_docstrings_read_alone() -> None:
    fragments = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in MODULES
        if path.is_relative_to(ROOT / "src")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, DOCUMENTED) and FRAGMENT.match(text := ast.get_docstring(node) or "")
    ]
    assert fragments == [], "begin like fragments: write a sentence, or a noun phrase that names the thing"
