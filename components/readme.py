"""Writes each component's README.md from its signature and docstring.

python components/readme.py            writes them
python components/readme.py --check    exits 1 if one does not fit its component
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from docstring_parser import parse

HERE = Path(__file__).parent


def component_names() -> list[str]:
    """The folders of components, in the order of their names."""
    return sorted(path.parent.name for path in HERE.glob("*/component.py"))


def component(name: str) -> Any:
    """The component in a folder."""
    return getattr(importlib.import_module(f"evenshard_components.{name}.component"), name)


def readme_of(name: str) -> str:
    """The text of a component's README.md."""
    of = component(name)
    docstring = parse(of.python_func.__doc__)
    about = {one.arg_name: " ".join((one.description or "").split()) for one in docstring.params}
    if docstring.returns is not None:
        about["Output"] = docstring.returns.description or ""  # as KFP calls what a component returns
    paragraphs = [docstring.short_description, docstring.long_description]
    inputs = [
        f"| `{key}` | `{_kind(one)}` | {'no' if one.optional else 'yes'} | {_sentence(about[key])} |"
        for key, one in of.component_spec.inputs.items()
    ]
    outputs = [
        f"| `{key}` | `{_kind(one)}` | {_sentence(about[key])} |" for key, one in of.component_spec.outputs.items()
    ]
    return "\n".join(
        [
            "<!-- Written by components/readme.py from component.py; do not edit by hand. -->",
            f"# {name}",
            "",
            "\n\n".join(_plain(one) for one in paragraphs if one),
            "",
            "## Inputs",
            "",
            "| name | type | required | what it is |",
            "|---|---|---|---|",
            *(inputs or ["| none | | | |"]),
            "",
            "## Outputs",
            "",
            "| name | type | what it is |",
            "|---|---|---|",
            *outputs,
            "",
        ]
    )


def _kind(spec: Any) -> str:
    name = str(spec.type).removeprefix("system.").partition("@")[0]
    return f"List[{name}]" if spec.is_artifact_list else name


def _plain(text: str) -> str:
    """One line, with Markdown's backquotes."""
    return re.sub("``(.+?)``", r"`\1`", " ".join(text.split()))


def _sentence(text: str) -> str:
    return _plain(text[:1].upper() + text[1:])


def main() -> int:
    """Writes or checks all of them."""
    for name in component_names():
        path, text = HERE / name / "README.md", readme_of(name)
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} does not fit its component. Run: python components/readme.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
