"""Rules written down as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenshard.planner.request import Rules
from evenshard.planner.rules_file import load_rules
from evenshard.utils.errors import BadFile


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
        ("forbidden: {a: 0}\nforbidden: {b: 1}", "'forbidden' stands there twice"),
        ("forbidden: {a: 0, b: 0, a: 1}", "'a' stands there twice"),
        ("pined: {a: 0}", "unknown key 'pined'.*pinned, forbidden"),
        ("- a", "holds no rules"),
        ("pinned: [a]", "pinned: is not a mapping"),
        ("pinned: {a: one}", r"pinned\.a: 'one' is neither a device id"),
        ("pinned: {a: [true]}", "neither a device id"),
        ("forbidden_devices: x", "forbidden_devices: 'x' is neither a device id"),
        ("together: [a, b]", "together: is not a list of groups"),
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
