"""Commands and their flags; the flag of a setting is built from its name, type, default and description."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NoReturn, get_args, get_origin

from evenshard.base.documents import load_params
from evenshard.base.knobs import REQUIRED, Knob, knobs_of
from evenshard.base.messages import brief, did_you_mean, one_line
from evenshard.base.outputs import MODEL_PARTS, File, FileOrStdout, Output, check_distinct, check_writable
from evenshard.price.hardware import names_in

if TYPE_CHECKING:
    from evenshard.planner.rules import Rules


class Source:
    """Argument type of an input: a path, an address such as s3://bucket/key, or a name such as cpu.

    Args:
        parts: names of the files that are read if the input is a folder; all if empty.
        files: function that returns the files among the names in a value.
    """

    def __init__(self, *parts: str, files: Callable[[Any], Iterable[str]] = lambda value: (value,)) -> None:
        self._parts, self._files = parts, files

    def __call__(self, text: str) -> Any:
        """Return the argument unchanged."""
        return text

    def paths(self, value: Any) -> tuple[Path, ...]:
        """Return the local files or folders to which the value may refer."""
        paths = [Path(file) for file in self._files(value)]
        return tuple(path / part for path in paths for part in (self._parts if os.path.isdir(path) else ()) or ("",))


PATH: dict[str, Any] = {"type": Path, "metavar": "PATH"}  # argparse's settings of a flag for a local input
SOURCE, A_MODEL = Source(), Source(*MODEL_PARTS)
HARDWARE_NAME = Source(files=lambda value: [name.device for name in names_in(value) if name.device])
LINK_NAME = Source(files=lambda value: [value] if str(value).endswith((".yaml", ".yml")) else [])


def output_flag(kind: Output) -> dict[str, Any]:
    """Return argparse's settings of a flag for an output."""
    return {"type": kind, "metavar": "PATH"}


OUTPUT, OUTPUT_OR_STDOUT = output_flag(File()), output_flag(FileOrStdout())


def require_writable(actions: Iterable[argparse.Action], args: argparse.Namespace) -> None:
    """Raise BadInput if an output cannot be written, or would overwrite an input or another output."""
    outputs: dict[str, tuple[Path, ...]] = {}
    inputs: dict[str, tuple[Path, ...]] = {}
    for action in actions:
        value = getattr(args, action.dest, None)
        name = "/".join(action.option_strings) or action.dest.upper()
        values = value if isinstance(value, list | tuple) else [value] if value is not None else []
        if isinstance(action.type, Output):
            for path in values:
                check_writable(action.type, path)
                action.type.require(path)
                outputs[name] = action.type.paths(path)
        elif action.type is Path:
            inputs[name] = tuple(values)
        elif isinstance(action.type, Source):
            inputs[name] = tuple(path for value in values for path in action.type.paths(value))
    check_distinct(outputs, inputs)


COMMAND = "COMMAND"  # placeholder for a command in a parser's help and messages
# argparse's message for a word that is not one of the choices
_CHOICE = re.compile(r"argument (?P<name>\S+): invalid choice: (?P<given>.*) \(choose from (?P<known>.*)\)", re.DOTALL)


class OneLineParser(argparse.ArgumentParser):
    """Parser that reports a wrong flag in one line with the command's name, and exits with code 2."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reject unknown words in this command's parser, not in the parser of all commands."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(_unknown_words(rest, self._option_string_actions))
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Print the error as one line and exit; see ``argparse``."""
        text = one_line(_rephrase(message))  # argparse prints the usage, too, and several lines
        self.exit(2, f"{self.prog}: {text}{'' if text.endswith(('.', '?')) else '.'} Try {self.prog} --help.\n")


def _unknown_words(words: Sequence[str], flags: Iterable[str]) -> str:
    """Describe the words that a parser with these flags rejects: the first unknown flag, else all words."""
    flag = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    if flag is None:
        return f"unexpected {', '.join(map(brief, words))}"
    return f"unknown flag {brief(flag)}.{did_you_mean(flag, flags)}"


def _rephrase(message: str) -> str:
    """Rewrite a message of argparse in our style, and suggest the choice closest to a mistyped word."""
    found = _CHOICE.fullmatch(message)
    if found is None:
        return re.sub(r"^argument (\S+): is ", r"\1 is ", message)
    known = [word.strip().strip("'\"") for word in found["known"].split(",")]
    given = found["given"].strip("'\"")
    meant = did_you_mean(given, known)
    if found["name"] == COMMAND:
        return f"unknown command {brief(given)}.{meant}"
    return f"{found['name']} is {brief(given)}. Choose from {', '.join(known)}.{meant}"


