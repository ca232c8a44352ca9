"""Tables as plain text, without rich: what measures on a bare machine prints them too."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

# Characters of a column that wraps.
_LEAST = 30


def text_table(rows: Sequence[Sequence[str]], sides: str, indent: str = "", width: int | None = None) -> str:
    """One line per row; columns are as wide as their widest cell and stand two spaces apart.

    Args:
        rows: the heads first; all of one length.
        sides: where the cells of each column stand, "<" for left or ">" for right. The last one counts for all
            columns that follow.
        indent: in front of each line.
        width: where given, the last column wraps, so that no line is longer.
    """
    if width is not None:
        others = sum(max(map(len, column)) + 2 for column in [*zip(*rows, strict=True)][:-1])
        left = max(width - len(indent) - others, _LEAST)
        rows = [line for row in rows for line in _wrap(row, left)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = sides + sides[-1] * (len(widths) - len(sides))
    return "\n".join(
        indent
        + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True)).rstrip()
        for row in rows
    )


def _wrap(row: Sequence[str], width: int) -> Iterator[Sequence[str]]:
    cells = list(row)
    for text in textwrap.wrap(cells[-1], width) or [""]:
        yield [*cells[:-1], text]
        cells = [""] * len(cells)
