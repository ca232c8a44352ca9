"""A request outside the training range of its model: every form of the answer begins with that."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape

import pytest

from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff import diff
from evenshard.report.answer import make_displayable
from evenshard.report.comparisons import difference_markdown
from evenshard.report.page.page import page
from evenshard.report.step_facts import warning_texts
from support.answer_builders import answer
from support.builders import cost
from support.explain_builders import additive, answered, asked

ROWS = "1 table has more rows than the 300,000 the model was trained on (largest: a, 1,048,576)"
SAID = f"The request is outside the training range of the model, so its predicted times are guesses: {ROWS}."
TIME = "ms of embedding work per step"


def markdown(one: PlacementAnswer) -> str:
    old = answered(asked({"a": 5.0, "b": 3.0}, 2), (0, 1))
    new = replace(old, warnings=one.warnings, lineage=one.lineage)
    return difference_markdown(diff(old, new, additive()), old, new)


def text_of(html: str) -> str:
    return unescape(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL))


FORMS: dict[str, Callable[[PlacementAnswer], str]] = {
    "terminal": lambda one: make_displayable(one).summary(),
    "page": lambda one: text_of(page(one)),
    "Markdown": markdown,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_warning_once(form: str) -> None:
    shown = FORMS[form]
    assert " ".join(shown(answer(warnings=(ROWS,))).split()).count(SAID) == 1
    assert "training range of" not in shown(answer())


def test_the_terminal_says_it_beside_the_interval_and_in_a_warning() -> None:
    text = " ".join(answer(warnings=(ROWS,)).summary().split())
    assert text.startswith(f"4.00 {TIME}, predicted outside the training range (90 %: 3.60 to 4.40 ms).")
    assert f"Warning: {SAID}" in text
    assert answer().summary().startswith(f"4.00 {TIME}, predicted (90 %: 3.60 to 4.40 ms).")
    assert "outside" not in answer(measured=cost(5.0, 2.5)).summary()


def test_several_quantities_are_one_sentence() -> None:
    (text,) = warning_texts(answer(warnings=(ROWS, "8 devices are more than the 4 the model was trained on")))
    assert text == f"{SAID.rstrip('.')}; 8 devices are more than the 4 the model was trained on."
    assert warning_texts(answer()) == []
