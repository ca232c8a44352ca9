"""Describe: everything that a cost dataset holds, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evenshard.base.provenance import Lineage
from evenshard.measure.cost_dataset import save_costs
from evenshard.measure.describe import describe, format_description
from evenshard.price.costs import CONTROL, DeviceCost, MeasuredPlacement, PlacementCost
from support.builders import PROVENANCE, measured, some_tables, task

TABLES = some_tables(3)
TASK = task(TABLES, devices=2, task_id="train-000")


def placed(name: str, backward_ms: float, at: float, proposed_by: str = "random") -> MeasuredPlacement:
    devices = (
        DeviceCost(2.0, 0.5, 0.25, backward_ms, fwd_compute_spread_ms=0.1, bwd_compute_spread_ms=0.5),
        DeviceCost(1.0, 0.5, 0.25, 1.0, fwd_compute_spread_ms=0.1, bwd_compute_spread_ms=0.0, fwd_wait_ms=1.0),
    )
    one = measured(TASK, (0, 1, 1), PlacementCost(devices, "modelled"), name)
    return replace(one, proposed_by=proposed_by, measured_at=at)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    full = PlacementCost((DeviceCost.out_of_memory(), DeviceCost(1.0, 0.0, 0.0, 1.0)), "modelled")
    rows = [
        placed("m0", 4.0, 0.0),
        replace(placed("m1", 4.0, 10.0), cost=full),
        placed("c0", 3.0, 20.0, CONTROL),
        placed("c1", 3.5, 1000.0, CONTROL),
        placed("c2", 4.0, 3600.0, CONTROL),
    ]
    save_costs(rows, tmp_path / "costs.parquet", Lineage("a" * 40, "b" * 64))
    return tmp_path / "costs.parquet"


def test_every_count_by_hand(dataset: Path) -> None:
    (one,) = describe([dataset])["datasets"]
    assert (one["rows"], one["measurements"]) == (10, 5)
    assert one["proposed_by"] == {"control": 3, "random": 2}
    assert one["status"] == {"ok": 9, "out_of_memory": 1}
    assert one["num_devices"] == {"2": 5} and one["batch_size"] == {str(TASK.batch_size): 5}
    assert one["hardware"] == [PROVENANCE.hardware] and one["versions"] == [PROVENANCE.versions]
    assert (one["git_commit"], one["params_hash"]) == ("a" * 40, "b" * 64)
    assert (one["measured_from"], one["measured_to"]) == ("1970-01-01T00:00:00+00:00", "1970-01-01T01:00:00+00:00")
    assert one["ms"]["fwd_compute_ms"]["p50"] == 1.0 and one["ms"]["fwd_compute_ms"]["p90"] == 2.0
    assert one["spread_of_repeats_pct"]["bwd_compute_ms"]["p90"] == pytest.approx(100 * 0.5 / 3.5, rel=0.1)
    assert one["controls"]["measurements"] == 3
    assert one["controls"]["within_run_pct"] > 0 and one["controls"]["drift_pct"] > 0
    said = format_description(describe([dataset]))
    for words in (str(dataset), PROVENANCE.hardware, "a" * 40, "1 x out_of_memory", "3 x control", "fwd_wait_ms"):
        assert words in said, words


def test_several_datasets_are_several_runs_also_without_controls_or_rows(dataset: Path, tmp_path: Path) -> None:
    slower = [placed("c0", 5.0, 9000.0, CONTROL), placed("c1", 5.0, 9900.0, CONTROL)]
    save_costs(slower, tmp_path / "later.parquet")
    description = describe([dataset, tmp_path / "later.parquet"])
    assert description["noise"]["num_runs"] == 2 and description["noise"]["between_run_pct"] > 5
    assert "between the 2 runs" in format_description(description)
    save_costs([], tmp_path / "none.parquet")
    save_costs([placed("m0", 4.0, 0.0)], tmp_path / "one.parquet")
    said = format_description(describe([tmp_path / "none.parquet", tmp_path / "one.parquet"]))
    assert "0 timings; standard deviation of a placement unknown" in said


def test_shards_timed_as_a_whole_have_a_line_of_their_own(tmp_path: Path) -> None:
    alone = task(TABLES, devices=1, task_id="shard")
    shards = [
        measured(alone, (0, 0, 0), PlacementCost((DeviceCost.of_total(ms),), "modelled"), f"s{ms}")
        for ms in (3.0, 5.0, 7.0)
    ]
    save_costs([*shards, placed("m0", 4.0, 0.0)], tmp_path / "costs.parquet")
    description = describe([tmp_path / "costs.parquet"])
    (one,) = description["datasets"]
    assert one["ms"]["fwd_bwd_compute_ms"]["p50"] == 5.0 and one["ms"]["fwd_compute_ms"]["p50"] == 1.5
    shown = format_description(description)
    assert "at an unknown time" in shown and "fwd_bwd_compute_ms" in shown
