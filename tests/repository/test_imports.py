"""An import inside a function is there for its weight: it brings a package that its module does without."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from support.repository import ROOT

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
MODULES = {
    ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
    for package in ("evenshard", "evenshard_pipelines")
    for folder in (ROOT / PACKAGES[package],)
    for path in sorted(folder.rglob("*.py"))
}
# Our own modules that bring no package and yet take a while, each with what it would add to `evenshard --help`.
SLOW = {
    "evenshard.tables.traffic": "20 ms, for files of traffic and their counts",
    "evenshard.base.s3": "6 ms, for manifests and transfers",
}


def _imports(node: ast.AST, package: str, inside: bool = False) -> Iterator[tuple[bool, int, frozenset[str]]]:
    """Whether each import is inside a function, its line, and the modules that it names."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                yield inside, child.lineno, frozenset(one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names, level=level):
                module = f"{package}.{module}" if level else module
                of_names = (f"{module}.{one.name}" for one in names)
                yield inside, child.lineno, frozenset(one if one in MODULES else module for one in of_names)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(child, package, inside or is_function)


IMPORTS = {
    name: tuple(_imports(ast.parse(path.read_text(encoding="utf-8")), name.partition(".")[0]))
    for name, path in MODULES.items()
}


@cache
def _packages(modules: frozenset[str]) -> frozenset[str]:
    """The packages, beyond the standard library, that importing these modules imports."""
    seen, ahead = set[str](), set(modules)
    while ahead:
        name = ahead.pop()
        seen.add(name)
        parents = {name.rpartition(".")[0]} - {""} if name in MODULES else set()
        own = {one for inside, _, named in IMPORTS.get(name, ()) if not inside for one in named}
        ahead |= (parents | own) - seen
    return frozenset(one.partition(".")[0] for one in seen - MODULES.keys()) - sys.stdlib_module_names


def test_packages_are_those_of_this_checkout() -> None:
    found = {package: import_module(package).__file__ for package in PACKAGES}
    assert found == {package: str(ROOT / folder / "__init__.py") for package, folder in PACKAGES.items()}, (
        "tests run another checkout's code. Install this one: pip install --no-deps --editable ."
    )


def test_an_import_inside_a_function_brings_a_package() -> None:
    inside = [(name, line, named) for name, of in IMPORTS.items() for is_inside, line, named in of if is_inside]
    assert inside, "found none: the test looks in the wrong place"
    light = [(name, line, named) for name, line, named in inside if _packages(named) <= _packages(frozenset({name}))]
    wrong = [f"{name}, line {line}: {', '.join(named)}" for name, line, named in light if not named <= SLOW.keys()]
    assert wrong == [], "stand inside functions and bring no package: they belong at the top"
    assert {one for _, _, named in light for one in named} == SLOW.keys(), "named as slow, and imported in no function"
