"""Declarations of settings (knobs): fields of dataclasses with a default, meaning, range and command-line flag.

::

    @dataclass(frozen=True)
    class Memory:
        host_memory_gb: float | None = knob(None, "GB of each host's memory that tables may take")

Flags, keyword arguments, keys of files, component parameters, schemas and docs are generated from the knobs.

The ranges apply to all inputs: files, flags, params.yaml, Python and pipelines. They are far wider than realistic
values, but keep sums of bytes below 2**63, and reject typos that would start a search of many hours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import reduce
from numbers import Integral, Real
from operator import or_
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.base.outputs import Output

MAX_TABLES = 100_000  # in a file; a longer file is rejected before its values are checked
MAX_TABLE_BYTES = 2**50  # of the weights of a table, 1 PiB; also the limit of its rows
# Most bytes of all tables with their optimizer state, and of all devices; NumPy's integers end at 2**63.
MAX_TOTAL_BYTES = 2**62
MAX_VALUES = 4_000_000  # most values in a Parquet file of tables, which is loaded into memory as a whole


@dataclass(frozen=True)
class Range:
    """Range of a number from ``least`` to ``most``; ``above`` excludes ``least``, ``whole`` allows only integers."""

    least: float
    most: float
    whole: bool = False
    above: bool = False

    def problem(self, value: Any) -> str | None:
        """Describe an invalid value, such as "is -1, not a whole number from 1 to 4,096"; None if it is valid."""
        right_kind = isinstance(value, Integral if self.whole else Real) and not isinstance(value, bool)
        if right_kind and self.least <= value <= self.most and not (self.above and value == self.least):
            return None
        limits = f"{'above' if self.above else 'from'} {self.least:,} {'and at most' if self.above else 'to'}"
        return f"is {brief(value)}, not a {'whole ' * self.whole}number {limits} {self.most:,}"


# Counts fit into a signed 32-bit integer.
COUNT, COUNT_OR_NONE = Range(1, 2**31 - 1, whole=True), Range(0, 2**31 - 1, whole=True)
SHARE, POSITIVE, NOT_NEGATIVE = Range(0, 1), Range(0, 1_000_000_000, above=True), Range(0, 1_000_000_000)
# Ranges by the name of the setting; 2**20 GB = 1 PiB.
RANGES: Mapping[str, Range] = {
    **dict.fromkeys(("num_devices", "nodes", "devices_per_node", "nodes_per_domain"), Range(1, 4_096, whole=True)),
    **dict.fromkeys(("batch_size", "batch_per_device", "dense_batch", "sync_every"), COUNT),
    "dense_ms": NOT_NEGATIVE,
    "overlap": SHARE,
    "max_step_ms": POSITIVE,
    "memory_cap_gb": Range(0, 2**20, above=True),
    **dict.fromkeys(("reserved_gb", "dense_gb", "host_memory_gb", "ssd_gb"), Range(0, 2**20)),
    **dict.fromkeys(("host_bandwidth_gb_s", "ssd_bandwidth_gb_s"), Range(0, 1_000_000, above=True)),
    "seed": COUNT_OR_NONE,
    "num_rows": Range(1, MAX_TABLE_BYTES, whole=True),
    "embedding_dim": Range(1, 2**16, whole=True),
    **dict.fromkeys(("pooling_factor", "default_pooling_factor"), Range(0, 1_000_000)),
}
# Units by the suffix of a setting's name.
UNITS = {"_gb": "GB", "_gb_s": "GB/s", "_ms": "ms", "_pct": "%"}
REQUIRED: Any = MISSING
Part = TypeVar("Part")


def knob(default: Any, help: str, **how: Any) -> Any:
    """Declare a field of a dataclass as a setting.

    Args:
        default: default value; ``REQUIRED`` if the user must give one.
        help: meaning, one line without markup.
        how: values of other fields of ``Knob``.
    """
    declared = Knob("", Any, default, help, **how)
    metadata = {"description": help, "range": declared.range, "knob": declared}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def group(kind: type, heading: str) -> Any:
    """Declare a field of a dataclass as a group of knobs: the dataclass ``kind``, with a heading for help texts."""
    return field(default_factory=kind, metadata={"kind": kind, "heading": heading})


@dataclass(frozen=True)
class Knob:
    """Declaration of a setting, made by ``knob``."""

    name: str
    type: Any  # type of the field; a string if its module does not import the type
    default: Any
    help: str
    torchrec: str = ""  # TorchRec's name, such as ``Topology.hbm_cap``, possibly in another unit
    range: Range | None = None  # allowed values of a number; by default, those of ``RANGES``
    # flag on the command line; "" derives it from the field's name, None means no flag. Without dashes it is a
    # positional argument.
    flag: str | None = ""
    alias: str = ""  # second name of the flag
    metavar: str = ""
    choices: tuple[str, ...] = ()
    section: str = ""  # section of params.yaml that has its default, under the same name
    parameter: str = ""  # parameter of the pipeline component; "" for none
    output: Output | None = None  # rule for what an output path may replace
    use: Any = None  # role of a path in a stage; see ``evenshard.loop.stage``
    module: str = __name__

    @property
    def kind(self) -> Any:
        """Return the type of the setting, without ``None``."""
        return reduce(or_, (kind for kind in _kinds(self.type) if kind is not NoneType))

    @property
    def unit(self) -> str:
        """Return the unit of the setting, such as GB; "" if it has none."""
        return next((unit for ending, unit in UNITS.items() if self.name.endswith(ending)), "")

    @property
    def scalar(self) -> type | None:
        """Return the scalar type: bool, int, float or str; None if the setting is not a scalar."""
        return next((kind for kind in (bool, int, float, str) if kind in _kinds(self.kind)), None)

    @property
    def flag_name(self) -> str:
        """Return the flag, or the name of a positional argument."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    def is_default(self, value: Any) -> bool:
        """Return True if a value means the same as the default."""
        if isinstance(self.default, tuple) and isinstance(value, list):
            value = tuple(value)
        return value is self.default or (type(value) is type(self.default) and bool(value == self.default))


