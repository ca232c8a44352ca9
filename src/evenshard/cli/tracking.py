"""The command that says where a placement comes from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenshard.cli.arguments import PATH, Commands


def _lineage(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.planner.file import load_answer
    from evenshard.planner.lineage import BROKEN, lineage_of
    from evenshard.utils.console import plain_console
    from evenshard.utils.errors import TrackingFailed

    links = lineage_of(load_answer(args.placement), args.data)
    broken = [link for link in links if link.state == BROKEN]
    if args.json:
        print(json.dumps({"placement": str(args.placement), "links": [asdict(link) for link in links]}, indent=1))
    else:
        console = plain_console(None)
        for link in links:
            console.print(f"{link.state:9}  {link.what:14}  {link.value}", soft_wrap=True)
            if link.note:
                console.print(f"{'':27}{link.note}", soft_wrap=True)
    if broken:
        names = ", ".join(dict.fromkeys(link.what for link in broken))
        raise TrackingFailed(f"{args.placement}: {len(broken)} of {len(links)} links are broken: {names}.")
    return {}


def add_commands(commands: Commands) -> None:
    """Declares lineage."""
    sub = commands.add(
        "lineage",
        _lineage,
        "Say where a placement comes from.",
        "Prints its model, the cost datasets, tables, settings, code, hardware and libraries behind it, and checks "
        "that what is named is still there: the model in its folder or in MLflow, the run, the datasets in --data, "
        "work/ or DVC's cache, the commit in git. Exit code 1 if a link is broken.",
    )
    sub.add_argument("placement", **PATH, help="placement.json of `evenshard place -o`")
    sub.add_argument("--data", **PATH, default=Path("data"), help="folder of cost datasets (default: data)")
    sub.add_argument("--json", action="store_true", help="print JSON")
