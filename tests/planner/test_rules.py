"""Rules written down as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.kubeflow.place_request import place_arguments
from evenshard.planner.rules import RULES, Rules, load_rules
from evenshard.utils.errors import BadConfig, BadFile


def test_all_kinds_of_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "pinned: {user: 0, item: [0, 1]}\nforbidden: {clicks: 3}\nforbidden_devices: [7]\n"
        "together: [[query, title]]\napart: [[x, y], [y, z]]\n"
    )
    assert load_rules(tmp_path / "rules.yaml") == Rules(
        {"user": (0,), "item": (0, 1)}, {"clicks": (3,)}, (7,), (("query", "title"),), (("x", "y"), ("y", "z"))
    )


def test_an_empty_file_and_empty_keys_are_no_rules(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "pinned:\napart: []\n"):
        (tmp_path / "rules.yaml").write_text(text)
        assert load_rules(tmp_path / "rules.yaml") == Rules()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forbidden: {a: 0}\nforbidden: {b: 1}", "'forbidden' appears twice"),
        ("forbidden: {a: 0, b: 0, a: 1}", "'a' appears twice"),
        ("pined: {a: 0}", "unknown key 'pined'.*pinned, forbidden"),
        ("- a", "holds no rules"),
        ("pinned: [a]", "pinned is .*, not a mapping"),
        ("pinned: {a: one}", r"pinned\.a: 'one' is neither a device id"),
        ("pinned: {a: [true]}", "is neither a device id"),
        ("forbidden_devices: x", "forbidden_devices: 'x' is neither a device id"),
        ("together: [a, b]", "together is .*, not a list of groups"),
        ("pinned: {a: ", "not readable as YAML"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(BadFile, match=message) as caught:
        load_rules(tmp_path / "rules.yaml")
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such file"):
        load_rules(tmp_path / "rules.yaml")


def test_rules_of_python_a_request_and_a_file_are_read_by_one_parser(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("pinned: {a: 1, b: [0, 1]}\ntogether: [[a, b]]\n")
    of_python = Rules.of(pinned={"a": 1, "b": (0, 1)}, together=[("a", "b")])
    assert load_rules(tmp_path / "rules.yaml") == of_python
    request = {"pinned": {"a": 1.0, "b": [0, 1]}, "together": [["a", "b"]]}  # Kubeflow makes floats of numbers
    assert Rules.of(**{name: place_arguments(request)[name] for name in RULES}) == of_python
    with pytest.raises(BadConfig, match=r"pinned\.a: 'one' is neither a device id"):
        place_arguments({"pinned": {"a": "one"}})


def test_rules_add_up() -> None:
    both = Rules.of({"a": 0}, {"b": 1}, 2) + Rules.of({"a": [0], "c": 1}, {"b": 3}, [4], apart=[["a", "b"]])
    assert both == Rules({"a": (0,), "c": (1,)}, {"b": (1, 3)}, (2, 4), apart=(("a", "b"),))
    with pytest.raises(BadConfig, match=r"'a' is pinned twice.*--pin a=0,1 for any"):
        Rules.of({"a": 0}) + Rules.of({"a": 1})
