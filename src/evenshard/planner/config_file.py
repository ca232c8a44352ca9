"""A whole placement request as one YAML file: the tables, and the knobs of ``evenshard.place`` by name.

::

    tables: tables.yaml          # or a list of tables, with the columns of a table file
    num_devices: 8
    hardware: h100
    pinned: {user_id: 0}
    effort: long

Paths are relative to the current folder, as on the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

from evenshard.base.documents import read_yaml
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.knobs import changed_knobs
from evenshard.base.typed import settings_of
from evenshard.planner.knobs import Knobs, groups, place_knobs
from evenshard.planner.rules import RULES, Rules

# Python objects, which no file holds.
_NOT_IN_FILES = ("constraints", "compare")
_REMEDY = "Its keys are tables and the arguments of evenshard.place (`evenshard place --print-config` prints them)."


def request_record(left_out: Collection[str]) -> type:
    """Return a dataclass of the knobs of a placement, except ``left_out``, for ``settings_of``."""
    types = {**dict.fromkeys(RULES, Any), "model": str | None}  # Rules.of validates rules; Model is not known here
    kinds = [
        (one.name, types.get(one.name, one.type), field(default=one.default, metadata={"range": one.range}))
        for one in place_knobs()
        if one.name not in left_out
    ]
    return make_dataclass("PlaceRequest", kinds)


def load_config(path: Path) -> tuple[str | Sequence[Mapping[str, Any]] | None, dict[str, Any]]:
    """Return the tables that a request file names (None if none), and its arguments of ``evenshard.place``.

    Raises:
        BadFile: if the file is missing, or is no mapping.
        BadConfig: if a key is unknown, or a value has the wrong type; the message names file and key.
    """
    content = read_yaml(path, _REMEDY)
    if not isinstance(content, dict):
        raise BadFile(path, "is not a request", _REMEDY)
    tables = content.pop("tables", None)
    if not (tables is None or isinstance(tables, str | list)):
        raise BadConfig(f"{path}: tables is neither a name nor a list of tables. Correct it.")
    values = vars(settings_of(request_record(_NOT_IN_FILES), content, str(path), "Correct it."))
    written = {name: values[name] for name in RULES if name in content}
    try:
        rules = vars(Rules.of(**written))
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from None
    return tables, {name: rules[name] if name in written else values[name] for name in values if name in content}


def config_text(tables: Any, arguments: Mapping[str, Any]) -> str:
    """Return the text of a request file with these arguments of ``evenshard.place``, except default values."""
    asked = Knobs.of({name: value for name, value in arguments.items() if name not in _NOT_IN_FILES})
    text = _block({"tables": tables})
    for group in groups():
        chosen = {
            name: value for name, value in changed_knobs(getattr(asked, group.name)).items() if value not in ({}, ())
        }
        if chosen:
            text += f"\n# {group.heading}\n{_block(chosen)}"
    return text


def _block(content: Mapping[str, Any]) -> str:
    import yaml

    flow: dict[str, Any] = {"default_flow_style": True, "sort_keys": False, "allow_unicode": True, "width": 110}
    texts = {name: yaml.safe_dump(_plain(value), **flow).removesuffix("...\n") for name, value in content.items()}
    return "".join(f"{name}: {text}" for name, text in texts.items())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
