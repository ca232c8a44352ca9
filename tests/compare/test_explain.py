"""Why a table lives where it does: hand-computed times, each reason of legality, and moves that do what was said."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenshard.cli import main
from evenshard.compare.explain.explain import explain
from evenshard.compare.explain.explanation import Move, PartExplanation, WayOption
from evenshard.placement.machine import Machine
from evenshard.placement.parts import Span, TablePart, row_spans
from evenshard.placement.plan import check_sharding
from evenshard.placement.sharding import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
)
from evenshard.placement.storage import Storage
from evenshard.placement.task import ShardingTask, ruled_out
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.file import save_answer
from evenshard.planner.pricing import part_costs
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.report.explanation import print_explanation
from evenshard.sharders.cost_model.cost_model import ExchangeTime
from evenshard.sharders.models import PlacementModel, load_model
from evenshard.sharders.search.space import SearchSpace
from evenshard.sharders.search.state import Choice, parts_of
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig, InfeasibleTask
from support.builders import BATCH_SIZE, some_tables
from support.explain_builders import ROOM, additive, answered, asked
from support.model_builders import save_model
from support.request_builders import untrained

GB = 2**30
ROUGHLY = 2e-3  # members of an ensemble may differ in whether kernels or launches decide
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
    assert (explanation.sharding_type, explanation.moves_with, explanation.without_ms) == ("table_wise", (), 4)
    assert (part.name, part.rows, part.columns, part.devices) == ("a", (0, 10), (0, 8), (0,))
    assert (part.weight_bytes, part.state_bytes, part.on_slowest) == (320, 640, True)
    assert (part.alone_ms, part.adds_ms, part.device_ms) == (5, 5, 8)
    assert [(one.device, one.device_ms, one.step_ms, one.change_ms) for one in part.options] == [
        (0, 8, 8, 0),
        (1, 9, 9, 1),
        (2, 7, 7, -1),
    ]
    assert [one.used_bytes for one in part.options] == [1920, 1920, 1920]
    assert all(one.illegal == () for one in part.options)


def test_a_part_that_is_not_on_the_slowest_device_does_not_decide() -> None:
    answer = answered(asked(FOUR, 3), (0, 0, 1, 2))
    part = part_of(answer, "c")
    assert not part.on_slowest
    assert explain(answer, additive(), "c").without_ms == 8
    assert [(one.device_ms, one.step_ms) for one in part.options] == [(12, 12), (4, 8), (6, 8)]


def test_what_is_left_counts_too() -> None:
    # Without a, device 0 keeps 3 ms of b, more than device 1 takes with a.
    answer = answered(asked({"a": 1, "b": 3}, 2), (0, 0))
    part = part_of(answer, "a")
    assert part.options[1].device_ms == 1
    assert part.options[1].step_ms == 3
    assert explain(answer, additive(), "a").without_ms == 3


def test_an_empty_device_costs_nothing() -> None:
    part = part_of(answered(asked({"a": 1, "b": 3}, 3), (0, 1)), "a", overhead_ms=1)
    assert (part.alone_ms, part.adds_ms, part.device_ms) == (2, 2, 2)
    assert [one.device_ms for one in part.options] == [2, 5, 2]


def test_exchanges_of_all_devices_count() -> None:
    """No compute; a device sends 4 * batch / devices = 2 bytes a dim forward and back, the busier direction counts."""
    model = additive()
    model.cost_model.exchange = ExchangeTime(latency_ms=0, ms_per_byte=0.25)
    a, b, c = asked({"a": 0, "b": 0, "c": 0}, 2, batch_size=1).tables
    tables = (replace(a, embedding_dim=4), replace(b, embedding_dim=4), replace(c, embedding_dim=40))
    (part,) = explain(answered(asked({}, 2, tables=tables), (0, 0, 1), model=model), model, "a").parts
    inputs_ms = 0.25 * 2 * 4 / 2  # the lengths of two tables go to device 0
    assert part.device_ms == pytest.approx(40 + inputs_ms)  # receives c
    assert [one.change_ms for one in part.options] == [0, pytest.approx(4)]  # and then a too


def test_one_device_leaves_no_choice() -> None:
    explanation = explain(answered(asked({"a": 1, "b": 3}, 1), (0, 0)), additive(), "a")
    (part,) = explanation.parts
    assert (explanation.without_ms, part.best) == (3, None)
    assert [one.device_ms for one in part.options] == [4]
    assert [way.illegal for way in explanation.ways if not way.is_now] == [("there is one device",)] * 5


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
    assert "No move or swap of it makes embedding work faster" in said(answer, "a")
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
    assert part.options[1].illegal == ("640 bytes are missing",)
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
        ("must stay apart from c",),
        ("must stay apart from d",),
    ]


def test_what_is_broken_already_says_nothing_about_others() -> None:
    rules = Rules(apart=(("b", "c"), ("a", "d")))
    answer = answered(asked({**FOUR, "e": 1.0}, 3, rules=rules), (0, 1, 1, 0, 2))  # both rules are broken
    assert [one.illegal for one in part_of(answer, "e").options] == [(), (), ()]
    best = part_of(answer, "e").best
    assert best is not None and best.swap_with in (("a",), ("c",)) and best.step_ms == 7
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
    assert explain(answer, additive(), "a").moves_with == ("b",)
    assert (part.alone_ms, part.adds_ms) == (5, 5)  # of a alone
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
    assert (first.name, first.devices, second.name, second.devices) == ("a[0:4]", (0,), "a[4:8]", (2,))
    assert (second.columns, second.weight_bytes, second.state_bytes) == ((4, 8), 160, 40)
    assert [one.device_ms for one in second.options] == [13, 9, 7]  # each part is looked up as the whole one
    assert explain(answer, additive(), "a[4:8]").parts == (second,)
    assert explain(answer, additive(), "a[4:8]").table == "a"
    assert second.options[0].illegal == ("holds another part of it, and parts of one table never share a device",)
    text = said(answer, "a")
    assert "a is sharded column_wise. Embedding work takes 8.00 ms per step" in text
    assert "Its 2 parts are on devices 0, 2: 160 bytes of weights and 40 bytes of optimizer state each." in text
    assert "Each device with one of them: --table 'a[0:4]'." in text
    assert "no: holds another part of it" in said(answer, "a[4:8]")


def test_an_unknown_table_meets_those_of_similar_names() -> None:
    answer = answered(asked({"clicks": 1, "views": 2}, 2), (0, 1))
    with pytest.raises(BadConfig, match=r"no table 'click' in this placement\. Did you mean 'clicks'\?"):
        explain(answer, additive(), "click")
    with pytest.raises(BadConfig, match="Did you mean 'views'"):
        explain(answer, additive(), "VIEWS")
    with pytest.raises(BadConfig, match="It has 2: clicks, views"):
        explain(answer, additive(), "zzz")


# Ways ----------------------------------------------------------------------------------------------------------------


def ways_of(answer: PlacementAnswer, table: str, model: PlacementModel | None = None) -> dict[str, WayOption]:
    return {one.sharding_type: one for one in explain(answer, model or additive(), table).ways}


def test_every_way_to_shard_the_table() -> None:
    # a takes 8 ms: whole 8 ms on one device, cut by columns as often as looked up, by rows its share of the lookups.
    answer = answered(asked({"a": 8.0, "b": 3.0}, 2, dim=8), (0, 1))
    found = ways_of(answer, "a")
    assert set(found) == {*SHARDING_TYPES} - {TABLE_COLUMN_WISE}
    now = found[TABLE_WISE]
    assert (now.is_now, now.devices, now.step_ms, now.change_ms, now.table_bytes) == (True, (0,), 8, 0, 320)
    columns = found[COLUMN_WISE]
    assert (columns.widths, set(columns.devices), columns.step_ms, columns.change_ms) == ((4, 4), {0, 1}, 11, 3)
    rows = found[ROW_WISE]
    assert (rows.devices, rows.step_ms, rows.change_ms, rows.table_bytes) == ((0, 1), 7, -1, 320)
    replicas = found[DATA_PARALLEL]
    assert replicas.step_ms == pytest.approx(3 + 8, rel=1e-3)  # batches of at least one sample, and dense gradients
    assert replicas.table_bytes == 640
    for name in (TABLE_ROW_WISE, GRID_SHARD):
        assert (found[name].step_ms, found[name].illegal) == (None, ("there is one node",))
    text = said(answer, "a")
    assert "7.000 -1.000 0.00 row_wise devices 0, 1" in text
    assert "Sharded row_wise, embedding work would take 1.000 ms less." in text
    assert "impossible: there is one node" in text


def test_what_cannot_be_is_ruled_out_for_the_reason_that_place_gives() -> None:
    """On two nodes of two devices; every row of a table is in the reasons of ``ruled_out``, and there alone."""
    machine = Machine(4, 2, inter="infiniband_ndr")
    plain = asked({"means": 8.0, "events": 3.0, "narrow": 1.0, "single": 1.0}, 4, machine=machine).tables
    tables = (
        replace(plain[0], pooling="mean"),
        replace(plain[1], pooling="none"),
        replace(plain[2], embedding_dim=4),
        replace(plain[3], num_rows=1),
    )
    answer = answered(asked({}, 4, tables=tables, machine=machine), (0, 1, 2, 3))
    task = answer.request.task()
    for position, table in enumerate(tables):
        never = ruled_out(task, position)
        impossible = {name: way.illegal for name, way in ways_of(answer, table.name).items() if way.step_ms is None}
        assert impossible == {name: (why,) for name, why in never.items() if name != TABLE_COLUMN_WISE}, table.name
    assert "TorchRec takes means of rows wrongly" in said(answer, "means")
    one_a_node = Machine(2, 1, inter="infiniband_ndr")
    spread = answered(asked({"a": 8.0, "b": 3.0}, 2, machine=one_a_node), (0, 1))
    assert ways_of(spread, "a")[TABLE_ROW_WISE].illegal == ("a node has one device",)


def test_ways_on_two_nodes() -> None:
    machine = Machine(4, 2, inter="infiniband_ndr")
    request = asked({"a": 8.0, "b": 3.0, "c": 1.0}, 4, machine=machine)
    parts = [
        TablePart("a", Span(0, 5), Span(0, 8), (0,)),
        TablePart("a", Span(5, 10), Span(0, 8), (1,)),
        TablePart("b", Span(0, 10), Span(0, 8), (2,)),
        TablePart("c", Span(0, 10), Span(0, 8), (0, 1, 2, 3)),
    ]
    answer = answered(request, (), parts=parts)
    explanation = explain(answer, additive(), "a")
    assert explanation.sharding_type == TABLE_ROW_WISE
    assert [part.devices for part in explanation.parts] == [(0,), (1,)]
    assert all(part.options == () and part.best is None for part in explanation.parts)
    found = ways_of(answer, "a")
    assert found[TABLE_ROW_WISE].is_now and found[TABLE_ROW_WISE].nodes == (0,)
    assert found[GRID_SHARD].widths == (4, 4) and found[GRID_SHARD].nodes == (0, 1)
    assert found[TABLE_WISE].devices[0] in (0, 1, 3)
    assert all(one.step_ms is not None and one.illegal == () for one in found.values())
    assert "node 0 now" in said(answer, "a") and "2 x 4 columns, nodes 0, 1" in said(answer, "a")
    (replica,) = explain(answer, additive(), "c").parts
    assert replica.devices == (0, 1, 2, 3) and replica.options == ()
    assert "A replica of it is on each of the 4 devices" in said(answer, "c")


def test_why_a_way_is_not_allowed() -> None:
    rules = Rules(pinned={"a": (0,)}, table_types={"b": (TABLE_WISE,)}, min_columns={"d": 8}, apart=(("c", "d"),))
    request = asked(FOUR, 3, rules=rules, dim=16, sharding_types=(TABLE_WISE, COLUMN_WISE, DATA_PARALLEL))
    answer = answered(request, (0, 0, 1, 2))
    assert ways_of(answer, "a")[DATA_PARALLEL].illegal == ("a is pinned to device 0",)
    assert ways_of(answer, "a")[ROW_WISE].illegal == ("not among the allowed types", "a is pinned to device 0")
    assert ways_of(answer, "b")[COLUMN_WISE].illegal == ("not among the allowed types",)
    assert ways_of(answer, "d")[COLUMN_WISE].widths == (8, 8)
    assert set(ways_of(answer, "d")[COLUMN_WISE].devices) == {0, 2}
    assert ways_of(answer, "d")[DATA_PARALLEL].illegal == ("must stay apart from c",)
    together = answered(asked(FOUR, 3, rules=Rules(together=(("a", "b"),))), (0, 0, 1, 2))
    assert ways_of(together, "a")[ROW_WISE].illegal == ("a rule keeps it with b, whole and on one device",)


def test_memory_of_a_way() -> None:
    # 1 GB each; replicas of a need 1 GB on devices that have 0.5 GB left.
    answer = answered(asked(FOUR, 3, rows=2**25, caps_bytes=(2 * GB, GB * 3 // 2, GB * 3 // 2)), (0, 0, 1, 2))
    assert ways_of(answer, "a")[DATA_PARALLEL].illegal == ("0.50 GB is missing on device 1",)
    assert ways_of(answer, "a")[ROW_WISE].illegal == ()


def test_columns_on_one_node_where_others_are_not_allowed() -> None:
    machine = Machine(4, 2, inter="infiniband_ndr")
    request = asked(FOUR, 4, machine=machine, sharding_types=(TABLE_WISE, TABLE_COLUMN_WISE))
    found = ways_of(answered(request, (0, 0, 1, 2)), "a")
    assert COLUMN_WISE not in found
    assert found[TABLE_COLUMN_WISE].illegal == () and set(found[TABLE_COLUMN_WISE].devices) in ({0, 1}, {2, 3})


# Doing as explained --------------------------------------------------------------------------------------------------


def random_answer(seed: int) -> PlacementAnswer:
    """A legal placement of nine tables on two nodes with all kinds of rules, by a model that is far from linear."""
    tables = some_tables(9, seed)
    names = [one.name for one in tables]
    rules = Rules(
        pinned={names[0]: (0, 1)},
        forbidden={names[1]: (2,)},
        together=((names[2], names[3]),),
        apart=((names[4], names[5]),),
    )
    request = PlacementRequest(
        tables,
        (ROOM,) * 4,
        BATCH_SIZE,
        optimizer="rowwise_adagrad",
        rules=rules,
        machine=Machine(4, 2, inter="infiniband_ndr"),
    )
    model = untrained(seed)
    space = SearchSpace(part_costs(request, model))
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        choices = []
        for group in space.groups:
            number = int(rng.integers(len(group.options)))
            option = group.options[number]
            places = rng.permutation(4 // option.span)[: len(option.pieces)]
            choices.append(Choice(number, tuple(places.tolist())))
        parts = parts_of(space, choices)
        try:
            check_sharding(request.task(), parts)
        except InfeasibleTask:
            continue
        return answered(request, (), model=model, parts=parts)
    raise AssertionError("no legal placement was drawn")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_doing_as_explained_costs_what_was_explained(seed: int) -> None:
    """Each option, each move and each way, as a placement of its own: the same times, and legal if called so."""
    answer, model = random_answer(seed), untrained(seed)
    costs = part_costs(answer.request, model)
    cuts = {}

    def check(parts: Sequence[TablePart], step_ms: float, illegal: Sequence[str]) -> list[float]:
        predicted = costs.predict(parts)
        assert predicted.predicted_ms == pytest.approx(step_ms, rel=ROUGHLY)
        assert is_legal(costs.task, parts) == (not illegal)
        return [one.predicted_total_ms for one in predicted.devices]

    for table in answer.request.tables:
        explanation = explain(answer, model, table.name)
        assert explanation.step_ms == pytest.approx(answer.predicted_ms, rel=1e-6)
        stay = [part for part in answer.parts if part.table != table.name]
        moving = {table.name, *explanation.moves_with}
        for part in explanation.parts:
            for option in part.options:
                homes = {one.device for one in answer.parts if one.table == table.name and one.columns != part.columns}
                if option.device in homes:
                    assert option.illegal
                    continue
                moved = [
                    replace(one, devices=(option.device,))
                    if one.table in moving and one.devices == part.devices
                    else one
                    for one in answer.parts
                ]
                device_ms = check(moved, option.step_ms, option.illegal)
                assert device_ms[option.device] == pytest.approx(option.device_ms, rel=ROUGHLY)
            if part.best is not None:
                assert part.best.step_ms <= min(
                    (one.step_ms for one in part.options if not one.illegal and one.device not in part.devices),
                    default=float("inf"),
                ) * (1 + 1e-5)
        for way in explanation.ways:
            if way.step_ms is None or way.is_now:
                continue
            check([*stay, *placed(table, way, answer.request.nodes)], way.step_ms, way.illegal)
            cuts[way.sharding_type] = way
    assert len(cuts) == 6


def placed(table: Table, way: WayOption, machine: Machine) -> Iterator[TablePart]:
    """The parts of a way, as its record says."""
    rows, columns = Span(0, table.num_rows), Span(0, table.embedding_dim)
    if way.sharding_type == DATA_PARALLEL:
        yield TablePart(table.name, rows, columns, way.devices)
    elif way.sharding_type in (TABLE_WISE, COLUMN_WISE):
        start = 0
        for width, device in zip(way.widths, way.devices, strict=True):
            yield TablePart(table.name, rows, Span(start, start + width), (device,))
            start += width
    else:
        groups = [list(machine.devices_of_node(node)) for node in way.nodes] or [list(way.devices)]
        start = 0
        for width, devices in zip(way.widths, groups, strict=True):
            for span, device in zip(row_spans(table, len(devices)), devices, strict=False):
                yield TablePart(table.name, span, Span(start, start + width), (device,))
            start += width


def is_legal(task: ShardingTask, parts: Sequence[TablePart]) -> bool:
    try:
        check_sharding(task, parts)
    except InfeasibleTask:
        return False
    return True


# Places of weights ---------------------------------------------------------------------------------------------------

HOSTED = Machine(2, 1, inter="infiniband_ndr", host_bytes=(2**20, 2**10))
CACHED, MANAGED = Storage("fused_uvm_caching", 0.1), Storage("fused_uvm")


def hosted(kept: Storage = CACHED, **more: Any) -> PlacementAnswer:
    """Table a of 3,200 bytes, kept so, on host 0, and b in device memory on host 1, which has room for 1,024 bytes."""
    request = asked({"a": 5.0, "b": 3.0}, 2, rows=100, machine=HOSTED, **more)
    parts = [TablePart("a", Span(0, 100), Span(0, 8), (0,), kept), TablePart("b", Span(0, 100), Span(0, 8), (1,))]
    return answered(request, (), parts=parts)


def test_every_place_to_keep_a_table() -> None:
    answer = hosted()
    kept = {str(one.storage): one for one in explain(answer, additive(), "a").kept}
    assert list(kept) == [
        "fused", *(f"fused_uvm_caching {one}" for one in ("0.8", "0.4", "0.2", "0.1", "0.05")), "fused_uvm"
    ]  # fmt: skip
    assert [name for name, one in kept.items() if one.is_now] == ["fused_uvm_caching 0.1"]
    assert (kept["fused"].device_bytes, kept["fused"].host_bytes) == (3200, 0)
    assert (kept["fused_uvm"].device_bytes, kept["fused_uvm"].host_bytes) == (0, 3200)
    assert kept["fused_uvm_caching 0.2"].device_bytes == 640 + 100 * 4 + 20 * 16
    for one in kept.values():
        then = hosted(one.storage)
        assert one.step_ms == pytest.approx(part_costs(then.request, additive()).predict(then.parts).predicted_ms)
        assert one.change_ms == pytest.approx(one.step_ms - answer.predicted_ms)
        assert one.miss_ratio == next((each.miss_ratio for each in then.offloaded), None)
        assert (one.miss_source == "") == (one.miss_ratio is None)
        assert one.illegal == ()


def test_places_without_memory_are_marked() -> None:
    kept = {one.kernel: one for one in explain(hosted(), additive(), "b").kept}
    assert kept["fused"].is_now
    (reason,) = kept["fused_uvm"].illegal
    assert reason.endswith("KB is missing in the memory of host 1")
    small = {str(one.storage): one for one in explain(hosted(caps_bytes=(3199, ROOM)), additive(), "a").kept}
    assert small["fused"].illegal == ("1 byte is missing on device 0",)
    assert small["fused_uvm"].illegal == ()


def test_where_there_is_no_other_place_none_is_listed() -> None:
    assert explain(answered(asked(FOUR, 3), (0, 0, 1, 2)), additive(), "a").kept == ()
    replicated = answered(asked({"a": 5.0}, 2, machine=HOSTED), ((0, 1),))
    assert explain(replicated, additive(), "a").kept == ()


def test_a_table_outside_of_device_memory_moves_as_it_is_kept() -> None:
    answer = hosted()
    explanation = explain(answer, additive(), "a")
    (part,) = explanation.parts
    assert part.options[1].illegal == ("2.12 KB is missing in the memory of host 1",)
    assert part.options[0].illegal == ()
    in_ways = {way.sharding_type: way for way in explanation.ways}
    assert in_ways[COLUMN_WISE].table_bytes == 2 * (100 * 4 + 10 * 4 * 4 + 10 * 16)
    half = ("576 bytes are missing in the memory of host 1",)
    assert in_ways[COLUMN_WISE].illegal == in_ways[ROW_WISE].illegal == half
    assert in_ways[DATA_PARALLEL].table_bytes == 2 * 3200 and not in_ways[DATA_PARALLEL].illegal


def test_places_in_words() -> None:
    explanation = explain(hosted(), additive(), "a")
    text = said(hosted(), "a")
    assert "It is kept as fused_uvm_caching 0.1: 880 bytes of device memory and 3.12 KB elsewhere in all" in text
    assert "it misses 92 % of a batch's distinct rows (a bound from reuse_bins)." in text
    assert "92 % fused_uvm_caching 0.1 now" in text
    assert "No other place for it makes embedding work faster, as far as there is memory." in text
    faster = tuple(replace(one, change_ms=-0.5) if one.kernel == "fused" else one for one in explanation.kept)
    out = io.StringIO()
    print_explanation(replace(explanation, kept=faster), out)
    assert "Kept as fused, embedding work would take 0.500 ms less." in out.getvalue()
    assert "kept" not in said(answered(asked(FOUR, 3), (0, 0, 1, 2)), "a")


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A placement.json whose model lies in a folder."""
    save_model(tmp_path / "model", additive().cost_model, untrained().trained_on)
    model = load_model(tmp_path / "model")
    save_answer(answered(asked(FOUR, 3), (0, 0, 1, 2), model=model), tmp_path / "placement.json")
    return tmp_path


