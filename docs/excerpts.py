"""Which part of a new output a page shows: the part that it showed of the earlier one, "..." in place of the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

LEFT_OUT = "..."
# Lines of two outputs are the same line where their words are as alike as this.
ALIKE = 0.5
NUMBER = re.compile(r"\d[\d.,]*\d|\d")


def excerpt(shown: list[str], said: list[str]) -> list[str]:
    """The lines of an output that stand where those of an earlier output stood that are shown.

    Args:
        shown: lines of the earlier output; a line "..." stands for lines that are left out.
        said: all lines of the new output.

    Raises:
        LookupError: the new output has no line like the first of a piece, or none like its last.
    """
    lines: list[str] = []
    start = 0
    pieces = list(_pieces(shown))
    for number, piece in enumerate(pieces):
        if number:
            lines.append(LEFT_OUT)
        if not any(piece):  # "..." is the first line, or the last
            continue
        first = 0 if number == 0 else _first(piece, said, start)
        start = len(said) if number == len(pieces) - 1 else _last(piece, said, first) + 1
        before, after = _empty_ends(piece)
        now = said[first:start]
        skipped, left = _empty_ends(now)
        lines += [*piece[:before], *now[skipped : len(now) - left], *piece[len(piece) - after :]]
    return lines


def shape(text: str) -> str:
    """A text without what a change of times alone changes: its numbers, bars and blanks."""
    return " ".join(re.sub("[▏▎▍▌▋▊▉█]+", "█", NUMBER.sub("#", text)).split())


def _pieces(shown: list[str]) -> Iterator[list[str]]:
    begin = 0
    for end in [*(number for number, line in enumerate(shown) if line == LEFT_OUT), len(shown)]:
        yield shown[begin:end]
        begin = end + 1


def _empty_ends(lines: list[str]) -> tuple[int, int]:
    """How many lines are empty before the first with words, and after the last."""
    filled = [number for number, line in enumerate(lines) if line]
    return (filled[0], len(lines) - 1 - filled[-1]) if filled else (0, 0)


def _first(piece: list[str], said: list[str], start: int) -> int:
    """The line most like the first of the piece; of equal ones the earliest."""
    wanted = next(filter(None, piece))
    best = max(range(start, len(said)), key=lambda number: (_likeness(wanted, said[number]), -number), default=None)
    if best is None or _likeness(wanted, said[best]) < ALIKE:
        raise LookupError(f"no line of what is printed now is like {wanted!r}")
    return best


def _last(piece: list[str], said: list[str], first: int) -> int:
    """The line that ends as the piece does, nearest to where it would end with as many lines as before."""
    before, after = _empty_ends(piece)
    wanted = piece[len(piece) - 1 - after]
    expected = first + len(piece) - 1 - before - after
    words = shape(" ".join(piece)).split()[-3:]
    ends = [
        number for number in range(first, len(said)) if shape(" ".join(said[first : number + 1])).split()[-3:] == words
    ] or [number for number in range(first, len(said)) if said[number] and _likeness(wanted, said[number]) >= ALIKE]
    if not ends:
        raise LookupError(f"no line of what is printed now is like {wanted!r}")
    return min(ends, key=lambda number: abs(number - expected))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, shape(one).split(), shape(other).split(), autojunk=False).ratio()
