"""Rules of where tables may live, by name: from Python, from flags, from a pipeline's request and from a YAML file.

::

    pinned: {user_id: 0, item_id: [0, 1]}     # the device, or devices, that a table may live on
    forbidden: {clicks: 3}
    forbidden_devices: [7]
    together: [[query, title]]
    apart: [[ads_a, ads_b]]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any

from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.limits import read_text
from evenshard.utils.messages import brief, cut
from evenshard.utils.yaml_files import load_yaml


@dataclass(frozen=True)
class Rules:
    """Where tables may and may not live, by name.

    Attributes:
        pinned: the devices that a table may live on; one device pins it.
        forbidden: devices that a table may not live on.
        forbidden_devices: devices that no table may live on.
        together: groups of tables that live on one device.
        apart: groups of tables of which a device holds one at most.
    """

    pinned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    forbidden: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    forbidden_devices: tuple[int, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def of(
        pinned: Mapping[str, int | Sequence[int]] | None = None,
        forbidden: Mapping[str, int | Sequence[int]] | None = None,
        forbidden_devices: int | Sequence[int] | None = None,
        together: Sequence[Sequence[str]] | None = None,
        apart: Sequence[Sequence[str]] | None = None,
    ) -> Rules:
        """Rules as a person writes them down: one device or several, nothing or None for no rule.

        Raises:
            BadConfig: if a value has another form.
        """
        return Rules(
            _devices_of_tables("pinned", pinned),
            _devices_of_tables("forbidden", forbidden),
            _devices("forbidden_devices", () if forbidden_devices is None else forbidden_devices),
            _groups("together", together),
            _groups("apart", apart),
        )

    def __add__(self, other: Rules) -> Rules:
        """Both together.

        Raises:
            BadConfig: if a table is pinned by both, to different devices: that could mean either, or any of them.
        """
        for name in self.pinned.keys() & other.pinned.keys():
            one, two = set(self.pinned[name]), set(other.pinned[name])
            if one != two:
                raise BadConfig(
                    f"table {brief(name)} is pinned twice, to different devices. Say it once: --pin {name}=DEVICE, or "
                    f"--pin {name}={','.join(map(str, sorted(one | two)))} for any of them."
                )
        names = (*self.forbidden, *other.forbidden)
        return Rules(
            pinned={**self.pinned, **other.pinned},
            forbidden={name: (*self.forbidden.get(name, ()), *other.forbidden.get(name, ())) for name in names},
            forbidden_devices=(*self.forbidden_devices, *other.forbidden_devices),
            together=(*self.together, *other.together),
            apart=(*self.apart, *other.apart),
        )

    def problem(self, names: Iterable[str], num_devices: int) -> str | None:
        """Says in one sentence what makes the rules unusable for these tables and devices, or None."""
        known = set(names)
        groups = (*self.together, *self.apart)
        for name in (*self.pinned, *self.forbidden, *(name for group in groups for name in group)):
            if name not in known:
                return f"a rule names table {brief(name)}, which is not among the tables. Correct its name."
        for group in groups:
            if len(set(group)) < max(len(group), 2):
                return f"a rule groups {cut(', '.join(group))}. Name at least two tables, each once."
        for name, devices in (*self.pinned.items(), *self.forbidden.items(), ("", self.forbidden_devices)):
            wrong = next((device for device in devices if not 0 <= device < num_devices), None)
            if wrong is not None:
                of = f" for table {brief(name)}" if name else ""
                devices_are = f"the devices are 0 to {num_devices - 1}"
                return f"a rule{of} names device {brief(wrong)}, but {devices_are}. Correct it."
        return None

    def allowed_devices(self, name: str, num_devices: int) -> frozenset[int] | None:
        """The devices that a table may live on; None for any."""
        devices = set(self.pinned.get(name, range(num_devices)))
        devices -= {*self.forbidden.get(name, ()), *self.forbidden_devices}
        return None if len(devices) == num_devices else frozenset(devices)


RULES = tuple(field.name for field in fields(Rules))


def load_rules(path: Path) -> Rules:
    """Reads a rules file.

    Raises:
        BadFile: if it is missing, not YAML, or holds something else.
    """
    remedy = f"Its keys are {', '.join(RULES)}, as in {{pinned: {{user_id: 0}}, apart: [[a, b]]}}."
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
    unknown = next((key for key in content if key not in RULES), None)
    if unknown is not None:
        raise BadFile(path, f"unknown key {brief(unknown)}", remedy)
    try:
        return Rules.of(**content)
    except BadConfig as error:
        raise BadFile(path, str(error).rstrip("."), remedy) from None


def _devices_of_tables(key: str, value: Any) -> dict[str, tuple[int, ...]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadConfig(f"{key} is {brief(value)}, not a mapping of tables to devices. Write {{table: device}}.")
    return {str(name): _devices(f"{key}.{cut(str(name))}", devices) for name, devices in value.items()}


def _devices(key: str, value: Any) -> tuple[int, ...]:
    devices = value if _is_list(value) else [value]
    if any(isinstance(one, bool) or not isinstance(one, Real) or one % 1 for one in devices):
        raise BadConfig(f"{key}: {brief(value)} is neither a device id nor a list of them. Write 0, or [0, 1].")
    return tuple(map(int, devices))  # Kubeflow's JSON knows no whole numbers


def _groups(key: str, value: Any) -> tuple[tuple[str, ...], ...]:
    if value is None:
        return ()
    if not _is_list(value) or not all(map(_is_list, value)):
        raise BadConfig(f"{key} is {brief(value)}, not a list of groups of tables. Write [[a, b], [c, d]].")
    return tuple(tuple(map(str, group)) for group in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
