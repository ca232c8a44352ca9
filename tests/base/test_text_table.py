"""Plain text tables."""

from __future__ import annotations

from evenshard.base.text_table import text_table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("name", "ms", "%", ""), ("a", "10.00", "+1", "note"), ("longer", "2.00", "-10", "")]
    assert text_table(rows, "<>><", indent="  ").splitlines() == [
        "  name       ms    %",
        "  a       10.00   +1  note",
        "  longer   2.00  -10",
    ]


def test_the_last_side_counts_for_the_columns_that_follow() -> None:
    rows = [("a", "bb", "c"), ("aa", "b", "cc")]
    assert text_table(rows, "<>") == text_table(rows, "<>>") == "a   bb   c\naa   b  cc"


def test_the_last_column_wraps_where_a_width_is_given() -> None:
    rows = [("name", "words"), ("a", "one two three four five six seven eight nine"), ("bb", "")]
    assert text_table(rows, "<<", indent=" ", width=39).splitlines() == [
        " name  words",
        " a     one two three four five six",
        "       seven eight nine",
        " bb",
    ]
    assert text_table(rows, "<<", width=10) == text_table(rows, "<<", width=36), "the column keeps some room"
