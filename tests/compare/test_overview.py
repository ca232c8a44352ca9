"""The overview of a placement: hand-made ones with known times."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from evenshard.cli import main
from evenshard.compare.explain.overview import NUM_CHANGES, Overview, overview
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import save_answer
from evenshard.report.explanation import print_overview
from evenshard.sharders.models import load_model
from support.explain_builders import additive, answered, asked
from support.model_builders import save_model
from support.request_builders import untrained

FOUR = {"a": 5.0, "b": 3.0, "c": 4.0, "d": 2.0}  # on devices 0, 0, 1, 2: 8, 4 and 2 ms


def four(devices: tuple[int, ...] = (0, 0, 1, 2), **more: Any) -> PlacementAnswer:
    return answered(asked(FOUR, 3, **{"sharding_types": (TABLE_WISE,), **more}), devices)


def said(found: Overview) -> str:
    out = io.StringIO()
    print_overview(found, out)
    return " ".join(out.getvalue().split())


def test_the_slowest_device_its_tables_and_what_would_help() -> None:
    found = overview(four(), additive())
    assert (found.slowest_device, found.step_ms, found.num_devices) == (0, 8.0, 3)
    assert found.mean_ms == pytest.approx(14 / 3)
    assert sum(one.time_ms for one in found.times) == pytest.approx(8.0)
    assert sum(one.mean_ms for one in found.times) == pytest.approx(14 / 3)
    assert [(one.table, one.adds_ms) for one in found.tables] == [("a", 5.0), ("b", 3.0)]
    # a for d: 2 + 3 = 5 and 5 ms; b to device 2: 5 and 2 + 3 = 5 ms
    assert [(one.table, one.change, one.step_ms, one.change_ms, one.helps) for one in found.changes] == [
        ("a", "swap with d on device 2", 5.0, -3.0, True),
        ("b", "move to device 2", 5.0, -3.0, True),
    ]
    text = said(found)
    assert "Embedding work takes 8.00 ms per step; device 0 is the slowest" in text
    assert "It takes 3.333 ms more than the mean of the 3 devices" in text
    assert "The best change of one of 2 tables on it saves 3.000 ms per step:" in text
    assert "5.000 -3.000 a swap with d on device 2 5.000 -3.000 b move to device 2" in text


def test_rules_hold_for_what_is_proposed() -> None:
    from evenshard.planner.rules import Rules

    found = overview(four(rules=Rules.of(pinned={"a": 0}, forbidden={"b": 2})), additive())
    # a may not leave; b may go to device 1 (5 and 7 ms), or be swapped there with c (9 ms)
    assert [(one.table, one.change, one.step_ms) for one in found.changes] == [("b", "move to device 1", 7.0)]


def test_where_nothing_helps_that_is_said() -> None:
    found = overview(answered(asked({"a": 5.0, "b": 3.0}, 2, sharding_types=(TABLE_WISE,)), (0, 1)), additive())
    assert [one.helps for one in found.changes] == [False]
    assert "makes embedding work faster. The best ones:" in said(found)
    alone = overview(answered(asked({"a": 5.0}, 1), (0,)), additive())
    assert alone.changes == () and "No change of its table is legal." in said(alone)
    assert "It is the only one; " in said(alone)


def test_a_table_in_many_parts_is_named_once() -> None:
    cut = answered(asked({"a": 8.0, "b": 1.0}, 2, dim=16), (0, 1, 1), cuts={"a": (8,)})
    found = overview(cut, additive())
    assert len({one.table for one in found.tables}) == len(found.tables)
    assert len({one.table for one in found.changes}) == len(found.changes)
    assert {one.table: one.num_parts for one in found.tables}["a"] == 2


def test_five_changes_at_most_the_best_first() -> None:
    works = {f"t{number}": float(number + 1) for number in range(9)}
    found = overview(answered(asked(works, 3, sharding_types=(TABLE_WISE,)), (0,) * 9), additive())
    assert len(found.changes) == NUM_CHANGES and found.num_tried == 9
    assert [one.step_ms for one in found.changes] == sorted(one.step_ms for one in found.changes)
    assert [one.table for one in found.changes] == ["t8", "t7", "t6", "t5", "t4"]  # the heaviest save most


def test_doing_as_proposed_costs_what_was_proposed() -> None:
    proposed = overview(four(), additive()).changes[1]
    assert proposed.change == "move to device 2"
    assert overview(four((0, 2, 1, 2)), additive()).step_ms == proposed.step_ms


def test_the_command_needs_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path / "model", additive().cost_model, untrained().trained_on)
    model = load_model(tmp_path / "model")
    mine = answered(asked(FOUR, 3), (0, 0, 1, 2), model=model)
    save_answer(mine, tmp_path / "placement.json")
    assert main(["explain", str(tmp_path / "placement.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(asdict(overview(mine, model))))
