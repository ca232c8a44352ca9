"""Command that writes a user's first files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from evenshard.base.errors import BadConfig
from evenshard.base.outputs import atomic_path
from evenshard.cli.arguments import Commands

# The files and their purposes; their contents are in templates/, where params.yaml is a link to the repository's.
TEMPLATES = {
    "tables.csv": "tables, as `evenshard place` takes them",
    "rules.yaml": "where they may live, for --rules",
    "hosts.yaml": "a machine of several hosts, for --hosts",
    "prices.yaml": "what machines cost, for `evenshard what-if --price`",
    "costs.csv": "times of shards of tables.csv, for `evenshard import-costs`; simulated:h100's until you put in yours",
    "params.yaml": "settings of the loop that measures and learns on this machine",
}


def _init(args: argparse.Namespace) -> Mapping[str, Any]:
    there = next((name for name in TEMPLATES if (args.folder / name).exists()), None)
    if there is not None:
        raise BadConfig(f"{args.folder / there} exists, and nothing is overwritten. Name another folder.")
    args.folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("evenshard.cli").joinpath("templates")
    for name, what in TEMPLATES.items():
        with atomic_path(args.folder / name) as draft:
            draft.write_bytes(templates.joinpath(name).read_bytes())
        print(f"{args.folder / name}: {what}")
    return {}


def add_commands(commands: Commands) -> None:
    """Declare init."""
    sub = commands.add(
        "init",
        _init,
        "Write files to begin with: tables, rules, machine, prices, costs and settings.",
        "All are examples to change, and none is needed by itself. Exit code 2 where one of them exists: nothing is "
        "overwritten.",
    )
    sub.add_argument(
        "folder", type=Path, nargs="?", default=Path(), metavar="FOLDER", help="(default: the current one)"
    )
