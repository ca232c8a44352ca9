"""What the docs show, for tests to run: a command or a snippet of a page as it stands; a failure says it is gone."""

from __future__ import annotations

import re
import shlex
import textwrap

from support.repository import ROOT


def command(page: str, start: str) -> list[str]:
    """The arguments, without ``evenshard``, of the one documented command that starts so.

    Args:
        page: path of the page, from the root of the repository.
        start: the first words of the command, such as ``evenshard place tables.yaml``. Backslashes continue lines.
    """
    lines = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = [line.strip() for line in lines if line.startswith("    ") and line.strip().startswith(start)]
    assert found, f"{page} shows no command that starts with {start!r}"
    assert len(set(found)) == 1, f"{page} shows {len(found)} commands that start with {start!r}: name more of it"
    words = shlex.split(found[0].partition("  #")[0])
    return words[1:] if words[0] == "evenshard" else words


def snippet(page: str, containing: str) -> str:
    """The source of the one indented block of a page that contains this text, ready for ``exec``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^(?: {4}.*\n(?:[ \t]*\n)*)+", text, flags=re.MULTILINE)
    found = [textwrap.dedent(block).rstrip() + "\n" for block in blocks if containing in block]
    assert found, f"{page} has no block with {containing!r}"
    assert len(found) == 1, f"{page} has {len(found)} blocks with {containing!r}: name more of it"
    return found[0]
