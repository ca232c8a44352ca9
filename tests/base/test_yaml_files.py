"""YAML is data, and says nothing twice."""

import pytest

from evenshard.base.yaml_files import load_documents, load_yaml


def test_data_comes_back() -> None:
    assert load_yaml("a: {b: [1, 2.5, null]}\nc: 'x'\n") == {"a": {"b": [1, 2.5, None]}, "c": "x"}
    assert load_yaml("") is None


def test_one_key_in_two_mappings_is_no_repetition() -> None:
    assert load_yaml("[{a: 1}, {a: 2}]") == [{"a": 1}, {"a": 2}]
    assert load_yaml("base: &b {a: 1, c: 3}\nown: {<<: *b, a: 2}")["own"] == {"a": 2, "c": 3}
    assert load_yaml("{1: a, '2': b}") == {1: "a", "2": "b"}


@pytest.mark.parametrize("text", ["&x [1, *x]", "a: &x {b: {c: *x}}", "&x\n- &y {a: *y}\n"])
def test_a_document_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the alias '[xy]' stands in what it repeats"):
        load_yaml(text)
    assert load_yaml("- &x [1]\n- &y [*x, *x]\n- *y") == [[1], [[1], [1]], [[1], [1]]]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
def test_depth_ends_before_the_process_does(opening: str) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        load_yaml(opening * 1_000_000)


def test_several_documents() -> None:
    assert load_documents("a: 1\n---\nb: &x 2\n---\n") == [{"a": 1}, {"b": 2}, None]
    with pytest.raises(ValueError, match="more than 1 document"):
        load_yaml("a: 1\n---\nb: 2\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9" * 5000, "Exceeds the limit"),
        ("a: 1\nb: 2\na: 3\n", r"'a' appears twice.*line 3"),
        ("x: {a: 1, a: 1}", "'a' appears twice"),
        ("- [{a: 1, a: 2}]", "'a' appears twice"),
        ("a: [1", "line 1"),
        ("a: 2024-13-45", "month must be in"),
        ("!!python/object:os.system {}", "could not determine a constructor"),
    ],
)
def test_what_is_none_is_one_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)
