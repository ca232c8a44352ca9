"""The cost dataset: everything comes back, and nothing broken gets in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard.base.errors import BadFile, MeasurementFailed
from evenshard.base.provenance import Lineage
from evenshard.measure import cost_rows
from evenshard.measure.cost_dataset import load_costs, read_placements, save_costs
from evenshard.measure.cost_rows import COLUMNS, TIMES, read_lineage, read_rows
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, TablePart
from evenshard.placement.task import ShardingTask
from evenshard.price.costs import RANDOM_SHARD, DeviceCost, MeasuredPlacement, PlacementCost, Provenance
from support.builders import PROVENANCE, cost, measured, some_tables, table, task

POOL = some_tables(4)
TASK = task(POOL, devices=3, task_id="train-000")
FULL = DeviceCost.out_of_memory()
PARTLY_FULL = PlacementCost((cost(1.0).devices[0], FULL, cost(3.0).devices[0]), "measured")


def saved_in(tmp_path: Path, *rows: MeasuredPlacement, lineage: Lineage | None = None) -> Path:
    path = tmp_path / "costs.parquet"
    save_costs(rows, path, lineage)
    return path


WIDE, LONG, SMALL = table("wide", 40, 8, 2.0), table("long", 40, 4, 3.0), table("small", 5, 4, 1.0)


def sharded(*parts: TablePart) -> MeasuredPlacement:
    """On two nodes of two devices."""
    machine = Nodes(4, 2, intra="gloo", inter="gloo")
    of_task = ShardingTask((WIDE, LONG, SMALL), machine, (10**6,) * 4, 64, task_id="train-000")
    costs = tuple(DeviceCost(1.0 + at, 2.0, 3.0, 4.0, input_dist_ms=0.5) for at in range(4))
    origin = replace(PROVENANCE, link="gloo")
    return MeasuredPlacement("s0", 1, "random", of_task, parts, PlacementCost(costs, "measured"), origin, 5.0)


EVERYWHERE = (
    TablePart("wide", Span(0, 40), Span(0, 4), (0,)),
    TablePart("wide", Span(0, 40), Span(4, 8), (3,)),
    TablePart("long", Span(0, 10), Span(0, 4), (2,)),
    TablePart("long", Span(10, 40), Span(0, 4), (3,)),
)
REPLICAS = TablePart("small", Span(0, 5), Span(0, 4), (0, 1, 2, 3))


def test_parts_come_back_from_parquet(tmp_path: Path) -> None:
    one = sharded(*EVERYWHERE, REPLICAS)
    path = saved_in(tmp_path, one)
    assert [row["tables"] for row in read_rows(path)] == [
        ["wide[0:4]", "small"],
        ["small"],
        ["long[rows 0:10, 0:4]", "small"],
        ["wide[4:8]", "long[rows 10:40, 0:4]", "small"],
    ]
    (found,) = read_placements(path, (WIDE, LONG, SMALL))
    assert set(found.parts) == set(one.parts) and found.task.machine.devices_per_node == 2
    assert (found.cost, found.provenance, found.task.tables) == (one.cost, one.provenance, one.task.tables)
    assert load_costs(path, (WIDE, LONG, SMALL)) == ()
    with pytest.raises(BadFile, match="has shards with the rows 0:10"):
        load_costs(saved_in(tmp_path, sharded(*EVERYWHERE[:-1], REPLICAS)), (WIDE, LONG, SMALL))


def test_a_device_with_one_fused_call_is_a_shard_to_learn_from(tmp_path: Path) -> None:
    """Device 3 has a column part and a row part: two calls. Device 2 gets a quarter of the 3 lookups of a sample."""
    path = saved_in(tmp_path, sharded(*EVERYWHERE, TablePart("small", Span(0, 5), Span(0, 4), (1,))))
    shards = load_costs(path, (WIDE, LONG, SMALL))
    names = [[one.name for one in shard.task.tables] for shard in shards]
    assert names == [["wide[0:4]"], ["small"], ["long[rows 0:10, 0:4]"]]
    (long,) = shards[2].task.tables
    assert (long.num_rows, long.pooling_factor, shards[2].task.batch_size) == (10, 0.75, 64)
    assert shards[2].cost.devices == (DeviceCost(3.0, 0.0, 0.0, 4.0),) and shards[2].proposed_by == RANDOM_SHARD


def test_every_field_comes_back_from_parquet(tmp_path: Path) -> None:
    """Texts and numbers at their ends; each time differs from the others."""
    times = [DeviceCost(*(first + 0.1 * column for column in range(7))) for first in (0.0, 5e-324, 1e9)]
    origin = Provenance("cuda: \u00e9", "", "\n'\"", "gloo", 2**62, 7, 12.5, 40, "adam")
    first = measured(TASK, (0, 2, 1, 0), PlacementCost((*times,), "measured"), "a", 9)
    first = replace(first, provenance=origin, proposed_by="", measured_at=1e11)
    second = measured(TASK, (0, 2, 1, 1), PlacementCost((FULL, *times[:2]), "modelled"), "\u00e9")
    assert load_costs(saved_in(tmp_path, first, second), POOL) == (first, second)


def test_a_task_comes_back_with_its_tables_in_the_order_of_the_pool(tmp_path: Path) -> None:
    """Four of six tables, listed otherwise in the task: the same tables are on the same devices afterwards."""
    pool, devices = some_tables(6), (0, 0, 1, 0)
    of_task = task([pool[position] for position in (4, 1, 5, 0)], devices=2)
    (found,) = load_costs(saved_in(tmp_path, measured(of_task, devices, cost(1.0, 2.0))), pool)
    assert list(found.task.tables) == [one for one in pool if one in of_task.tables]
    before = dict(zip(of_task.tables, devices, strict=True))
    assert dict(zip(found.task.tables, found.placement.device_of_table, strict=True)) == before
    assert replace(found.task, tables=of_task.tables) == of_task


def test_placements_of_different_tasks_share_a_dataset_whose_rows_come_in_any_order(tmp_path: Path) -> None:
    other = task(POOL[:2], devices=1, cap=10**6, task_id="train-001", batch_size=32)
    saved = (
        measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0), "a"),
        measured(other, (0, 0), cost(4.0), "b"),
        measured(TASK, (1, 1, 1, 1), cost(0.0, 5.0, 0.0), "c", round_number=2),
        measured(TASK, (0, 1, 2, 1), PARTLY_FULL, "d"),
    )
    path = saved_in(tmp_path, *saved)
    assert load_costs(path, POOL) == saved
    pq.write_table(pq.read_table(path)[::-1], path)
    assert load_costs(path, POOL) == saved[::-1]


def test_an_empty_dataset_is_one_too_and_its_origin_is_unknown(tmp_path: Path) -> None:
    assert load_costs(saved_in(tmp_path), POOL) == ()
    assert read_lineage(tmp_path / "costs.parquet")["git_commit"] == "unknown"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": "two"}, "round is 'two', not a whole"),
        ({"measured_at": 1e18}, "measured_at is 1e\\+18, not a Unix timestamp"),
        ({"proposed_by": None}, "proposed_by is None, not a string"),
        ({"provenance": replace(PROVENANCE, seed=1.5)}, "seed is 1.5, not a whole number"),
    ],
)
def test_what_no_reader_would_take_is_not_written(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    saved = measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0))
    path = saved_in(tmp_path, saved)
    with pytest.raises(MeasurementFailed, match=f"costs.parquet was not written: in 'm0', device 0, {words}"):
        saved_in(tmp_path, saved, replace(saved, **change))
    assert load_costs(path, POOL) == (saved,) and list(tmp_path.iterdir()) == [path]


def test_the_file_holds_one_row_per_device_and_no_times_of_a_shard_that_did_not_fit(tmp_path: Path) -> None:
    rows = pq.read_table(saved_in(tmp_path, measured(TASK, (0, 2, 2, 0), PARTLY_FULL))).to_pylist()
    assert [row["tables"] for row in rows] == [["t0", "t3"], [], ["t1", "t2"]]
    assert [row["status"] for row in rows] == ["ok", "out_of_memory", "ok"]
    assert {name: rows[1][name] for name in TIMES} == dict.fromkeys(TIMES)
    assert [row["fwd_compute_ms"] for row in rows] == [0.25, None, 0.75]
    assert [row["max_device_ms"] for row in rows] == [None] * 3


def test_a_shard_timed_as_a_whole_has_its_time_as_that_of_its_placement_and_no_other(tmp_path: Path) -> None:
    alone = PlacementCost((DeviceCost.of_total(7.0),), "modelled")
    whole = measured(task(POOL[:2], devices=1, task_id="whole"), (0, 0), alone, "whole")
    path = saved_in(tmp_path, whole, measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0)))
    table = pq.read_table(path)
    row = table.to_pylist()[0]
    assert (row["fwd_compute_ms"], row["bwd_compute_ms"], row["max_device_ms"]) == (None, None, 7.0)
    assert load_costs(path, POOL)[0] == whole
    for column, value, words in (
        ("fwd_compute_ms", 1.0, "bwd_compute_ms is empty"),
        ("bwd_compute_ms", 1.0, "fwd_compute_ms is empty"),
        ("fwd_all_to_all_ms", 1.0, "fwd_compute_ms is empty"),
        ("max_device_ms", None, "fwd_compute_ms is empty"),
        ("num_devices", 2, "fwd_compute_ms is empty"),
    ):
        pq.write_table(pa.Table.from_pylist([{**row, column: value}], schema=table.schema), path)
        with pytest.raises(BadFile, match=f"row 1: {words}"):
            load_costs(path, POOL)


def test_the_file_says_which_code_settings_and_machines_made_it(tmp_path: Path) -> None:
    """Two machines of one driver: each value once, sorted."""
    here = measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0), "a")
    there = replace(here, measurement_id="b", provenance=replace(PROVENANCE, hardware="cuda: another"))
    path = saved_in(tmp_path, here, there, lineage=Lineage("c0ffee", "abc", "9.9"))
    assert read_lineage(path) == {
        "git_commit": "c0ffee",
        "params_hash": "abc",
        "evenshard_version": "9.9",
        "hardware": ["cuda: another", PROVENANCE.hardware],
        "driver": ["none"],
        "versions": ["none 0"],
    }


Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Rows 1 to 3 are those of "a", rows 4 to 6 those of "b"; in "c", rows 7 to 9, device 1 is out of memory."""
    path = saved_in(
        tmp_path_factory.mktemp("sound"),
        measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0), "a"),
        measured(TASK, (0, 1, 2, 0), cost(1.0, 2.0, 3.0), "b"),
        measured(TASK, (0, 1, 2, 0), PARTLY_FULL, "c"),
    )
    assert len(load_costs(path, POOL)) == 3
    return pq.read_table(path)


