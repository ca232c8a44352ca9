"""The part of a new output that a page shows: that of the earlier output, with "..." in place of the rest."""

from __future__ import annotations

import re

LEFT_OUT = "..."


def excerpt(shown: list[str], said: list[str]) -> list[str]:
    """Return the lines of an output that have the words of the lines that are shown.

    Args:
        shown: lines of the earlier output; a line "..." stands for lines that are left out.
        said: all lines of the new output.

    Raises:
        LookupError: the new output has other words than a piece before, between or after "...".
    """
    pieces = re.split(rf"^{re.escape(LEFT_OUT)}$", "\n".join(shown), flags=re.MULTILINE)
    if len(pieces) == 1:
        return said
    start = 0
    for number, piece in enumerate(pieces):
        words = piece.strip("\n")
        if words:  # "..." is neither the first line nor the last
            first, start = _find(words, said, start)
            pieces[number] = piece.replace(words, "\n".join(said[first:start]))
    return LEFT_OUT.join(pieces).split("\n")


def shape(text: str) -> str:
    """Return a text without its numbers, bars and blanks, which a change of times alone changes."""
    return " ".join(re.sub("[▏▎▍▌▋▊▉█]+", "█", re.sub(r"\d[\d.,]*\d|\d", "#", text)).split())


def _find(text: str, said: list[str], start: int) -> tuple[int, int]:
    """Find the first lines with a text's words, and return the first of them and the line below the last."""
    wanted = shape(text)
    for first in (number for number in range(start, len(said)) if said[number]):
        for end in range(first + 1, len(said) + 1):
            found = shape("\n".join(said[first:end]))
            if found == wanted:
                return first, end
            if not wanted.startswith(found):
                break
    raise LookupError(f"the output has other words now than {text!r}")
