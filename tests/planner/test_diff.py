"""What moves between two placements: byte-exact splits and joins, renamed devices, and one model for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from evenshard.planner.diff import diff, rename_devices
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
from evenshard.planner.file import load_answer, save_answer
from evenshard.planner.rules import Rules
from evenshard.sharders.models import load_model
from support.builders import some_tables
from support.explain_builders import ROOM, additive, answered, asked
from support.model_builders import save_model
from support.request_builders import untrained

TWO = {"a": 5.0, "b": 3.0}  # 10 rows of 8 dims of 32 bits: 320 bytes each, 40 a column
THREE = {**TWO, "c": 2.0}
TEN, EIGHT = Span(0, 10), Span(0, 8)


def two(*devices: int | tuple[int, ...], num_devices: int = 2, **more: Any) -> PlacementAnswer:
    return answered(asked(TWO, num_devices, **more), devices)


def three(*devices: int | tuple[int, ...], num_devices: int = 2, **more: Any) -> PlacementAnswer:
    return answered(asked(THREE, num_devices, **more), devices)


def wide(devices: Sequence[int], *cuts: int, dim: int = 16, optimizer: str = "sgd") -> PlacementAnswer:
    """One table of ten rows, cut into parts on these of four devices."""
    return answered(asked({"a": 1.0}, 4, dim=dim, optimizer=optimizer), devices, {"a": cuts} if cuts else {})


def moves(difference: Difference) -> list[tuple[str, int, int, int, int]]:
    return [(one.table, *one.columns, one.from_device, one.to_device) for one in difference.moves]


# What moves ----------------------------------------------------------------------------------------------------------


def test_nothing_moves_from_an_answer_to_itself_alone() -> None:
    answer = answered(asked(TWO, 2, optimizer="adam"), (0, 1, 0), {"a": (4,)})
    difference = diff(answer, answer, additive(), 10)
    assert difference.equal and difference.moves == () and difference.traffic.moved_bytes == 0
    assert difference.kept_bytes == sum(answer.part_bytes) == 2 * 3 * 320
    assert (difference.traffic.pairs, difference.traffic.devices, difference.traffic.seconds) == ((), (), 0)
    assert difference.renaming is None and difference.notes == () and difference.times.saves_ms == 0
    old = three(0, 0, 1)
    assert diff(three(0, 0, (0, 1)), old).moves == () and not diff(three(0, 0, (0, 1)), old).equal, "a replica less"
    assert not diff(old, three(0, 0, 1, num_devices=3)).equal, "another machine"
    assert not diff(old, answered(asked({**THREE, "d": 1.0}, 2), (0, 0, 1, 1))).equal, "another table"


HOSTS = Nodes(4, 2, inter="infiniband_ndr", host_bytes=(2**30,) * 2)
CACHED, LESS, MANAGED = Storage("fused_uvm_caching", 0.5), Storage("fused_uvm_caching", 0.2), Storage("fused_uvm")


def kept(storage: Storage, device: int, optimizer: str = "sgd") -> PlacementAnswer:
    """Table a kept so, on a device of two hosts of two; table b in device memory of the last device."""
    request = asked(TWO, 4, machine=HOSTS, optimizer=optimizer, sharding_types=("table_wise",))
    parts = [TablePart("a", TEN, EIGHT, (device,), storage), TablePart("b", TEN, EIGHT, (3,))]
    return answered(request, (), parts=parts)


@pytest.mark.parametrize(
    ("optimizer", "old", "new", "out", "back"),
    [
        ("sgd", ON_DEVICE, CACHED, 320, 0),  # the cache fills itself
        ("sgd", MANAGED, ON_DEVICE, 0, 320),
        ("adam", ON_DEVICE, MANAGED, 320 + 640, 0),
        ("rowwise_adagrad", CACHED, ON_DEVICE, 0, 320),  # a state for each row is in device memory anyway
        ("adam", CACHED, LESS, 0, 0),
        ("adam", CACHED, MANAGED, 0, 0),
    ],
)
def test_a_table_that_is_kept_otherwise_goes_between_a_device_and_its_host(
    optimizer: str, old: Storage, new: Storage, out: int, back: int
) -> None:
    """Whichever device of the host has the cache."""
    for device in (0, 1):
        difference = diff(kept(old, 0, optimizer), kept(new, device, optimizer))
        assert difference.rekept == (StorageChange("a", str(old), str(new), out, back),)
        assert difference.moves == () and difference.traffic.moved_bytes == 0 and difference.renaming is None
        each = 320 + {"sgd": 0, "rowwise_adagrad": 40, "adam": 640}[optimizer]
        assert difference.kept_bytes == (2 * each if old.is_on_device == new.is_on_device else each)


def test_weights_in_host_memory_are_there_for_all_devices_of_the_host() -> None:
    difference = diff(kept(MANAGED, 0), kept(MANAGED, 1))
    assert (difference.moves, difference.rekept, difference.kept_bytes) == ((), (), 640)
    difference = diff(kept(MANAGED, 0), kept(MANAGED, 2))
    assert difference.moves == (PartMove("a", TEN, EIGHT, 0, 2, 320, 0),) and difference.kept_bytes == 320
    difference = diff(kept(ON_DEVICE, 0), kept(MANAGED, 2))  # not through its own host
    assert [one.to_device for one in difference.moves] == [2]
    assert difference.rekept == (StorageChange("a", "fused", "fused_uvm", 0, 0),)
    assert diff(kept(ON_DEVICE, 0), kept(ON_DEVICE, 1)).traffic.moved_bytes == 320


@pytest.mark.parametrize(
    ("optimizer", "bits", "state"),
    [("sgd", 32, 0), ("sgd", 8, 0), ("rowwise_adagrad", 32, 40), ("adagrad", 32, 320), ("adam", 32, 640)],
)
def test_a_table_moves_in_its_precision_with_its_optimizer_state(optimizer: str, bits: int, state: int) -> None:
    request, size = asked(TWO, 3, optimizer=optimizer), 10 * bits + state
    request = replace(request, tables=tuple(replace(one, weight_bits=bits) for one in request.tables))
    difference = diff(*(answered(request, (0, home)) for home in (1, 2)))
    assert difference.moves == (PartMove("b", TEN, EIGHT, 1, 2, 10 * bits, state),)
    assert difference.kept_bytes == difference.traffic.moved_bytes == difference.traffic.busiest_bytes == size
    assert difference.traffic.pairs == (PairTraffic(1, 2, size),)
    assert difference.traffic.devices == (DeviceTraffic(1, size, 0), DeviceTraffic(2, 0, size))


def test_splits_and_joins_move_only_what_leaves_or_comes() -> None:
    split = diff(wide([0], optimizer="rowwise_adagrad"), wide([0, 1, 2], 4, 12, optimizer="rowwise_adagrad"))
    assert split.moves == (
        PartMove("a", TEN, Span(4, 12), 0, 1, 320, 40),
        PartMove("a", TEN, Span(12, 16), 0, 2, 160, 40),
    )
    assert split.kept_bytes == 160 + 40
    assert split.traffic.busiest_bytes == 560  # device 0 sends both
    join = diff(wide([0, 1, 2], 4, 12), wide([0]))
    assert moves(join) == [("a", 4, 12, 1, 0), ("a", 12, 16, 2, 0)] and join.kept_bytes == 160
    # 0:4 on 0, 4:16 on 1 -> 0:8 on 0, 8:12 on 2, 12:16 on 1
    assert moves(diff(wide([0, 1], 4), wide([0, 2, 1], 8, 12))) == [("a", 4, 8, 1, 0), ("a", 8, 12, 1, 2)]


def test_traffic_by_pair_and_device() -> None:
    request = asked({"a": 1, "b": 1, "c": 1, "d": 1}, 4)
    old, new = answered(request, (0, 0, 1, 3)), answered(request, (1, 2, 0, 3))
    traffic = diff(old, new, link_gb_s=640 / BYTES_PER_GB).traffic
    assert traffic.pairs == (PairTraffic(0, 1, 320), PairTraffic(0, 2, 320), PairTraffic(1, 0, 320))
    assert traffic.devices == (DeviceTraffic(0, 640, 320), DeviceTraffic(1, 320, 320), DeviceTraffic(2, 0, 320))
    assert (traffic.moved_bytes, traffic.busiest_bytes, traffic.seconds) == (960, 640, pytest.approx(1))
    assert diff(two(0, 1, num_devices=3), two(2, 2, num_devices=3)).traffic.busiest_bytes == 640, "one receives"


def random_answer(rng: np.random.Generator, num_devices: int, nodes: int = 1) -> PlacementAnswer:
    """Six tables of ten rows, each sharded in any way."""
    machine = Nodes(num_devices, num_devices // nodes, inter="infiniband_ndr" if nodes > 1 else "")
    request = asked(dict.fromkeys("abcdef", 1.0), num_devices, dim=16, machine=machine)

    def parts() -> Iterator[TablePart]:
        for table in request.tables:
            rows, columns = Span(0, table.num_rows), Span(0, table.embedding_dim)
            way = rng.integers(5)
            if way == 4:
                yield TablePart(table.name, rows, columns, tuple(range(num_devices)))
            elif way == 0:
                yield TablePart(table.name, rows, columns, (int(rng.integers(num_devices)),))
            elif way == 1:  # uneven widths
                edges = [0, *sorted(rng.choice([4, 8, 12], num_devices // 2, replace=False).tolist()), 16]
                for start, stop, home in zip(edges, edges[1:], rng.permutation(num_devices).tolist(), strict=False):
                    yield TablePart(table.name, rows, Span(start, stop), (home,))
            else:  # on all devices, or on those of a node
                node = int(rng.integers(machine.num_nodes))
                homes = list(range(num_devices)) if way == 2 else list(machine.devices_of_node(node))
                for span, home in zip(row_spans(table, len(homes)), rng.permutation(homes).tolist(), strict=False):
                    yield TablePart(table.name, span, columns, (home,))

    return answered(request, (), parts=list(parts()))


def cells(answer: PlacementAnswer) -> dict[tuple[str, int, int], set[int]]:
    """The devices of each weight."""
    return {
        (one.table, row, column): set(one.devices)
        for one in answer.parts
        for row in range(*one.rows)
        for column in range(*one.columns)
    }


@pytest.mark.parametrize("seed", range(3))
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


def test_a_replica_is_copied_to_every_device_that_lacks_it() -> None:
    request = asked({"a": 1.0}, 3, optimizer="rowwise_adagrad")
    whole, replicas = answered(request, (1,)), answered(request, [(0, 1, 2)])
    there, back = diff(whole, replicas), diff(replicas, whole)
    assert there.moves == tuple(PartMove("a", TEN, EIGHT, 1, to, 320, 40) for to in (0, 2))
    assert there.kept_bytes == 360 and there.traffic.busiest_bytes == 720
    assert there.resharded == (Resharded("a", "table_wise", "data_parallel"),)
    assert back.moves == () and back.kept_bytes == 360 and back.renaming is None
    few, many = answered(asked({"a": 1.0}, 2), [(0, 1)]), answered(asked({"a": 1.0}, 4), [(0, 1, 2, 3)])
    assert moves(diff(few, many)) == [("a", 0, 8, 0, 2), ("a", 0, 8, 1, 3)], "replicas share the work of sending"


def test_rows_move_with_their_columns() -> None:
    # Whole on 0 -> rows 0:5 on 1 and 5:10 on 0 -> columns 0:4 on 0 and 4:8 on 1.
    request = asked({"a": 1.0}, 2)
    parts = [TablePart("a", Span(0, 5), EIGHT, (1,)), TablePart("a", Span(5, 10), EIGHT, (0,))]
    whole, rows = answered(request, (0,)), answered(request, (), parts=parts)
    columns = answered(request, (0, 1), {"a": (4,)})
    assert diff(whole, rows).moves == (PartMove("a", Span(0, 5), EIGHT, 0, 1, 160, 0),)
    assert diff(rows, columns).moves == (
        PartMove("a", Span(0, 5), Span(0, 4), 1, 0, 80, 0),
        PartMove("a", Span(5, 10), Span(4, 8), 0, 1, 80, 0),
    )


# Renamed devices -----------------------------------------------------------------------------------------------------


def renamed(answer: PlacementAnswer, names: Sequence[int]) -> PlacementAnswer:
    parts = tuple(replace(one, devices=tuple(names[device] for device in one.devices)) for one in answer.parts)
    return replace(answer, parts=parts)


def new_names(old: PlacementAnswer, new: PlacementAnswer) -> tuple[int, ...] | None:
    found = diff(old, new).renaming
    return None if found is None else found.new_names


def test_answers_that_differ_in_names_only() -> None:
    answer = answered(asked({"a": 1, "b": 2, "c": 3}, 3), (0, 1, 2, 0), {"a": (4,)})
    difference = diff(answer, renamed(answer, (1, 2, 0)), link_gb_s=1)
    assert difference.traffic.moved_bytes == 960
    assert difference.renaming is not None and difference.renaming.new_names == (2, 0, 1)
    assert difference.renaming.traffic.moved_bytes == 0 and difference.renaming.traffic.seconds == 0
    assert diff(answer, renamed(renamed(answer, (1, 2, 0)), (2, 0, 1))).moves == ()


def test_names_change_where_that_gains_and_devices_are_alike() -> None:
    answer = two(0, 3, num_devices=4)
    assert new_names(answer, renamed(answer, (3, 1, 2, 0))) == (3, 1, 2, 0), "devices that hold nothing are left alone"
    assert new_names(two(0, 1), two(0, 0)) is None, "whatever the device is called, one table moves"
    for more in (
        {"caps_bytes": (ROOM, 2 * ROOM)},
        {"rules": Rules(pinned={"a": (0, 1), "b": (1,)})},
        {"rules": Rules(forbidden={"b": (0,)})},
    ):
        assert new_names(two(0, 1, **more), two(1, 0, **more)) is None
    caps = (ROOM, ROOM, 2 * ROOM)
    assert new_names(*(two(*homes, num_devices=3, caps_bytes=caps) for homes in ((0, 1), (1, 0)))) == (1, 0, 2)
    rules = Rules(together=(("a", "b"),), apart=(("a", "c"),))  # the same everywhere
    assert new_names(three(0, 0, 1, rules=rules), three(1, 1, 0, rules=rules)) == (1, 0)
    old = two(2, 1, num_devices=3)
    assert new_names(old, two(0, 1)) is not None  # new device 0 is old device 2
    assert new_names(old, two(0, 1, caps_bytes=(ROOM, 2 * ROOM))) is None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("num_old", "num_new", "nodes"), [(4, 4, 1), (3, 4, 1), (4, 3, 1), (4, 4, 2)])
def test_no_renaming_moves_less(seed: int, num_old: int, num_new: int, nodes: int) -> None:
    """Nodes trade names as wholes."""
    rng = np.random.default_rng(seed)
    old, new = random_answer(rng, num_old, nodes=nodes), random_answer(rng, num_new, nodes=nodes)
    before, after = cells(old), cells(new)
    ways = [names for names in permutations(range(4)) if nodes == 1 or names[0] // 2 == names[1] // 2]
    least = min(
        sum(4 * len({names[device] for device in after[cell]} - before[cell]) for cell in after) for names in ways
    )
    difference = diff(old, new)
    found = difference.renaming
    assert (difference.traffic if found is None else found.traffic).moved_bytes == least
    assert found is None or len(found.new_names) == num_new == len(set(found.new_names))
    assert found is None or num_new < 4 or found.new_names in ways


def test_a_renamed_answer_has_the_same_times_elsewhere_and_rows_in_order() -> None:
    rows = [TablePart("c", Span(5 * n, 5 * n + 5), EIGHT, (n,)) for n in range(2)]
    whole = [TablePart(name, TEN, EIGHT, (home,)) for name, home in (("a", 0), ("b", 1))]
    answer = answered(asked(THREE, 2), (), parts=[*whole, *rows])
    found = rename_devices(answer, (1, 0), additive())
    assert found.parts_of_table["a"][0].devices == (1,) and found.parts_of_table["b"][0].devices == (0,)
    assert found.parts_of_table["c"] == answer.parts_of_table["c"] and found.predicted_ms == answer.predicted_ms
    totals = [[one.predicted_total_ms for one in each.devices] for each in (found, answer)]
    assert totals[0] == totals[1][::-1]


# Tables that differ --------------------------------------------------------------------------------------------------


def test_tables_that_come_go_or_change_do_not_move() -> None:
    old = answered(asked({"a": 1, "b": 1, "c": 1, "d": 1}, 2), (0, 0, 0, 0))
    tables = {one.name: one for one in asked({"a": 1, "c": 1, "d": 1, "e": 1}, 2).tables}
    tables["c"] = replace(tables["c"], num_rows=20, weight_bits=16)
    new = answered(asked({}, 2, tables=tuple(tables.values())), (1, 1, 0, 1))
    difference = diff(old, new, additive())
    assert moves(difference) == [("a", 0, 8, 0, 1)] and difference.kept_bytes == 320
    assert (difference.added, difference.removed) == (("e",), ("b",))
    assert difference.changed == (ChangedTable("c", "num_rows 10 -> 20, weight_bits 32 -> 16"),)
    assert difference.times.predicted_by == OWN_FIGURES


def test_neither_the_order_of_tables_nor_state_of_another_optimizer_moves() -> None:
    request = asked(TWO, 2)
    turned = replace(request, tables=request.tables[::-1])
    difference = diff(answered(request, (0, 1, 1), {"a": (4,)}), answered(turned, (1, 0, 1), {"a": (4,)}), additive())
    assert difference.moves == ()
    assert difference.times.saves_ms == 0 and difference.times.old_ms == 8
    difference = diff(two(0, 1, optimizer="adam"), two(0, 0, optimizer="adagrad"))
    assert difference.moves == (PartMove("b", TEN, EIGHT, 1, 0, 320, 0),)
    assert "the optimizer changed from adam to adagrad: no optimizer state is counted" in difference.notes


# Times ---------------------------------------------------------------------------------------------------------------


def test_one_model_judges_both() -> None:
    old, new = three(0, 0, 1), three(0, 1, 1)
    times = diff(old, new, additive()).times
    assert (times.predicted_by, times.old_ms, times.new_ms, times.saves_ms) == ("additive", 8, 5, 3)
    assert 4.9 < times.lower_bound_ms <= 5
    with_overhead = diff(old, new, additive(overhead_ms=1)).times
    assert (with_overhead.old_ms, with_overhead.new_ms) == (9, 6)


def test_the_new_request_is_what_both_are_judged_on() -> None:
    old = answered(asked(THREE, 2), (0, 0, 1, 1), {"b": (4,)})
    new = answered(asked({"a": 1, "b": 3, "c": 6}, 2, batch_size=10), (0, 0, 1))
    difference = diff(old, new, additive())
    assert (difference.times.old_ms, difference.times.new_ms) == (90, 60)
    assert difference.notes == (
        "the batch size changed from 1 to 10; both times are predicted with the new value",
        "the pooling factors or histograms of 2 tables changed; both times are predicted with the new value",
    )
    own = diff(old, new)
    other = replace(old, lineage={"model": {"source": "other", "sha256": "1"}})
    assert "the files' times are from different models" in {*diff(other, new).notes} - {*own.notes}
    assert own.times.predicted_by == OWN_FIGURES and own.times.lower_bound_ms == new.lower_bound_ms
    assert (own.times.old_ms, own.times.new_ms, own.times.saves_ms) == (8, 60, -52)


def test_an_old_placement_that_is_not_legal_any_more() -> None:
    for more, why in (
        ({"rules": Rules(pinned={"b": (1,)})}, "table 'b' is on device 0, but its allowed devices are [1]"),
        ({"caps_bytes": (400, 400)}, "device 0 needs 640 bytes, but has 400 bytes"),
    ):
        (note,) = diff(two(0, 0), two(0, 1, **more), additive()).notes
        assert "is no longer legal" in note and why in note
    of_more_devices = diff(two(0, 0, num_devices=3), two(0, 1, caps_bytes=(400, 400)), additive())
    assert of_more_devices.notes == (), "the memory of new devices says nothing about the old ones"


def test_another_number_of_devices() -> None:
    old, new = three(2, 1, 0, num_devices=3), three(0, 1, 1, rules=Rules(pinned={"a": (0,)}))
    difference = diff(old, new, additive())
    assert (difference.old_num_devices, difference.new_num_devices) == (3, 2)
    assert moves(difference) == [("a", 0, 8, 2, 0), ("c", 0, 8, 0, 1)]
    assert (difference.times.old_ms, difference.times.new_ms) == (5, 5)
    assert difference.notes == ()
    # An exchange depends on the number of devices.
    model, tables = untrained(), some_tables(4)
    few, many = (answered(asked({}, count, tables=tables), (0, 0, 1, 1), model=model) for count in (2, 4))
    times = diff(few, many, model).times
    assert times.old_ms == pytest.approx(few.predicted_ms, rel=1e-6)
    assert times.new_ms == pytest.approx(many.predicted_ms, rel=1e-6)
    assert times.old_ms != pytest.approx(times.new_ms, rel=1e-3)


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two placements that differ in the names of their devices and in where b is; their model lies in a folder."""
    save_model(tmp_path / "model", additive().cost_model, untrained().trained_on)
    model = load_model(tmp_path / "model")
    for name, devices in (("old", (0, 0, 1)), ("new", (2, 1, 0))):
        save_answer(answered(asked(THREE, 3), devices, model=model), tmp_path / f"{name}.json")
    return [str(tmp_path / f"{name}.json") for name in ("old", "new", "renamed", "again")]


