"""YAML is data, and says nothing twice."""

import pytest

from evenshard.utils.limits import MAX_LEVELS
from evenshard.utils.yaml_files import load_documents, load_yaml


def test_data_comes_back() -> None:
    assert load_yaml("a: {b: [1, 2.5, null]}\nc: 'x'\n") == {"a": {"b": [1, 2.5, None]}, "c": "x"}
    assert load_yaml("") is None


def test_one_key_in_two_mappings_is_no_repetition() -> None:
    assert load_yaml("[{a: 1}, {a: 2}]") == [{"a": 1}, {"a": 2}]
    assert load_yaml("base: &b {a: 1, c: 3}\nown: {<<: *b, a: 2}")["own"] == {"a": 2, "c": 3}
    assert load_yaml("{1: a, '2': b}") == {1: "a", "2": "b"}


def test_aliases_are_counted_as_what_they_stand_for() -> None:
    bins = list(range(17))
    text = f"- &bins {bins}\n" + "- {a: 1, bins: *bins}\n" * 1000
    assert load_yaml(text) == [bins] + [{"a": 1, "bins": bins}] * 1000
    lines = ["- &a0 [x]"] + [f"- &a{number} [{f'*a{number - 1}, ' * 9}]" for number in range(1, 10)]
    assert len(load_yaml("\n".join(lines[:6]))) == 6
    with pytest.raises(ValueError, match="more than 1,000,000 values"):
        load_yaml("\n".join(lines))
    with pytest.raises(ValueError, match="more than 1,000,000 values"):
        load_yaml("a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 9}]}}\n" for n in range(1, 9)))


def test_aliases_add_levels() -> None:
    chain = "- &a1 [x]\n" + "".join(f"- &a{number} [*a{number - 1}]\n" for number in range(2, 120))
    assert len(load_yaml("".join(chain.splitlines(keepends=True)[: MAX_LEVELS - 1]))) == MAX_LEVELS - 1
    with pytest.raises(ValueError, match="100 levels"):
        load_yaml(chain)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
def test_depth_ends_before_the_process_does(opening: str) -> None:
    with pytest.raises(ValueError, match="100 levels"):
        load_yaml(opening * 1_000_000)
    assert load_yaml("[" * MAX_LEVELS + "]" * MAX_LEVELS)
    with pytest.raises(ValueError, match="100 levels"):
        load_yaml("[" * (MAX_LEVELS + 1) + "]" * (MAX_LEVELS + 1))


def test_several_documents() -> None:
    assert load_documents("a: 1\n---\nb: &x 2\n---\n") == [{"a": 1}, {"b": 2}, None]
    with pytest.raises(ValueError, match="more than 1 document"):
        load_yaml("a: 1\n---\nb: 2\n")
    with pytest.raises(ValueError, match=r"\*x stands for nothing before it, line 3"):
        load_documents("a: &x 1\n---\nb: *x\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("&x [*x]", r"the alias \*x stands for nothing before it, line 1, column 5"),
        ("0x" + "f" * 5000, "'0xfff.*is not a valid number"),
        ("9" * 5000, "'999.*is not a valid number"),
        (":".join(["1"] * 200) + ":1.5", "'1:1:.*is not a valid number"),
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