def refused(path: Path, words: str, found: pa.Table) -> None:
    """The dataset is refused with these words and its name."""
    pq.write_table(found, path)
    with pytest.raises(BadFile, match=words) as caught:
        load_costs(path, POOL)
    assert str(path) in str(caught.value)


def changed(sound: pa.Table, change: Callable[[Rows], Rows]) -> pa.Table:
    nullable = pa.schema([field.with_nullable(True) for field in sound.schema], metadata=sound.schema.metadata)
    return pa.Table.from_pylist(change(sound.to_pylist()), schema=nullable)


def setting(column: str, value: Any, *rows_from_1: int) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        for number in rows_from_1:
            rows[number - 1][column] = value
        return rows

    return change


def test_a_value_that_its_column_cannot_have_is_named_with_its_row(sound: pa.Table, tmp_path: Path) -> None:
    for number, column in enumerate(COLUMNS):
        if column != "max_device_ms":
            words = rf"row 4: {column} is (empty|None, not ok)"
            refused(tmp_path / "a.parquet", words, changed(sound, setting(column, None, 4)))
        if column in TIMES:
            value = (-0.5, math.nan, math.inf)[number % 3]
            words = rf"row 5: {column} is {value}, not a time"
            refused(tmp_path / "a.parquet", words, changed(sound, setting(column, value, 5)))
            words = rf"row 8: {column} is 2\.0, but status is out_of_memory"
            refused(tmp_path / "a.parquet", words, changed(sound, setting(column, 2.0, 8)))


