"""Tables without traffic: the interval of a model that sees hot rows covers both places of theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import evenshard
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import reprice_answer
from evenshard.sharders.models import PlacementModel
from evenshard.tables.locality import arrange_hot_rows
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE
from support.convex_builders import random_model
from support.request_builders import untrained

HOT = (0.9, 0.0, 0.0, 0.1) + (0.0,) * 13
UNKNOWN = tuple(Table(f"t{number}", 10**6, 16 + 8 * number, 20.0, HOT) for number in range(5))


def _seeing() -> PlacementModel:
    """An untrained model for which hot rows side by side make the most difference of all."""
    model = random_model(sees_hot_rows=True)
    model.net.table_weight.data[-1] *= 100
    return replace(untrained(), cost_model=model)


SEES = _seeing()


def answer(tables: tuple[Table, ...], model: PlacementModel = SEES) -> PlacementAnswer:
    return evenshard.place(
        tables, 2, 4.0, batch_size=BATCH_SIZE, model=model, hardware="simulated:h100", sharding_types=[TABLE_WISE],
        intra="nvlink_h100",
    )  # fmt: skip


def known(together: bool) -> tuple[Table, ...]:
    return tuple(arrange_hot_rows(one, BATCH_SIZE, together) for one in UNKNOWN)


def test_the_interval_of_unknown_tables_holds_both() -> None:
    found = answer(UNKNOWN)
    (note,) = [one for one in found.notes if "hot rows" in one]
    assert (
        "unknown if hot rows are adjacent in memory for 5 tables (no row_shares): the interval covers both cases"
        in note
    )
    of_known = [answer(known(together)) for together in (False, True)]
    times = [reprice_answer(one, found.parts, SEES).predicted_ms for one in of_known]
    assert max(times) > 1.2 * min(times)
    assert found.low_ms < min(times) / 1.01 and max(times) * 1.01 < found.high_ms
    assert not any("hot rows" in note for one in of_known for note in one.notes)


def test_some_that_are_known_are_not_counted() -> None:
    found = answer((*known(True)[:4], UNKNOWN[4]))
    assert any("for 1 table (no row_shares)" in one for one in found.notes)


def test_a_model_that_does_not_see_them_says_nothing() -> None:
    first, second = answer(UNKNOWN, untrained()), answer(known(True), untrained())
    assert (first.low_ms, first.high_ms) == pytest.approx((second.low_ms, second.high_ms))
    assert not any("hot rows" in one for one in (*first.notes, *second.notes))
