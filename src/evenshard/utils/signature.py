"""Arguments of a public function, checked against the types in its signature before it runs.

Types are strict: a string is neither a number nor true, and True is not 1. Numbers of NumPy are numbers. Which values
make sense is for the function to say.
"""

from __future__ import annotations

import builtins
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial, wraps
from importlib import import_module
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from evenshard.utils.errors import BadConfig
from evenshard.utils.knobs import Knob, knobs_of, with_meanings
from evenshard.utils.messages import brief

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OTHER = object()
# Types in words, of one value and of several.
_WORDS = {
    str: ("a string", "strings"),
    bool: ("True or False", "True or False"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    Path: ("a path", "paths"),
    NoneType: ("None", "None"),
    Any: ("an object", "objects"),
}


def check_arguments(knobs: Sequence[Knob] = (), **homes: str) -> Callable[[_Function], _Function]:
    """A decorator: the function gets values of the types that its signature states, or its caller a ``BadConfig``.

    Args:
        knobs: knobs that the function takes as ``**knobs``. Its signature and its docstring show each of them as a
            keyword of its own; an argument of the same name has the type and the default of the knob.
        homes: the modules of types that the signature names without importing them, as they are heavy; a name that is
            not among them stands for any type.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        of_name = {one.name: one for one in knobs}

        @cache
        def type_of(name: str) -> Any:
            one = of_name.get(name)
            if one is not None:
                return _type_of_knob(one, homes)
            stated = signature.parameters[name].annotation if name in signature.parameters else Any
            return Any if stated is inspect.Parameter.empty else _evaluate(stated, function.__globals__, homes)

        def value_of(name: str, value: Any) -> Any:
            found = _check_value(name, value, type_of(name))
            if not (inner := knobs_of(type(found))):
                return found
            values = {one.name: getattr(found, one.name) for one in inner}
            kinds = {one.name: _type_of_knob(one, homes) for one in inner}
            return replace(found, **{name: _check_value(name, own, kinds[name]) for name, own in values.items()})

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = {one: value_of(one, own) for one, own in value.items()}
                else:
                    bound.arguments[name] = value_of(name, value)
            return function(*bound.args, **bound.kwargs)

        if knobs:
            call.__signature__ = _with_knobs(signature, knobs)  # type: ignore[attr-defined]
            call.__doc__ = with_meanings(function.__doc__, knobs)
        return call  # type: ignore[return-value]

    return decorate


def _with_knobs(signature: inspect.Signature, knobs: Sequence[Knob]) -> inspect.Signature:
    """The signature with a keyword for each knob in the place of ``**knobs``, before those of its own."""
    of_name = {one.name: one for one in knobs}
    own = [
        one.replace(annotation=of_name[one.name].type, default=of_name[one.name].default)
        if one.name in of_name
        else one
        for one in signature.parameters.values()
    ]
    more = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in knobs
        if one.name not in signature.parameters
    ]
    first = [one for one in own if one.kind is one.POSITIONAL_OR_KEYWORD]
    last = [one for one in own if one.kind is one.KEYWORD_ONLY]
    return signature.replace(parameters=[*first, *more, *last])


def _type_of_knob(knob: Knob, homes: Mapping[str, str]) -> Any:
    return _evaluate(knob.type, vars(sys.modules[knob.module]), homes)


def _evaluate(kind: Any, names: Mapping[str, Any], homes: Mapping[str, str]) -> Any:
    """A type as it stands among the names of a module; what is quoted is evaluated."""

    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            if name in homes:
                return getattr(import_module(homes[name]), name)
            return names.get(name, getattr(builtins, name, Any))

    while isinstance(kind, str):
        kind = eval(kind, {}, Names())
    return kind


def _check_value(name: str, value: Any, kind: Any) -> Any:
    """A value as the type that is stated for its name."""
    for text in value.values() if isinstance(value, Mapping) else [value]:
        if isinstance(text, str | Path):
            _check_text(name, str(text))
            if Path in get_args(kind):
                _check_path(name, text)
    found = _convert(value, kind)
    if found is _OTHER:
        in_brackets = isinstance(value, str) and _convert([value], kind) is not _OTHER
        remedy = f"Put it in brackets: [{brief(value)}]." if in_brackets else "Correct it."
        raise BadConfig(f"{name} is {brief(value)}, not {_in_words(kind)}. {remedy}")
    return found


def _convert(value: Any, kind: Any) -> Any:
    """The value, or ``_OTHER``. Numbers of other libraries become Python's, and ranges and the like tuples."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return next((found for part in parts if (found := _convert(value, part)) is not _OTHER), _OTHER)
    if origin is Sequence:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return _OTHER
        found = [_convert(one, parts[0]) for one in value]
        if any(one is _OTHER for one in found):
            return _OTHER
        return found if isinstance(value, list) else tuple(found)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return _OTHER
        pairs = [(_convert(key, parts[0]), _convert(one, parts[1])) for key, one in value.items()]
        return _OTHER if any(_OTHER is one for pair in pairs for one in pair) else dict(pairs)
    if kind is int or kind is float:
        return _number(value, kind)
    if kind is Any or (getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)):
        return value  # what a protocol asks for, the function looks for itself
    return value if isinstance(value, origin or kind) else _OTHER


def _number(value: Any, kind: type) -> Any:
    """A whole number stays what it is where any will do: messages repeat it, and it may be larger than a float."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or (kind is int and value % 1 != 0):  # JSON may write 1 as 1.0
        return _OTHER
    if kind is int:
        return int(value)
    return value if isinstance(value, int) else float(value)


def _check_text(name: str, text: str) -> None:
    """Raises BadConfig for text that neither files nor terminals take."""
    if "\0" in text:
        raise BadConfig(f"{name} is {brief(text)}, which holds a character of value 0. Leave it out.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadConfig(f"{name} is {brief(text)}, which holds half of a character. Rename it.") from None


def _check_path(name: str, path: str | Path) -> None:
    """Raises BadConfig for what the system does not even look up; that there is such a file is not asked."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise BadConfig(
            f"{name} is {brief(str(path))}, which cannot be looked up ({error.strerror}). Correct it."
        ) from None


def _in_words(kind: Any, several: bool = False) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    words = partial(_in_words, several=True)
    if origin in (Union, UnionType):
        *others, last = [_in_words(part, several) for part in parts if part not in (NoneType, Any)]
        return f"{', '.join(others)} or {last}" if others else last
    if origin is Sequence:
        return f"{'lists' if several else 'a list'} of {words(parts[0])}"
    if origin is Mapping:
        return f"{'mappings' if several else 'a mapping'} of {words(parts[0])} to {words(parts[1])}"
    if origin is Callable:
        return "functions" if several else "a function"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind, (f"a {name}", f"{name}s"))[several]
