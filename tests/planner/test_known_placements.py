"""Known placements are starts of the search: no answer is worse than any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from evenshard.placement.parts import Span, TablePart, whole_part
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner import place as module
from evenshard.planner.answer import BY_MODEL, Baseline
from evenshard.planner.baselines import FULL_SPACE
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.search.search import PlanSearchEffort
from evenshard.sharders.model import DeviceModel
from evenshard.tables.generator import GeneratorConfig, generate_tables

TABLES = generate_tables(GeneratorConfig(24, (16, 64, 128), 10**6, 32), 65_536, seed=3)
REQUEST = PlacementRequest(tables=TABLES, caps_bytes=(2**36,) * 8, batch_size=65_536, hardware="simulated:h200")
MODEL = DeviceModel("simulated:h200")
# Hardly any effort: the search ends where it begins.
NONE = PlaceConfig(PlanSearchEffort(changes=0))


@pytest.fixture(scope="module")
def good() -> Sequence[TablePart]:
    return place_request(REQUEST, MODEL, PlaceConfig(PlanSearchEffort(20_000))).parts


def ms(parts: Sequence[TablePart]) -> float:
    return part_costs(REQUEST, MODEL).predict(parts).predicted_ms


def test_the_answer_is_no_worse_than_a_known_placement(good: Sequence[TablePart]) -> None:
    alone = place_request(REQUEST, MODEL, NONE)
    assert ms(good) < 0.99 * alone.predicted_ms
    assert place_request(REQUEST, MODEL, replace(NONE, known=[good])).predicted_ms <= ms(good)


def test_known_placements_that_are_not_allowed_are_left_out(good: Sequence[TablePart]) -> None:
    """By types, by memory, and with rows that evenshard does not cut so."""
    whole = replace(REQUEST, sharding_types=(TABLE_WISE,))
    overfull = [whole_part(table, (0,)) for table in TABLES]
    halves = [Span(0, TABLES[0].num_rows // 2), Span(TABLES[0].num_rows // 2, TABLES[0].num_rows)]
    odd = [replace(overfull[0], rows=rows, devices=(at,)) for at, rows in enumerate(halves)] + overfull[1:]
    least = replace(REQUEST, caps_bytes=(2**32,) * 8)
    for request, known in ((whole, good), (least, overfull), (REQUEST, odd)):
        alone = place_request(request, MODEL, NONE)
        assert place_request(request, MODEL, replace(NONE, known=[known])).parts == alone.parts


def test_the_search_starts_from_placements_of_baselines(
    monkeypatch: pytest.MonkeyPatch, good: Sequence[TablePart]
) -> None:
    """Baselines without a placement change nothing."""
    best, none = Baseline(FULL_SPACE, None, chosen=BY_MODEL), Baseline("random", None, note="found none")
    alone = place_request(REQUEST, MODEL, NONE)
    for others, most_ms in (([(none, None)], alone.predicted_ms), ([(none, None), (best, good)], ms(good))):
        monkeypatch.setattr(module, "place_baselines", lambda *args, found=others: found)
        answer = place_request(REQUEST, MODEL, replace(NONE, compare=("random",)))
        assert answer.predicted_ms <= most_ms
        assert answer.notes == alone.notes and len(answer.comparison) == len(others)
