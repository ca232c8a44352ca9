"""The optimizer of a request, and that of the times that its model has learned."""

from __future__ import annotations

import html
import io
import json
from dataclasses import replace

import pytest

from evenshard import place
from evenshard.planner.file import json_text
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.report.answer import print_answer
from evenshard.report.page.page import page
from support.builders import table
from support.effort import LITTLE
from support.request_builders import request, untrained


@pytest.mark.parametrize(
    ("learned", "asked", "word"), [("sgd", "adam", "slower"), ("adam", "sgd", "faster"), ("adagrad", "adagrad", None)]
)
def test_an_answer_says_when_its_times_are_of_another_optimizer(
    monkeypatch: pytest.MonkeyPatch, learned: str, asked: str, word: str | None
) -> None:
    """In the terminal, on the page and in the file."""
    monkeypatch.setenv("COLUMNS", "200")
    model = replace(untrained(), trained_on=replace(untrained().trained_on, optimizer=learned))
    one, file = place_request(request(8, 16, optimizer=asked), model, PlaceConfig(LITTLE)), io.StringIO()
    note = f"Times are predicted for {learned}: {asked}'s memory is counted, but not its {word} backward pass."
    assert one.notes == (() if word is None else (note,))
    assert json.loads(json_text(one))["notes"] == list(one.notes)
    print_answer(one, file)
    for text in (file.getvalue(), html.unescape(page(one))):
        assert (note in text) == (word is not None)


def test_candidates_are_timed_with_the_optimizer_of_the_request() -> None:
    tables = [table(f"t{number}", rows=10**6, dim=128, pooling=10) for number in range(4)]
    found = {
        optimizer: place(tables, 2, 30, optimizer=optimizer, sharding_types=("table_wise",), num_measured=2).measured
        for optimizer in ("sgd", "adam")
    }
    sgd, adam = ([one.bwd_compute_ms or 0.0 for one in cost.devices] for cost in found.values() if cost is not None)
    assert min(adam) > 1.1 * max(sgd)
