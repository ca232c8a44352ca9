"""The table of packages in docs/architecture.md, written from the first sentence of each package's docstring.

python docs/tree.py            writes it
python docs/tree.py --check    exits 1 if it does not fit the code
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evenshard"
PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- packages: written by `python docs/tree.py`", "<!-- end of packages -->"


def table() -> str:
    """The packages and what each is for, a package below those that it imports from."""
    rows = (f"| `{name}` | {_sentence(SOURCE / name / '__init__.py')} |" for name in reversed(_order()))
    return "\n".join(["| package | what it is for |", "|---|---|", *rows])


def _order() -> list[str]:
    """The packages as import-linter orders them, the highest first; its modules are left out."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["type"] == "layers")
    names = (name.strip() for layer in layers for name in re.split("[|:]", layer))
    return [name for name in names if (SOURCE / name).is_dir()]


def _sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`\"])", paragraph)[0]


def main() -> int:
    """Writes or checks the page."""
    text = PAGE.read_text(encoding="utf-8")
    begin = text.index("\n", text.index(BEGIN)) + 1
    written = f"{text[:begin]}\n{table()}\n\n{text[text.index(END) :]}"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(written, encoding="utf-8")
        return 0
    if written != text:
        print(f"{PAGE.name}: the packages do not fit the code. Run: python docs/tree.py", file=sys.stderr)
    return int(written != text)


if __name__ == "__main__":
    sys.exit(main())
