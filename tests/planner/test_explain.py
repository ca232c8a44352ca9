"""The device that a step waits for and the best changes: hand-computed times, rules that hold, changes as foretold."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig
from evenshard.cli import main
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.placement.sharding import COLUMN_WISE, TABLE_WISE
from evenshard.planner import explain as module
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.explain import NUM_CHANGES, explain
from evenshard.planner.file import save_answer
from evenshard.planner.rules import Rules
from evenshard.report.comparisons import print_explanation
from evenshard.sharders.models import load_model
from support.explain_builders import additive, answered, asked
from support.model_builders import save_model
from support.request_builders import untrained

FOUR = {"a": 5.0, "b": 3.0, "c": 4.0, "d": 2.0}  # on devices 0, 0, 1, 2: 8, 4 and 2 ms


def four(devices: tuple[int, ...] = (0, 0, 1, 2), **more: Any) -> PlacementAnswer:
    return answered(asked(FOUR, 3, **{"sharding_types": (TABLE_WISE,), **more}), devices)


def said(answer: PlacementAnswer, table: str = "") -> str:
    out = io.StringIO()
    print_explanation(explain(answer, additive(), table), out)
    return " ".join(out.getvalue().split())


def changes(answer: PlacementAnswer, table: str = "", overhead_ms: float = 0.0) -> list[tuple[str, str, float]]:
    found = explain(answer, additive(overhead_ms), table)
    return [(one.table, one.change, pytest.approx(one.step_ms)) for one in found.changes]


def all_changes(answer: PlacementAnswer, table: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Each kind of change of a table that is legal."""
    monkeypatch.setattr(module, "NUM_CHANGES", 99)
    return {one.change: one.step_ms for one in explain(answer, additive(), table).changes}


def test_the_slowest_device_and_what_would_help() -> None:
    found = explain(four(), additive())
    assert (found.slowest_device, found.step_ms, found.num_devices, found.model) == (0, 8.0, 3, "additive")
    assert sum(one.time_ms for one in found.times) == pytest.approx(8.0)
    assert sum(one.mean_ms for one in found.times) == pytest.approx(14 / 3)
    # a for d: 2 + 3 = 5 and 5 ms; b to device 2: 5 and 2 + 3 = 5 ms
    assert [(one.table, one.change, one.step_ms, one.change_ms, one.helps) for one in found.changes] == [
        ("a", "swap with d on device 2", 5.0, -3.0, True),
        ("b", "move to device 2", 5.0, -3.0, True),
    ]
    text = said(four())
    assert "It takes 3.333 ms more than the average of 3 devices" in text
    assert "5.000 -3.000 a: swap with d on device 2 5.000 -3.000 b: move to device 2" in text
    assert "The best change of a table on device 0 (2 tables tried) saves 3.000 ms per step." in text


def test_where_nothing_helps_that_is_said() -> None:
    two = answered(asked({"a": 5.0, "b": 3.0}, 2, sharding_types=(TABLE_WISE,)), (0, 1))
    assert [one.helps for one in explain(two, additive()).changes] == [False]
    assert "No change of the table on device 0 makes embedding work faster." in said(two)
    alone = answered(asked({"a": 5.0}, 1), (0,))
    assert changes(alone) == [] and "No change of the table on device 0 is legal." in said(alone)
    assert "It is the only device. " in said(alone)


def test_three_changes_at_most_the_best_first_and_each_table_once() -> None:
    works = {f"t{number}": float(number + 1) for number in range(6)}
    found = explain(answered(asked(works, 3, sharding_types=(TABLE_WISE,)), (0,) * 6), additive())
    assert len(found.changes) == NUM_CHANGES and found.num_tried == 6
    assert [one.table for one in found.changes] == ["t5", "t4", "t3"]  # the heaviest save most


def test_a_table_that_is_asked_for() -> None:
    found = explain(four(), additive(), "c")
    assert (found.table, found.sharding_type, found.devices, found.adds_ms) == ("c", TABLE_WISE, (1,), 4.0)
    # c and a change places: 7 and 5 ms
    assert changes(four(), "c") == [("c", "swap with a on device 0", 7.0)]
    text = said(four(), "c")
    assert "c is sharded table_wise on device 1, and adds 4.000 ms to the time of its device." in text
    assert "The best change of c saves 1.000 ms per step." in text


def test_trading_names_is_no_change() -> None:
    # a and b are alike, device 2 is empty: only putting both on one device would change anything.
    alike = answered(asked({"a": 4, "b": 4}, 3, sharding_types=(TABLE_WISE,)), (0, 1))
    assert changes(alike, "a") == [("a", "move to device 1", 8.0)]
    assert changes(answered(asked({"a": 4}, 2, sharding_types=(TABLE_WISE,)), (0,)), "a") == []


def test_of_equal_steps_the_one_with_the_least_work_is_best() -> None:
    # c decides. On device 1 a would be alone and cost the overhead once more; on device 2 it would not.
    request = asked({"a": 1, "e": 1, "b": 3, "c": 10}, 4, sharding_types=(TABLE_WISE,))
    answer = answered(request, (0, 0, 2, 3), model=additive(1))
    assert changes(answer, "a", overhead_ms=1) == [("a", "move to device 2", 11.0)]


