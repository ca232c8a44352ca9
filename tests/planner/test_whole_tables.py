"""Small tables stay whole where cutting them gains next to nothing, and are cut where it gains more."""

from __future__ import annotations

from dataclasses import replace

import evenshard
from evenshard.placement.parts import TablePart
from evenshard.planner.place import MOST_BYTES, MOST_SLOWER, RESOLUTION_MS, make_small_tables_whole
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.tables.table import Table
from support.builders import parts_of
from support.explain_builders import additive, asked


def made_whole(works: dict[str, float], cut: str, rows: int = 10) -> tuple[list[TablePart], float]:
    """Parts after the pass over tables on two devices, of which one is cut into halves; and the time that it adds."""
    request, costs = priced(works, rows)
    found = costs.predict(halved(request, cut))
    whole = make_small_tables_whole(costs, found)
    return list(whole.parts), whole.predicted_ms - found.predicted_ms


def priced(works: dict[str, float], rows: int):
    request = asked(works, 2, rows=rows)
    return request, part_costs(request, additive())


def halved(request: PlacementRequest, cut: str) -> list[TablePart]:
    """The first table on device 0, the second on device 1, one of them with its other half on the other device."""
    parts, homes = parts_of(request.tables, {cut: (4,)}), {}
    placed = []
    for part in parts:
        placed.append(replace(part, devices=(homes.get(part.table, 0),)))
        homes[part.table] = 1
    return placed


def test_a_small_table_is_whole_where_that_takes_hardly_longer() -> None:
    parts, added = made_whole({"a": 5.0, "b": 0.002}, "b")
    assert [part.table for part in parts] == ["a", "b"]
    assert added <= MOST_SLOWER * 5.0 + RESOLUTION_MS


def test_a_table_is_cut_where_that_gains_more() -> None:
    hot = [Table("hot", 100, 64, 500.0), Table("cold", 100, 64, 1.0)]
    answer = evenshard.place(hot, 2, hardware="h100", sharding_types=["table_wise", "row_wise"], effort="quick")
    assert [part.table for part in answer.parts if part.table == "hot"] == ["hot", "hot"]


def test_a_large_table_is_left_as_it_is() -> None:
    parts, _ = made_whole({"a": 5.0, "b": 0.002}, "b", rows=MOST_BYTES)
    assert len(parts) == 3


def test_rules_of_the_request_hold() -> None:
    small = [Table(f"t{at}", 100, 64, 1.0) for at in range(4)]
    free = evenshard.place(small, 2, hardware="h100", batch_size=1024, sharding_types=["table_wise", "row_wise"])
    assert sorted(part.devices for part in free.parts) == [(0,), (0,), (1,), (1,)]
    rows = evenshard.place(small, 2, hardware="h100", batch_size=1024, sharding_types=["row_wise"])
    assert len(rows.parts) == 8
    assert rows.predicted_ms < free.predicted_ms <= rows.predicted_ms + RESOLUTION_MS
