"""Rules of a request in a YAML file, added to those of the flags.

::

    pinned: {user_id: 0, item_id: [0, 1]}     # the device, or devices, that a table may live on
    forbidden: {clicks: 3}
    forbidden_devices: [7]
    together: [[query, title]]
    apart: [[ads_a, ads_b]]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from evenshard.planner.request import Rules
from evenshard.utils.errors import BadFile
from evenshard.utils.messages import cut, shown
from evenshard.utils.text_files import read_text
from evenshard.utils.yaml_files import load_yaml

KEYS = tuple(field.name for field in fields(Rules))


def load_rules(path: Path) -> Rules:
    """Reads a rules file.

    Raises:
        BadFile: if it is missing, no YAML, or holds something else.
    """
    remedy = f"Its keys are {', '.join(KEYS)}, as in {{pinned: {{user_id: 0}}, apart: [[a, b]]}}."
    try:
        content = load_yaml(read_text(path))
    except FileNotFoundError:
        raise BadFile(path, "no such file", "Check the path.") from None
    except (OSError, ValueError) as error:
        raise BadFile(path, f"is not readable as YAML ({error})", remedy) from None
    if content is None:
        return Rules()
    if not isinstance(content, Mapping):
        raise BadFile(path, "holds no rules", remedy)
    unknown = next((key for key in content if key not in KEYS), None)
    if unknown is not None:
        raise BadFile(path, f"unknown key {shown(unknown)}", remedy)
    return Rules(
        pinned=_map(path, "pinned", content.get("pinned") or {}),
        forbidden=_map(path, "forbidden", content.get("forbidden") or {}),
        forbidden_devices=_devices(path, "forbidden_devices", content.get("forbidden_devices") or []),
        together=_groups(path, "together", content.get("together") or []),
        apart=_groups(path, "apart", content.get("apart") or []),
    )


def _map(path: Path, key: str, content: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(content, Mapping):
        raise BadFile(path, "is not a mapping of tables to devices", "Write {table: device}.", key)
    return {str(name): _devices(path, f"{key}.{cut(str(name))}", devices) for name, devices in content.items()}


def _devices(path: Path, key: str, content: Any) -> tuple[int, ...]:
    devices = content if isinstance(content, list) else [content]
    if not all(isinstance(device, int) and not isinstance(device, bool) for device in devices):
        raise BadFile(path, f"{shown(content)} is neither a device id nor a list of them", "Write 0, or [0, 1].", key)
    return tuple(devices)


def _groups(path: Path, key: str, content: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(content, list) or not all(isinstance(group, list) for group in content):
        raise BadFile(path, "is not a list of groups of tables", "Write [[a, b], [c, d]].", key)
    return tuple(tuple(str(name) for name in group) for group in content)
