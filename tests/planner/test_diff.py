"""What moves between two placements: byte-exact splits and joins, renamed devices, and one model for both."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenshard.base.units import BYTES_PER_GB
from evenshard.cli import main
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import ON_DEVICE, Span, Storage, TablePart, row_spans
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.diff import diff
from evenshard.planner.difference import (
    OWN_FIGURES,
    ChangedTable,
    DeviceTraffic,
    Difference,
    PairTraffic,
    PartMove,
    Resharded,
    StorageChange,
)
from evenshard.planner.file import save_answer
from evenshard.planner.request import PlacementRequest
from evenshard.planner.rules import Rules
from evenshard.report.comparisons import print_difference
from evenshard.sharders.models import load_model
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE, some_tables
from support.explain_builders import ROOM, additive, answered, asked
from support.model_builders import save_model
from support.request_builders import untrained

TWO = {"a": 5.0, "b": 3.0}  # 10 rows of 8 dims of 32 bits: 320 bytes each, 40 a column
WIDE = {"a": 1.0}
TEN = Span(0, 10)


def moves(difference: Difference) -> list[tuple[str, int, int, int, int]]:
    return [(one.table, *one.columns, one.from_device, one.to_device) for one in difference.moves]


def said(difference: Difference) -> str:
    out = io.StringIO()
    print_difference(difference, out)
    return " ".join(out.getvalue().split())


def wide(devices: Sequence[int], *cuts: int, dim: int = 16, optimizer: str = "sgd", num_devices: int = 4) -> Any:
    """One table of ten rows, cut into parts on these devices."""
    request = asked(WIDE, num_devices, dim=dim, optimizer=optimizer)
    return answered(request, devices, {"a": cuts} if cuts else {})


# What moves ----------------------------------------------------------------------------------------------------------


def test_nothing_moves_from_an_answer_to_itself() -> None:
    answer = answered(asked(TWO, 2, optimizer="adam"), (0, 1, 0), {"a": (4,)})
    difference = diff(answer, answer, additive(), 10)
    assert difference.moves == () and difference.traffic.moved_bytes == 0
    assert difference.kept_bytes == sum(answer.part_bytes) == 2 * 3 * 320
    assert (difference.traffic.pairs, difference.traffic.devices, difference.traffic.seconds) == ((), (), 0)
    assert difference.renaming is None and difference.notes == ()
    assert difference.times.saves_ms == 0
    assert "the same as before" in said(difference) and "The two placements are equal. Nothing moves." in said(
        difference
    )


def test_what_to_know_about_the_new_answer_is_told() -> None:
    answer = answered(asked(TWO, 2), (0, 1))
    difference = diff(answer, replace(answer, notes=("16 devices are priced.",)), additive())
    assert difference.notes == ("16 devices are priced.",) and "Note: 16 devices are priced." in said(difference)
    assert diff(replace(answer, notes=("16 devices are priced.",)), answer, additive()).notes == ()


HOSTS = Nodes(4, 2, inter="infiniband_ndr", host_bytes=(2**30,) * 2)
CACHED, LESS, MANAGED = Storage("fused_uvm_caching", 0.5), Storage("fused_uvm_caching", 0.2), Storage("fused_uvm")


def kept(storage: Storage, device: int, optimizer: str = "sgd", *, also: int = 3) -> PlacementAnswer:
    """Table a kept so, on a device of two hosts of two; table b in device memory on another."""
    request = asked(TWO, 4, machine=HOSTS, optimizer=optimizer, sharding_types=("table_wise",))
    whole = TEN, Span(0, 8)
    return answered(request, (), parts=[TablePart("a", *whole, (device,), storage), TablePart("b", *whole, (also,))])


@pytest.mark.parametrize(
    ("optimizer", "old", "new", "out", "back"),
    [
        ("sgd", ON_DEVICE, MANAGED, 320, 0),
        ("sgd", ON_DEVICE, CACHED, 320, 0),  # the cache fills itself
        ("sgd", MANAGED, ON_DEVICE, 0, 320),
        ("adam", ON_DEVICE, MANAGED, 320 + 640, 0),
        ("rowwise_adagrad", CACHED, ON_DEVICE, 0, 320),  # a state for each row is in device memory anyway
        ("adam", CACHED, LESS, 0, 0),
        ("adam", CACHED, MANAGED, 0, 0),
    ],
)
@pytest.mark.parametrize("device", [0, 1])
def test_a_table_that_is_kept_otherwise_goes_between_a_device_and_its_host(
    optimizer: str, old: Storage, new: Storage, out: int, back: int, device: int
) -> None:
    """Whichever device of the host has the cache."""
    difference = diff(kept(old, 0, optimizer), kept(new, device, optimizer))
    assert difference.rekept == (StorageChange("a", str(old), str(new), out, back),)
    assert difference.moves == () and difference.traffic.moved_bytes == 0 and difference.renaming is None
    each = 320 + {"sgd": 0, "rowwise_adagrad": 40, "adam": 640}[optimizer]
    assert difference.kept_bytes == (2 * each if old.is_on_device == new.is_on_device else each)


def test_weights_in_host_memory_are_there_for_all_devices_of_the_host() -> None:
    difference = diff(kept(MANAGED, 0), kept(MANAGED, 1))
    assert (difference.moves, difference.rekept, difference.kept_bytes) == ((), (), 640)
    difference = diff(kept(MANAGED, 0), kept(MANAGED, 2))
    assert difference.moves == (PartMove("a", TEN, Span(0, 8), 0, 2, 320, 0),)
    assert difference.kept_bytes == 320
    difference = diff(kept(ON_DEVICE, 0), kept(MANAGED, 2))  # not through its own host
    assert [one.to_device for one in difference.moves] == [2]
    assert difference.rekept == (StorageChange("a", "fused", "fused_uvm", 0, 0),)
    assert diff(kept(ON_DEVICE, 0), kept(ON_DEVICE, 1)).traffic.moved_bytes == 320


def test_a_change_of_place_in_words() -> None:
    text = said(diff(kept(ON_DEVICE, 0), kept(CACHED, 0)))
    assert "Nothing moves to other devices." in text
    assert (
        "From fused to fused_uvm_caching 0.5: a (1 table), 320 bytes go to host memory. Checkpoints do not change."
    ) in text
    assert "From fused_uvm_caching 0.5 to fused: a (1 table), 320 bytes to devices. Check" in said(
        diff(kept(CACHED, 0), kept(ON_DEVICE, 0))
    )
    assert "From fused_uvm to fused_uvm_caching 0.5: a (1 table). Checkpoints" in said(
        diff(kept(MANAGED, 0), kept(CACHED, 0))
    )


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("rowwise_adagrad", 40), ("adagrad", 320), ("adam", 640)])
def test_a_table_moves_with_its_optimizer_state(optimizer: str, state: int) -> None:
    request = asked(TWO, 3, optimizer=optimizer)
    difference = diff(answered(request, (0, 1)), answered(request, (0, 2)))
    assert difference.moves == (PartMove("b", TEN, Span(0, 8), 1, 2, 320, state),)
    assert difference.kept_bytes == 320 + state
    assert difference.traffic.moved_bytes == difference.traffic.busiest_bytes == 320 + state
    assert difference.traffic.pairs == (PairTraffic(1, 2, 320 + state),)
    assert difference.traffic.devices == (DeviceTraffic(1, 320 + state, 0), DeviceTraffic(2, 0, 320 + state))


def test_weights_of_fewer_bits_are_fewer_bytes() -> None:
    request = asked(TWO, 2)
    request = replace(request, tables=tuple(replace(one, weight_bits=8) for one in request.tables))
    difference = diff(answered(request, (0, 1)), answered(request, (1, 1)))
    assert difference.traffic.moved_bytes == 80


def test_a_split_moves_only_what_leaves() -> None:
    difference = diff(wide([0], optimizer="rowwise_adagrad"), wide([0, 1, 2], 4, 12, optimizer="rowwise_adagrad"))
    assert difference.moves == (
        PartMove("a", TEN, Span(4, 12), 0, 1, 320, 40),
        PartMove("a", TEN, Span(12, 16), 0, 2, 160, 40),
    )
    assert difference.kept_bytes == 160 + 40
    assert difference.traffic.busiest_bytes == 560  # device 0 sends both


def test_a_join_moves_only_what_comes() -> None:
    difference = diff(wide([0, 1, 2], 4, 12), wide([0]))
    assert difference.moves == (
        PartMove("a", TEN, Span(4, 12), 1, 0, 320, 0),
        PartMove("a", TEN, Span(12, 16), 2, 0, 160, 0),
    )
    assert difference.kept_bytes == 160


def test_other_cuts() -> None:
    # 0:4 on 0, 4:16 on 1 -> 0:8 on 0, 8:12 on 2, 12:16 on 1
    assert moves(diff(wide([0, 1], 4), wide([0, 2, 1], 8, 12))) == [("a", 4, 8, 1, 0), ("a", 8, 12, 1, 2)]


def test_traffic_by_pair_and_device() -> None:
    request = asked({"a": 1, "b": 1, "c": 1, "d": 1}, 4)
    difference = diff(answered(request, (0, 0, 1, 3)), answered(request, (1, 2, 0, 3)), link_gb_s=640 / BYTES_PER_GB)
    traffic = difference.traffic
    assert [(one.from_device, one.to_device, one.num_bytes) for one in traffic.pairs] == [
        (0, 1, 320),
        (0, 2, 320),
        (1, 0, 320),
    ]
    assert [(one.device, one.out_bytes, one.in_bytes) for one in traffic.devices] == [
        (0, 640, 320),
        (1, 320, 320),
        (2, 0, 320),
    ]
    assert (traffic.moved_bytes, traffic.busiest_bytes, traffic.seconds) == (960, 640, pytest.approx(1))


def test_the_busiest_device_may_be_one_that_receives() -> None:
    request = asked(TWO, 3)
    assert diff(answered(request, (0, 1)), answered(request, (2, 2))).traffic.busiest_bytes == 640


def random_answer(
    rng: np.random.Generator, num_devices: int, optimizer: str = "sgd", replicas: bool = True, nodes: int = 1
) -> PlacementAnswer:
    """Six tables of ten rows, each sharded in any way."""
    request = asked(
        {name: 1.0 for name in "abcdef"},
        num_devices,
        dim=16,
        optimizer=optimizer,
        machine=Nodes(num_devices, num_devices // nodes, inter="infiniband_ndr" if nodes > 1 else ""),
    )
    return answered(
        request, (), parts=[part for table in request.tables for part in random_parts(rng, table, request, replicas)]
    )


def random_parts(
    rng: np.random.Generator, table: Table, request: PlacementRequest, replicas: bool
) -> Iterator[TablePart]:
    machine = request.nodes
    rows, columns = Span(0, table.num_rows), Span(0, table.embedding_dim)
    way = rng.integers(5 if replicas else 4)
    if way == 4:
        yield TablePart(table.name, rows, columns, tuple(range(machine.num_devices)))
    elif way == 0:
        yield TablePart(table.name, rows, columns, (int(rng.integers(machine.num_devices)),))
    elif way == 1:  # uneven widths
        edges = [0, *sorted(rng.choice([4, 8, 12], machine.num_devices // 2, replace=False).tolist()), 16]
        homes = rng.permutation(machine.num_devices).tolist()
        for start, stop, home in zip(edges, edges[1:], homes, strict=False):
            yield TablePart(table.name, rows, Span(start, stop), (home,))
    else:  # on all devices, or on those of a node
        node = int(rng.integers(machine.num_nodes))
        homes = list(range(machine.num_devices)) if way == 2 else list(machine.devices_of_node(node))
        for span, home in zip(row_spans(table, len(homes)), rng.permutation(homes).tolist(), strict=False):
            yield TablePart(table.name, span, columns, (home,))


def cells(answer: PlacementAnswer) -> dict[tuple[str, int, int], set[int]]:
    """The devices of each weight."""
    return {
        (one.table, row, column): set(one.devices)
        for one in answer.parts
        for row in range(*one.rows)
        for column in range(*one.columns)
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [1, 2])
def test_bytes_are_those_of_the_weights_that_devices_lack(seed: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    old, new = random_answer(rng, 4, nodes=nodes), random_answer(rng, 6 if nodes == 1 else 4, nodes=nodes)
    before, after = cells(old), cells(new)
    there = diff(old, new)
    expected = sum(4 * len(after[cell] - before[cell]) for cell in after)
    assert there.traffic.moved_bytes == expected > 0
    assert there.kept_bytes == sum(4 * len(after[cell] & before[cell]) for cell in after)
    assert sum(one.weight_bytes for one in there.moves) == expected
    assert sum(one.num_bytes for one in there.traffic.pairs) == expected
    assert sum(one.out_bytes for one in there.traffic.devices) == expected
    assert sum(one.in_bytes for one in there.traffic.devices) == expected
    for move in there.moves:
        for row in (move.rows.start, move.rows.stop - 1):
            cell = (move.table, row, move.columns.start)
            assert move.from_device in before[cell] and move.to_device in after[cell] - before[cell]
    assert diff(old, old).moves == () and diff(new, new).traffic.moved_bytes == 0


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_the_way_back_takes_the_same_bytes(optimizer: str) -> None:
    rng = np.random.default_rng(1)
    old, new = (random_answer(rng, 4, optimizer, replicas=False) for _ in range(2))
    assert diff(old, new).traffic.moved_bytes == diff(new, old).traffic.moved_bytes > 0
    assert diff(old, new).kept_bytes == diff(new, old).kept_bytes > 0


def test_a_replica_is_copied_to_every_device_that_lacks_it() -> None:
    request = asked(WIDE, 3, optimizer="rowwise_adagrad")
    whole, replicas = answered(request, (1,)), answered(request, [(0, 1, 2)])
    there = diff(whole, replicas)
    assert there.moves == (
        PartMove("a", TEN, Span(0, 8), 1, 0, 320, 40),
        PartMove("a", TEN, Span(0, 8), 1, 2, 320, 40),
    )
    assert there.kept_bytes == 360 and there.traffic.busiest_bytes == 720
    assert there.resharded == (Resharded("a", "table_wise", "data_parallel"),)
    assert "From table_wise to data_parallel: a (1 table)." in said(there)
    back = diff(replicas, whole)
    assert back.moves == () and back.kept_bytes == 360 and back.renaming is None


def test_replicas_share_the_work_of_sending() -> None:
    old, new = answered(asked(WIDE, 2), [(0, 1)]), answered(asked(WIDE, 4), [(0, 1, 2, 3)])
    assert moves(diff(old, new)) == [("a", 0, 8, 0, 2), ("a", 0, 8, 1, 3)]


def test_rows_move_with_their_columns() -> None:
    # Whole on 0 -> rows 0:5 on 1 and 5:10 on 0 -> columns 0:4 on 0 and 4:8 on 1.
    request = asked(WIDE, 2)
    whole = answered(request, (0,))
    rows = answered(
        request, (), parts=[TablePart("a", Span(0, 5), Span(0, 8), (1,)), TablePart("a", Span(5, 10), Span(0, 8), (0,))]
    )
    columns = answered(request, (0, 1), {"a": (4,)})
    assert diff(whole, rows).moves == (PartMove("a", Span(0, 5), Span(0, 8), 0, 1, 160, 0),)
    assert diff(rows, columns).moves == (
        PartMove("a", Span(0, 5), Span(0, 4), 1, 0, 80, 0),
        PartMove("a", Span(5, 10), Span(4, 8), 0, 1, 80, 0),
    )


# Renamed devices -----------------------------------------------------------------------------------------------------


def renamed(answer: PlacementAnswer, names: Sequence[int]) -> PlacementAnswer:
    parts = tuple(replace(one, devices=tuple(names[device] for device in one.devices)) for one in answer.parts)
    return replace(answer, parts=parts)


def test_answers_that_differ_in_names_only() -> None:
    answer = answered(asked({"a": 1, "b": 2, "c": 3}, 3), (0, 1, 2, 0), {"a": (4,)})
    difference = diff(answer, renamed(answer, (1, 2, 0)), link_gb_s=1)
    assert difference.traffic.moved_bytes == 960
    assert difference.renaming is not None
    assert difference.renaming.new_names == (2, 0, 1)
    assert difference.renaming.traffic.moved_bytes == 0 and difference.renaming.traffic.seconds == 0
    assert diff(answer, renamed(renamed(answer, (1, 2, 0)), difference.renaming.new_names)).moves == ()
    assert "move nothing instead of 960 bytes" in said(difference)
    assert "time: 0 -> 2, 1 -> 0, 2 -> 1." in said(difference)


def test_as_many_devices_as_possible_keep_their_names() -> None:
    # Devices 0 and 3 trade; 1 and 2 hold nothing and are left alone.
    answer = answered(asked(TWO, 4), (0, 3))
    found = diff(answer, renamed(answer, (3, 1, 2, 0))).renaming
    assert found is not None and found.new_names == (3, 1, 2, 0)


def test_no_renaming_without_a_gain() -> None:
    request = asked(TWO, 2)
    # b follows a: whatever the device is called, one of them moves.
    assert diff(answered(request, (0, 1)), answered(request, (0, 0))).renaming is None


def test_devices_that_differ_keep_their_names() -> None:
    for more in (
        {"caps_bytes": (ROOM, 2 * ROOM)},
        {"rules": Rules(pinned={"a": (0, 1), "b": (1,)})},
        {"rules": Rules(forbidden={"b": (0,)})},
    ):
        request = asked(TWO, 2, **more)
        assert diff(answered(request, (0, 1)), answered(request, (1, 0))).renaming is None
    request = asked(TWO, 3, caps_bytes=(ROOM, ROOM, 2 * ROOM))
    found = diff(answered(request, (0, 1)), answered(request, (1, 0))).renaming
    assert found is not None and found.new_names == (1, 0, 2)


def test_a_rule_that_differs_between_devices_makes_them_differ() -> None:
    rules = Rules(together=(("a", "b"),), apart=(("a", "c"),))  # the same everywhere
    request = asked({"a": 1, "b": 1, "c": 1}, 2, rules=rules)
    assert diff(answered(request, (0, 0, 1)), answered(request, (1, 1, 0))).renaming is not None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("num_old", "num_new"), [(4, 4), (3, 4), (4, 3)])
def test_no_renaming_moves_less(seed: int, num_old: int, num_new: int) -> None:
    rng = np.random.default_rng(seed)
    old, new = random_answer(rng, num_old), random_answer(rng, num_new)
    difference = diff(old, new)
    before, after = cells(old), cells(new)
    least = min(
        sum(4 * len({names[device] for device in after[cell]} - before[cell]) for cell in after)
        for names in permutations(range(4))
    )
    found = difference.renaming
    assert (difference.traffic if found is None else found.traffic).moved_bytes == least
    if found is not None:
        assert len(found.new_names) == num_new == len(set(found.new_names))


@pytest.mark.parametrize("seed", range(4))
def test_nodes_trade_names_as_wholes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    old, new = random_answer(rng, 4, nodes=2), random_answer(rng, 4, nodes=2)
    before, after = cells(old), cells(new)
    blocks = [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)]
    blocks += [(*names[2:], *names[:2]) for names in blocks]

    def moved(names: Sequence[int]) -> int:
        return sum(4 * len({names[device] for device in after[cell]} - before[cell]) for cell in after)

    difference = diff(old, new)
    found = difference.renaming
    assert (difference.traffic if found is None else found.traffic).moved_bytes == min(map(moved, blocks))
    assert found is None or found.new_names in blocks


def test_devices_of_two_nodes_do_not_trade_names() -> None:
    machine = Nodes(4, 2, inter="infiniband_ndr")
    four = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    request = asked(four, 4, machine=machine)
    # a and b share a node, then a and c: 1 and 2 cannot trade. The nodes can.
    old = answered(request, (0, 1, 2, 3))
    assert diff(old, answered(request, (0, 2, 1, 3))).renaming is None
    found = diff(old, answered(request, (2, 3, 0, 1))).renaming
    assert found is not None and found.new_names == (2, 3, 0, 1) and found.traffic.moved_bytes == 0
    one_node = asked(four, 4)
    found = diff(answered(one_node, (0, 1, 2, 3)), answered(one_node, (0, 2, 1, 3))).renaming
    assert found is not None and found.new_names == (0, 2, 1, 3)


def test_devices_that_differ_trade_no_names_with_those_that_are_gone() -> None:
    old = answered(asked(TWO, 3), (2, 1))
    assert diff(old, answered(asked(TWO, 2), (0, 1))).renaming is not None  # new device 0 is old device 2
    uneven = answered(asked(TWO, 2, caps_bytes=(ROOM, 2 * ROOM)), (0, 1))
    assert diff(old, uneven).renaming is None


# Tables that differ --------------------------------------------------------------------------------------------------


def test_tables_that_come_go_or_change_do_not_move() -> None:
    old = answered(asked({"a": 1, "b": 1, "c": 1, "d": 1}, 2), (0, 0, 0, 0))
    tables = {one.name: one for one in asked({"a": 1, "c": 1, "d": 1, "e": 1}, 2).tables}
    tables["c"] = replace(tables["c"], num_rows=20, weight_bits=16)
    new = answered(asked({}, 2, tables=tuple(tables.values())), (1, 1, 0, 1))
    difference = diff(old, new, additive())
    assert moves(difference) == [("a", 0, 8, 0, 1)]
    assert difference.kept_bytes == 320
    assert (difference.added, difference.removed) == (("e",), ("b",))
    assert difference.changed == (ChangedTable("c", "num_rows 10 -> 20, weight_bits 32 -> 16"),)
    assert difference.times.predicted_by == OWN_FIGURES
    text = said(difference)
    assert "Added: e (1 table)." in text and "Removed: b (1 table)." in text
    assert "Changed tables, which cannot move: c: num_rows 10 -> 20, weight_bits 32 -> 16." in text
    assert f"Predicted by {OWN_FIGURES}" in text


def test_the_order_of_tables_does_not_matter() -> None:
    request = asked(TWO, 2)
    turned = replace(request, tables=request.tables[::-1])
    difference = diff(answered(request, (0, 1, 1), {"a": (4,)}), answered(turned, (1, 0, 1), {"a": (4,)}), additive())
    assert difference.moves == ()
    assert difference.times.saves_ms == 0 and difference.times.old_ms == 8


def test_state_of_another_optimizer_does_not_move() -> None:
    old, new = asked(TWO, 2, optimizer="adam"), asked(TWO, 2, optimizer="adagrad")
    difference = diff(answered(old, (0, 1)), answered(new, (0, 0)))
    assert difference.moves == (PartMove("b", TEN, Span(0, 8), 1, 0, 320, 0),)
    assert "the optimizer changed from adam to adagrad: no optimizer state is counted" in difference.notes


# Times ---------------------------------------------------------------------------------------------------------------


def test_one_model_judges_both() -> None:
    request = asked({"a": 5, "b": 3, "c": 2}, 2)
    old, new = answered(request, (0, 0, 1)), answered(request, (0, 1, 1))
    times = diff(old, new, additive()).times
    assert (times.predicted_by, times.old_ms, times.new_ms, times.saves_ms) == ("additive", 8, 5, 3)
    assert 4.9 < times.lower_bound_ms <= 5
    faster = "Embedding work takes 5.000 ms per step, 3.000 ms (38 %; 90 %: 31 % to 45 %) less than the 8.000 ms before"
    assert faster in said(diff(old, new, additive()))
    assert "3.000 ms (60 %; 90 %: 49 % to 72 %) MORE than the 5.000 ms before" in said(diff(new, old, additive()))
    with_overhead = diff(old, new, additive(overhead_ms=1)).times
    assert (with_overhead.old_ms, with_overhead.new_ms) == (9, 6)


def test_the_new_request_is_what_both_are_judged_on() -> None:
    old = answered(asked({"a": 5, "b": 3, "c": 2}, 2), (0, 0, 1, 1), {"b": (4,)})
    new = answered(asked({"a": 1, "b": 3, "c": 6}, 2, batch_size=10), (0, 0, 1))
    difference = diff(old, new, additive())
    assert (difference.times.old_ms, difference.times.new_ms) == (90, 60)
    assert difference.notes == (
        "the batch size changed from 1 to 10; both times are predicted with the new value",
        "the pooling factors or histograms of 2 tables changed; both times are predicted with the new value",
    )
    own = diff(old, new)
    assert own.times.predicted_by == OWN_FIGURES
    assert (own.times.old_ms, own.times.new_ms, own.times.saves_ms) == (8, 60, -52)
    assert own.times.lower_bound_ms == new.lower_bound_ms
    assert any("the batch size changed from 1" in note for note in own.notes)


def test_an_old_placement_that_is_not_legal_any_more() -> None:
    old = answered(asked(TWO, 2), (0, 0))
    for more, why in (
        ({"rules": Rules(pinned={"b": (1,)})}, "table 'b' is on device 0, but its allowed devices are [1]"),
        ({"caps_bytes": (400, 400)}, "device 0 needs 640 bytes, but has 400 bytes"),
    ):
        notes = diff(old, answered(asked(TWO, 2, **more), (0, 1)), additive()).notes
        assert len(notes) == 1 and "is no longer legal" in notes[0] and why in notes[0]


def test_another_number_of_devices() -> None:
    rules = Rules(pinned={"a": (0,)})
    old = answered(asked({"a": 5, "b": 3, "c": 2}, 3), (2, 1, 0))
    new = answered(asked({"a": 5, "b": 3, "c": 2}, 2, rules=rules), (0, 1, 1))
    difference = diff(old, new, additive())
    assert (difference.old_num_devices, difference.new_num_devices) == (3, 2)
    assert moves(difference) == [("a", 0, 8, 2, 0), ("c", 0, 8, 0, 1)]
    assert (difference.times.old_ms, difference.times.new_ms) == (5, 5)
    assert difference.notes == ()
    assert "The number of devices changes from 3 to 2." in said(difference)


def test_the_memory_of_new_devices_says_nothing_about_the_old_ones() -> None:
    old = answered(asked(TWO, 3), (0, 0))
    assert diff(old, answered(asked(TWO, 2, caps_bytes=(400, 400)), (0, 1)), additive()).notes == ()


def test_an_exchange_depends_on_the_number_of_devices() -> None:
    model = untrained()
    tables = some_tables(4)
    few = answered(PlacementRequest(tables, (ROOM,) * 2, BATCH_SIZE), (0, 0, 1, 1), model=model)
    many = answered(PlacementRequest(tables, (ROOM,) * 4, BATCH_SIZE), (0, 0, 1, 1), model=model)
    times = diff(few, many, model).times
    assert times.old_ms == pytest.approx(few.predicted_ms, rel=1e-6)
    assert times.new_ms == pytest.approx(many.predicted_ms, rel=1e-6)
    assert times.old_ms != pytest.approx(times.new_ms, rel=1e-3)


def test_figures_of_different_models_are_told_apart() -> None:
    request = asked(TWO, 2)
    other = {"model": {"source": "other", "sha256": "1"}}
    old, new = answered(request, (0, 1), lineage=other), answered(request, (0, 1))
    assert diff(old, new).notes == ("the files' times are from different models",)
    assert diff(new, new).notes == ()


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two placements whose model lies in a folder."""
    save_model(tmp_path / "model", additive().cost_model, untrained().trained_on)
    model, request = load_model(tmp_path / "model"), asked({"a": 5, "b": 3, "c": 2}, 2)
    save_answer(answered(request, (0, 0, 1), model=model), tmp_path / "old.json")
    save_answer(answered(request, (0, 1, 1), model=model), tmp_path / "new.json")
    return tmp_path


