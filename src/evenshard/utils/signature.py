"""Arguments of a public function, checked against the types in its signature before it runs.

Types are strict: a string is neither a number nor true, and True is not 1. Numbers of NumPy are numbers. Which values
make sense is for the function to say.
"""

from __future__ import annotations

import builtins
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from importlib import import_module
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OTHER = object()
_WORDS = {
    str: ("a string", "strings"),
    bool: ("True or False", "True or False"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    Path: ("a path", "paths"),
    NoneType: ("None", "None"),
    Any: ("an object", "objects"),
}
"""Of one value, and of several."""


def checked(knobs_of: Callable[..., Any] | None = None, **homes: str) -> Callable[[_Function], _Function]:
    """A decorator: the function gets values of the types that its signature states, or its caller a ``BadConfig``.

    Args:
        knobs_of: function whose arguments the function takes as ``**knobs``.
        homes: the modules of types that the signature names without importing them, as they are heavy; a name that is
            not among them stands for any type.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)

        @cache
        def types() -> dict[str, Any]:
            knobs = {} if knobs_of is None else _types(inspect.unwrap(knobs_of), homes)
            return {**knobs, **_types(function, homes)}

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = {
                        one: _checked(one, own, types().get(one, Any)) for one, own in value.items()
                    }
                else:
                    bound.arguments[name] = _checked(name, value, types()[name])
            return function(*bound.args, **bound.kwargs)

        return call  # type: ignore[return-value]

    return decorate


def _types(function: Callable[..., Any], homes: Mapping[str, str]) -> dict[str, Any]:
    """The type of each argument; what is quoted is evaluated."""

    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            if name in homes:
                return getattr(import_module(homes[name]), name)
            return function.__globals__.get(name, getattr(builtins, name, Any))

    found = {}
    for name, argument in inspect.signature(function).parameters.items():
        kind = Any if argument.annotation is argument.empty else argument.annotation
        while isinstance(kind, str):
            kind = eval(kind, {}, Names())
        found[name] = kind
    return found


def _checked(name: str, value: Any, kind: Any) -> Any:
    """A value as the type that is stated for its name."""
    for text in value.values() if isinstance(value, Mapping) else [value]:
        if isinstance(text, str | Path):
            _check_text(name, str(text))
            if Path in get_args(kind):
                _check_path(name, text)
    found = _typed(value, kind)
    if found is _OTHER:
        in_brackets = isinstance(value, str) and _typed([value], kind) is not _OTHER
        remedy = f"Put it in brackets: [{brief(value)}]." if in_brackets else "Correct it."
        raise BadConfig(f"{name} is {brief(value)}, not {_in_words(kind)}. {remedy}")
    return found


def _typed(value: Any, kind: Any) -> Any:
    """The value, or ``_OTHER``. Numbers of other libraries become Python's, and ranges and the like tuples."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return next((found for part in parts if (found := _typed(value, part)) is not _OTHER), _OTHER)
    if origin is Sequence:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return _OTHER
        found = [_typed(one, parts[0]) for one in value]
        if any(one is _OTHER for one in found):
            return _OTHER
        return found if isinstance(value, list) else tuple(found)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return _OTHER
        pairs = [(_typed(key, parts[0]), _typed(one, parts[1])) for key, one in value.items()]
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
