"""Placements under which pooled outputs keep their order, and the order itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.placement.sharding import COLUMN_WISE, ROW_WISE, TABLE_WISE
from evenshard.planner.answer import Near, PlacementAnswer
from evenshard.planner.diff import diff
from evenshard.planner.file import load_answer, save_answer
from evenshard.planner.output_order import OutputTable, output_orders, sort_outputs
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.tables.table import Table
from support.effort import LITTLE
from support.request_builders import untrained

FACTORS = (9.0, 1.0, 30.0, 2.0, 14.0)
TABLES = tuple(Table(f"t{at}", 4_000, 16, factor) for at, factor in enumerate(FACTORS))


def asked(**more: Any) -> PlacementRequest:
    return PlacementRequest(TABLES, (2**30,) * 3, 1_024, **more)


def placed(request: PlacementRequest, old: PlacementAnswer | None = None) -> PlacementAnswer:
    near = None if old is None else Near(old, "old.json")
    return place_request(request, untrained(), PlaceConfig(LITTLE, near=near))


def keys(answer: PlacementAnswer) -> list[str]:
    ((tables),) = output_orders(answer.request, answer.parts_of_table).values()
    return [key for one in tables for key in one.keys]


def test_types_come_first_then_ranks_then_calls_then_tables() -> None:
    tables = [
        OutputTable("a", ("a",), TABLE_WISE, (1,), "x"),
        OutputTable("b", ("b", "b2"), ROW_WISE, (0, 1), "x"),
        OutputTable("c", ("c",), TABLE_WISE, (0,), "x"),
        OutputTable("d", ("d",), TABLE_WISE, (1,), "y"),
        OutputTable("e", ("e",), TABLE_WISE, (1,), "x"),
    ]
    assert [one.name for one in sort_outputs(tables)] == ["c", "a", "e", "d", "b"]
    cut = [replace(one, sharding_type=COLUMN_WISE) for one in tables[:3]]
    assert [one.name for one in sort_outputs(cut)] == ["b", "c", "a"]


def test_without_an_earlier_placement_the_order_is_that_of_the_tables() -> None:
    free, kept = placed(asked()), placed(asked(keep_output_order=True))
    assert keys(free) != [one.name for one in TABLES]  # or the rule has nothing to do here
    assert keys(kept) == [one.name for one in TABLES]
    assert free.lower_bound_ms <= kept.lower_bound_ms <= kept.predicted_ms
    assert "t0 t1 t2 t3 t4" in kept.notes[-1]


def test_near_a_placement_its_order_is_kept(tmp_path: Any) -> None:
    old = placed(asked(rules=Rules(pinned={"t0": (2,), "t4": (0,)})))
    busier = tuple(replace(one, pooling_factor=one.pooling_factor * (1 + at)) for at, one in enumerate(TABLES))
    kept = placed(replace(asked(keep_output_order=True), tables=busier), old)
    assert keys(kept) == keys(old)
    assert diff(old, kept).reordered == ()
    assert kept.nearness is not None
    save_answer(kept, tmp_path / "kept.json")
    assert load_answer(tmp_path / "kept.json").request.keep_output_order


def test_diff_names_a_changed_order() -> None:
    pinned = Rules(pinned={"t0": (2,), "t4": (0,)})
    old, new = placed(asked(rules=pinned)), placed(asked(sharding_types=(ROW_WISE,)))
    (change,) = diff(old, new).reordered
    assert (list(change.old), list(change.new)) == (keys(old), [one.name for one in TABLES])
    assert diff(old, old).reordered == ()


def test_an_order_that_means_nothing_is_refused() -> None:
    sequences = tuple(replace(one, pooling="none") for one in TABLES)
    with pytest.raises(BadConfig, match="has no effect"):
        placed(replace(asked(keep_output_order=True), tables=sequences))
    with pytest.raises(BadConfig, match="other pooled tables"):
        placed(replace(asked(keep_output_order=True), tables=TABLES[1:]), placed(asked()))


def test_an_order_that_rules_forbid_is_refused() -> None:
    pinned = Rules(pinned={"t0": (2,), "t1": (0,)})
    with pytest.raises(InfeasibleTask, match="no placement was found whose pooled outputs have the order t0 t1"):
        placed(asked(keep_output_order=True, sharding_types=(TABLE_WISE,), rules=pinned))
