"""Completion of commands, flags and files in a shell, as a script made from the parser by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenshard.base.errors import MissingPackage
from evenshard.base.installation import require_package
from evenshard.base.outputs import Output
from evenshard.cli.arguments import SOURCE, Source

SHELLS = ("bash", "zsh")
_TABLES = "_evenshard_tables"


class PrintCompletion(argparse.Action):
    """A flag that prints the script for a shell and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Prints the script and exits."""
        try:
            print(completion_script(parser, values))
        except MissingPackage as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        parser.exit()


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script: commands, flags and their choices; files, and in bash public sets, where a flag names some.

    Args:
        shell: one of ``SHELLS``.

    Raises:
        MissingPackage: shtab is not installed.
    """
    from evenshard.tables.sources import catalog_names

    require_package("shtab")
    import shtab

    for action in _actions(parser):
        if action.dest == "tables" and action.type is SOURCE:
            action.complete = {**shtab.FILE, "bash": _TABLES}  # type: ignore[attr-defined]
        elif action.type is Path or isinstance(action.type, Source | Output):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    files_and_sets = f'{_TABLES}() {{ compgen -f -- "$1"; compgen -W "{" ".join(catalog_names())}" -- "$1"; }}'
    return str(shtab.complete(parser, shell, preamble=files_and_sets if shell == "bash" else ""))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # argparse has no public name for them
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
