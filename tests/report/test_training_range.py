"""A request outside the training range of its model: every form of the answer begins with that."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape

import pytest

from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff import diff
from evenshard.report.answer import brief_text, make_displayable
from evenshard.report.comparisons import difference_markdown
from evenshard.report.page.page import page
from evenshard.report.step_facts import advice, warning_texts
from support.answer_builders import LINEAGE, answer
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


FORMS: dict[str, tuple[Callable[[PlacementAnswer], str], str]] = {
    "terminal": (lambda one: make_displayable(one).summary(), TIME),
    "page": (lambda one: text_of(page(one)), TIME),
    "Markdown": (markdown, "Embedding work takes"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_begins_with_it(form: str) -> None:
    shown, time = FORMS[form]
    text = " ".join(shown(answer(warnings=(ROWS,))).split())
    assert 0 <= text.find(SAID) < text.index(time) and text.count(SAID) == 1
    assert "training range of" not in shown(answer())


def test_the_terminal_says_it_first_and_again_beside_the_interval() -> None:
    text = answer(warnings=(ROWS,)).summary()
    assert " ".join(text.splitlines()[:3]).startswith(f"Warning: {SAID}"[:150])
    assert "Predicted outside the training range (90 %: 3.60 to 4.40 ms)." in text
    assert "Predicted (90 %: 3.60 to 4.40 ms)." in answer().summary()
    assert "outside" not in answer(measured=cost(5.0, 2.5)).summary()


def test_in_brief_the_interval_and_the_first_warning_say_it() -> None:
    text = brief_text(answer(warnings=(ROWS,)))
    assert "Predicted outside the training range" in text and SAID.rstrip(".") in text
    assert repr(make_displayable(answer(warnings=(ROWS,)))) == text


def test_several_quantities_are_one_sentence() -> None:
    (text,) = warning_texts(answer(warnings=(ROWS, "8 devices are more than the 4 the model was trained on")))
    assert text == f"{SAID.rstrip('.')}; 8 devices are more than the 4 the model was trained on."
    assert warning_texts(answer()) == []


def test_a_bound_of_a_learned_model_is_a_claim_of_that_model() -> None:
    simulated = {**LINEAGE, "model": {"source": "simulated:h200"}}
    for shown, _ in FORMS.values():
        learned, device = (" ".join(shown(answer(lineage=one)).split()) for one in (LINEAGE, simulated))
        assert "above any placement (by this model)" in learned
        assert "above any placement" in device and "by this model" not in device
    (own,), (of_device,) = (advice(answer(lower_bound_ms=3.96, lineage=one)) for one in (LINEAGE, simulated))
    assert own.startswith("By this model, no other placement") and of_device.startswith("No other placement")
