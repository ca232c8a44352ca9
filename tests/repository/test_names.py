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

# "priced" or "_kept" does not say whether it asks, acts or gives a value: a function is a verb phrase ("price_parts"),
# or the noun of what it gives ("_storage_memory"). A longer name may begin with a participle ("predicted_ms").
PARTICIPLE = re.compile(r"_*[a-z]+(ed|ing)")
IRREGULAR = {
    *("begun", "broken", "built", "chosen", "drawn", "driven", "found", "given", "gone", "grown", "held", "hidden"),
    *("kept", "known", "left", "lost", "made", "meant", "met", "said", "seen", "sent", "shown", "stood", "taken"),
    *("thought", "thrown", "told", "torn", "understood", "unknown", "worn", "written"),
}
# Function: why it may be called so.
NO_PARTICIPLES = {
    "predicted": "users import it from evenshard.torchrec",
    "_listing": "a noun: the objects of a folder",
    "_sharding": "TorchRec's noun",
    "heading": "a noun: the line above a table",
    "saving": "a noun: what a new placement saves",
}


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


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one).split(".")[-1] in ("property", "cached_property") for one in function.decorator_list)


def test_no_function_is_called_by_a_participle() -> None:
    called = {
        node.name: f"{path.relative_to(ROOT)}: {node.name}"
        for path in MODULES
        if "tests" not in path.parts and path.name != "conftest.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node)
        if PARTICIPLE.fullmatch(node.name) or node.name.strip("_") in IRREGULAR
    }
    participles = [where for name, where in called.items() if name not in NO_PARTICIPLES]
    assert participles == [], "say what the function does, or name the value that it gives"
    assert sorted(NO_PARTICIPLES.keys() - called.keys()) == [], "are excused and gone"