def test_every_way_to_shard_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # a takes 8 ms: cut by columns as often as looked up, by rows its share of the lookups.
    found = all_changes(answered(asked({"a": 8.0, "b": 3.0}, 2, dim=8), (0, 1)), "a", monkeypatch)
    assert found.pop("shard it data_parallel on devices 0, 1") == pytest.approx(3 + 8, rel=1e-3)
    assert found == {
        "shard it row_wise on devices 0, 1": 7.0,
        "shard it column_wise on devices 0, 1": 11.0,
        "move to device 1": 11.0,
    }


def test_each_part_of_a_split_table() -> None:
    answer = answered(asked(FOUR, 3), (0, 2, 0, 1, 2), {"a": (4,)})
    whole, part = explain(answer, additive(), "a"), explain(answer, additive(), "a[4:8]")
    assert (whole.table, whole.sharding_type, whole.devices) == ("a", COLUMN_WISE, (0, 2))
    assert (part.table, part.devices) == ("a", (2,))
    moves = [one.change for one in part.changes if one.change.startswith(("move", "swap"))]
    assert moves and all("its columns" in one for one in moves)
    assert not any("to device 0" in one for one in moves), "another part of it is there"
    # a is alone on device 2, where it costs the overhead, and beside b on device 0.
    split = answered(asked({"a": 5.0, "b": 3.0}, 3), (0, 2, 0), {"a": (4,)}, additive(1.0))
    assert explain(split, additive(1.0), "a").adds_ms == pytest.approx(6)


def test_changes_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Nodes(2, 1, inter="infiniband_ndr", host_bytes=(2**20, 2**10))
    request = asked({"a": 5.0, "b": 3.0}, 2, rows=100, machine=machine)
    cached = Storage("fused_uvm_caching", 0.1)
    parts = [TablePart("a", Span(0, 100), Span(0, 8), (0,), cached), TablePart("b", Span(0, 100), Span(0, 8), (1,))]
    answer = answered(request, (), parts=parts)
    best = [one for one in all_changes(answer, "a", monkeypatch) if one.startswith("switch")]
    assert best == ["switch it to fused"]
    small = answered(replace(request, caps_bytes=(3199, 2**40)), (), parts=parts)
    (kept,) = (one for one in all_changes(small, "a", monkeypatch) if one.startswith("switch"))
    assert kept != "switch it to fused", "1 byte is missing"
    assert not any(one.startswith("switch") for one in all_changes(answer, "b", monkeypatch)), "host 1 has no room"


def test_rules_hold_for_what_is_proposed() -> None:
    # a may not leave; b may go to device 1 (5 and 7 ms), or be swapped there with c (9 ms)
    bound = four(rules=Rules(pinned={"a": (0,)}, forbidden={"b": (2,)}))
    assert changes(bound) == [("b", "move to device 1", 7.0)]
    # 8 and 6 ms: a for c makes them 7 and 7, b for d 7 and 7
    empty = four((0, 0, 1, 1), rules=Rules(forbidden_devices=(2,)))
    assert changes(empty) == [("a", "swap with c on device 1", 7.0), ("b", "swap with d on device 1", 7.0)]
    # a for d leaves them apart, b may not go to d
    apart = four(rules=Rules(apart=(("a", "d"), ("b", "d"))))
    assert ("b", "move to device 1", 7.0) in changes(apart)


def test_together_moves_as_one_and_an_answer_that_breaks_the_rule_is_refused() -> None:
    answer = four(rules=Rules(together=(("b", "a"),)))
    assert changes(answer, "a") == [("a", "move to device 2", 10.0)]
    # c may not change places with a alone
    assert all("with a on" not in change and "with b on" not in change for _, change, _ in changes(answer, "c"))
    swapped = [change for _, change, _ in changes(answer, "c") if change.startswith("swap")]
    assert swapped == [] or "with a, b on" in swapped[0] or "with d on" in swapped[0]
    with pytest.raises(BadConfig, match="tables a, c must stay together, but are on devices 0, 1"):
        explain(four(rules=Rules(together=(("a", "c"),))), additive(), "d")


@pytest.mark.parametrize("table", ["", "c"])
def test_doing_as_proposed_costs_what_was_proposed(table: str) -> None:
    for one in explain(four(), additive(), table).changes:
        devices = dict(zip(FOUR, (0, 0, 1, 2), strict=True))
        home, (*words, to) = devices[one.table], one.change.split()
        devices[one.table] = int(to)
        if words[0] == "swap":
            devices[words[2]] = home
        assert explain(four(tuple(devices.values())), additive()).step_ms == pytest.approx(one.step_ms)


def test_an_unknown_table_meets_those_of_similar_names() -> None:
    answer = answered(asked({"clicks": 1, "views": 2}, 2), (0, 1))
    with pytest.raises(BadConfig, match=r"no table 'click' in this placement\. Did you mean 'clicks'\?"):
        explain(answer, additive(), "click")
    with pytest.raises(BadConfig, match="It has clicks, views"):
        explain(answer, additive(), "zzz")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A placement.json whose model lies in a folder."""
    save_model(tmp_path / "model", additive().cost_model, untrained().trained_on)
    model = load_model(tmp_path / "model")
    save_answer(answered(asked(FOUR, 3), (0, 0, 1, 2), model=model), tmp_path / "placement.json")
    return tmp_path


def test_the_command_explains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", str(folder / "placement.json"), "--table", "a"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "Embedding work takes 8.00 ms per step; device 0 is the slowest" in shown.out
    assert main([*command, "--json"]) == 0
    expected = explain(answered(asked(FOUR, 3), (0, 0, 1, 2)), load_model(folder / "model"), "a")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(asdict(expected)))
