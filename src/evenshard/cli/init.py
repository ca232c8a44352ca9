"""Command ``init``, which writes example files to start from."""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path

from evenshard.base.errors import BadConfig
from evenshard.base.outputs import atomic_path
from evenshard.cli.arguments import Commands

# Example files and their purposes. Their contents are in templates/, where params.yaml is a symbolic link.
TEMPLATES = {
    "tables.csv": "table file, for `evenshard place`",
    "request.yaml": "whole placement request, for `evenshard place --config`",
    "rules.yaml": "placement rules, for --rules",
    "hosts.yaml": "machine with several hosts, for --hosts",
    "prices.yaml": "machine prices, for `evenshard what-if --price`",
    "costs.csv": "measured times of shards, for `evenshard import-costs` (example times from simulated:h100)",
    "params.yaml": "settings of the training loop on this machine",
}


def _init(args: argparse.Namespace) -> None:
    there = next((name for name in TEMPLATES if (args.folder / name).exists()), None)
    if there is not None:
        raise BadConfig(f"{args.folder / there} already exists. Name another folder.")
    args.folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("evenshard.cli").joinpath("templates")
    for name, what in TEMPLATES.items():
        with atomic_path(args.folder / name) as draft:
            draft.write_bytes(templates.joinpath(name).read_bytes())
        print(f"{args.folder / name}: {what}")


def add_commands(commands: Commands) -> None:
    """Declare init."""
    sub = commands.add(
        "init",
        _init,
        "Write example files: tables, rules, machine, prices, costs and settings.",
        "Change or delete them as you like; each is optional. Nothing is overwritten: exit code 2 if a file exists.",
    )
    sub.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path(),
        metavar="FOLDER",
        help="folder to write to (default: the current folder)",
    )
