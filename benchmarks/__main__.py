"""``python -m benchmarks study mixed --json out.json``, from a checkout."""

from __future__ import annotations

import sys

from benchmarks import command
from evenshard.cli import run_command
from evenshard.cli.arguments import Commands, OneLineParser


def main(argv: list[str] | None = None) -> int:
    """Runs one command of ``python -m benchmarks`` and returns its exit code."""
    parser = OneLineParser(prog="python -m benchmarks", description="Studies that compare all sharders.")
    command.add_commands(Commands(parser))
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
