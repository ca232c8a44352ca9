"""The command line: parse and call, nothing else. One module per family of commands.

Exit codes: 0 done, 1 failed or refused, 2 bad input, 3 a retrain is due; a command that returns a number means one of
these. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenshard.cli import (
    costs,
    decisions,
    init,
    pipeline,
    place,
    placements,
    stages,
    traces,
    what_if,
)
from evenshard.cli.arguments import Commands, OneLineParser
from evenshard.cli.completion import SHELLS, PrintCompletion
from evenshard.cli.help import GroupedCommands
from evenshard.utils.atomic import atomic_path
from evenshard.utils.console import log_to_stderr
from evenshard.utils.errors import BadInput, BadRecords, EvenshardError, InfeasibleTask
from evenshard.utils.extras import named_packages
from evenshard.utils.messages import one_line
from evenshard.version import __version__

# The commands, by heading of the help.
GROUPS = {
    "place": (
        "init",
        "place",
        "what-if",
        "explain",
        "diff",
        "hardware",
    ),
    "the loop: measure and learn": (
        *("generate-tables", "benchmark", "train-cost", "train-policy", "evaluate"),
        *("import-costs", "merge-costs", "describe", "observe", "calibrate-link", "calibrate-device"),
    ),
    "in a team": ("promote", "drift"),
    "on a cluster": ("pipeline",),
}


def _parser() -> OneLineParser:
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
    commands = Commands(parser)
    families = [init, stages, costs, traces, place, what_if, placements]
    families += [pipeline, decisions]
    for module in families:
        module.add_commands(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs one command of ``evenshard`` and returns its exit code."""
    return run_command(_parser(), argv)


def run_command(parser: OneLineParser, argv: list[str] | None = None) -> int:
    """Runs one command of a parser and returns its exit code."""
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
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(metrics, indent=1) + "\n")
