"""What others would do: the model judges each, and TorchRec's planner splits tables where that is allowed."""

from __future__ import annotations

import pytest

from evenshard.measure.costs import DeviceCost, PlacementCost
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rivals import MOST_SPLIT, SPLITTING, TORCHREC, rivals
from evenshard.planner.rules import Rules
from support.builders import table
from support.request_builders import ROOM, untrained

GB = 2**30
COSTLY = (table("costly", 100_000, 64, 100.0), *(table(name, 100_000, 64, 1.0) for name in "abc"))


def asked(**more: object) -> PlacementRequest:
    known = {"tables": COSTLY, "caps_bytes": (ROOM,) * 4, "batch_size": 65_536, "hardware": "simulated:h200"}
    return PlacementRequest(**{**known, "allow_column_split": True, **more})  # type: ignore[arg-type]


def test_torchrec_splits_only_where_that_is_allowed() -> None:
    names = ("random", *TORCHREC, SPLITTING)
    assert [one.sharder for one in rivals(asked(), untrained(), names)] == list(names)
    whole = rivals(asked(allow_column_split=False), untrained(), names)
    assert [one.sharder for one in whole] == ["random", *TORCHREC]


def test_no_user_waits_minutes_for_torchrec_to_split_many_tables() -> None:
    many = tuple(table(f"t{number}", 10, 64) for number in range(MOST_SPLIT + 1))
    assert rivals(asked(tables=many), untrained(), (SPLITTING,)) == ()


def test_the_best_of_torchrecs_plans_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = (64, 32, 16)
    each = []
    for width in widths:
        monkeypatch.setattr("evenshard.planner.rivals.MIN_PARTITIONS", (width,))
        each.append(rivals(asked(), untrained(), (SPLITTING,))[0].predicted_ms)
    assert len(set(each)) > 1
    monkeypatch.setattr("evenshard.planner.rivals.MIN_PARTITIONS", widths)
    assert rivals(asked(), untrained(), (SPLITTING,))[0].predicted_ms == min(each)  # type: ignore[type-var]


def test_a_plan_that_keeps_the_rules_comes_first_and_tables_that_stay_together_stay_whole() -> None:
    (one,) = rivals(asked(rules=Rules(together=(("costly", "a"),))), untrained(), (SPLITTING,))
    assert "costly, a are not together" in one.note and "[" not in one.note


def test_split_plans_are_measured_as_they_are() -> None:
    seen = []

    def measure(jobs):  # type: ignore[no-untyped-def]
        seen.extend(jobs)
        return [PlacementCost((DeviceCost(1, 2, 3, 4),), "modelled")]

    (one,) = rivals(asked(), untrained(), (SPLITTING,), measure)
    assert one.measured_ms == 10
    ((task, placement),) = seen
    assert sum(one.embedding_dim for one in task.tables) == 4 * 64 and len(placement.device_of_table) == len(
        task.tables
    )


def test_what_torchrec_cannot_place_in_any_way_has_no_time() -> None:
    (one,) = rivals(asked(caps_bytes=(25 * 2**20,) * 2), untrained(), (SPLITTING,))
    assert one.predicted_ms is None and "TorchRec's planner found no plan" in one.note