def test_the_command_explains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(folder / "placement.json"), "--table", "a"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    text = " ".join(shown.out.split())
    assert "Embedding work takes 8.00 ms per step; device 0 is the slowest" in text
    assert "It takes 5.000 ms alone, and adds 5.000 ms to the 8.000 ms of its device." in text
    assert "Without the table, embedding work would take 4.000 ms." in text
    assert "Next best move: swap it with d on device 2. Embedding work would take 5.000 ms, 3.000 ms less" in text
    assert "2 7.000 7.000 -1.000" in text


def test_the_command_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "placement.json"
    assert main(["explain", str(path), "--table", "a", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    expected = explain(answered(asked(FOUR, 3), (0, 0, 1, 2)), load_model(folder / "model"), "a")
    assert record == json.loads(json.dumps(asdict(expected)))


def test_another_model_is_worth_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(folder / "other", additive(overhead_ms=1).cost_model, untrained().trained_on)
    command = ["explain", str(folder / "placement.json"), "--table", "a", "--model", str(folder / "other")]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "Embedding work takes 9.00 ms per step" in shown.out
    (line,) = shown.err.splitlines()
    assert line.startswith("evenshard explain: warning: ") and "is not the model that this placement was made" in line


@pytest.mark.parametrize(
    ("lineage", "message"),
    [
        ({"model": {"source": "gone", "sha256": "0"}}, "the model that the file names cannot be loaded: gone: no such"),
        ({"model": {"source": "simulated:none", "sha256": "0"}}, "simulated device is 'none'"),
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


def test_bad_input_is_told_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(folder / "placement.json"), "--table", "A"]) == 2
    assert capsys.readouterr().err == (
        "evenshard explain: there is no table 'A' in this placement. Did you mean 'a'?\n"
    )
    assert main(["explain", str(folder / "none.json"), "--table", "a"]) == 2
