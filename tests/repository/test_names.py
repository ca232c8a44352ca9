"""The words of the code: each public name has one module, and each module says in a statement what it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.repository import ROOT

SOURCE = ROOT / "src" / "evenshard"
INTERFACES = {
    "run": "a stage",
    "add_commands": "a module of commands",
    "main": "a program",
    "log": "a module's own logger",
}
"""Names that several modules share on purpose: what each of them is."""
FOLDERS = ("src/evenshard", "benchmarks", "components", "pipelines", "tests", "docs")
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if path.read_text().strip()]


def public_names(path: Path) -> Iterator[str]:
    """The classes, functions and constants that a module defines at its top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def test_a_public_name_is_defined_in_one_module() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for name in public_names(path):
            modules[name].add(str(path.relative_to(SOURCE)))
    assert {name: sorted(found) for name, found in modules.items() if len(found) > 1 and name not in INTERFACES} == {}
    assert [name for name in INTERFACES if len(modules[name]) < 2] == [], "no longer shared: take it off the list"


def test_every_module_says_what_it_is() -> None:
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in MODULES}
    assert [str(path) for path, text in docstrings.items() if not text] == [], "without a docstring"
    asking = [str(path) for path, text in docstrings.items() if "?" in text.partition("\n\n")[0]]
    assert asking == [], "whose docstring opens with a question"
