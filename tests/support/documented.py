"""What the docs show, for tests to run: a command or a snippet of a page as it stands; a failure says it is gone."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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


def shown(page: str, containing: str) -> list[str]:
    """What a page shows of a command's output, without line breaks and further blanks, piece by piece.

    Args:
        page: path of the page, from the root of the repository.
        containing: part of the block, which begins with the command; "..." in it leaves something out.
    """
    output = snippet(page, containing).partition("\n")[2]
    return [" ".join(piece.split()) for piece in re.split(r"^\.\.\.$", output, flags=re.MULTILINE)]


def stands_there(pieces: list[str], output: str) -> None:
    """Asserts that an output has all pieces, in their order."""
    said = " ".join(output.split())
    for piece in pieces:
        assert piece and piece in said, f"shown, but not said:\n{piece}\nsaid:\n{said}"
        said = said.partition(piece)[2]


def snippet(page: str, containing: str) -> str:
    """The source of the one indented block of a page that contains this text, ready for ``exec``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^(?: {4}.*|[ \t]*)\n)+", text, flags=re.MULTILINE)]
    found = [block.strip("\n") + "\n" for block in blocks if containing in block]
    assert found, f"{page} has no block with {containing!r}"
    assert len(found) == 1, f"{page} has {len(found)} blocks with {containing!r}: name more of it"
    return found[0]
