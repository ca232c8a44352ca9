"""What all commands share: how they are declared, and the flags of several of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from evenshard.cli.help import COMMAND, clearer, unknown_words
from evenshard.measure.hardware import CHOICES, names_in
from evenshard.utils.messages import brief, one_line
from evenshard.utils.outputs import MODEL_PARTS, File, FileOrStdout, Output, require_apart, require_place


class Source:
    """An argument type: what a command reads, where that need not be a path: s3://bucket/key, models:/name/1, cpu.

    Args:
        parts: parts of a folder that are read; none for all of it.
    """

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __call__(self, text: str) -> Any:
        """Called by argparse."""
        return text

    def paths(self, value: Any) -> tuple[Path, ...]:
        """The files or folders of this machine that the value may be."""
        path = Path(value)
        return tuple(path / part for part in self._parts) if self._parts and os.path.isdir(path) else (path,)


class HardwareSource(Source):
    """An argument type: hardware, which may name the file of its profile."""

    def paths(self, value: Any) -> tuple[Path, ...]:
        """The file of the profile, if it is one."""
        return tuple(Path(name.device) for name in names_in(value) if name.device)


class LinkSource(Source):
    """An argument type: a link, which may be the file of its profile."""

    def paths(self, value: Any) -> tuple[Path, ...]:
        """The file of the profile, if it is one."""
        return (Path(value),) if str(value).endswith((".yaml", ".yml")) else ()


PATH: dict[str, Any] = {"type": Path, "metavar": "PATH"}
SOURCE, A_MODEL, HARDWARE_NAME, LINK_NAME = Source(), Source(*MODEL_PARTS), HardwareSource(), LinkSource()


def output_flag(kind: Output) -> dict[str, Any]:
    """How a flag is declared that names what the command writes."""
    return {"type": kind, "metavar": "PATH"}


OUTPUT, OUTPUT_OR_STDOUT = output_flag(File()), output_flag(FileOrStdout())


def require_writable(actions: Iterable[argparse.Action], args: argparse.Namespace) -> None:
    """Says before the work, not after it, what cannot be written, and what would be lost.

    Args:
        actions: the flags of the command. Their types say what is read and what is written.

    Raises:
        BadInput: see ``evenshard.utils.outputs``.
    """
    outputs: dict[str, tuple[Path, ...]] = {}
    inputs: dict[str, tuple[Path, ...]] = {}
    for action in actions:
        value = getattr(args, action.dest, None)
        name = "/".join(action.option_strings) or action.dest.upper()
        values = value if isinstance(value, list) else [value] if value is not None else []
        if isinstance(action.type, Output):
            for path in values:
                require_place(action.type, path)
                action.type.require(path)
                outputs[name] = action.type.paths(path)
        elif action.type is Path:
            inputs[name] = tuple(values)
        elif isinstance(action.type, Source):
            inputs[name] = tuple(path for value in values for path in action.type.paths(value))
    require_apart(outputs, inputs)


class OneLineParser(argparse.ArgumentParser):
    """Wrong flags get one line and exit code 2, and are named by the command that they were given to."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """See ``argparse``; words that are left over are wrong here, not in the parser of all commands."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(unknown_words(rest, self._option_string_actions))
        return found, rest

    def error(self, message: str) -> NoReturn:
        """See ``argparse``."""
        text = one_line(clearer(message))
        self.exit(2, f"{self.prog}: {text}{'' if text.endswith(('.', '?')) else '.'} Try {self.prog} --help.\n")


def _check_and_call(
    call: Callable[[argparse.Namespace], Any], actions: Iterable[argparse.Action], args: argparse.Namespace
) -> Any:
    require_writable(actions, args)
    return call(args)


class Commands:
    """Declares the subcommands of a parser."""

    def __init__(self, parser: argparse.ArgumentParser, dest: str = "command") -> None:
        self._subparsers = parser.add_subparsers(title="commands", dest=dest, metavar=COMMAND, required=True)

    def add(
        self, name: str, call: Callable[[argparse.Namespace], Any] | None, what: str, more: str
    ) -> argparse.ArgumentParser:
        """A command.

        Args:
            call: gets the parsed flags; None for a command that has commands of its own.
            what: its line in the overview.
            more: follows it in the command's own help.
        """
        sub = self._subparsers.add_parser(name, help=what, description=f"{what} {more}")

        if call is not None:
            sub.set_defaults(call=partial(_check_and_call, call, sub._actions))  # argparse has no public name for them
        return sub


PARAMS = Path("params.yaml")


def params_flag(sub: argparse.ArgumentParser) -> None:
    """``--params``: the settings."""
    sub.add_argument("--params", **PATH, default=PARAMS, help=f"settings (default: {PARAMS})")


def metrics_flag(sub: argparse.ArgumentParser) -> None:
    """``--metrics``: where else the metrics go."""
    sub.add_argument("--metrics", **OUTPUT, help="also write the stage's metrics to this JSON file")


def hardware_flag(sub: argparse.ArgumentParser) -> None:
    """``--hardware``: the hardware to measure on."""
    sub.add_argument(
        "--hardware",
        type=HARDWARE_NAME,
        help=f"hardware to measure on: {CHOICES} (default: measure.hardware)",
    )
    sub.add_argument(
        "--expect-transport",
        metavar="NAME",
        help="refuse exchanges between GPUs over another network than this one of NCCL's: ib (RoCE, too), socket or a "
        "plugin's name (default: measure.expect_transport, else any)",
    )


def measure_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """What ``hardware_flag`` read, by the names of ``MeasureConfig``; None where params.yaml decides."""
    return {"hardware": args.hardware, "expect_transport": args.expect_transport}


def at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """An argument type: a number of at least ``least``."""

    def parse(text: str) -> float:
        value = number(text, kind)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"is {text}, below {least}")
        return value

    return parse


def number(text: str, kind: type[int] | type[float]) -> float:
    """A flag's number.

    Raises:
        argparse.ArgumentTypeError: if it is not one.
    """
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{brief(text)} is not a {'whole ' if kind is int else ''}number") from None