def test_the_command_tells_the_difference_and_writes_the_renamed_placement(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *files[:2], "--link-gb-s", "1e-6", "--renamed", files[2]]) == 0
    shown = capsys.readouterr()
    text = " ".join(shown.out.split())
    assert shown.err == ""
    assert "Embedding work takes 5.000 ms per step, 3.000 ms (38 %; 90 %: 31 % to 45 %) less than the 8.000 ms" in text
    assert "Moves 960 bytes of 3 tables" in text and "move 320 bytes instead of 960 bytes" in text
    old, new, better = (load_answer(name) for name in files[:3])
    assert diff(old, better).traffic.moved_bytes == 320 and diff(old, better).renaming is None
    assert better.predicted_ms == new.predicted_ms
    assert main(["diff", files[0], files[2], "--renamed", files[3]]) == 0
    assert Path(files[3]).read_text() == Path(files[2]).read_text()  # nothing is left to rename


def test_without_its_model_the_files_figures_stand(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[0]).with_name("model").rename(Path(files[0]).with_name("elsewhere"))
    assert main(["diff", *files[:2]]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("evenshard diff: warning: the file's model cannot be loaded")
    assert OWN_FIGURES in " ".join(shown.out.split())
    assert main(["diff", *files[:2], "--link-gb-s", "0"]) == 2
    assert "--link-gb-s is 0.0. Set a" in capsys.readouterr().err
