"""The reading of pages by ``make docs-output``, which runs their commands; here none of them runs."""

from __future__ import annotations

import pytest

from docs import output
from docs.excerpts import excerpt
from docs.quotes import Quote, find_once


def test_the_rules_name_commands_and_sentences_of_the_pages() -> None:
    for name in output.PAGES:
        _ = output.page(name).steps  # raises where the page lacks a command that is left alone
    for rule in output.RULES["quotes"]:
        for name, says, _ in rule["figures"]:
            find_once(says, output.page(name).text, name)


def test_commands_and_where_their_outputs_stand() -> None:
    text = """\
Text:

    evenshard place a.csv \\
        --devices 2            # a comment

    device  ms
         0   1

    evenshard explain placement.json

Another:

    a,b

    $ evenshard place wrong.csv
    evenshard place: wrong
    $ dvc pull
"""
    assert [(step.code, step.end - step.begin) for step in output.steps(text)] == [
        ("evenshard place a.csv --devices 2", 2),
        ("evenshard explain placement.json", 0),
        ("evenshard place wrong.csv", 1),
        ("dvc pull", 0),
    ]


SAID = [
    "2 x a100, batch 65,536",
    "A warning, which",
    "goes on.",
    "",
    "3.14 ms a step, at most",
    "7 % above",
    "",
    "device  ms",
    "     0  3.0",
    "     1  3.1",
    "     2  3.14",
    "",
    "bound   3 ms",
]


@pytest.mark.parametrize(
    ("shown", "now"),
    [
        (["2 x a100, batch 512", "...", "bound 2 ms"], ["2 x a100, batch 65,536", "...", "bound   3 ms"]),
        (
            ["...", "", "2.7 ms a step, at most 6 % above", "", "device  ms", "     0  2.7", "..."],
            ["...", "", "3.14 ms a step, at most", "7 % above", "", "device  ms", "     0  3.0", "..."],
        ),
        (["anything"], SAID),
    ],
)
def test_an_excerpt_has_the_lines_of_the_earlier_one(shown: list[str], now: list[str]) -> None:
    assert excerpt(shown, SAID) == now
    assert excerpt(now, SAID) == now


def test_words_that_are_printed_no_more_are_named() -> None:
    with pytest.raises(LookupError, match="than 'nothing of the kind'"):
        excerpt(["...", "nothing of the kind", "..."], SAID)


def test_a_figure_is_quoted_with_the_decimals_of_the_page() -> None:
    quote = Quote("page.md", "takes {} ms, {} of\n{*}", "| a | {} | {*} | {} |")
    assert quote.of("It takes 1.00 ms, 9 of 12.", "| a | 2.345 | 7 | 1,025.5 |\n") == "It takes 2.35 ms, 1,026 of 12."
    with pytest.raises(LookupError, match="says 2 times, not once"):
        quote.of("takes 1 ms, 2 of 3 takes 1 ms, 2 of 3", "")
    with pytest.raises(LookupError, match="has 2 figures, its source 1"):
        Quote("page.md", "{} and {}", "{}").of("1 and 2", "3")