class Commands:
    """Subcommands of a parser."""

    def __init__(self, parser: argparse.ArgumentParser, dest: str = "command") -> None:
        self._subparsers = parser.add_subparsers(title="commands", dest=dest, metavar=COMMAND, required=True)

    def add(
        self, name: str, call: Callable[[argparse.Namespace], Any] | None, what: str, more: str
    ) -> argparse.ArgumentParser:
        """Declare a command.

        Args:
            call: function of the parsed flags; None for a command with subcommands.
            what: line in the overview of commands.
            more: details for the help of this command.
        """
        sub = self._subparsers.add_parser(name, help=what, description=f"{what} {more}")

        def check_and_call(args: argparse.Namespace) -> Any:
            require_writable(sub._actions, args)  # argparse has no public name for them
            return None if call is None else call(args)

        if call is not None:
            sub.set_defaults(call=check_and_call)
        return sub


PARAMS = Path("params.yaml")  # default of --params; may be missing for commands that need no settings


def add_params_flag(sub: argparse.ArgumentParser) -> None:
    """Declare ``--params``."""
    sub.add_argument("--params", **PATH, default=PARAMS, help=f"settings file (default: {PARAMS})")


def load_params_file(args: argparse.Namespace) -> dict[str, Any]:
    """Load the sections of ``--params``; an empty mapping if the file is missing."""
    return load_params(args.params) if args.params.exists() else {}


def at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Return an argument type of numbers that are at least ``least``."""

    def parse(text: str) -> float:
        value = number(text, kind)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"is {text}, below {least}")
        return value

    return parse


def number(text: str, kind: type[int] | type[float]) -> float:
    """Parse a number of a flag; raise ArgumentTypeError for other text."""
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{brief(text)} is not a {'whole ' if kind is int else ''}number") from None


def add_tables(sub: argparse._ActionsContainer, help: str, required: bool) -> None:
    """Declare the argument TABLES, and ``--sizes`` in its place; ``tables_of`` returns the given one."""
    group = sub.add_mutually_exclusive_group(required=required)
    group.add_argument("tables", type=SOURCE, metavar="TABLES", nargs="?", help=help)
    group.add_argument("--sizes", metavar="N-N|N,N", help="rows of each table, such as 45833188-36746; needs --dim")


def tables_of(args: argparse.Namespace) -> str | None:
    """Return the source of tables in the flags of ``add_tables``."""
    source: str | None = args.tables if args.sizes is None else args.sizes
    return source


# Flags of declared settings ------------------------------------------------------------------------------------------


def _read(text: str, kind: Any, form: str) -> Any:
    """Parse a flag's text by the setting's type; errors describe the expected text as ``form``, such as TABLE=N."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Mapping:
        name, equals, value = text.rpartition("=")  # the name of a table may contain "="
        if not (name and equals):
            raise argparse.ArgumentTypeError(f"{brief(text)} is not {form}")
        return {name: _read(value, parts[1], form)}
    if origin is UnionType:  # int | Sequence[int]: one value, or one value per device
        several = _read(text, parts[1], form)
        return several[0] if len(several) == 1 else several
    if origin is Sequence:
        several = text.split(",") if get_origin(parts[0]) is None else [text]
        return [_read(value, parts[0], form) for value in several]
    return text if kind is str else number(text, kind)


def _read_columns(text: str) -> Mapping[str, str]:
    parts = text.split(",")
    if not all("=" in part for part in parts):  # a column name contains a comma
        parts = [text]
    read = (_read(part, Mapping[str, str], "THEIRS=OURS") for part in parts)
    return {name: ours for columns in read for name, ours in columns.items()}


class _Joined(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest, None) or {}), **values})


REPEATED: Mapping[str, Any] = {"action": "append", "default": []}  # a flag that can be given several times
# Flag declarations by argument type, except for numbers.
_KINDS: Mapping[Any, Mapping[str, Any]] = {
    bool: {"action": "store_true"},
    str: {"metavar": "NAME"},
    Path: PATH,
    str | Path: PATH,
    tuple[Path, ...]: PATH,
    float | Sequence[float]: {"metavar": "GB[,GB...]"},
    Mapping[str, int | Sequence[int]]: {"metavar": "TABLE=N[,N]", **REPEATED},
    Mapping[str, float | Sequence[float]]: {"metavar": "TABLE=X[,X]", "action": _Joined},
    Mapping[str, str]: {"type": _read_columns, "metavar": "THEIRS=OURS[,THEIRS=OURS]", "action": _Joined},
    Mapping[str, str | Sequence[str]]: {"metavar": "TABLE=NAME[,NAME]", **REPEATED},
    Mapping[str, int]: {"metavar": "TABLE=N", **REPEATED},
    Sequence[str]: {"metavar": "NAME[,NAME]"},
    Sequence[int]: {"metavar": "D", **REPEATED},
    Sequence[Sequence[str]]: {"metavar": "TABLE,TABLE", **REPEATED},
}
# Settings of flags by name whose value can be a file, which outputs must not overwrite.
MAY_BE_FILES: Mapping[str, Mapping[str, Any]] = {
    "dense": PATH,
    "hardware": {"type": HARDWARE_NAME, "metavar": "NAME"},
    "candidate": {"type": A_MODEL, "metavar": "URI|PATH"},
    "source": {"type": SOURCE, "metavar": "SOURCE"},
    "model": {"type": A_MODEL, "metavar": "PATH|URI"},
    "intra": {"type": LINK_NAME, "metavar": "LINK"},
    "inter": {"type": LINK_NAME, "metavar": "LINK"},
}


