"""Write every generated file: the components, dvc.yaml, and the list of packages in docs/architecture.md.

python tools/generate.py            writes them: make generate
python tools/generate.py --check    exits 1 if a file differs from its source
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from evenshard.base.documents import load_params
from evenshard_components.generate import written_files
from evenshard_pipelines.dvc_rounds import dvc_yaml

ROOT = Path(__file__).resolve().parents[1]
DRAWING = re.compile("(?<=`make generate` from the packages' docstrings. -->\n).*?(?=<!-- end -->)", re.S)


def generated_files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every generated file."""
    yield from written_files()
    yield ROOT / "dvc.yaml", dvc_yaml(load_params(ROOT / "params.yaml"))
    architecture = ROOT / "docs/architecture.md"
    yield architecture, DRAWING.sub(lambda found: packages(), architecture.read_text(encoding="utf-8"), count=1)


def packages() -> str:
    """Return the list of packages in the order of imports, each with the first sentence of its docstring."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    source, halves = ROOT / "src" / "evenshard", {"base": "core", "api": "", "measure": "operations"}
    assert {path.parent.name for path in source.glob("*/__init__.py")} == {*layers} - {"api", "version"}
    drawn = ["src/evenshard/"]
    for name in reversed(layers):
        path = source / name / "__init__.py" if (source / name).is_dir() else source / f"{name}.py"
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        drawn += ["", halves[name]] if halves.get(name) else []
        if docstring:
            sentence = re.split("(?<=[.]) (?=[A-Z`])", " ".join(docstring.partition("\n\n")[0].split()))[0]
            shown = path.name if path.parent == source else f"{name}/"
            drawn += textwrap.wrap(f"  {shown:<12}{sentence}", 108, subsequent_indent=" " * 14)
    return "\n".join(["", "```text", *drawn, "```", "", ""])


def update(files: Iterable[tuple[Path, str]], check: bool) -> int:
    """Write the files whose text differs, or with ``check`` name them; return the exit code."""
    code = 0
    for path, text in files:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"{path} is out of date. Run: make generate", file=sys.stderr)
            code = 1
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(update(generated_files(), check="--check" in sys.argv[1:]))
