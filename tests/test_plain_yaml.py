"""YAML is data, and says nothing twice."""

import pytest

from evenshard.plain_yaml import load_yaml


def test_data_comes_back() -> None:
    assert load_yaml("a: {b: [1, 2.5, null]}\nc: 'x'\n") == {"a": {"b": [1, 2.5, None]}, "c": "x"}
    assert load_yaml("") is None


def test_one_key_in_two_mappings_is_no_repetition() -> None:
    assert load_yaml("[{a: 1}, {a: 2}]") == [{"a": 1}, {"a": 2}]
    assert load_yaml("base: &b {a: 1, c: 3}\nown: {<<: *b, a: 2}")["own"] == {"a": 2, "c": 3}
    assert load_yaml("{1: a, '2': b}") == {1: "a", "2": "b"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb: 2\na: 3\n", r"'a' stands there twice.*line 3"),
        ("x: {a: 1, a: 1}", "'a' stands there twice"),
        ("- [{a: 1, a: 2}]", "'a' stands there twice"),
        ("a: [1", "line 1"),
        ("a: 2024-13-45", "month must be in"),
        ("!!python/object:os.system {}", "could not determine a constructor"),
    ],
)
def test_what_is_none_is_one_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)
