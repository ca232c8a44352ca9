"""Rules for single tables, by name: from Python, flags, a pipeline's request or a YAML file.

::

    pinned: {user_id: 0, item_id: [0, 1]}     # device or devices allowed for a table
    pinned_nodes: {ads: 1}                    # node or nodes
    forbidden: {clicks: 3}
    forbidden_devices: [7]
    together: [[query, title]]
    apart: [[ads_a, ads_b]]
    table_types: {user_id: [row_wise, data_parallel]}
    min_columns: {item_id: 32}                # columns of the narrowest shard
    table_kernels: {clicks: fused_uvm}        # compute kernel or kernels
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from evenshard.base.documents import read_yaml
from evenshard.base.errors import BadConfig, bad_records, blame_file
from evenshard.base.messages import brief, cut
from evenshard.base.typed import WrongValues, record_of
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import COLUMN_STEP, COMPUTE_KERNELS
from evenshard.placement.sharding import SHARDING_TYPES
from evenshard.placement.task import TableLimits
from evenshard.planner.knobs import TableRules


@dataclass(frozen=True)
class Rules:
    """The knobs of ``evenshard.planner.knobs.TableRules``, checked, with tuples in place of single values."""

    pinned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    forbidden: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    forbidden_devices: tuple[int, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    pinned_nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    table_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    min_columns: Mapping[str, int] = field(default_factory=dict)
    table_kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def of(**written: Any) -> Rules:
        """Build rules from user input: single values or lists; None means no rule."""
        try:
            return _rules(written)
        except WrongValues as error:
            raise BadConfig(f"{error}. Write a rule as in {_EXAMPLE}.") from None

    def __add__(self, other: Rules) -> Rules:
        """Merge two sets of rules; raise BadConfig if a table has two different rules of one kind."""
        for name in self.pinned.keys() & other.pinned.keys():
            one, two = set(self.pinned[name]), set(other.pinned[name])
            if one != two:
                raise BadConfig(
                    f"table {brief(name)} is pinned twice, to different devices. Pin it once: --pin {name}=DEVICE, or "
                    f"--pin {name}={','.join(map(str, sorted(one | two)))} to allow all of them."
                )
        return Rules(**{name: _join_rules(name, getattr(self, name), getattr(other, name)) for name in RULES})

    def of_tables(self, names: Collection[str]) -> Rules:
        """Return the rules of these tables only."""

        def of(rule: Any) -> Any:
            if isinstance(rule, Mapping):
                return {name: value for name, value in rule.items() if name in names}
            groups = (tuple(name for name in group if name in names) for group in rule)
            return tuple(group for group in groups if len(group) > 1)

        rules = {name: of(rule) for name, rule in vars(self).items() if name != "forbidden_devices"}
        return Rules(**rules, forbidden_devices=self.forbidden_devices)

    def problem(self, names: Iterable[str], machine: Nodes) -> str | None:
        """Explain in a sentence why the rules do not apply to these tables and devices; None if they do."""
        known = set(names)
        groups = (*self.together, *self.apart)
        of_tables = (name for rule in vars(self).values() if isinstance(rule, Mapping) for name in rule)
        for name in (*of_tables, *(name for group in groups for name in group)):
            if name not in known:
                return f"a rule names table {brief(name)}, which is not among the tables. Correct its name."
        for group in groups:
            if len(set(group)) < max(len(group), 2):
                return f"a rule groups the tables {cut(', '.join(group))}. Name at least two tables, each once."
        for name, devices in (*self.pinned.items(), *self.forbidden.items(), ("", self.forbidden_devices)):
            if problem := _id_problem(name, "device", devices, machine.num_devices):
                return problem
        for name, nodes in self.pinned_nodes.items():
            if problem := _id_problem(name, "node", nodes, machine.num_nodes):
                return problem
        for what, words_of, choices in (
            ("type", self.table_types, SHARDING_TYPES),
            ("kernel", self.table_kernels, COMPUTE_KERNELS),
        ):
            for name, words in words_of.items():
                unknown = next((one for one in words if one not in choices), None)
                if unknown is not None or not words:
                    named = f"no {what}" if unknown is None else brief(unknown)
                    return f"a rule for table {brief(name)} names {named}. Choose from {', '.join(choices)}."
        for name, columns in self.min_columns.items():
            if columns < 1:
                return f"min_columns of table {brief(name)} is {brief(columns)}. Give at least 1."
        return None

    def limits(self, name: str, machine: Nodes, types: Iterable[str] = SHARDING_TYPES) -> TableLimits:
        """Return the rules of one table; ``types`` applies to tables without an entry in ``table_types``."""
        where = (self.pinned.get(name), self.pinned_nodes.get(name), self.forbidden.get(name, ()))
        return TableLimits(
            frozenset(self.table_types.get(name, types)),
            _allowed_devices(machine, *where, self.forbidden_devices),
            self.min_columns.get(name, COLUMN_STEP),
            frozenset(self.table_kernels[name]) if name in self.table_kernels else None,
        )


@lru_cache(maxsize=4096)
def _allowed_devices(
    machine: Nodes, pinned: _Several | None, nodes: _Several | None, forbidden: _Several, forbidden_devices: _Several
) -> frozenset[int] | None:
    devices = set(range(machine.num_devices) if pinned is None else pinned)
    if nodes is not None:
        devices &= {device for node in nodes for device in machine.devices_of_node(node)}
    devices -= {*forbidden, *forbidden_devices}
    return None if len(devices) == machine.num_devices else frozenset(devices)


RULES = tuple(field.name for field in fields(Rules))
_EXAMPLE = "{pinned: {user_id: 0}, apart: [[a, b]]}"
_Several = tuple[int, ...]


def _rules(content: Any) -> Rules:
    def several(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {table: several(name, own) for table, own in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(tuple(own) if isinstance(own, list) else own for own in value)
        return value if name == "min_columns" else (value,)

    if isinstance(content, Mapping):
        content = {name: value for name, value in content.items() if value is not None}
        if isinstance(device := content.get("forbidden_devices"), int | float):
            content["forbidden_devices"] = [device]
    written = record_of(TableRules, content, floats_only=True)
    return Rules(**{name: several(name, value) for name, value in vars(written).items() if value is not None})


@blame_file
def load_rules(path: Path) -> Rules:
    """Load a rules file; raise BadFile if it is missing, not YAML, or has other contents."""
    remedy = f"Its keys are {', '.join(RULES)}, as in {_EXAMPLE}."
    content = read_yaml(path, remedy)
    try:
        return Rules() if content is None else _rules(content)
    except WrongValues as error:
        raise bad_records(path, error.problems, remedy) from None


def _join_rules(key: str, one: Any, two: Any) -> Any:
    if not isinstance(one, Mapping):
        return (*one, *two)
    for name in one.keys() & two.keys():
        if key == "forbidden":  # the union of both device sets
            two = {**two, name: (*one[name], *two[name])}
        elif key != "pinned" and one[name] != two[name]:
            raise BadConfig(f"table {brief(name)} has two different rules of {key}. Give one of them.")
    return {**one, **two}


def _id_problem(name: str, what: str, ids: Iterable[int], count: int) -> str | None:
    wrong = next((number for number in ids if not 0 <= number < count), None)
    if wrong is None:
        return None
    of = f" for table {brief(name)}" if name else ""
    return f"a rule{of} names {what} {brief(wrong)}, but {what} ids are 0 to {count - 1}. Correct it."
