"""Messages: one printable line, without passwords, with values cut short; and plain tables."""

from __future__ import annotations

import pytest

from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import (
    MAX_MESSAGE,
    brief,
    cut,
    did_you_mean,
    names_text,
    printable,
    reason_of,
    root_of,
    tables_text,
    text_table,
    without_credentials,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://alice:hunter2@127.0.0.1:9 is away", "http://***@127.0.0.1:9 is away"),
        ("http://tokenonly@host", "http://***@host"),
        ("https://u:p@ss@host", "https://***@host"),
        (
            "postgresql+psycopg2://u:p@db/x?sslmode=on&password=pw",
            "postgresql+psycopg2://***@db/x?sslmode=on&password=***",
        ),
        ("http://h/?X-Amz-Signature=abc&x=1", "http://h/?X-Amz-Signature=***&x=1"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("write to me@host.org", "write to me@host.org"),
    ],
)
def test_no_address_gives_its_password_away(text: str, expected: str) -> None:
    assert without_credentials(text) == expected
    assert str(BadConfig(text)) == expected


def test_an_error_is_one_line_that_steers_no_terminal() -> None:
    assert str(BadConfig("a\nb\x1b[31m\u202e")) == "a b\ufffd[31m\ufffd"
    assert str(BadFile("a\x07.csv", "is\r\nbad", "Do.")) == "a\ufffd.csv: is bad. Do."
    assert len(str(BadConfig("x" * 10_000))) == MAX_MESSAGE


def test_values_are_cut_and_texts_between_words() -> None:
    assert brief("abc") == "'abc'"
    assert len(brief("x" * 10_000)) == 80
    assert brief(10**6000) == "a whole number of about 6,000 digits"
    assert printable("naïve 表") == "naïve 表" and brief("\x1b") == r"'\x1b'"
    value: list[object] = ["x"] * 9
    for _ in range(60):  # it would fill the memory
        value = [value] * 9
    assert len(brief(value)) <= 80
    assert [cut(text, 14) for text in ("one two three four", "one two three f", "one", "o" * 5 + " " + "x" * 20)] == [
        "one two...", "one two...", "one", "ooooo xxxxx...",
    ]  # fmt: skip
    assert cut("x" * 20, 10) == "xxxxxxx..." and cut("x" * 10, 10) == "x" * 10


def test_lists_of_names() -> None:
    assert names_text("abc") == "a, b, c" and names_text("abcde") == "a, b, c and 2 more"
    assert tables_text(["a"]) == "a (1 table)" and tables_text("abcd") == "a, b, c and 1 more (4 tables)"
    assert did_you_mean("h10", ["h100", "cpu"]) == " Did you mean h100?" and did_you_mean("zzz", ["h100"]) == ""


def test_the_reason_of_an_error_is_its_first_line() -> None:
    assert reason_of(ValueError("first.\nsecond")) == "first"
    assert reason_of(ValueError("http://u:p@h: away")) == "http://***@h: away"
    assert reason_of(KeyError()) == "KeyError"
    last, first = ValueError(), KeyError()
    last.__cause__ = first
    assert root_of(last) is first


def test_columns_are_as_wide_as_their_widest_cell_and_the_last_one_wraps_where_a_width_is_given() -> None:
    rows = [("name", "ms", "%", ""), ("a", "10.00", "+1", "note"), ("longer", "2.00", "-10", "")]
    assert text_table(rows, "<>><", indent="  ").splitlines() == [
        "  name       ms    %",
        "  a       10.00   +1  note",
        "  longer   2.00  -10",
    ]
    rows = [("a", "bb", "c"), ("aa", "b", "cc")]
    assert text_table(rows, "<>") == text_table(rows, "<>>") == "a   bb   c\naa   b  cc", "the last side is repeated"
    rows = [("name", "words"), ("a", "one two three four five six seven eight nine"), ("bb", "")]
    assert text_table(rows, "<<", indent=" ", width=39).splitlines() == [
        " name  words",
        " a     one two three four five six",
        "       seven eight nine",
        " bb",
    ]
    assert text_table(rows, "<<", width=10) == text_table(rows, "<<", width=36), "the column keeps some room"