INCOMPLETE = "do not cover every device and table"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (setting("status", "fine", 2), "row 2: status is 'fine', not ok or out_of_memory"),
        (setting("status", "ok", 8), "row 8: fwd_compute_ms is empty"),
        (setting("hardware", "tpu: v5", 6), "row 6: hardware is 'tpu: v5', not one of cpu, cuda, simulated"),
        (setting("num_devices", 0, 1), "row 1: num_devices is 0, below 1"),
        (setting("batch_size", -64, 3), "row 3: batch_size is -64, below 1"),
        (setting("memory_cap_bytes", 0, 3), "row 3: memory_cap_bytes is 0, below 1"),
        (lambda rows: [*rows, rows[3]], "row 10: measurement_id 'b' with device_id 0 occurs twice"),
        (setting("measured_at", -1.0, 3), r"row 3: measured_at is -1\.0, not a Unix timestamp"),
        (setting("device_error_percent", -1.0, 6), r"row 6: device_error_percent is -1\.0, not a number from 0"),
        (setting("optimizer", "lion", 6), "row 6: optimizer is 'lion', not one of sgd, rowwise_adagrad, adagrad"),
        (setting("tables", ["clicks"], 2), "row 2: column 'tables' lists 'clicks', which is not in the table file"),
        (lambda rows: rows[:4] + rows[5:], rf"measurement b: .*{INCOMPLETE}"),
        (lambda rows: rows[:8], rf"measurement c: .*{INCOMPLETE}"),
        (setting("device_id", 7, 2), rf"measurement a: .*{INCOMPLETE}"),
        (setting("device_id", -1, 1), rf"measurement a: .*{INCOMPLETE}"),
        (setting("num_devices", 10**15, 1, 2, 3), rf"measurement a: .*{INCOMPLETE}"),
        (setting("tables", [POOL[0].name], 2), rf"measurement a: .*{INCOMPLETE}"),
        (setting("tables", ["t1", "t1"], 5), rf"measurement b: .*{INCOMPLETE}"),
        (setting("tables", [], 4, 5, 6), rf"measurement b: .*{INCOMPLETE}"),
        (setting("memory_cap_bytes", 2**62, 1, 2, 3), "measurement a: the devices add up to .* GB; the limit is"),
        (setting("max_device_ms", None, 1, 2, 3), "measurement a: max_device_ms is None"),
        (setting("max_device_ms", 3.0, 7, 9), "row 8: max_device_ms is None, but 3.0 in another row of c"),
    ],
)
def test_broken_rows_are_named(sound: pa.Table, tmp_path: Path, change: Callable[[Rows], Rows], words: str) -> None:
    refused(tmp_path / "costs.parquet", words, changed(sound, change))