def command(files: Path, *more: str) -> list[str]:
    return ["diff", str(files / "old.json"), str(files / "new.json"), *more]


def test_the_command_tells_the_difference(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(files, "--link-gb-s", "1e-6")) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    text = " ".join(shown.out.split())
    assert (
        "Embedding work takes 5.000 ms per step, 3.000 ms (38 %; 90 %: 31 % to 45 %) less than the 8.000 ms before"
        in text
    )
    assert (
        "Moves 320 bytes of 1 table; 640 bytes stay in place. This takes at least 0.298 s: 320 bytes for the busiest"
        in text
    )
    assert text.endswith("from to GB rows columns table 0 1 3e-07 0:10 0:8 b")


def test_the_command_prints_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(files, "--json")) == 0
    record = json.loads(capsys.readouterr().out)
    request = asked({"a": 5, "b": 3, "c": 2}, 2)
    expected = diff(answered(request, (0, 0, 1)), answered(request, (0, 1, 1)), load_model(files / "model"))
    assert record == json.loads(json.dumps(asdict(expected)))


def test_without_its_model_the_files_figures_stand(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "model").rename(files / "elsewhere")
    assert main(command(files)) == 0
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith("evenshard diff: warning: the file's model cannot be loaded")
    assert OWN_FIGURES in " ".join(shown.out.split())
    assert main(command(files, "--model", str(files / "elsewhere"))) == 0
    assert "elsewhere" in capsys.readouterr().out.replace("\n", "")
    assert main(command(files, "--model", str(files / "model"))) == 2


def test_bad_input_is_told_in_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(files, "--link-gb-s", "0")) == 2
    assert capsys.readouterr().err == "evenshard diff: --link-gb-s is 0.0. Set a bandwidth above 0 GB/s.\n"
    (files / "old.json").write_text("{}")
    assert main(command(files)) == 2
    assert "old.json" in capsys.readouterr().err


def test_many_moves_are_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    request = asked({f"t{number}": 1.0 for number in range(40)}, 2)
    difference = diff(answered(request, (0,) * 40), answered(request, (0,) * 3 + (1,) * 37))
    assert len(difference.moves) == 37
    assert "5 smaller moves are not shown (--json lists all)." in said(difference)


def test_names_cannot_steer_the_terminal() -> None:
    request = asked({"\x1b[31mred": 1.0, "[bold]b": 1.0}, 2)
    text = said(diff(answered(request, (0, 0)), answered(request, (1, 1))))
    assert "\x1b" not in text and "[bold]b" in text
