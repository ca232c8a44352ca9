"""Settings from params.yaml: one section per dataclass, checked once, here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from evenshard.base.errors import BadConfig, BadFile, blame_file
from evenshard.base.limits import RANGES
from evenshard.base.messages import brief
from evenshard.base.typed import WrongValues, record_of
from evenshard.base.yaml_files import read_yaml

Config = TypeVar("Config")
CORRECT_IT = "Correct it in params.yaml, or in the file of --params."


@blame_file
def load_params(path: Path) -> dict[str, Any]:
    """The sections of a params.yaml.

    Raises:
        BadFile: if it is missing or no YAML mapping.
    """
    params = read_yaml(path, "Repair it.", "Name one with --params.")
    if not isinstance(params, dict):
        raise BadFile(path, "is not a mapping of sections", "Write sections: generate_tables: {source: dlrm_2021}.")
    odd = next(_odd_keys(params), None)
    if odd is not None:
        raise BadFile(path, f"key {brief(odd)} is not a string", "Put it in quotes, or remove it.")
    return params


def _odd_keys(content: Any) -> Iterator[Any]:
    """Yield the keys that are no strings, at any depth: they can be neither sorted nor written as JSON."""
    waiting, seen = [content], set()
    while waiting:
        inner = waiting.pop()
        if not isinstance(inner, (dict, list)) or id(inner) in seen:
            continue
        seen.add(id(inner))  # YAML aliases repeat an object
        if isinstance(inner, dict):
            yield from (key for key in inner if not isinstance(key, str))
            waiting.extend(inner.values())
        else:
            waiting.extend(inner)


def section(params: dict[str, Any], name: str, kind: type[Config], **overrides: Any) -> Config:
    """One section as its dataclass; ``overrides`` that are not None (command-line flags) win.

    Raises:
        BadConfig: if a key is unknown or missing, or a value is of the wrong type or not finite; the message names
            section and key.
    """
    values = params.get(name, {})
    if not isinstance(values, dict):
        raise BadConfig(f"params section {name} is not a mapping. Write `key: value` lines under it.")
    values = {**values, **{key: value for key, value in overrides.items() if value is not None}}
    return settings_of(kind, values, f"params section {name}", CORRECT_IT)


def settings_of(kind: type[Config], values: dict[str, Any], where: str, remedy: str) -> Config:
    """Return settings as their dataclass.

    Args:
        where: name of the settings, for errors.
        remedy: advice in errors.

    Raises:
        BadConfig: as ``section``.
    """
    try:
        config = record_of(kind, values, floats_only=True)
    except WrongValues as error:
        raise BadConfig(f"{where}: {error}. {remedy}") from None
    problems = []
    for field in fields(kind):  # type: ignore[arg-type]
        value, limits = getattr(config, field.name), field.metadata.get("range") or RANGES.get(field.name)
        if limits and isinstance(value, int | float) and (problem := limits.problem(value)):
            problems.append(f"{field.name} {problem}")
    if problems:
        raise BadConfig(f"{where}: {'; '.join(problems)}. {remedy}")
    return config


def check_ranges(**values: Any) -> None:
    """Raises BadConfig for the first of some values that is outside of the range of its name; see ``limits.py``.

    A value of None is not given.
    """
    for name, value in values.items():
        if value is not None and (problem := RANGES[name].problem(value)):
            raise BadConfig(f"{name} {problem}. Correct it.")


def require(condition: bool, message: str) -> None:
    """Raises BadConfig with ``message`` unless the condition holds."""
    if not condition:
        raise BadConfig(message)
