"""Tables as plain text, without rich: what measures on a bare machine prints them too."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], sides: str, indent: str = "") -> str:
    """One line per row; columns are as wide as their widest cell and stand two spaces apart.

    Args:
        rows: the heads first; all of one length.
        sides: where the cells of each column stand, "<" for left or ">" for right. The last one counts for all
            columns that follow.
        indent: in front of each line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = sides + sides[-1] * (len(widths) - len(sides))
    return "\n".join(
        indent
        + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True)).rstrip()
        for row in rows
    )
