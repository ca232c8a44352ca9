"""The flag of a knob, made from its name, type, default and meaning."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.cli.arguments import A_MODEL, HARDWARE_NAME, LINK_NAME, PATH, number
from evenshard.utils.knobs import Knob
from evenshard.utils.messages import brief

if TYPE_CHECKING:
    from evenshard.planner.rules import Rules

# Flags that are not called after their argument.
FLAGS = {
    "num_devices": "--devices",
    "num_measured": "--measure",
    "pinned": "--pin",
    "forbidden": "--forbid",
    "forbidden_devices": "--forbid-device",
    "pinned_nodes": "--pin-node",
}


def _numbers(text: str) -> Sequence[float]:
    return [number(part, float) for part in text.split(",")]


def _words(text: str) -> Sequence[str]:
    return text.split(",")


def _table_ids(text: str) -> Mapping[str, Sequence[int]]:
    name, ids = _of_table(text, "N[,N]")
    return {name: [int(number(one, int)) for one in ids.split(",")]}


def _table_words(text: str) -> Mapping[str, Sequence[str]]:
    name, words = _of_table(text, "NAME[,NAME]")
    return {name: words.split(",")}


def _table_number(text: str) -> Mapping[str, int]:
    name, value = _of_table(text, "N")
    return {name: int(number(value, int))}


def _lookups(text: str) -> Mapping[str, float | Sequence[float]]:
    name, value = _of_table(text, "X[,X]")
    numbers = _numbers(value)
    return {name: numbers[0] if len(numbers) == 1 else numbers}


def _of_table(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{brief(text)} is not TABLE={form}")
    return name, value


def _columns(text: str) -> Mapping[str, str]:
    parts = text.split(",")
    if not all("=" in part for part in parts):  # a comma of a name
        parts = [text]
    columns = {}
    for part in parts:
        name, equals, ours = part.rpartition("=")
        if not (name and equals):
            raise argparse.ArgumentTypeError(f"{brief(text)} is not THEIRS=OURS")
        columns[name] = ours
    return columns


def _device(text: str) -> Sequence[int]:
    return [int(number(text, int))]


def _group(text: str) -> Sequence[Sequence[str]]:
    return [text.split(",")]


class _Joined(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **values})


REPEATED: Mapping[str, Any] = {"action": "append", "default": []}
# How an argument of a type becomes a flag, where it is not a number.
_KINDS: Mapping[Any, Mapping[str, Any]] = {
    bool: {"action": "store_true"},
    str: {"metavar": "NAME"},
    str | Path: PATH,
    float | Sequence[float]: {"type": _numbers, "metavar": "GB[,GB...]"},
    Mapping[str, int | Sequence[int]]: {"type": _table_ids, "metavar": "TABLE=N[,N]", **REPEATED},
    Mapping[str, float | Sequence[float]]: {"type": _lookups, "metavar": "TABLE=X[,X]", "action": _Joined},
    Mapping[str, str]: {"type": _columns, "metavar": "THEIRS=OURS[,THEIRS=OURS]", "action": _Joined},
    Mapping[str, str | Sequence[str]]: {"type": _table_words, "metavar": "TABLE=NAME[,NAME]", **REPEATED},
    Mapping[str, int]: {"type": _table_number, "metavar": "TABLE=N", **REPEATED},
    Sequence[str]: {"type": _words, "metavar": "NAME[,NAME]"},
    Sequence[int]: {"type": _device, "metavar": "D", **REPEATED},
    Sequence[Sequence[str]]: {"type": _group, "metavar": "TABLE,TABLE", **REPEATED},
}
# Arguments that may name what the command must not overwrite.
MAY_BE_FILES: Mapping[str, Mapping[str, Any]] = {
    "hardware": {"type": HARDWARE_NAME, "metavar": "NAME"},
    "model": {"type": A_MODEL, "metavar": "PATH|URI"},
    "intra": {"type": LINK_NAME, "metavar": "LINK"},
    "inter": {"type": LINK_NAME, "metavar": "LINK"},
}


def add_option(sub: argparse._ActionsContainer, knob: Knob, settings: Mapping[str, Any] | None = None) -> None:
    """Declares the flag of a knob.

    Args:
        settings: how its text is read, where neither its name nor its type says it.
    """
    settings = settings or MAY_BE_FILES.get(knob.name) or _KINDS.get(knob.kind)
    if settings is None:
        settings = {"type": _number_of(knob), "metavar": knob.unit or "N"}
    meaning, default = knob.help.replace("%", "%%"), knob.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        meaning += f" (default: {default if isinstance(default, str) else f'{default:g}'})"
    name = FLAGS.get(knob.name, f"--{knob.name.replace('_', '-')}")
    sub.add_argument(name, dest=knob.name, help=meaning, **{"default": default, **settings})


def rules_of(args: argparse.Namespace, names: Iterable[str], of_file: Rules | None = None) -> Rules:
    """The rules of tables of repeated flags, together with those of a file.

    Args:
        names: of the rules that have a flag.
    """
    from evenshard.planner.rules import Rules

    rules = of_file or Rules()
    for name in names:
        for value in getattr(args, name):
            rules += Rules.of(**{name: value})
    return rules


def _number_of(knob: Knob) -> Callable[[str], float]:
    assert knob.scalar in (int, float), f"{knob.name}: no flag is made of {knob.kind}"

    def parse(text: str) -> float:
        value = number(text, int if knob.scalar is int else float)
        problem = None if knob.range is None else knob.range.problem(value)
        if problem is not None:
            raise argparse.ArgumentTypeError(problem)
        return value

    return parse
