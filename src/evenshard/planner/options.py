"""The knobs of ``evenshard.place``, read off its signature and its docstring.

A knob is declared once, as an argument of ``place``: name, type and default in the signature, meaning in the docstring.
The flags of the command, the keys of a pipeline's request, the parameters of a served model and the schema of
placement.json are made of the options below. The range of a number stands in ``evenshard.utils.limits``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

UNITS = {"_gb": "GB", "_gb_s": "GB/s", "_ms": "ms", "_pct": "%"}
"""A number is called after its unit."""


@dataclass(frozen=True)
class Option:
    """A knob.

    Attributes:
        name: name of the argument.
        kind: its type in Python; where the default is None, that is allowed too.
        default: its value where it is left out.
        help: its meaning, in one line.
    """

    name: str
    kind: Any
    default: Any
    help: str

    @property
    def unit(self) -> str:
        """Of its numbers; empty where they have none."""
        return next((unit for ending, unit in UNITS.items() if self.name.endswith(ending)), "")

    @property
    def scalar(self) -> type | None:
        """The one of bool, int, float and str that a plain value of it has; None where there is none."""
        return next((kind for kind in (bool, int, float, str) if kind in _kinds(self.kind)), None)


def place_options() -> tuple[Option, ...]:
    """The knobs of ``evenshard.place``, in its order: its arguments that are no functions."""
    from evenshard.api.place import place

    return tuple(option for option in options_of(place) if get_origin(option.kind) is not Callable)


def place_option(name: str) -> Option:
    """One of them."""
    return next(option for option in place_options() if option.name == name)


def option_field(name: str, default: Any = None) -> Any:
    """A field of a dataclass that keeps a knob; its default and its meaning are those of the argument.

    Args:
        default: where the argument has none of its own.
    """
    option = place_option(name)
    own = default if option.default is None else option.default
    return field(default=own, metadata={"description": option.help})


def options_of(function: Callable[..., Any]) -> tuple[Option, ...]:
    """The arguments of a function that have a default. A quoted type is not evaluated."""
    meanings = _meanings(inspect.getdoc(function) or "")
    return tuple(
        Option(
            name=name,
            kind=reduce(or_, (kind for kind in _kinds(argument.annotation) if kind is not NoneType)),
            default=argument.default,
            help=meanings.get(name, ""),
        )
        for name, argument in inspect.signature(function).parameters.items()
        if argument.default is not argument.empty
    )


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of anything else, that alone."""
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _meanings(docstring: str) -> dict[str, str]:
    """Each argument's text in the section ``Args``, on one line and without markup."""
    section = docstring.partition("\nArgs:\n")[2].partition("\n\n")[0]
    meanings: dict[str, str] = {}
    name = ""
    for line in section.replace("``", "").splitlines():
        if line.startswith(" " * 8):
            meanings[name] += f" {line.strip()}"
        else:
            name, _, meaning = line.strip().partition(": ")
            meanings[name] = meaning
    return {name: meaning.removesuffix(".") for name, meaning in meanings.items()}
