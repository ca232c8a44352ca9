"""Strict type checks with pydantic: for records from JSON and YAML, settings, and arguments of public functions.

Strings are not converted to numbers or bools, nor True to 1; integers are accepted for floats. Ranges of numbers are
checked by ``knobs``, or by the dataclass or function that receives the value.
"""

from __future__ import annotations

import builtins
import inspect
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache, wraps
from importlib import import_module
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from evenshard.base.errors import BadConfig, bad_records
from evenshard.base.knobs import Knob, document_knobs, knobs_of, range_problems
from evenshard.base.messages import brief, cut, did_you_mean, reason_of

if TYPE_CHECKING:  # pydantic takes a tenth of a second to import
    from pydantic import TypeAdapter, ValidationError

_Record = TypeVar("_Record")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MAX_TEXT = 4096  # bytes of a text argument: PATH_MAX, the longest path on Linux
# Expected types in messages, by pydantic's error type; other error types keep pydantic's message.
_WORDS = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "callable_type": "a function",
    **dict.fromkeys(("tuple_type", "list_type", "sequence_str", "named_tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "dataclass_type", "model_type"), "a mapping"),
}
_CLASSES = {"Sequence": "a list", "Path": "a path"}


class WrongValues(ValueError):
    """Error for wrong values in a record; ``problems`` has a tuple (location, problem, remedy) for each."""

    def __init__(self, problems: Sequence[tuple[str, str, str]]) -> None:
        lines = (f"{where}: {problem}".removeprefix(": ") for where, problem, _ in problems)
        super().__init__("; ".join(lines))
        self.problems = problems


def record_of(kind: type[_Record], content: Any, floats_only: bool = False) -> _Record:
    """Convert plain data to a dataclass, a pydantic model or a type such as ``tuple[int, ...]``.

    Lists become tuples, and integers become floats where the type is float.

    Args:
        floats_only: accept 1.0 for an integer, because all numbers in the parameters of a pipeline are floats.

    Raises:
        WrongValues: for all fields that are missing, unknown or of the wrong type.
    """
    try:
        from pydantic import ValidationError
    except ImportError:  # a GPU machine without pydantic reads only plans that another machine has checked
        return cast(_Record, _convert(kind, content))
    try:
        text = json.dumps([content], default=str, ensure_ascii=False).encode()
        if floats_only:
            text = json.dumps(json.loads(text, parse_float=lambda number: _whole(float(number)))).encode()
        found: _Record = _adapter(kind).validate_json(text, strict=True)[0]  # type: ignore[arg-type]  # hashable
        return found
    except ValidationError as error:
        known = [field.name for field in fields(kind)] if is_dataclass(kind) else []
        raise WrongValues(_problems(error, json.loads(text), "", known)) from None
    except (TypeError, ValueError, RecursionError) as error:  # a value that JSON cannot represent, such as a cycle
        raise WrongValues([("", reason_of(error), "Correct it.")]) from None


def _convert(kind: Any, content: Any) -> Any:
    """Convert plain data to a type without checks; for a union, to its first suitable type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if content is None:
            return None
        is_list, some = isinstance(content, list), (part for part in parts if part is not NoneType)
        return _convert(next(part for part in some if (get_origin(part) is tuple) == is_list), content)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _convert(hints[name], value) for name, value in content.items()})  # type: ignore[operator]
    if origin is tuple:
        inner = parts[:1] * len(content) if parts[1:] == (...,) else parts
        return tuple(map(_convert, inner, content))
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        return kind(*map(_convert, get_type_hints(kind).values(), content))
    if origin in (dict, Mapping):
        return {key: _convert(parts[1], value) for key, value in content.items()}
    return content


def read_record(kind: type[_Record], content: Any, path: str | PathLike[str], remedy: str) -> _Record:
    """Convert the content of a file to a record; see ``record_of``.

    Raises:
        BadFile: if a value has the wrong type; a ``BadRecords`` for several values.
    """
    try:
        return record_of(kind, content)
    except WrongValues as error:
        raise bad_records(path, error.problems, remedy) from None


def section(params: dict[str, Any], name: str, kind: type[_Record], **overrides: Any) -> _Record:
    """Convert a section of params.yaml to its dataclass; ``overrides`` (flags) that are not None take precedence.

    Raises:
        BadConfig: if a key is unknown or missing, or a value is invalid; the message names section and key.
    """
    values = params.get(name, {})
    if not isinstance(values, dict):
        raise BadConfig(f"params section {name} is not a mapping. Write `key: value` lines under it.")
    values = {**values, **{key: value for key, value in overrides.items() if value is not None}}
    return settings_of(kind, values, f"params section {name}", "Correct it in params.yaml, or in the file of --params.")


def settings_of(kind: type[_Record], values: dict[str, Any], where: str, remedy: str) -> _Record:
    """Convert settings to their dataclass; ``where`` names them in errors.

    Raises:
        BadConfig: see ``section``.
    """
    try:
        config = record_of(kind, values, floats_only=True)
    except WrongValues as error:
        raise BadConfig(f"{where}: {error}. {remedy}") from None
    if problems := "; ".join(range_problems(config)):
        raise BadConfig(f"{where}: {problems}. {remedy}")
    return config


@cache
def _adapter(kind: Any) -> TypeAdapter[list[Any]]:
    """Return pydantic's adapter for ``list[kind]``; for ``kind`` alone, a dataclass would ignore its ``config``."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(list[kind], config=ConfigDict(extra="forbid", allow_inf_nan=False))


def _problems(error: ValidationError, content: Any, name: str, known: Iterable[str] = ()) -> list[tuple[str, str, str]]:
    """Convert a ValidationError to (location, problem, remedy) tuples, with one tuple for all types of a union.

    Args:
        content: the checked value; for a record, a list that contains it.
        name: name of the value; "" for a record.
        known: names of the fields of a record.
    """
    found: dict[tuple[str | int, ...], list[Any]] = {}
    for issue in error.errors(include_url=False):
        path = tuple(_steps(issue["loc"], content)) + issue["loc"][-1:] * (issue["type"] == "missing")
        found.setdefault(path, []).append(issue)
    above = {path[:length] for path in found for length in range(len(path))}
    problems = []
    for path, of_path in found.items():
        if path in above:  # about another type of a union
            continue
        steps = (name, *path) if name else path[1:]
        last = max((at for at, step in enumerate(steps) if isinstance(step, str)), default=0)
        problems.append((_join_steps(steps[:last]), *_problem(_join_steps(steps[last:]), of_path, known)))
    return problems


def _problem(name: str, errors: Sequence[Any], known: Iterable[str]) -> tuple[str, str]:
    kind, value = errors[0]["type"], errors[0]["input"]
    if kind == "missing":
        return f"{name} is missing", "Add it."
    if kind in _UNKNOWN:
        near = did_you_mean(name, known)
        return f"{brief(name)} is unknown" + (f" (d{near[2:]})" if near else ""), "Correct or remove it."
    if kind == "value_error":
        return f"{name}: {errors[0]['ctx']['error']}".removeprefix(": "), "Correct it."
    closest = [each for each in errors if each["type"] == "text"] or errors
    words = list(dict.fromkeys(map(_describe_type, closest)))
    if "a number" in words and "a whole number" in words:
        words.remove("a whole number")
    *others, last = words
    expected = f"{', '.join(others)} or {last}" if others else last
    remedy = "Correct it."
    if "a number" in words or "a whole number" in words:  # a quoted number, or 1e-3, which YAML reads as text
        number = _parse_number(value)
        expected += "" if number is None else f" (write {number})"
    elif isinstance(value, str) and "a list" in words:
        remedy = f"Put it in brackets: [{brief(value)}]."
    return f"{name} is {brief(value)}, not {expected}".strip(), remedy


def _parse_number(value: Any) -> int | float | None:
    try:
        number = float(value) if isinstance(value, str) else math.inf
    except ValueError:
        return None
    return (int(number) if number.is_integer() else number) if math.isfinite(number) else None


def _describe_type(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "is_instance_of":
        return _CLASSES.get(context["class"], f"a {context['class']}")
    if kind in ("too_long", "too_short"):
        return f"a list of {context.get('max_length', context.get('min_length'))}"
    return _WORDS.get(kind) or str(error["msg"]).removeprefix("Input should be ")


def _steps(location: Sequence[str | int], content: Any) -> Iterator[str | int]:
    """Yield the keys and positions of pydantic's error location, without its names of union types."""
    for step in location:
        is_key = isinstance(content, Mapping) and step in content
        if is_key or (isinstance(content, list | tuple) and isinstance(step, int) and step < len(content)):
            content = content[step]
            yield step


def _join_steps(steps: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{cut(step)}" for step in steps).removeprefix(".")


# Arguments ------------------------------------------------------------------------------------------------------------


def check_arguments(knobs: Sequence[Knob] = (), **homes: str) -> Callable[[_Function], _Function]:
    """Decorate a function to check its arguments against its signature and raise ``BadConfig`` for wrong types.

    NumPy's numbers and arrays are converted, and 1.0 is accepted for 1. Text must be valid in UTF-8.

    Args:
        knobs: knobs that the function takes as ``**knobs``. Its signature and docstring show each knob as a separate
            keyword; an argument of the same name has the type and the default of the knob.
        homes: module of each type in the signature that is imported only later, because it is slow to import. An
            argument of any other unknown type is not checked.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        stated = {each.name: (each.annotation, function.__module__) for each in signature.parameters.values()}
        stated |= {knob.name: (knob.type, knob.module) for knob in knobs}
        rest = next((each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD), None)

        @cache
        def adapter(kind: Any, module: str) -> TypeAdapter[Any]:
            from pydantic import TypeAdapter

            return TypeAdapter(_strict(_evaluate(kind, vars(sys.modules[module]), homes)))

        def check(name: str, value: Any, kind: Any, module: str) -> Any:
            from pydantic import ValidationError

            try:
                found = adapter(kind, module).validate_python(value)
            except ValidationError as error:
                (where, problem, remedy), *_ = _problems(error, value, name)
                raise BadConfig(f"{where}.{problem}. {remedy}".removeprefix(".")) from None
            inner = knobs_of(type(found))
            values = {each.name: check(each.name, getattr(found, each.name), each.type, each.module) for each in inner}
            return replace(found, **values) if inner else found

        def check_all(values: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: check_all(value) if name == rest else check(name, value, *stated.get(name, (Any, __name__)))
                for name, value in values.items()
            }

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.arguments.update(check_all(bound.arguments))
            return function(*bound.args, **bound.kwargs)

        if knobs:
            call.__signature__ = _with_knobs(signature, knobs)  # type: ignore[attr-defined]
            call.__doc__ = document_knobs(function.__doc__, knobs)
        return call  # type: ignore[return-value]

    return decorate


def _with_knobs(signature: inspect.Signature, knobs: Sequence[Knob]) -> inspect.Signature:
    """Return the signature with ``**knobs`` replaced by a keyword per knob, before the other keywords."""
    of_name = {knob.name: knob for knob in knobs}
    own = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
    for name, knob in of_name.items():
        stated = own.get(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY))
        own[name] = stated.replace(annotation=knob.type, default=knob.default)
    first = [name for name, parameter in own.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return signature.replace(parameters=[own[name] for name in dict.fromkeys((*first, *of_name, *own))])


def _evaluate(kind: Any, names: Mapping[str, Any], homes: Mapping[str, str]) -> Any:
    """Evaluate a type annotation, quoted or not, with the names of a module."""
    while isinstance(kind, str):
        heavy = {name: getattr(import_module(home), name) for name, home in homes.items() if name in kind}
        kind = eval(kind, {}, defaultdict(lambda: Any, {**vars(builtins), **names, **heavy}))
    return Any if kind is inspect.Parameter.empty else kind


def _strict(kind: Any) -> Any:
    """Return the strict type with which pydantic checks an argument; of other values, it checks only the class."""
    from pydantic import AfterValidator, BeforeValidator, InstanceOf, Strict

    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return Union[tuple(map(_strict, parts))]  # noqa: UP007
    if origin is Mapping:
        return origin[tuple(map(_strict, parts))]
    if origin is Sequence:
        return Annotated[origin[_strict(parts[0])], BeforeValidator(_to_list)]
    if kind is int:
        return Annotated[int, Strict(), BeforeValidator(_whole)]
    if kind is float:  # integers stay integers: messages repeat them, and they may exceed a float
        return Annotated[Annotated[int, Strict()] | Annotated[float, Strict()], BeforeValidator(_number)]
    if kind is bool:
        return Annotated[bool, Strict()]
    if kind in (str, Path, Any):
        checked = {str: Annotated[str, Strict()], Path: InstanceOf[Path], Any: Any}[kind]
        return Annotated[checked, AfterValidator(_text)]
    if not isinstance(kind, type) or kind is NoneType:
        return kind
    # The function itself checks for the methods of a protocol.
    is_checked = not getattr(kind, "_is_protocol", False) or getattr(kind, "_is_runtime_protocol", False)
    return InstanceOf[kind] if is_checked else Any  # type: ignore[misc]  # any class


def _to_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value  # an array


def _number(value: Any) -> Any:
    if not isinstance(value, Real) or isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _whole(value: Any) -> Any:
    number = _number(value)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _text(value: Any) -> Any:
    from pydantic_core import PydanticCustomError

    try:
        if not isinstance(value, str | Path):
            return value
        if "\0" not in str(value) and len(str(value).encode()) <= _MAX_TEXT:
            return value
    except UnicodeEncodeError:  # a lone surrogate
        pass
    raise PydanticCustomError("text", f"Unicode text of at most {_MAX_TEXT:,} bytes without NUL")
