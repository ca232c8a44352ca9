"""The tree of modules in docs/architecture.md, written from the first sentence of each module's docstring.

python docs/tree.py            writes it
python docs/tree.py --check    exits 1 if it does not fit the code
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evenshard"
PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- tree: written by `python docs/tree.py`", "<!-- end of tree -->"
NAME_WIDTH, WIDTH = 30, 120


def tree() -> str:
    """The tree as an indented block."""
    lines = list(_lines(SOURCE / "version.py", 0))
    for package in reversed(_order()):
        if package != "version":
            lines.extend(_lines(SOURCE / package, 0))
    return "\n".join(f"    {line}".rstrip() for line in lines)


def _order() -> list[str]:
    """The packages as import-linter orders them, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["type"] == "layers")
    return list(layers)


def _lines(path: Path, depth: int) -> Iterator[str]:
    if path.is_file():
        yield from _entry(path.stem, path, depth)
        return
    yield from _entry(f"{path.name}/", path / "__init__.py", depth)
    modules = [one for one in path.glob("*.py") if one.stem != "__init__"]
    packages = [one.parent for one in path.glob("*/__init__.py")]
    for one in [*sorted(modules), *sorted(packages)]:
        yield from _lines(one, depth + 1)


def _entry(name: str, path: Path, depth: int) -> Iterator[str]:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z`\"])", paragraph)[0].rstrip(".:")
    head = ("  " * depth + name).ljust(NAME_WIDTH)
    wrapped = textwrap.wrap(sentence, WIDTH - NAME_WIDTH) or [""]
    yield f"{head} {wrapped[0]}"
    yield from (" " * (NAME_WIDTH + 1) + line for line in wrapped[1:])


def main() -> int:
    """Writes or checks the page."""
    text = PAGE.read_text(encoding="utf-8")
    begin = text.index("\n", text.index(BEGIN)) + 1
    written = f"{text[:begin]}\n{tree()}\n\n{text[text.index(END) :]}"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(written, encoding="utf-8")
    elif written != text:
        print(f"{PAGE.name}: the tree does not fit the code. Run: python docs/tree.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
