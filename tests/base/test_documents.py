"""JSON and YAML are data, and say nothing twice."""

import gzip
import json
import math
from collections.abc import Callable
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
    assert load_yaml("a: {b: [1, 2.5, null]}\nc: 'x'\n") == {"a": {"b": [1, 2.5, None]}, "c": "x"}
    assert load_yaml("") is None
    assert load_yaml("base: &b {a: 1, c: 3}\nown: {<<: *b, a: 2}")["own"] == {"a": 2, "c": 3}
    assert load_yaml("[{a: 1}, {1: 2}]") == [{"a": 1}, {1: 2}], "a key in two mappings"
    assert load_yaml("- &x [1]\n- &y [*x, *x]\n- *y") == [[1], [[1], [1]], [[1], [1]]]
    assert load_yaml("[" * 100 + "]" * 100) != []
    assert len(load_yaml("a: &a [x]\nb: [" + "*a, " * 100 + "]")["b"]) == 100
    assert load_documents("a: 1\n---\nb: &x 2\n---\n") == [{"a": 1}, {"b": 2}, None]


def test_size_has_a_limit() -> None:
    assert load_json("[1, 2]", max_bytes=6) == [1, 2]
    for source in ("[1, 23]", b"[1, 23]"):
        with pytest.raises(ValueError, match="larger than 0 MB"):
            load_json(source, max_bytes=6)


ITSELF = "the alias '[xy]' refers to a value that contains it"
# Each anchor doubles the one before: forty would be 2^40 values.
DOUBLED = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("load", "source", "why"),
    [
        (load_json, '{"a": 1', "not JSON .*line 1 column 8"),
        (load_json, '{"a": NaN}', "'NaN' is not a valid number"),
        (load_json, "[1e400]", "'1e400' is not a valid number"),
        (load_json, "[-1e400]", "'-1e400' is not a valid number"),
        (load_json, f"[{'9' * 301}]", "is not a valid number"),
        (load_json, "[" * 100_000, "nested too deep"),
        (load_json, '{"a": 1, "b": {"c": 2, "c": 2}}', "key 'c' appears twice"),
        (load_json, b'["\xff"]', r"not UTF-8 \(byte 3\)"),
        (load_json, r'["\ud800x"]', "an invalid character"),
        (load_json, r'{"\udfff": 1}', "an invalid character"),
        (load_yaml, "9" * 5000, "Exceeds the limit"),
        (load_yaml, "a: 1\nb: 2\na: 3\n", r"'a' appears twice.*line 3"),
        (load_yaml, "- [{a: 1, a: 2}]", "'a' appears twice"),
        (load_yaml, "a: [1", "line 1"),
        (load_yaml, "a: 2024-13-45", "month must be in"),
        (load_yaml, "!!python/object:os.system {}", "could not determine a constructor"),
        (load_yaml, "a: 1\n---\nb: 2\n", "more than 1 document"),
        *((load_yaml, text, ITSELF) for text in ("&x [1, *x]", "a: &x {b: {c: *x}}", "&x\n- &y {a: *y}\n")),
        (load_yaml, DOUBLED, "of its aliases are inside anchored values"),
        (load_yaml, "[" * 101 + "]" * 101, "nested too deep"),
        *((load_yaml, text * 1_000_000, "nested too deep") for text in ("{a: ", "- ", "? ")),
    ],
)
def test_what_is_none_is_one_line(load: Callable[..., object], source: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        load(source)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


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