def add_flags(
    sub: argparse._ActionsContainer, knobs: type | Iterable[Knob], of_section: str = "", **settings: Any
) -> None:
    """Declare flags for knobs, or a dataclass of knobs; for a section of params.yaml, only those with ``flag`` set.

    ``settings`` are further arguments of ``add_argument``.
    """
    for knob in _flagged(knobs, of_section):
        add_flag(sub, knob, {**_settings_of(knob), **settings}, of_section)


def add_flag(
    sub: argparse._ActionsContainer, knob: Knob, settings: Mapping[str, Any] | None = None, of_section: str = ""
) -> None:
    """Declare the flag of a knob.

    Args:
        settings: arguments of ``add_argument``; by default, those that the knob's type determines.
        of_section: section of params.yaml that the flag overrides, if any.
    """
    how = dict(settings or _settings_of(knob))
    is_several = str(knob.kind).startswith("tuple")  # tuple[Path, ...]: several values after one flag
    meaning, default = knob.help.replace("%", "%%"), knob.default
    if set_by := of_section or knob.section:
        meaning = f"{meaning.partition(' (default: ')[0]} (default: {set_by}.{knob.name} of the settings)"
        default = None  # params.yaml sets the value if the flag is not given
    elif isinstance(default, str | int | float | Path) and not isinstance(default, bool) and default != "":
        meaning += f" (default: {default:g})" if isinstance(default, int | float) else f" (default: {default})"
    if is_several:
        how["nargs"] = "+"
    if knob.flag_name.startswith("-"):
        required = {"required": True} if default is REQUIRED else {"default": default}
        sub.add_argument(*filter(None, (knob.flag_name, knob.alias)), help=meaning, **{**required, **how})
    else:
        sub.add_argument(_attribute(knob), help=meaning, **{**how, "metavar": knob.flag_name})


def flag_values(args: argparse.Namespace, knobs: type | Iterable[Knob], of_section: str = "") -> dict[str, Any]:
    """Map the name of each setting to the value of its flag; None keeps the value of params.yaml.

    Omit flags that were declared without a default and are not given.
    """
    flags = {knob.name: _attribute(knob) for knob in _flagged(knobs, of_section)}
    values = {name: getattr(args, flag) for name, flag in flags.items() if hasattr(args, flag)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def join_rules(values: Mapping[str, Any], *of_files: Rules) -> dict[str, Any]:
    """Merge the placement rules of repeated flags with each other and with the rules of files."""
    from evenshard.planner.rules import RULES, Rules

    rules = sum(of_files, Rules())
    for name in RULES:
        for value in values.get(name) or ():
            rules += Rules.of(**{name: value})
    return {**values, **{name: getattr(rules, name) for name in RULES if name in values or getattr(rules, name)}}


def _flagged(knobs: type | Iterable[Knob], of_section: str) -> list[Knob]:
    every = knobs_of(knobs) if isinstance(knobs, type) else knobs
    return [knob for knob in every if knob.flag is not None and (knob.flag or not of_section)]


def _attribute(knob: Knob) -> str:
    return knob.flag_name.lstrip("-").replace("-", "_").lower()  # as argparse names it


def _settings_of(knob: Knob) -> Mapping[str, Any]:
    if knob.output is not None:
        return output_flag(knob.output)
    if knob.choices:
        return {"choices": knob.choices}
    found = dict(MAY_BE_FILES.get(knob.name) or _KINDS.get(knob.kind) or {"metavar": knob.unit or "N"})
    if knob.kind in (int, float):
        found["type"] = _number_of(knob)
    elif get_origin(knob.kind) in (Mapping, Sequence, UnionType):
        found.setdefault("type", partial(_read, kind=knob.kind, form=found["metavar"]))
    return {**found, "metavar": knob.metavar} if knob.metavar else found


def _number_of(knob: Knob) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = number(text, int if knob.scalar is int else float)
        problem = None if knob.range is None else knob.range.problem(value)
        if problem is not None:
            raise argparse.ArgumentTypeError(problem)
        return value

    return parse
