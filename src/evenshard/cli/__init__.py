"""Command-line interface, which parses arguments and calls the library. One module per family of commands.

Exit codes: 0 done, 1 failed or refused, 2 bad input, 3 retraining is due. A command that returns an integer returns its
exit code. Results go to stdout, messages and progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from evenshard.base.console import log_to_stderr
from evenshard.base.errors import BadInput, BadRecords, EvenshardError, InfeasibleTask, MissingPackage
from evenshard.base.installation import name_missing_package, require_package
from evenshard.base.messages import one_line
from evenshard.base.outputs import Output, write_text
from evenshard.cli.arguments import SOURCE, Commands, OneLineParser, Source
from evenshard.version import __version__

STAGE_COMMANDS = "*"  # placeholder in GROUPS for the stages of the loop, which are declared in loop/loop.py
# Commands by group of the help, each with the module that declares it.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "place": {
        "init": "init",
        "place": "place",
        "what-if": "what_if",
        "explain": "placements",
        "diff": "placements",
        "verify": "placements",
        "hardware": "costs",
    },
    "the loop: measure and learn": {
        STAGE_COMMANDS: "stages",
        **dict.fromkeys(("import-costs", "merge-costs", "describe", "observe"), "costs"),
        **dict.fromkeys(("calibrate-link", "calibrate-device"), "costs"),
    },
    "in a team": dict.fromkeys(("promote", "drift"), "decisions"),
    "on a cluster": {"pipeline": "pipeline"},
}


class GroupedCommands(argparse.HelpFormatter):
    """Help formatter that lists commands in groups; ``STAGE_COMMANDS`` in a group means all ungrouped ones."""

    def __init__(self, prog: str, groups: Mapping[str, Collection[str]]) -> None:
        super().__init__(prog)
        self._groups = groups

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        known = {action.dest: action for action in action._choices_actions}  # argparse has no public name for them
        grouped = {name for names in self._groups.values() for name in names}
        others = [name for name in known if name not in grouped]
        blocks = []
        self._indent()
        for heading, names in self._groups.items():
            listed = [command for name in names for command in (others if name == STAGE_COMMANDS else (name,))]
            lines = "".join(super(GroupedCommands, self)._format_action(known[name]) for name in listed)
            blocks.append(f"  {heading}:\n{lines}")
        self._dedent()
        return "\n".join(blocks)


SHELLS = ("bash", "zsh")
_TABLES = "_evenshard_tables"  # bash function that completes a table file or a public set


class PrintCompletion(argparse.Action):
    """Flag that prints the completion script of a shell and ends the command."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Print the script and exit."""
        try:
            print(_completion_script(parser, values))
        except MissingPackage as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        parser.exit()


def _completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return shtab's script that completes commands, flags, choices and files; in bash also names of public sets."""
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


def _parser(command: str = "") -> OneLineParser:
    """Return the parser of all commands; if a command is given, import only its module."""
    parser = OneLineParser(
        prog="evenshard",
        description="Place the embedding tables of a recommender model.",
        epilog="Help for a command: evenshard COMMAND --help. Example: evenshard place mlperf_dlrm_v2 --devices 8",
        formatter_class=lambda prog: GroupedCommands(prog, GROUPS),
    )
    parser.add_argument("--version", action="version", version=f"evenshard {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        action=PrintCompletion,
        help="print the shell script that completes commands, flags and files",
    )
    module_of = {name: module for group in GROUPS.values() for name, module in group.items()}
    # a known command imports only its own module, because importing all of them takes longer than most commands
    modules = [module_of[command]] if command in module_of else dict.fromkeys(module_of.values())
    commands = Commands(parser)
    for module in modules:
        import_module(f"{__name__}.{module}").add_commands(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command of ``evenshard`` and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    return run_command(_parser(*words[:1]), argv)


def run_command(parser: OneLineParser, argv: list[str] | None = None) -> int:
    """Run one command of a parser and return its exit code."""
    args = parser.parse_args(argv)
    log_to_stderr()
    try:
        with nullcontext() if args.command == "verify" else _dismiss_other_ranks(), name_missing_package():
            metrics = args.call(args)
        if isinstance(metrics, int):
            return metrics
        if getattr(args, "metrics", None) is not None:
            write_text(args.metrics, json.dumps(metrics, indent=1) + "\n")
    except (BadInput, InfeasibleTask) as error:
        lines = error.lines if isinstance(error, BadRecords) else (str(error),)
        print(f"{parser.prog} {args.command}: " + "\n  ".join(lines), file=sys.stderr)
        return 2  # bad input, or no placement can exist
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does; all files are saved before
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail again
    except (EvenshardError, OSError) as error:
        print(f"{parser.prog} {args.command} failed: {one_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog} {args.command}: interrupted", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells report it
    return 0


@contextmanager
def _dismiss_other_ranks() -> Iterator[None]:
    """Release the other ranks of torchrun if this rank ends without opening the hardware."""
    try:
        yield
    finally:
        if "WORLD_SIZE" in os.environ:
            from evenshard.measure.distributed import collective

            collective.dismiss()
