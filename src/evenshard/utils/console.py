"""Output for a terminal or a pipe, printed literally: no markup in names, no colours in numbers."""

from __future__ import annotations

from typing import IO

from rich.console import Console


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would leave with exit code 1; what that means is for the command to say."""
        raise BrokenPipeError


def plain_console(file: IO[str] | None) -> Console:
    """A console on ``file``; None: on stdout."""
    return _Console(file=file, highlight=False, markup=False, emoji=False)
