"""Knobs: fields of frozen dataclasses that know what they mean.

::

    @dataclass(frozen=True)
    class Memory:
        host_memory_gb: float | None = knob(None, "GB of each host's memory that tables may take")

Flags, keywords, keys of a request and schemas are made of them. A module that declares knobs does not postpone the
evaluation of annotations: a type is itself, and a string only where it would import something heavy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import or_
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, get_args

from evenshard.utils.limits import RANGES, Range

# A number is called after its unit.
UNITS = {"_gb": "GB", "_gb_s": "GB/s", "_ms": "ms", "_pct": "%"}


def knob(default: Any, help: str, *, torchrec: str = "", range: Range | None = None) -> Any:
    """A field of a dataclass that is a knob.

    Args:
        default: its value where it is left out.
        help: its meaning, in one line without markup.
        torchrec: what says this in TorchRec, such as ``Topology.hbm_cap``, perhaps in another unit.
        range: the values that a number may have, where ``RANGES`` has none of its name.
    """
    return field(default=default, metadata={"description": help, "torchrec": torchrec, "range": range})


def group(kind: type, heading: str) -> Any:
    """A field of a dataclass that is a group of knobs.

    Args:
        kind: the dataclass of these knobs.
        heading: heading above them in a help.
    """
    return field(default_factory=kind, metadata={"kind": kind, "heading": heading})


@dataclass(frozen=True)
class Knob:
    """A knob, as it was declared.

    Attributes:
        name: name of the field.
        type: its type as it stands there; a quoted one is a string.
        default: its value where it is left out.
        help: its meaning, in one line.
        torchrec: what says this in TorchRec; empty for nothing.
        range: the values that a number may have; None for any.
        module: the module that declares it, in which a quoted type is to be read.
    """

    name: str
    type: Any
    default: Any
    help: str
    torchrec: str = ""
    range: Range | None = None
    module: str = __name__

    @property
    def kind(self) -> Any:
        """Its type without None."""
        return reduce(or_, (kind for kind in _kinds(self.type) if kind is not NoneType))

    @property
    def unit(self) -> str:
        """Unit of its numbers; empty if they have none."""
        return next((unit for ending, unit in UNITS.items() if self.name.endswith(ending)), "")

    @property
    def scalar(self) -> type | None:
        """The one of bool, int, float and str that a plain value of it has; None where there is none."""
        return next((kind for kind in (bool, int, float, str) if kind in _kinds(self.kind)), None)

    def is_default(self, value: Any) -> bool:
        """Whether a value says nothing else than leaving the knob out."""
        if isinstance(self.default, tuple) and isinstance(value, list):
            value = tuple(value)
        return value is self.default or (type(value) is type(self.default) and bool(value == self.default))


@dataclass(frozen=True)
class Group:
    """Knobs that belong together.

    Attributes:
        name: name of the field, and the keyword that takes them as one.
        heading: heading above them in a help.
        kind: their dataclass.
    """

    name: str
    heading: str
    kind: type


def groups_of(kind: type) -> tuple[Group, ...]:
    """The groups of knobs that a dataclass declares, in its order."""
    return tuple(Group(one.name, one.metadata["heading"], one.metadata["kind"]) for one in fields(kind))


def knobs_of(kind: type) -> tuple[Knob, ...]:
    """The knobs that a dataclass declares, in its order; of any other class none."""
    return tuple(
        Knob(
            name=one.name,
            type=one.type,
            default=one.default,
            help=one.metadata["description"],
            torchrec=one.metadata["torchrec"],
            range=one.metadata["range"] or RANGES.get(one.name),
            module=kind.__module__,
        )
        for one in getattr(kind, "__dataclass_fields__", {}).values()
        if "torchrec" in one.metadata
    )


def chosen_in(knobs: Any) -> Mapping[str, Any]:
    """The knobs of a dataclass that are not left at their defaults."""
    values = ((one, getattr(knobs, one.name)) for one in knobs_of(type(knobs)))
    return {one.name: value for one, value in values if not one.is_default(value)}


def with_meanings(docstring: str | None, knobs: Sequence[Knob]) -> str | None:
    """A docstring whose argument ``knobs`` is replaced by a line for each of them; None where Python keeps none."""
    if docstring is None:
        return None
    lines: list[str] = []
    indent: str | None = None
    for line in docstring.splitlines():
        if line.lstrip().startswith("knobs: "):
            indent = line[: -len(line.lstrip())]
            for one in knobs:
                spelled = f" TorchRec: ``{one.torchrec}``." if one.torchrec else ""
                text = f"{one.name}: {one.help}.{spelled}"
                lines.append(
                    fill(text, 120, initial_indent=indent, subsequent_indent=f"{indent}    ", break_on_hyphens=False)
                )
        elif indent is None or not line.startswith(f"{indent} "):
            lines.append(line)
            indent = None
    return "\n".join(lines)


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)
