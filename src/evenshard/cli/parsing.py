"""What do all commands have in common? How they are declared, and flags that several of them take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from evenshard.messages import one_line


def writable(text: str) -> Path:
    """An argument type: a file or folder to write. What cannot be written is said before the work, not after it."""
    path = Path(text)
    found = path.parent
    while not found.exists() and found != found.parent:
        found = found.parent  # the missing folders are made when there is something to put into them
    if not found.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {found} is no folder")
    if not os.access(found, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written: nothing may be written into {found}")
    return path


PATH: dict[str, Any] = {"type": Path, "metavar": "PATH"}
OUTPUT: dict[str, Any] = {"type": writable, "metavar": "PATH"}


class OneLineParser(argparse.ArgumentParser):
    """Wrong flags get one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """See ``argparse``."""
        self.exit(2, f"{self.prog}: {one_line(message)}. Try {self.prog} --help.\n")


class Commands:
    """Declares the subcommands of a parser."""

    def __init__(self, parser: argparse.ArgumentParser, dest: str = "command") -> None:
        self._subparsers = parser.add_subparsers(dest=dest, metavar="COMMAND", required=True)

    def add(
        self, name: str, call: Callable[[argparse.Namespace], Any] | None, what: str, more: str
    ) -> argparse.ArgumentParser:
        """A command.

        Args:
            call: gets the parsed flags; None for a command that has commands of its own.
            what: its line in the overview.
            more: follows it in the command's own help.
        """
        sub = self._subparsers.add_parser(name, help=what, description=f"{what} {more}")
        sub.set_defaults(call=call)
        return sub


def params_flag(sub: argparse.ArgumentParser) -> None:
    """``--params``: the settings."""
    sub.add_argument("--params", **PATH, default=Path("params.yaml"), help="settings (default: params.yaml)")


def metrics_flag(sub: argparse.ArgumentParser) -> None:
    """``--metrics``: where else the metrics go."""
    sub.add_argument("--metrics", **OUTPUT, help="also write the stage's metrics to this JSON file")


def hardware_flag(sub: argparse.ArgumentParser) -> None:
    """``--hardware``: one word for what measures."""
    sub.add_argument(
        "--hardware",
        help="auto, cpu, cuda, or simulated:<profile> such as simulated:h200 (default: measure.hardware)",
    )


def at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """An argument type: a number of at least ``least``."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' if kind is int else ''}number") from None
        if not value >= least:
            raise argparse.ArgumentTypeError(f"is {text}, below {least}")
        return value

    return parse