@dataclass(frozen=True)
class Group:
    """Group of related knobs: the field's name, the heading in help texts, and their dataclass."""

    name: str
    heading: str
    kind: type


def groups_of(kind: type) -> tuple[Group, ...]:
    """Return the groups of knobs that a dataclass declares, in order."""
    return tuple(Group(each.name, each.metadata["heading"], each.metadata["kind"]) for each in fields(kind))


def knobs_of(kind: type) -> tuple[Knob, ...]:
    """Return the knobs that a dataclass declares, in order; none for any other class."""
    return tuple(
        replace(
            each.metadata["knob"],
            name=each.name,
            type=_evaluate(each.type, vars(sys.modules[kind.__module__])),
            range=each.metadata["range"] or RANGES.get(each.name),
            module=kind.__module__,
        )
        for each in getattr(kind, "__dataclass_fields__", {}).values()
        if "knob" in each.metadata
    )


def _evaluate(kind: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(kind, str):
        return kind
    try:
        return eval(kind, dict(names))
    except NameError:  # imported only for type checkers
        return kind


def check_knobs(config: Any, where: str = "") -> None:
    """Raise BadConfig for the first number in a dataclass that is out of range; ``where`` begins the message."""
    for problem in range_problems(config):
        raise BadConfig(f"{where}{problem}. Correct it.")


def range_problems(config: Any) -> Iterator[str]:
    """Yield a problem for each number in a dataclass that is out of range."""
    for setting in fields(config):
        value, limits = getattr(config, setting.name), setting.metadata.get("range") or RANGES.get(setting.name)
        if limits and isinstance(value, int | float) and (problem := limits.problem(value)):
            yield f"{setting.name} {problem}"


def check_ranges(**values: Any) -> None:
    """Raise BadConfig for the first value, except None, outside the range of its name in ``RANGES``."""
    for name, value in values.items():
        if value is not None and (problem := RANGES[name].problem(value)):
            raise BadConfig(f"{name} {problem}. Correct it.")


def changed_knobs(knobs: Any) -> Mapping[str, Any]:
    """Return the knobs of a dataclass whose values differ from the default, by name."""
    values = ((each, getattr(knobs, each.name)) for each in knobs_of(type(knobs)))
    return {each.name: value for each, value in values if not each.is_default(value)}


def copy_fields(config: Any, kind: type[Part]) -> Part:
    """Build a dataclass of type ``kind`` from the fields of another that have the same names."""
    known = fields(kind)  # type: ignore[arg-type]
    return kind(**{each.name: getattr(config, each.name) for each in known if hasattr(config, each.name)})


def document_knobs(docstring: str | None, knobs: Sequence[Knob]) -> str | None:
    """Replace the ``knobs:`` entry of a docstring with one entry per knob; None if Python stripped docstrings."""
    if docstring is None:
        return None
    lines: list[str] = []
    indent: str | None = None
    for line in docstring.splitlines():
        if line.lstrip().startswith("knobs: "):
            indent = line[: -len(line.lstrip())]
            for knob in knobs:
                spelled = f" TorchRec: ``{knob.torchrec}``." if knob.torchrec else ""
                text = f"{knob.name}: {knob.help}.{spelled}"
                lines.append(
                    fill(text, 120, initial_indent=indent, subsequent_indent=f"{indent}    ", break_on_hyphens=False)
                )
        elif indent is None or not line.startswith(f"{indent} "):
            lines.append(line)
            indent = None
    return "\n".join(lines)


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)
