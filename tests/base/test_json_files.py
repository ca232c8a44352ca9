"""JSON is data: with finite numbers, and says nothing twice."""

import json

import pytest

from evenshard.base.json_files import load_json

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
        with pytest.raises(ValueError, match="more than 0 MB"):
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
        (r'["\ud800x"]', "half of a character"),
        (r'{"\udfff": 1}', "half of a character"),
    ],
)
def test_what_is_none_is_one_line(source: str | bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        load_json(source)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
