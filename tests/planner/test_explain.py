"""Why a table lives where it does: hand-computed times, each reason of legality, and moves that do what was said."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenshard.cli import main
from evenshard.placement.items import Items
from evenshard.placement.placement import Placement, check_placement
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.explain.explain import explain
from evenshard.planner.explain.explanation import Move, PartExplanation
from evenshard.planner.explain.text import print_explanation
from evenshard.planner.file import save_answer
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.sharders.convex_search.cost_model import ExchangeTime
from evenshard.sharders.models import load_model, save_model
from evenshard.utils.errors import BadConfig, InfeasibleTask
from support.builders import BATCH_SIZE, parts_of, some_tables
from support.explain_builders import additive, answered, asked
from support.request_builders import untrained

GB = 2**30
FOUR = {"a": 5.0, "b": 3.0, "c": 4.0, "d": 2.0}  # on devices 0, 0, 1, 2: 8, 4 and 2 ms


def part_of(answer: PlacementAnswer, table: str, overhead_ms: float = 0.0) -> PartExplanation:
    (part,) = explain(answer, additive(overhead_ms), table).parts
    return part


def said(answer: PlacementAnswer, table: str) -> str:
    out = io.StringIO()
    print_explanation(explain(answer, additive(), table), out)
    return " ".join(out.getvalue().split())


# Times ---------------------------------------------------------------------------------------------------------------


def test_what_each_device_would_cost() -> None:
    answer = answered(asked(FOUR, 3, optimizer="adam"), (0, 0, 1, 2))
    explanation = explain(answer, additive(), "a")
    (part,) = explanation.parts
    assert (explanation.table, explanation.model) == ("a", "additive")
    assert (explanation.step_ms, explanation.slowest_device) == (8, 0)
    assert (part.name, part.rows, part.columns, part.device) == ("a", (0, 10), (0, 8), 0)
    assert (part.weight_bytes, part.state_bytes, part.moves_with) == (320, 640, ())
    assert (part.alone_ms, part.adds_ms, part.device_ms) == (5, 5, 8)
    assert (part.on_slowest, part.without_ms) == (True, 4)
    assert [(one.device, one.device_ms, one.step_ms, one.change_ms) for one in part.options] == [
        (0, 8, 8, 0),
        (1, 9, 9, 1),
        (2, 7, 7, -1),
    ]
    assert [one.used_bytes for one in part.options] == [1920, 1920, 1920]
    assert all(one.illegal == () for one in part.options)


def test_a_part_that_is_not_on_the_slowest_device_does_not_decide() -> None:
    part = part_of(answered(asked(FOUR, 3), (0, 0, 1, 2)), "c")
    assert not part.on_slowest
    assert part.without_ms == 8
    assert [(one.device_ms, one.step_ms) for one in part.options] == [(12, 12), (4, 8), (6, 8)]


def test_what_is_left_counts_too() -> None:
    # Without a, device 0 keeps 3 ms of b, more than device 1 takes with a.
    part = part_of(answered(asked({"a": 1, "b": 3}, 2), (0, 0)), "a")
    assert part.options[1].device_ms == 1
    assert part.options[1].step_ms == 3
    assert part.without_ms == 3


def test_an_empty_device_costs_nothing() -> None:
    part = part_of(answered(asked({"a": 1, "b": 3}, 3), (0, 1)), "a", overhead_ms=1)
    assert (part.alone_ms, part.adds_ms, part.device_ms) == (2, 2, 2)
    assert [one.device_ms for one in part.options] == [2, 5, 2]


def test_a_device_with_few_dims_waits_for_what_it_receives() -> None:
    # No compute; 2 exchanges of 4 * batch / devices = 2 bytes a dim; the busier direction counts.
    model = additive()
    model.cost_model.exchange = ExchangeTime(latency_ms=0, ms_per_byte=0.25)
    a, b, c = asked({"a": 0, "b": 0, "c": 0}, 2).tables
    tables = (replace(a, embedding_dim=4), replace(b, embedding_dim=4), replace(c, embedding_dim=40))
    (part,) = explain(answered(asked({}, 2, tables=tables), (0, 0, 1), model=model), model, "a").parts
    assert part.device_ms == 40  # receives c
    assert part.without_ms == 44 and part.adds_ms == -4  # and then a too
    assert part.alone_ms == 24  # with tables of 20 dims more it would send what it receives
    assert [(one.device_ms, one.step_ms, one.change_ms) for one in part.options] == [(40, 40, 0), (44, 44, 4)]


def test_one_device_leaves_no_choice() -> None:
    part = part_of(answered(asked({"a": 1, "b": 3}, 1), (0, 0)), "a")
    assert (part.without_ms, part.best) == (3, None)
    assert [one.device_ms for one in part.options] == [4]


# The next best move --------------------------------------------------------------------------------------------------


def test_the_best_swap() -> None:
    best = part_of(answered(asked(FOUR, 3), (0, 0, 1, 2)), "a").best
    assert best == Move(2, ("d",), from_ms=5, to_ms=5, step_ms=5, change_ms=-3, helps=True)


def test_the_best_move() -> None:
    best = part_of(answered(asked(FOUR, 3), (0, 0, 1, 2)), "b").best
    assert best == Move(2, (), from_ms=5, to_ms=5, step_ms=5, change_ms=-3, helps=True)


def test_a_table_elsewhere_may_help_by_a_swap() -> None:
    best = part_of(answered(asked(FOUR, 3), (0, 0, 1, 2)), "c").best
    assert best == Move(0, ("a",), from_ms=5, to_ms=7, step_ms=7, change_ms=-1, helps=True)


def test_where_nothing_helps_the_least_harm_is_told() -> None:
    answer = answered(asked({"a": 4, "b": 3, "c": 1}, 2), (0, 1, 1))
    assert part_of(answer, "a").best == Move(1, ("b",), from_ms=3, to_ms=5, step_ms=5, change_ms=1, helps=False)
    assert "No move or swap of it makes a step faster" in said(answer, "a")
    assert "swap it with b on device 1, makes it 1.000 ms slower" in said(answer, "a")


def test_trading_names_is_no_move() -> None:
    # a and b are alike, device 2 is empty: only putting both on one device would change anything.
    best = part_of(answered(asked({"a": 4, "b": 4}, 3), (0, 1)), "a").best
    assert best is not None and (best.to_device, best.swap_with, best.change_ms) == (1, (), 4)
    alone = answered(asked({"a": 4}, 2), (0,))
    assert part_of(alone, "a").best is None
    assert "Next best move: none" in said(alone, "a")


def test_of_equal_steps_the_one_with_the_least_work_is_best() -> None:
    # c decides. On device 1 a would be alone and cost the overhead once more; on device 2 it would not.
    answer = answered(asked({"a": 1, "e": 1, "b": 3, "c": 10}, 4), (0, 0, 2, 3))
    best = part_of(answer, "a", overhead_ms=1).best
    assert best == Move(2, (), from_ms=2, to_ms=5, step_ms=11, change_ms=0, helps=False)


def test_a_move_needs_room_and_so_does_what_comes_back() -> None:
    # Device 1 has room for c and d or for a; device 0 has none for c.
    sizes = {"a": 2, "b": 2, "c": 3, "d": 1}
    tables = tuple(replace(one, num_rows=10 * sizes[one.name]) for one in asked(FOUR, 2).tables)
    request = asked(FOUR, 2, tables=tables, caps_bytes=(4 * 320, 4 * 320))
    part = part_of(answered(request, (0, 0, 1, 1)), "a")
    assert part.options[1].illegal == ("0.01 GB is missing",)  # rounded up
    assert part.best is None  # a for d: device 1 would hold 5; a for c: device 0 would
    roomy = part_of(answered(replace(request, caps_bytes=(4 * 320, 5 * 320)), (0, 0, 1, 1)), "a")
    assert roomy.best is not None and roomy.best.swap_with == ("d",)


# Legality ------------------------------------------------------------------------------------------------------------


def illegal(rules: Rules, devices: tuple[int, ...] = (0, 0, 1, 2), table: str = "a") -> list[tuple[str, ...]]:
    return [one.illegal for one in part_of(answered(asked(FOUR, 3, rules=rules), devices), table).options]


def test_memory() -> None:
    # 1 GB each; with the others, 2 GB are full.
    request = asked(FOUR, 3, rows=2**25, caps_bytes=(int(2.5 * GB), int(1.75 * GB), 2 * GB), reserved_bytes=GB // 4)
    part = part_of(answered(request, (0, 0, 1, 2)), "a")
    assert [one.illegal for one in part.options] == [(), ("0.50 GB is missing",), ("0.25 GB is missing",)]
    assert [one.room_bytes / GB for one in part.options] == [2.25, 1.5, 1.75]
    assert [one.used_bytes / GB for one in part.options] == [2, 2, 2]


def test_pinned() -> None:
    assert illegal(Rules(pinned={"a": (0, 1)})) == [(), (), ("a is pinned to devices 0, 1",)]


def test_forbidden() -> None:
    assert illegal(Rules(forbidden={"a": (2,)})) == [(), (), ("forbidden for a",)]
    assert illegal(Rules(forbidden_devices=(1,)), (0, 0, 2, 2)) == [(), ("no table may live there",), ()]


def test_apart() -> None:
    assert illegal(Rules(apart=(("a", "c"), ("d", "a", "c")))) == [
        (),
        ("must stay apart from c", "must stay apart from c"),
        ("must stay apart from d",),
    ]


def test_what_is_broken_already_says_nothing_about_others() -> None:
    rules = Rules(apart=(("b", "c"), ("a", "d")))
    answer = answered(asked({**FOUR, "e": 1.0}, 3, rules=rules), (0, 1, 1, 0, 2))  # both rules are broken
    assert [one.illegal for one in part_of(answer, "e").options] == [(), (), ()]
    best = part_of(answer, "e").best
    assert best is not None and best.swap_with == ("a",) and best.step_ms == 7
    assert [one.illegal for one in part_of(answer, "a").options] == [("must stay apart from d",), (), ()]
    rules = Rules(apart=(("b", "c"),), forbidden={"e": (0,), "b": (1,)})
    answer = answered(asked({"b": 1, "c": 1, "d": 4, "e": 1, "f": 2}, 2, rules=rules), (0, 0, 0, 1, 1))
    assert part_of(answer, "e").options[0].illegal == ("forbidden for e",)
    best = part_of(answer, "f").best
    assert best is not None and (best.swap_with, best.step_ms) == (("d",), 5)
    assert part_of(answer, "f").options[0].illegal == ()


def test_together_moves_as_one() -> None:
    rules = Rules(together=(("b", "a"),), pinned={"b": (0, 2)})
    answer = answered(asked(FOUR, 3, rules=rules), (0, 0, 1, 2))
    part = part_of(answer, "a")
    assert part.moves_with == ("b",)
    assert (part.alone_ms, part.adds_ms, part.without_ms) == (5, 5, 4)  # of a alone
    assert [one.device_ms for one in part.options] == [8, 12, 10]  # with both
    assert [one.step_ms for one in part.options] == [8, 12, 10]
    assert [one.used_bytes for one in part.options] == [640, 960, 960]
    assert [one.illegal for one in part.options] == [(), ("b is pinned to devices 0, 2",), ()]
    assert "It must stay with b: they move as one." in said(answer, "a")
    other = part_of(answer, "c").best
    assert other is not None and other.swap_with == ()  # b may not come to device 1, nor may a without it


def test_a_swap_names_all_that_comes_back() -> None:
    rules = Rules(together=(("a", "b"),))
    best = part_of(answered(asked(FOUR, 3, rules=rules), (0, 0, 1, 1)), "d").best
    assert best is not None and (best.to_device, best.swap_with) == (2, ())
    two = answered(asked({"a": 4, "b": 4, "c": 5, "d": 1}, 2, rules=rules), (0, 0, 1, 1))
    best = part_of(two, "c").best
    assert best is not None and (best.swap_with, best.step_ms, best.helps) == (("a", "b"), 9, False)


def test_an_answer_that_breaks_its_rule_of_staying_together_is_refused() -> None:
    answer = answered(asked(FOUR, 3, rules=Rules(together=(("a", "c"),))), (0, 0, 1, 2))
    with pytest.raises(BadConfig, match="tables a, c must stay together, but are on devices 0, 1"):
        explain(answer, additive(), "d")


# Names ---------------------------------------------------------------------------------------------------------------


def test_each_part_of_a_split_table() -> None:
    answer = answered(asked(FOUR, 3, optimizer="rowwise_adagrad"), (0, 2, 0, 1, 2), {"a": (4,)})
    explanation = explain(answer, additive(), "a")
    first, second = explanation.parts
    assert (first.name, first.device, second.name, second.device) == ("a[0:4]", 0, "a[4:8]", 2)
    assert (second.columns, second.weight_bytes, second.state_bytes) == ((4, 8), 160, 40)
    assert [one.device_ms for one in second.options] == [13, 9, 7]  # each part is looked up as the whole one
    assert explain(answer, additive(), "a[4:8]").parts == (second,)
    assert explain(answer, additive(), "a[4:8]").table == "a"
    text = said(answer, "a")
    assert "a: 2 parts, a step takes 8.00 ms" in text
    assert "holds a[0:4]" in text and "holds a[4:8]" in text


def test_an_unknown_table_meets_those_of_similar_names() -> None:
    answer = answered(asked({"clicks": 1, "views": 2}, 2), (0, 1))
    with pytest.raises(BadConfig, match=r"no table 'click' in this placement\. Did you mean 'clicks'\?"):
        explain(answer, additive(), "click")
    with pytest.raises(BadConfig, match="Did you mean 'views'"):
        explain(answer, additive(), "VIEWS")
    with pytest.raises(BadConfig, match="It has 2: clicks, views"):
        explain(answer, additive(), "zzz")


# Doing as explained --------------------------------------------------------------------------------------------------


def random_answer(seed: int) -> PlacementAnswer:
    """A legal placement of nine tables with all kinds of rules, by a model that is far from linear."""
    rng = np.random.default_rng(seed)
    tables = some_tables(9, seed)
    names = [one.name for one in tables]
    most = 2 * max(one.size_bytes for one in tables)
    rules = Rules(
        pinned={names[0]: (0, 1)},
        forbidden={names[1]: (2,)},
        together=((names[2], names[3]),),
        apart=((names[4], names[5], names[6]),),
    )
    caps = tuple(int(cap) for cap in rng.integers(most, 2 * most, 4))
    request = PlacementRequest(tables, caps, BATCH_SIZE, optimizer="rowwise_adagrad", rules=rules)
    cuts = {names[7]: (tables[7].embedding_dim // 2,)} if tables[7].embedding_dim % 8 == 0 else {}
    task = request.task(parts_of(request.tables, cuts))
    items = Items.of(task)
    for _ in range(10_000):
        placement = items.placement(rng.integers(0, 4, len(items.members)).tolist())
        if is_legal(task, placement):
            return answered(request, placement.device_of_table, cuts, untrained(seed))
    raise AssertionError("no legal placement was drawn")


def is_legal(task: Any, placement: Placement) -> bool:
    try:
        check_placement(task, placement)
    except InfeasibleTask:
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_moving_as_explained_costs_what_was_explained(seed: int) -> None:
    answer, model = random_answer(seed), untrained(seed)
    task, items = answer.task, Items.of(answer.task)
    homes = items.devices(answer)

    represented_TH = model.cost_model.represent(task.tables, task.batch_size)
    context = (float(represented_TH[:, 0].sum()), task.num_devices, task.batch_size)

    @cache
    def predicted_at(moved: tuple[int, ...]) -> tuple[bool, list[float], float]:
        placement = items.placement(moved)
        sums_DH = torch.stack([represented_TH[list(shard)].sum(dim=0) for shard in placement.shards()])
        device_ms = model.cost_model.device_ms(sums_DH, *context, sums_DH[:, 0].max()).tolist()
        return is_legal(task, placement), device_ms, max(device_ms)

    def predicted(moved: list[int]) -> tuple[bool, list[float], float]:
        return predicted_at(tuple(moved))

    _, now, step_ms = predicted(homes)
    assert step_ms == pytest.approx(answer.predicted_ms, rel=1e-6)
    for table in answer.request.tables:
        explanation = explain(answer, model, table.name)
        assert explanation.step_ms == pytest.approx(step_ms, rel=1e-6)
        for part in explanation.parts:
            number = next(n for n, one in enumerate(answer.task.tables) if one.name == part.name)
            item = int(items.item_of_T[number])
            steps = []
            for option in part.options:
                legal, device_ms, moved_ms = predicted([*homes[:item], option.device, *homes[item + 1 :]])
                assert option.device_ms == pytest.approx(device_ms[option.device], rel=1e-5)
                assert option.step_ms == pytest.approx(moved_ms, rel=1e-5)
                assert option.change_ms == pytest.approx(moved_ms - step_ms, abs=1e-5 * step_ms)
                assert legal == (not option.illegal)
                if legal and sorted(device_ms) != pytest.approx(sorted(now), rel=1e-5):
                    steps.append(moved_ms)
            for other, there in enumerate(homes):
                swapped = list(homes)
                swapped[item], swapped[other] = there, homes[item]
                legal, device_ms, moved_ms = predicted(swapped)
                if legal and there != homes[item] and sorted(device_ms) != pytest.approx(sorted(now), rel=1e-5):
                    steps.append(moved_ms)
            if part.best is None:
                assert not steps
            else:
                assert part.best.step_ms == pytest.approx(min(steps), rel=2e-5)
                check_best(answer, model, part)


def check_best(answer: PlacementAnswer, model: Any, part: PartExplanation) -> None:
    """Doing it is legal, and explaining again says the same times."""
    best = part.best
    assert best is not None
    moving = {part.name, *part.moves_with}
    devices = [
        best.to_device
        if one.name in moving
        else part.device
        if one.name in best.swap_with
        else answer.device_of_table[number]
        for number, one in enumerate(answer.task.tables)
    ]
    moved = replace(answer, device_of_table=tuple(devices))
    check_placement(moved.task, Placement(tuple(devices), answer.num_devices))
    again = explain(moved, model, part.name).parts[0]
    assert again.device == best.to_device
    assert again.device_ms == pytest.approx(best.to_ms, rel=1e-6)
    assert again.options[part.device].step_ms >= 0
    assert explain(moved, model, part.name).step_ms == pytest.approx(best.step_ms, rel=1e-6)


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """A placement.json whose model lies in a folder."""
    save_model(tmp_path / "model", additive().cost_model, untrained().trained_on)
    model = load_model(tmp_path / "model")
    save_answer(answered(asked(FOUR, 3), (0, 0, 1, 2), model=model), tmp_path / "placement.json")
    return tmp_path


def test_the_command_explains(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(placed / "placement.json"), "--table", "a"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    text = " ".join(shown.out.split())
    assert "a step takes 8.00 ms, device 0 is the slowest" in text
    assert "It adds 5.000 to the 8.000 ms of its own" in text
    assert "without it, a step would take 4.000 ms" in text
    assert "Next best move: swap it with d on device 2. A step would take 5.000 ms, 3.000 ms less" in text
    assert "2 7.000 7.000 -1.000" in text


def test_the_command_prints_json(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = placed / "placement.json"
    assert main(["explain", str(path), "--table", "a", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    expected = explain(answered(asked(FOUR, 3), (0, 0, 1, 2)), load_model(placed / "model"), "a")
    assert record == json.loads(json.dumps(asdict(expected)))


def test_another_model_is_worth_a_warning(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(placed / "other", additive(overhead_ms=1).cost_model, untrained().trained_on)
    command = ["explain", str(placed / "placement.json"), "--table", "a", "--model", str(placed / "other")]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "a step takes 9.00 ms" in shown.out
    (line,) = shown.err.splitlines()
    assert line.startswith("evenshard explain: warning: ") and "is not the model that this placement was made" in line


@pytest.mark.parametrize(
    ("lineage", "message"),
    [
        ({"model": {"source": "gone", "sha256": "0"}}, "the model that the file names cannot be loaded: gone: no such"),
        ({"model": {"source": "bundled:none", "sha256": "0"}}, "there is no model for hardware 'simulated:none'"),
        ({}, "names no model. Name one (--model)"),
    ],
)
def test_a_model_that_cannot_be_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lineage: Any, message: str
) -> None:
    answer = replace(answered(asked(FOUR, 3), (0, 0, 1, 2)), lineage=lineage)
    save_answer(answer, tmp_path / "placement.json")
    assert main(["explain", str(tmp_path / "placement.json"), "--table", "a"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_bad_input_is_told_in_one_line(placed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(placed / "placement.json"), "--table", "A"]) == 2
    assert capsys.readouterr().err == (
        "evenshard explain: there is no table 'A' in this placement. Did you mean 'a'?\n"
    )
    assert main(["explain", str(placed / "none.json"), "--table", "a"]) == 2
