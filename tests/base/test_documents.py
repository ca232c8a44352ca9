"""JSON and YAML are data, and say nothing twice."""

import json

import pytest

from evenshard.base.documents import load_documents, load_json, load_yaml

DATA = {"a": [1, -2.5e-3, None, True, "ä \U0001f600 \\ ] [ {"], "b": {"a": {}}, "c": 10**20}


def test_data_comes_back() -> None:
    for text in (json.dumps(DATA), json.dumps(DATA, ensure_ascii=False)):
        assert load_json(text) == DATA
        assert load_json(text.encode()) == DATA
        assert load_json(b"\xef\xbb\xbf" + text.encode()) == DATA
    assert load_json("[]") == []
    assert load_json(b"3") == 3


def test_one_key_in_two_objects_is_no_repetition() -> None:
    assert load_json('[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_is_no_traceback(opening: str) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        load_json(opening * 100_000)


def test_size_has_a_limit() -> None:
    assert load_json("[1, 2]", max_bytes=6) == [1, 2]
    for source in ("[1, 23]", b"[1, 23]"):
        with pytest.raises(ValueError, match="larger than 0 MB"):
            load_json(source, max_bytes=6)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "not JSON"),
        ('{"a": 1', "not JSON .*line 1 column 8"),
        ("{'a': 1}", "not JSON"),
        ('{"a": NaN}', "'NaN' is not a valid number"),
        ("[-Infinity]", "'-Infinity' is not a valid number"),
        ("[1e400]", "'1e400' is not a valid number"),
        ("[-1e400]", "'-1e400' is not a valid number"),
        (f"[{'9' * 5000}]", "is not a valid number"),
        ('{"a": 1, "b": {"c": 2, "c": 2}}', "key 'c' appears twice"),
        (b'["\xff"]', r"not UTF-8 \(byte 3\)"),
        (b"\xff\xfe[\x00]\x00", "not UTF-8"),
        (r'["\ud800x"]', "an invalid character"),
        (r'{"\udfff": 1}', "an invalid character"),
    ],
)
def test_what_is_none_is_one_line(source: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        load_json(source)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


# YAML -----------------------------------------------------------------------------------------------------------------


def test_yaml_data_comes_back() -> None:
    assert load_yaml("a: {b: [1, 2.5, null]}\nc: 'x'\n") == {"a": {"b": [1, 2.5, None]}, "c": "x"}
    assert load_yaml("") is None


def test_yaml_one_key_in_two_mappings_is_no_repetition() -> None:
    assert load_yaml("[{a: 1}, {a: 2}]") == [{"a": 1}, {"a": 2}]
    assert load_yaml("base: &b {a: 1, c: 3}\nown: {<<: *b, a: 2}")["own"] == {"a": 2, "c": 3}
    assert load_yaml("{1: a, '2': b}") == {1: "a", "2": "b"}


@pytest.mark.parametrize("text", ["&x [1, *x]", "a: &x {b: {c: *x}}", "&x\n- &y {a: *y}\n"])
def test_yaml_document_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the alias '[xy]' refers to a value that contains it"):
        load_yaml(text)
    assert load_yaml("- &x [1]\n- &y [*x, *x]\n- *y") == [[1], [[1], [1]], [[1], [1]]]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
def test_yaml_depth_ends_before_the_process_does(opening: str) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        load_yaml(opening * 1_000_000)


def test_yaml_several_documents() -> None:
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
def test_yaml_what_is_none_is_one_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        load_yaml(text)
    assert "\n" not in str(caught.value)
