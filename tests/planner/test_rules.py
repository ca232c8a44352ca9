"""Rules written down as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.loop.decisions.requests import place_arguments
from evenshard.placement.nodes import Nodes
from evenshard.placement.sharding import BY_COLUMNS, SHARDING_TYPES
from evenshard.placement.task import TableLimits
from evenshard.planner.rules import RULES, Rules, load_rules


def test_all_kinds_of_rules_and_empty_files_and_keys(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "pinned: {user: 0, item: [0, 1]}\nforbidden: {clicks: 3}\nforbidden_devices: [7]\n"
        "together: [[query, title]]\napart: [[x, y], [y, z]]\npinned_nodes: {ads: 1}\n"
        "table_types: {user: [row_wise, data_parallel], item: table_wise}\nmin_columns: {item: 32}\n"
    )
    assert load_rules(tmp_path / "rules.yaml") == Rules(
        {"user": (0,), "item": (0, 1)},
        {"clicks": (3,)},
        (7,),
        (("query", "title"),),
        (("x", "y"), ("y", "z")),
        {"ads": (1,)},
        {"user": ("row_wise", "data_parallel"), "item": ("table_wise",)},
        {"item": 32},
    )
    for text in ("", "# nothing\n", "pinned:\napart: []\n"):
        (tmp_path / "rules.yaml").write_text(text)
        assert load_rules(tmp_path / "rules.yaml") == Rules()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forbidden: {a: 0}\nforbidden: {b: 1}", "'forbidden' appears twice"),
        ("pined: {a: 0}", "'pined' is unknown .*pinned, forbidden"),
        ("pinned: {a: one}", "pinned: a is 'one', not a whole number or a list"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(BadFile, match=message) as caught:
        load_rules(tmp_path / "rules.yaml")
    assert "\n" not in str(caught.value)


def test_rules_of_python_a_request_and_a_file_are_read_by_one_parser(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("pinned: {a: 1, b: [0, 1]}\ntogether: [[a, b]]\n")
    of_python = Rules.of(pinned={"a": 1, "b": (0, 1)}, together=[("a", "b")])
    assert load_rules(tmp_path / "rules.yaml") == of_python
    request = {"pinned": {"a": 1.0, "b": [0, 1]}, "together": [["a", "b"]]}  # Kubeflow makes floats of numbers
    assert Rules.of(**{name: place_arguments(request)[name] for name in RULES}) == of_python
    with pytest.raises(BadConfig, match="pinned: a is 'one', not a whole number"):
        place_arguments({"pinned": {"a": "one"}})


def test_rules_add_up() -> None:
    both = Rules.of(pinned={"a": 0}, forbidden={"b": 1}, forbidden_devices=2) + Rules.of(
        pinned={"a": [0], "c": 1}, forbidden={"b": 3}, forbidden_devices=[4], apart=[["a", "b"]]
    )
    assert both == Rules({"a": (0,), "c": (1,)}, {"b": (1, 3)}, (2, 4), apart=(("a", "b"),))
    with pytest.raises(BadConfig, match=r"'a' is pinned twice.*--pin a=0,1 to allow"):
        Rules.of(pinned={"a": 0}) + Rules.of(pinned={"a": 1})
    with pytest.raises(BadConfig, match=r"'a' has two different rules of min_columns"):
        Rules.of(min_columns={"a": 8}) + Rules.of(min_columns={"a": 16})


def test_the_limits_of_a_table() -> None:
    machine = Nodes(8, 4, inter="infiniband_ndr")
    rules = Rules.of(
        pinned={"a": [1, 5]},
        forbidden={"b": 4},
        pinned_nodes={"a": 1, "b": 1},
        table_types={"b": "row_wise"},
        min_columns={"b": 16},
    )
    everything = frozenset(SHARDING_TYPES)
    assert rules.limits("a", machine) == TableLimits(everything, frozenset({5}))
    assert rules.limits("b", machine, BY_COLUMNS) == TableLimits(frozenset({"row_wise"}), frozenset({5, 6, 7}), 16)
    assert rules.limits("c", machine, BY_COLUMNS) == TableLimits(frozenset(BY_COLUMNS))
    rules, machine = Rules(forbidden={"a": (0,)}, forbidden_devices=(3,)), Nodes.one_node(4)
    assert (rules.limits("a", machine).devices, rules.limits("b", machine).devices) == ({1, 2}, {0, 1, 2})
    assert Rules().limits("a", machine).devices is None


def test_rules_that_cannot_be_used() -> None:
    machine = Nodes(8, 4, inter="infiniband_ndr")
    for rules, problem in (
        ({"pinned_nodes": {"a": 2}}, "a rule for table 'a' names node 2, but node ids are 0 to 1. Correct it."),
        ({"table_types": {"a": "row"}}, "a rule for table 'a' names 'row'. Choose from table_wise, column_wise,"),
        ({"table_types": {"a": []}}, "a rule for table 'a' names no"),
        ({"min_columns": {"c": 8}}, "a rule names table 'c', which is not among the tables. Correct its name."),
        ({"min_columns": {"a": 0}}, "min_columns of table 'a' is 0. Give at least 1."),
    ):
        assert (Rules.of(**rules).problem(["a", "b"], machine) or "").startswith(problem)
    fine = Rules.of(pinned_nodes={"a": [0, 1]}, table_types={"b": ["row_wise"]}, min_columns={"a": 8})
    assert fine.problem(["a", "b"], machine) is None


def test_rules_of_tables_that_are_left() -> None:
    kept: dict[str, Any] = {"forbidden": {"b": 1}, "forbidden_devices": [2], "table_types": {"b": "row_wise"}}
    kept |= {"min_columns": {"c": 8}}
    gone: dict[str, Any] = {"pinned": {"a": 0}, "together": [["a", "b"]], "pinned_nodes": {"a": 0}}
    left = Rules.of(**kept, **gone, apart=[["a", "b", "c"]]).of_tables({"b", "c"})
    assert left == Rules.of(**kept, apart=[["b", "c"]])
