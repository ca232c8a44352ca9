"""Names of many tables in a line."""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.utils.messages import printable

MAX_NAMES = 3
"""Tables that a line names."""


def names_text(names: Sequence[str]) -> str:
    """The first three of many names."""
    shown = ", ".join(printable(name) for name in names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown
