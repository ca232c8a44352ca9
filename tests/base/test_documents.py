"""JSON and YAML are data, and say nothing twice."""

import gzip
import json
import math
from pathlib import Path

import pytest

from evenshard.base import documents
from evenshard.base.documents import (
    load_documents,
    load_json,
    load_params,
    load_yaml,
    read_json,
    replace_non_finite,
    unpack_file,
)
from evenshard.base.errors import BadFile

DATA = {"a": [1, -2.5e-3, None, True, "ä \U0001f600 \\ ] [ {"], "b": {"a": {}}, "c": 10**20}


def test_data_comes_back() -> None:
    for text in (json.dumps(DATA), json.dumps(DATA, ensure_ascii=False)):
        assert load_json(text) == DATA
        assert load_json(text.encode()) == DATA
        assert load_json(b"\xef\xbb\xbf" + text.encode()) == DATA
    assert load_json(b"3") == 3
    assert load_json(f"[{'9' * 300}]") == [int("9" * 300)]

    assert load_json('[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}], "a key in two objects"


def test_size_has_a_limit() -> None:
    assert load_json("[1, 2]", max_bytes=6) == [1, 2]
    for source in ("[1, 23]", b"[1, 23]"):
        with pytest.raises(ValueError, match="larger than 0 MB"):
            load_json(source, max_bytes=6)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('{"a": 1', "not JSON .*line 1 column 8"),
        ('{"a": NaN}', "'NaN' is not a valid number"),
        ("[1e400]", "'1e400' is not a valid number"),
        ("[-1e400]", "'-1e400' is not a valid number"),
        (f"[{'9' * 301}]", "is not a valid number"),
        ("[" * 100_000, "nested too deep"),
        ('{"a": 1, "b": {"c": 2, "c": 2}}', "key 'c' appears twice"),
        (b'["\xff"]', r"not UTF-8 \(byte 3\)"),
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
    assert load_yaml("base: &b {a: 1, c: 3}\nown: {<<: *b, a: 2}")["own"] == {"a": 2, "c": 3}
    assert load_yaml("[{a: 1}, {1: 2}]") == [{"a": 1}, {1: 2}], "a key in two mappings"


@pytest.mark.parametrize("text", ["&x [1, *x]", "a: &x {b: {c: *x}}", "&x\n- &y {a: *y}\n"])
def test_yaml_document_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the alias '[xy]' refers to a value that contains it"):
        load_yaml(text)
    assert load_yaml("- &x [1]\n- &y [*x, *x]\n- *y") == [[1], [[1], [1]], [[1], [1]]]


def test_yaml_depth_ends_before_the_process_does() -> None:
    assert load_yaml("[" * 100 + "]" * 100) != []
    for text in ("[" * 101 + "]" * 101, "{a: " * 1_000_000, "- " * 1_000_000, "? " * 1_000_000):
        with pytest.raises(ValueError, match="nested too deep"):
            load_yaml(text)


def test_yaml_several_documents() -> None:
    assert load_documents("a: 1\n---\nb: &x 2\n---\n") == [{"a": 1}, {"b": 2}, None]
    with pytest.raises(ValueError, match="more than 1 document"):
        load_yaml("a: 1\n---\nb: 2\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9" * 5000, "Exceeds the limit"),
        ("a: 1\nb: 2\na: 3\n", r"'a' appears twice.*line 3"),
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


def test_yaml_doubling_aliases_are_refused() -> None:
    """Forty would be 2^40 values."""
    doubled = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    with pytest.raises(ValueError, match="of its aliases are inside anchored values"):
        load_yaml(doubled)
    assert len(load_yaml("a: &a [x]\nb: [" + "*a, " * 100 + "]")["b"]) == 100


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [1, 2", "not readable as YAML"),
        (b"\xff\xfe\x00", "not readable as YAML"),
        (b"", "is not a mapping"),
        (b"extra: [{2024-01-01: x}]\n", "is not a string. Put it in quotes"),
        (None, r"no such file.*--params"),
    ],
)
def test_a_file_of_something_else_is_refused_on_one_line(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "params.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadFile, match=words) as caught:
        load_params(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_json_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    assert read_json(tmp_path / "a.json", "a plan", "Write it.") == [1, 2]
    with pytest.raises(BadFile, match=r"none: no such file\. Write it\."):
        read_json(tmp_path / "none", "a plan", "Write it.")
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 5)
    with pytest.raises(BadFile, match=r"a\.json: is not a plan: it is larger than 0 MB. Write it."):
        read_json(tmp_path / "a.json", "a plan", "Write it.")


def test_numbers_that_json_lacks_are_null() -> None:
    assert replace_non_finite({"a": [1.0, math.nan, (math.inf, "b")]}) == {"a": [1.0, None, [None, "b"]]}


def test_a_packed_file_is_unpacked_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"x" * 10))
    monkeypatch.setattr(documents, "MAX_UNPACKED_BYTES", 10)
    with unpack_file(path) as unpacked, unpack_file(path, is_packed=False) as same:
        assert (unpacked.name, unpacked.read_bytes(), same) == ("a.csv", b"x" * 10, path)
    monkeypatch.setattr(documents, "MAX_UNPACKED_BYTES", 9)
    with pytest.raises(BadFile, match="unpacks to more than"), unpack_file(path):
        pass
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadFile, match="cannot be unpacked"), unpack_file(path):
        pass
