"""What the docs show, for tests to run: a command or a snippet of a page as it stands; a failure says it is gone."""

from __future__ import annotations

import re
import shlex
import textwrap

from support.repository import ROOT


def command(page: str, start: str) -> list[str]:
    """Return the arguments, without ``evenshard``, of the one command of a page that starts so."""
    lines = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = {line.strip() for line in lines if line.startswith("    ") and line.strip().startswith(start)}
    assert len(found) == 1, f"{page} shows {len(found)} commands that start with {start!r}"
    words = shlex.split(found.pop().partition("  #")[0])
    return words[1:] if words[0] == "evenshard" else words


def snippet(page: str, containing: str) -> str:
    """Return the source of the one indented block of a page that contains this text, ready for ``exec``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^(?: {4}.*\n(?:[ \t]*\n)*)+", text, flags=re.MULTILINE)
    found = [textwrap.dedent(block).rstrip() + "\n" for block in blocks if containing in block]
    assert len(found) == 1, f"{page} has {len(found)} blocks with {containing!r}"
    return found[0]
