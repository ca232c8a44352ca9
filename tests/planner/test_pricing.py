"""What a model predicts of parts is filled into answers in one way."""

from __future__ import annotations

from dataclasses import replace

import pytest

import evenshard
from evenshard.planner.pricing import part_costs, price_parts, reprice_answer
from evenshard.tables.table import Table
from support.learned import learned_model

MODEL = learned_model()
NEAR = Table("near", 1000, 64, 2.0)
FAR = Table("far", 1000, 2048, 3000.0)


def test_an_answer_with_its_own_parts_is_priced_as_it_was_placed() -> None:
    """Parts in another order are the same, and the interval is as wide as beyond the training data it has to be."""
    answer = evenshard.place((NEAR, FAR), 2, 1000.0, model=MODEL, batch_size=4096)
    costs = part_costs(answer.request, MODEL)
    own = costs.predict(answer.parts[::-1])
    now, note = price_parts(answer.request, MODEL, costs, own)
    assert note is not None and note in answer.notes
    assert own.low_ms > 10 * now.model_low_ms and 10 * own.high_ms < now.model_high_ms
    assert now.model_low_ms == pytest.approx(answer.model_low_ms) and now.predicted_ms == answer.predicted_ms
    again = reprice_answer(replace(answer, predicted_ms=0, alone_ms=answer.adds_ms, model_high_ms=0), own.parts, MODEL)
    assert again.predicted_ms == answer.predicted_ms and again.alone_ms == pytest.approx(answer.alone_ms)
    assert again.model_high_ms == pytest.approx(answer.model_high_ms) and again.parts == answer.parts
