"""Plain values, as JSON and YAML give them, checked against the types of a dataclass and turned into it.

Only types are checked here; what values make sense is for the dataclass to say.
"""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from evenshard.utils.messages import brief

_Record = TypeVar("_Record")
_WORDS = {str: "a string", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}
_OTHER = object()


def record_of(kind: type[_Record], content: Any) -> _Record:
    """A dataclass made of an object, whose fields may have defaults.

    Lists become tuples. A whole number may stand where a float is stated, and stays whole.

    Raises:
        ValueError: if a field is missing, unknown or of another type; one line that names it.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{brief(content)} is not an object with fields")
    stated = _field_types(kind)  # type: ignore[arg-type]  # mypy: a type variable of types is not hashable
    unknown = next((name for name in content if name not in stated), None)
    if unknown is not None:
        raise ValueError(f"{brief(unknown)} is unknown")
    missing = next((name for name, (_, required) in stated.items() if required and name not in content), None)
    if missing is not None:
        raise ValueError(f"{missing} is missing")
    return kind(**{name: as_type(value, stated[name][0], name) for name, value in content.items()})


def as_type(value: Any, kind: Any, name: str) -> Any:
    """A value as a type such as ``tuple[int, ...] | None``; see ``record_of``.

    Args:
        name: name of the value, for the error.

    Raises:
        ValueError: if it has another type; one line.
    """
    found = _convert(value, kind, name)
    if found is _OTHER:
        raise ValueError(f"{name} is {brief(value)}, not {_in_words(kind)}")
    return found


def _convert(value: Any, kind: Any, name: str) -> Any:
    """The value, or ``_OTHER``."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is types.UnionType:
        return next((found for part in parts if (found := _convert(value, part, name)) is not _OTHER), _OTHER)
    if origin is tuple and isinstance(value, list):
        inner = parts[:1] * len(value) if parts[1:] == (...,) else parts
        if len(inner) != len(value):
            return _OTHER
        return tuple(
            as_type(one, part, f"{name}[{at}]") for at, (one, part) in enumerate(zip(value, inner, strict=True))
        )
    if isinstance(kind, type) and issubclass(kind, tuple) and isinstance(value, list):  # a NamedTuple
        plain = _convert(value, tuple[tuple(get_type_hints(kind).values())], name)  # type: ignore[misc]
        return _OTHER if plain is _OTHER else kind(*plain)
    if origin is dict and isinstance(value, dict):
        return {key: as_type(one, parts[1], f"{name}.{key}") for key, one in value.items()}
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return record_of(kind, value)
    if kind not in _WORDS or isinstance(value, bool) != (kind is bool):
        return _OTHER
    return value if isinstance(value, int | float if kind is float else kind) else _OTHER


def _in_words(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        return " or ".join(map(_in_words, parts))
    if origin is tuple and parts[1:] != (...,):
        return f"a list of {len(parts)}"
    return "a list" if origin is tuple else _WORDS.get(kind, "an object with fields")


@cache
def _field_types(kind: type) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether a record must have it."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], _is_required(field)) for field in fields(kind)}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
