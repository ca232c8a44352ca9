"""Command ``what-if``, which compares machines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evenshard.api import what_if
from evenshard.base.console import progress
from evenshard.base.knobs import knobs_of
from evenshard.cli import arguments as cli
from evenshard.planner.knobs import WhatIf, shared_knobs


class PerHardware(cli.Source):
    """Argument type of one value for all hardware, or one value for each, such as h100=12,a100=25."""

    def __init__(self, kind: Callable[[str], Any]) -> None:
        self._kind = kind
        super().__init__()

    def __call__(self, text: str) -> Any:
        """Parse the text, as argparse's type."""
        if "=" not in text:
            return self._kind(text)
        found = {}
        for part in text.split(","):
            name, equals, value = part.rpartition("=")  # a path in the name may contain "="
            if not (name and equals) or name in found:
                raise argparse.ArgumentTypeError(f"{text!r} is neither one value nor NAME=VALUE,NAME=VALUE")
            found[name] = self._kind(value)
        return found

    def paths(self, value: Any) -> tuple[Path, ...]:
        """Return the values that can be files: links and models."""
        named = value.values() if isinstance(value, Mapping) else (value,)
        return tuple(Path(value) for value in named if isinstance(value, str) and value)


def _numbers(text: str) -> Sequence[int]:
    return [int(cli.number(part, int)) for part in text.split(",")]


_FLOAT, _INT, _NAME = (
    PerHardware(kind) for kind in (partial(cli.number, kind=float), partial(cli.number, kind=int), str)
)
# Settings of flags whose argument type does not determine a parser.
FLAG_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "hardware": {"type": lambda text: text.split(","), "metavar": "NAME[,NAME]"},
    "devices": {"type": _numbers, "metavar": "N[,N]"},
    "price": cli.PATH,
    "dense_ms": {"type": _FLOAT, "metavar": "MS|NAME=MS,..."},
    "devices_per_node": {"type": _INT, "metavar": "N|NAME=N,..."},
    "nodes_per_domain": {"type": _INT, "metavar": "N|NAME=N,..."},
    "intra": {"type": _NAME, "metavar": "LINK|NAME=LINK,..."},
    "inter": {"type": _NAME, "metavar": "LINK|NAME=LINK,..."},
    "model": {"type": _NAME, "metavar": "PATH|NAME=PATH,..."},
    "group_sizes": {"type": lambda text: text if text == "all" else _numbers(text), "metavar": "N[,N]|all"},
}


def _what_if(args: argparse.Namespace) -> None:
    from evenshard.planner.what_if.answer import save_what_if
    from evenshard.report.what_if import print_what_if

    given = {**cli.flag_values(args, WhatIf), **cli.join_rules(cli.flag_values(args, shared_knobs()))}
    found = what_if(cli.tables_of(args), **given, progress=partial(progress, description="machines"))
    if args.out is not None:
        save_what_if(found, args.out)
    if args.json:
        print(json.dumps(found.record(), indent=1, allow_nan=False))
    else:
        print_what_if(found)


def add_commands(commands: cli.Commands) -> None:
    """Declare what-if."""
    sub = commands.add(
        "what-if",
        _what_if,
        "Compare machines by time, memory and cost for the same tables.",
        "Tries all combinations of hardware, number of devices, memory and 2D-parallel group size. Exit code 0: done, "
        "even if the tables do not fit on some machines, whose lines show the missing memory; 2: bad input.",
    )
    add = sub.add_argument
    cli.add_tables(sub, "table file, public set or traffic, as for `evenshard place`", required=True)
    add("-o", "--out", **cli.OUTPUT, help="JSON file to write")
    add("--json", action="store_true", help="print JSON instead of the table")
    for knob in knobs_of(WhatIf):
        cli.add_flag(sub, knob, FLAG_SETTINGS.get(knob.name))
    arguments = sub.add_argument_group("arguments of evenshard.place, the same for every machine")
    cli.add_flags(arguments, shared_knobs())
