"""The command line, which parses and calls. One module per family of commands.

Exit codes: 0 done, 1 failed or refused, 2 bad input, 3 a retrain is due; a command that returns a number means one of
these. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from evenshard.base.console import log_to_stderr
from evenshard.base.errors import BadInput, BadRecords, EvenshardError, InfeasibleTask
from evenshard.base.installation import named_packages
from evenshard.base.messages import one_line
from evenshard.base.outputs import write_text
from evenshard.cli.arguments import Commands, OneLineParser
from evenshard.cli.completion import SHELLS, PrintCompletion
from evenshard.cli.help import OTHERS, GroupedCommands
from evenshard.version import __version__

# The commands by heading of the help, each with the module that declares it.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "place": {
        "init": "init",
        "place": "place",
        "what-if": "what_if",
        "explain": "placements",
        "diff": "placements",
        "hardware": "costs",
    },
    "the loop: measure and learn": {
        OTHERS: "stages",
        **dict.fromkeys(("import-costs", "merge-costs", "describe", "observe"), "costs"),
        **dict.fromkeys(("calibrate-link", "calibrate-device"), "costs"),
    },
    "in a team": dict.fromkeys(("promote", "drift"), "decisions"),
    "on a cluster": {"pipeline": "pipeline"},
}


def _parser(command: str = "") -> OneLineParser:
    """The parser of all commands; if a command is named, only its module is imported."""
    parser = OneLineParser(
        prog="evenshard",
        description="Learns where to put a recommender model's embedding tables.",
        epilog="Details: evenshard COMMAND --help. A first command: evenshard place mlperf_dlrm_v2 --devices 8",
        formatter_class=lambda prog: GroupedCommands(prog, GROUPS),
    )
    parser.add_argument("--version", action="version", version=f"evenshard {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        action=PrintCompletion,
        help="print the script that completes commands, flags and files in a shell",
    )
    module_of = {name: module for group in GROUPS.values() for name, module in group.items()}
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
        with _others_dismissed(), named_packages():
            metrics = args.call(args)
        if isinstance(metrics, int):
            return metrics
        if getattr(args, "metrics", None) is not None:
            _write_metrics(metrics, args.metrics)
    except (BadInput, InfeasibleTask) as error:
        lines = error.lines if isinstance(error, BadRecords) else (str(error),)
        print(f"{parser.prog} {args.command}: " + "\n  ".join(lines), file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads has seen enough, as `| head` does; what is to be saved was saved before
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (EvenshardError, OSError) as error:
        print(f"{parser.prog} {args.command} failed: {one_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog} {args.command}: interrupted", file=sys.stderr)
        return 130
    return 0


@contextmanager
def _others_dismissed() -> Iterator[None]:
    """Under torchrun, the other processes wait for this one to open the hardware; it may end without."""
    try:
        yield
    finally:
        if "WORLD_SIZE" in os.environ:
            from evenshard.measure.distributed import collective

            collective.dismiss()


def _write_metrics(metrics: Mapping[str, Any], path: Path) -> None:
    write_text(path, json.dumps(metrics, indent=1) + "\n")
