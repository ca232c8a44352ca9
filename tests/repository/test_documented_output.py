"""What README.md and docs/*.md show of outputs is what the commands print, and what sentences quote stands there.

`make docs-output` updates the pages.
"""

from __future__ import annotations

import pytest

from docs import output
from docs.excerpts import excerpt
from docs.quotes import Quote

pytest.importorskip("pandas", reason="needs evenshard[pandas]")
pytest.importorskip("pyarrow", reason="needs evenshard[parquet]")
pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
RUN = [name for name in output.PAGES if output.page(name).steps]
QUOTING = sorted({page for rule in output.RULES["quotes"] for page, _, _ in rule["figures"]})


@pytest.mark.slow
@pytest.mark.full_search
def test_the_answer_that_the_readme_shows() -> None:
    """With its times; its commands run once for this and for ``test_what_commands_print``."""
    page = output.page("README.md")
    assert page.with_outputs() == page.text


@pytest.mark.slow
def test_what_a_short_search_shows_as_well() -> None:
    page = output.Page("docs/tables.md")
    assert page.with_outputs() == page.text


@pytest.mark.parametrize("name", QUOTING)
def test_figures_are_those_of_the_files_that_they_come_from(name: str) -> None:
    text = output.page(name).text
    assert output.with_figures(name, text, only_files=True) == text


def test_figures_of_a_loop_are_those_that_were_committed() -> None:
    """``make run`` measures again, and overwrites the files of ``reports/``."""
    sources = [rule["of"] for rule in output.RULES["quotes"]]
    assert any(one.get("committed", "").startswith("reports/") for one in sources)
    assert not any(one.get("file", "").startswith("reports/") for one in sources)


@pytest.mark.slow
@pytest.mark.full_search
@pytest.mark.parametrize("name", sorted({*RUN, *QUOTING}))
def test_what_commands_print(name: str) -> None:
    assert output.renew(name, in_shape=True) == output.page(name).text


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
        (["2 x h100, batch 512", "...", "bound 2 ms"], ["2 x a100, batch 65,536", "...", "bound   3 ms"]),
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


def test_a_line_that_is_printed_no_more_is_named() -> None:
    with pytest.raises(LookupError, match="like 'nothing of the kind'"):
        excerpt(["...", "nothing of the kind", "..."], SAID)


def test_a_figure_is_quoted_with_the_decimals_of_the_page() -> None:
    quote = Quote("page.md", "takes {} ms, {} of\n{*}", "| a | {} | {*} | {} |")
    assert quote.of("It takes 1.00 ms, 9 of 12.", "| a | 2.345 | 7 | 1,025.5 |\n") == "It takes 2.35 ms, 1,026 of 12."
    with pytest.raises(LookupError, match="says 2 times, not once"):
        quote.of("takes 1 ms, 2 of 3 takes 1 ms, 2 of 3", "")
    with pytest.raises(LookupError, match="has 2 figures, its source 1"):
        Quote("page.md", "{} and {}", "{}").of("1 and 2", "3")
