"""What a placement costs, and the cost dataset: everything comes back, and nothing broken gets in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import PROVENANCE, cost, measured, some_tables, task
from evenshard.costs import (
    DeviceCost,
    MeasuredPlacement,
    PlacementCost,
    Provenance,
    combine_visits,
    interquartile_range,
    load_costs,
    save_costs,
)
from evenshard.errors import BadFile
from evenshard.placement import Placement

TABLES = some_tables(4)
TASK = task(TABLES, devices=3, task_id="train-000")


def test_a_step_waits_for_the_device_with_the_largest_sum_of_its_four_times() -> None:
    busy_all_along = DeviceCost(2.0, 3.0, 4.0, 5.0)
    slowest_forward = DeviceCost(9.0, 0.0, 0.0, 0.0)
    slowest_backward = DeviceCost(0.0, 0.0, 0.0, 10.0)
    assert busy_all_along.total_ms == 14.0
    assert PlacementCost((slowest_forward, busy_all_along, slowest_backward), "modelled").max_device_ms == 14.0


def test_spread_is_no_time_of_the_step() -> None:
    assert DeviceCost(1.0, 0.0, 0.0, 1.0, fwd_compute_spread_ms=50.0, bwd_compute_spread_ms=50.0).total_ms == 2.0


def test_interquartile_range_by_hand() -> None:
    assert interquartile_range([4.0, 1.0, 2.0, 5.0, 3.0]) == 2.0
    assert interquartile_range([7.0]) == 0.0


def visit(fwd: float, bwd: float, fwd_spread: float, bwd_spread: float) -> PlacementCost:
    return PlacementCost(
        (DeviceCost(fwd, fwd + 10, bwd + 10, bwd, fwd_spread, bwd_spread), cost(1.0).devices[0]), "measured"
    )


def test_visits_are_combined_part_by_part_with_the_median() -> None:
    visits = [visit(1.0, 30.0, 0.1, 0.1), visit(3.0, 10.0, 0.1, 0.2), visit(2.0, 20.0, 0.1, 50.0)]
    combined = combine_visits(visits)
    first = combined.devices[0]
    assert (first.fwd_compute_ms, first.bwd_compute_ms) == (2.0, 20.0)
    assert (first.fwd_all_to_all_ms, first.bwd_all_to_all_ms) == (12.0, 30.0)
    assert combined.devices[1] == cost(1.0).devices[0]
    assert combined.all_to_all == "measured"


def test_the_spread_is_that_between_visits_or_within_one_whichever_is_larger() -> None:
    visits = [visit(1.0, 30.0, 0.1, 15.0), visit(3.0, 10.0, 0.1, 16.0), visit(2.0, 20.0, 0.1, 50.0)]
    first = combine_visits(visits).devices[0]
    assert first.fwd_compute_spread_ms == pytest.approx(1.0)  # between: 1.5 to 2.5
    assert first.bwd_compute_spread_ms == pytest.approx(16.0)  # between: 10; within: the median of 15, 16, 50


def test_one_visit_is_its_own_median() -> None:
    assert combine_visits([visit(1.0, 2.0, 0.3, 0.4)]) == visit(1.0, 2.0, 0.3, 0.4)


# The cost dataset ----------------------------------------------------------------------------------------------------

times = st.floats(0, 1e6)
device_costs = st.builds(DeviceCost, *[times] * 6)
placement_costs = st.builds(
    PlacementCost, st.tuples(device_costs, device_costs, device_costs), st.sampled_from(["modelled", "measured"])
)
placements = st.tuples(*[st.integers(0, 2)] * 4).map(lambda devices: Placement(devices, 3))
provenances = st.builds(
    Provenance, st.text(), st.text(), st.sampled_from(["ethernet_25g", "?"]), st.integers(0, 2**62), st.integers(1, 99)
)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 9), st.text(), placements, placement_costs, provenances), min_size=1, max_size=4
    )
)
def test_every_field_comes_back_from_parquet(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    saved = tuple(
        MeasuredPlacement(f"m{number}", round_number, who, TASK, placement, of_cost, provenance)
        for number, (round_number, who, placement, of_cost, provenance) in enumerate(rows)
    )
    path = tmp_path_factory.mktemp("costs") / "costs.parquet"
    save_costs(saved, path)
    assert load_costs(path, [TASK]) == saved


def test_tasks_of_different_shapes_share_a_dataset(tmp_path: Path) -> None:
    other = task(TABLES[:2], devices=1, task_id="train-001")
    saved = (
        measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0), "a"),
        measured(other, (0, 0), cost(4.0), "b"),
        measured(TASK, (1, 1, 1, 1), cost(0.0, 5.0, 0.0), "c", round_number=2),
    )
    save_costs(saved, tmp_path / "costs.parquet")
    assert load_costs(tmp_path / "costs.parquet", [other, TASK]) == saved


def test_an_empty_dataset_is_one_too(tmp_path: Path) -> None:
    save_costs([], tmp_path / "costs.parquet")
    assert load_costs(tmp_path / "costs.parquet", [TASK]) == ()


def test_rows_may_come_in_any_order(tmp_path: Path) -> None:
    saved = measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0))
    path = tmp_path / "costs.parquet"
    save_costs([saved], path)
    pq.write_table(pq.read_table(path)[::-1], path)
    assert load_costs(path, [TASK]) == (saved,)


Rows = list[dict[str, Any]]


def tampered(path: Path, change: Callable[[Rows], Rows]) -> Path:
    """A dataset of two placements whose rows were changed behind our back. Rows 1 to 3 are those of "a"."""
    save_costs(
        [
            measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0), "a"),
            measured(TASK, (0, 1, 2, 0), cost(1.0, 2.0, 3.0), "b"),
        ],
        path,
    )
    table = pq.read_table(path)
    nullable = pa.schema([field.with_nullable(True) for field in table.schema], metadata=table.schema.metadata)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=nullable), path)
    return path


def setting(row: int, column: str, value: Any) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        rows[row - 1][column] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "words", "where"),
    [
        (setting(2, "fwd_compute_ms", -0.5), "fwd_compute_ms is -0.5, not a time", "row 2"),
        (setting(5, "bwd_all_to_all_ms", math.nan), "bwd_all_to_all_ms is nan, not a time", "row 5"),
        (setting(1, "max_device_ms", math.inf), "max_device_ms is inf, not a time", "row 1"),
        (setting(6, "bwd_compute_spread_ms", -1.0), "bwd_compute_spread_ms", "row 6"),
        (setting(3, "task_id", "train-777"), "task 'train-777' is not in the task file", "row 3"),
        (lambda rows: rows[:4] + rows[5:], "every device and table", "measurement b"),
        (lambda rows: rows[1:], "every device and table", "measurement a"),
        (lambda rows: [*rows, rows[3]], "every device and table", "measurement b"),
        (setting(3, "tables", []), "every device and table", "measurement a"),
        (setting(2, "tables", ["clicks"]), "every device and table", "measurement a"),
        (setting(2, "device_id", 7), "every device and table", "measurement a"),
        (setting(2, "tables", [TABLES[0].name]), "every device and table", "measurement a"),
        (setting(2, "batch_size", 128), "batch_size", "row 2"),
        (setting(2, "num_devices", 4), "num_devices", "row 2"),
        (setting(4, "fwd_compute_ms", None), "fwd_compute_ms", "row 4"),
    ],
)
def test_a_broken_row_is_named_with_file_and_place(
    tmp_path: Path, change: Callable[[Rows], Rows], words: str, where: str
) -> None:
    path = tampered(tmp_path / "costs.parquet", change)
    with pytest.raises(BadFile, match=words) as caught:
        load_costs(path, [TASK])
    assert str(path) in str(caught.value) and where in str(caught.value)


def test_the_dataset_that_the_broken_ones_are_made_of_is_sound(tmp_path: Path) -> None:
    assert len(load_costs(tampered(tmp_path / "costs.parquet", lambda rows: rows), [TASK])) == 2


@pytest.mark.parametrize("column", ["task_id", "tables", "bwd_compute_ms", "hardware"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    path = tampered(tmp_path / "costs.parquet", lambda rows: rows)
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    with pytest.raises(BadFile, match=column):
        load_costs(path, [TASK])


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({b"evenshard_cost_schema": b"2"}, "version is 2, this evenshard reads 1"),
        ({}, "version is none"),
        (None, "none"),
    ],
)
def test_another_schema_version_is_refused(tmp_path: Path, metadata: dict[bytes, bytes] | None, words: str) -> None:
    path = tampered(tmp_path / "costs.parquet", lambda rows: rows)
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    with pytest.raises(BadFile, match=words) as caught:
        load_costs(path, [TASK])
    assert str(path) in str(caught.value)


def test_a_missing_or_torn_file_is_a_bad_file(tmp_path: Path) -> None:
    path = tampered(tmp_path / "costs.parquet", lambda rows: rows)
    whole = path.read_bytes()
    with pytest.raises(BadFile, match="no such file"):
        load_costs(tmp_path / "other.parquet", [TASK])
    for torn in (whole[: len(whole) // 2], b"", b"columns,by,comma\n"):
        path.write_bytes(torn)
        with pytest.raises(BadFile, match="not readable as Parquet") as caught:
            load_costs(path, [TASK])
        assert str(path) in str(caught.value)


def test_the_file_holds_one_row_per_device_with_all_it_takes_to_know_its_origin(tmp_path: Path) -> None:
    save_costs([measured(TASK, (0, 2, 2, 0), cost(4.0, 8.0, 12.0))], tmp_path / "costs.parquet")
    rows = pq.read_table(tmp_path / "costs.parquet").to_pylist()
    assert [row["device_id"] for row in rows] == [0, 1, 2]
    assert [row["tables"] for row in rows] == [["t0", "t3"], [], ["t1", "t2"]]
    assert [row["bwd_all_to_all_ms"] for row in rows] == [1.0, 2.0, 3.0]
    for row in rows:
        assert (row["max_device_ms"], row["num_devices"], row["batch_size"]) == (12.0, 3, TASK.batch_size)
        assert (row["hardware"], row["versions"], row["repeats"]) == ("fake: adds up", "none 0", 3)
        assert row["link"] == PROVENANCE.link and row["seed"] == PROVENANCE.seed


def test_a_failed_save_leaves_the_old_dataset(tmp_path: Path) -> None:
    path = tmp_path / "costs.parquet"
    saved = measured(TASK, (0, 2, 2, 0), cost(1.0, 2.0, 3.0))
    save_costs([saved], path)
    unwritable = replace(saved, round="two")  # type: ignore[arg-type]
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        save_costs([saved, unwritable], path)
    assert load_costs(path, [TASK]) == (saved,)
    assert [found.name for found in tmp_path.iterdir()] == ["costs.parquet"]
