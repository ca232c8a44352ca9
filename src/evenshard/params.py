"""How do settings get from params.yaml into the stages? One section per dataclass, checked once, here."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from evenshard.errors import BadConfig, BadFile
from evenshard.plain_yaml import load_yaml

Config = TypeVar("Config")
CORRECT_IT = "Correct it in params.yaml, or in the file of --params."


def load_params(path: Path) -> dict[str, Any]:
    """The sections of a params.yaml.

    Raises:
        BadFile: if it is missing or no YAML mapping.
    """
    try:
        params = load_yaml(path.read_text())
    except FileNotFoundError:
        raise BadFile(path, "no such file", "Name one with --params.") from None
    except (OSError, ValueError) as error:
        raise BadFile(path, f"not readable as YAML ({error})", "Repair it.") from None
    if not isinstance(params, dict):
        raise BadFile(path, "is no mapping of sections", "Start from the params.yaml of the repository.")
    return params


def section(params: dict[str, Any], name: str, kind: type[Config], **overrides: Any) -> Config:
    """One section as its dataclass; ``overrides`` that are not None (command-line flags) win.

    Raises:
        BadConfig: if a key is unknown or missing, or a value is of the wrong type or not finite; the message names
            section and key.
    """
    from pydantic import TypeAdapter, ValidationError

    values = params.get(name, {})
    if not isinstance(values, dict):
        raise BadConfig(f"params section {name} is no mapping. Write `key: value` lines under it.")
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            close = get_close_matches(str(key), known, n=1) or known
            raise BadConfig(f"params section {name}: unknown key {key!r}. Did you mean {close[0]!r}?")
    values = {**values, **{key: value for key, value in overrides.items() if value is not None}}
    try:
        config = TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "?"
        raise BadConfig(f"params section {name}: {key}: {first['msg']}. {CORRECT_IT}") from None
    for key in known:  # YAML knows .nan and .inf
        value = getattr(config, key)
        if isinstance(value, float) and not isfinite(value):
            raise BadConfig(f"params section {name}: {key} is {value}, not a finite number. {CORRECT_IT}")
    return config


def require(condition: bool, message: str) -> None:
    """Raises BadConfig with ``message`` unless the condition holds."""
    if not condition:
        raise BadConfig(message)