def test_rows_of_one_placement_must_agree(sound: pa.Table, tmp_path: Path) -> None:
    texts = "proposed_by task_id all_to_all hardware driver versions link optimizer"
    sizes = "round num_devices devices_per_node memory_cap_bytes batch_size seed repeats device_error_points"
    for column in f"{texts} {sizes} max_device_ms measured_at device_error_percent".split():
        kind = "another" if column in texts else 9
        value = {"hardware": "cpu: another", "optimizer": "adam"}.get(column, kind)
        words = rf"row 2: {column} is '?{value}.*, but .* in another row of a"
        refused(tmp_path / "costs.parquet", words, changed(sound, setting(column, value, 2)))


def test_a_missing_double_unknown_or_mistyped_column_is_named(sound: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "costs.parquet"
    for column in COLUMNS:
        refused(path, f"column {column} is missing", sound.drop_columns([column]))
    refused(path, "column mood is unknown", sound.append_column("mood", pa.array(["good"] * 9)))
    refused(path, "column seed is missing or duplicated", sound.append_column("seed", sound["seed"]))
    for column, kind, words in (
        ("seed", pa.string(), "string, not int64"),
        ("measured_at", pa.float32(), "float, not"),
    ):
        other = sound.set_column(sound.column_names.index(column), column, sound[column].cast(kind))
        refused(path, f"column {column} is {words}", other)
    bad_text = pa.array([b"none", b"\xff\xfe", *[b"none"] * 7], pa.binary()).view(pa.string())
    position = sound.column_names.index("driver")
    other = sound.set_column(position, sound.schema.field("driver"), bad_text)
    refused(path, r"not readable as Parquet .*UTF8", other)


def lineage(content: bytes) -> dict[bytes, bytes]:
    return {b"evenshard_cost_schema": b"2", b"evenshard_lineage": content}


def test_other_schemas_are_refused(sound: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "costs.parquet"
    for metadata, words in (
        ({b"evenshard_cost_schema": b"1"}, "version is 1, but this evenshard reads 2. Measure it again"),
        (None, "version is none"),
        (lineage(b"{torn"), "lineage is not readable .it is not JSON"),
        (lineage(b"[" * 100_000), "lineage is not readable .it is nested too deep"),
        (lineage(b'{"git_commit": ["c0ffee"]}'), r"git_commit is \['c0ffee'\], not a string"),
        (lineage(b'{"hardware": [3]}'), r"hardware\[0\] is 3, not a string"),
    ):
        refused(path, words, sound.replace_schema_metadata(metadata))
        if "version" not in words:
            with pytest.raises(BadFile, match=words):
                read_lineage(path)


def test_too_many_rows_are_refused_unread(sound: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that comes a billion times takes a few bytes."""
    monkeypatch.setattr(cost_rows, "MAX_ROWS", 8)
    refused(tmp_path / "costs.parquet", "has 9 rows, more than 8", changed(sound, setting("hardware", "abacus", 1)))


def test_a_missing_or_torn_file_is_a_bad_file(sound: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "costs.parquet"
    with pytest.raises(BadFile, match="no such file"):
        read_rows(path)
    pq.write_table(sound, path)
    for torn in (path.read_bytes()[:-100], b"", b"columns,by,comma\n"):
        path.write_bytes(torn)
        with pytest.raises(BadFile, match="not readable as Parquet") as caught:
            read_rows(path)
        assert str(path) in str(caught.value)
