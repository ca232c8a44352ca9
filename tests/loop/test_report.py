"""Reports: the CSV, the metrics, the table and the pictures."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenshard.loop.report import (
    CSV_COLUMNS,
    PROPOSED,
    TIME_PARTS,
    metrics,
    plot_cost_per_round,
    plot_device_costs,
    plot_predicted_vs_measured,
    standings_text,
    summary,
    write_csv,
    write_plot_data,
)
from evenshard.loop.sharder_comparison import UNKNOWN_NOISE, Answer, Interval, NetworkAccuracy, Result, Standing
from evenshard.measure.noise import Noise
from evenshard.price.costs import CONTROL, RANDOM_SHARD, DeviceCost, PlacementCost
from evenshard.price.evidence import DeviceError
from support.builders import PROVENANCE, measured, some_tables, task

CPU, H200 = "cpu: a core", "simulated: h200"
TASK = task(some_tables(3), devices=2, task_id="test-000")
COST = PlacementCost((DeviceCost(1.0, 2.0, 3.0, 4.0, 0.5, 0.25), DeviceCost(0.0, 2.0, 2.0, 0.0)), "modelled")
PLACED = measured(TASK, (0, 0, 0), COST)
MEASURED = Result(Answer(TASK, "random", PLACED.placement, "", 12.5), PLACED)
INFEASIBLE = Result(Answer(TASK, "dreamshard", None, "table ads needs 6 GB, more than a device", math.nan), None)
PROPOSERS = (("random", 1), (CONTROL, 1), (RANDOM_SHARD, 1), ("dreamshard", 2), ("evenshard", 2))
ACCURACY = NetworkAccuracy(median_abs_pct_error=8.25, kendall_tau=0.5)
NOISE = Noise(3.0, 8.0, 4.0, num_controls=2, num_runs=4)
STANDINGS = [
    Standing("random", False, False, Interval(30.0, 28.0, 32.0), Interval(50.0, 40.0, 60.0), 0, 0.5),
    Standing("dim_greedy", False, True, Interval(20.0, 19.0, 21.0), Interval(0.0, 0.0, 0.0), 1, 0.5),
    Standing("single_cost_greedy", True, False, Interval(16.0, 15.0, 17.0), Interval(-20.0, -22.0, -18.0), 0, 0.5),
    Standing("dreamshard", False, False, Interval(18.0, 17.0, 19.0), Interval(-10.0, -13.5, -6.5), 2, 0.5),
]


def test_the_data_of_plots_have_no_device_and_nothing_that_is_not_finite(tmp_path: Path) -> None:
    proposed = [replace(PLACED, proposed_by=by, round=number) for by, number in PROPOSERS]
    write_plot_data([MEASURED, INFEASIBLE], STANDINGS, proposed, tmp_path)
    header, random, *_ = (tmp_path / "sharders.csv").read_text().splitlines()
    assert (header, random) == ("sharder,mean_measured_ms,ci95_low_ms,ci95_high_ms", "random,30.0,28.0,32.0")
    lines = (tmp_path / "predicted_vs_measured.csv").read_text().splitlines()
    assert lines == ["task_id,sharder,predicted_ms,max_device_ms", "test-000,random,12.5,10.0"]
    assert json.loads((tmp_path / "cost_per_round.json").read_text()) == [
        {"round": 1, "policy_ms": 10.0, "search_ms": None},
        {"round": 2, "policy_ms": 10.0, "search_ms": 10.0},
    ]


def test_the_csv_has_a_row_per_device_and_keeps_what_was_infeasible_or_ran_out_of_memory(tmp_path: Path) -> None:
    half = PlacementCost((DeviceCost.out_of_memory(), DeviceCost(1.0, 2.0, 3.0, 4.0)), "modelled")
    lost = Result(MEASURED.answer, replace(PLACED, cost=half))
    write_csv([MEASURED, INFEASIBLE, lost], tmp_path / "evaluation.csv")
    with (tmp_path / "evaluation.csv").open(newline="") as file:
        first, second, refused, full, other = csv.DictReader(file)
    assert tuple(first) == CSV_COLUMNS
    assert (first["task_id"], first["sharder"], first["status"]) == ("test-000", "random", "simulated")
    assert [float(first[part]) for part in TIME_PARTS] == [1.0, 2.0, 3.0, 4.0]
    assert [float(first[f"{way}_compute_spread_ms"]) for way in ("fwd", "bwd")] == [0.5, 0.25]
    assert (first["device_id"], first["num_tables"]) == ("0", "3")
    assert (second["device_id"], second["num_tables"]) == ("1", "0")
    for row in (first, second):
        assert (float(row["max_device_ms"]), float(row["predicted_ms"])) == (10.0, 12.5)
        assert (row["all_to_all"], row["hardware"]) == ("modelled", PROVENANCE.hardware)
    assert (refused["sharder"], refused["status"]) == ("dreamshard", "infeasible")
    assert refused["reason"] == "table ads needs 6 GB, more than a device"  # with its comma
    assert refused["max_device_ms"] == refused["predicted_ms"] == refused["device_id"] == ""
    assert (full["status"], other["status"]) == ("out_of_memory", "simulated")
    assert full["fwd_compute_ms"] == full["max_device_ms"] == other["max_device_ms"] == ""
    assert other["bwd_compute_ms"] == "4.0"


def test_metrics_hold_every_sharder_the_network_and_the_origin() -> None:
    """1.96 * sqrt(2 / 45 common tasks) * 5 % = 2.066 % are equal."""
    origin = {"hardware": "cpu", "all_to_all": ["modelled"]}
    found = metrics(STANDINGS, ACCURACY, 48, 3, NOISE, origin, NetworkAccuracy(4.5, 0.75))
    assert {**found, **origin, "num_test_tasks": 48, "num_infeasible": 3} == found
    assert list(found["sharders"]) == [one.sharder for one in STANDINGS]
    dreamshard = found["sharders"]["dreamshard"]
    assert list(dreamshard.values()) == [18.0, [17.0, 19.0], -10.0, [-13.5, -6.5], 2, False, "faster"]
    assert found["cost_network"] == {"median_abs_pct_error": 8.25, "kendall_tau": 0.5}
    assert found["cost_model"] == {"median_abs_pct_error": 4.5, "kendall_tau": 0.75}
    assert list(found["noise"].values()) == [3.0, 8.0, 4.0, 2, 4, 2.066]
    assert summary(STANDINGS) == {"heuristic_ms": 20.0, "dreamshard_ms": 18.0, "noise_pct": 0.5}


def test_what_is_not_known_is_null_in_the_metrics_so_that_any_json_reader_takes_them() -> None:
    nothing = Interval(math.nan, math.nan, math.nan)
    unknown = [Standing("a", False, False, Interval(5.0, -math.inf, math.inf), nothing, 1, 0.0)]
    found = metrics(unknown, NetworkAccuracy(math.nan, math.nan), 1, 1, UNKNOWN_NOISE, {})
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["sharders"]["a"]["ci95_ms"] == [None, None]
    assert found["sharders"]["a"]["difference_to_best_heuristic_pct"] is None
    assert found["cost_network"] == {"median_abs_pct_error": None, "kendall_tau": None}


def test_the_table_ranks_by_time_and_tells_of_privilege_noise_and_simulation() -> None:
    lines = standings_text(STANDINGS, 48, NOISE, H200, DeviceError(12.0, 40)).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["single_cost_greedy", "dreamshard", "dim_greedy", "random"]
    assert lines[1].split()[1] == "*"
    assert "-10.0 % [-13.5, -6.5]" in lines[2] and "18.000" in lines[2]
    assert lines[2].endswith("faster; 2 of 48 tasks infeasible")
    assert lines[3].endswith("the best heuristic; 1 of 48 tasks infeasible")
    assert lines[4].endswith("slower")
    assert lines[5:] == [
        "* privileged: every table of the test tasks was simulated alone before placing",
        "48 held-out tasks of unseen tables; paired differences with 95 % intervals",
        "noise (standard deviation of repeated placements): 3.0 % within a run and 8.0 % between runs (4.0 % relative "
        "to each other); differences below 0.5 % count as equal",
        "Device model h200: 90 % of kernel times within a factor of 1.13 (40 held-out measurements)",
    ]
    text = standings_text(STANDINGS[:2], 48, UNKNOWN_NOISE, CPU)
    assert "mean measured ms" in text and "privileged" not in text and "noise" not in text


def share_of(path: Path, colour: str) -> float:
    from matplotlib import image

    wanted = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    pixels = np.asarray((image.imread(path)[..., :3] * 255).round().astype(int))
    return float((pixels == wanted).all(axis=-1).mean())


def test_device_costs_are_drawn_in_proportion_to_their_parts(tmp_path: Path) -> None:
    path = tmp_path / "device_costs.png"
    only = PlacementCost((DeviceCost(2.0, 0.0, 4.0, 8.0),), "modelled")
    plot_device_costs({"random": only}, "one device", path)
    forward, forward_exchange, exchange, backward = (share_of(path, colour) for _, colour in TIME_PARTS.values())
    assert backward > exchange > forward > 0
    assert backward / exchange == pytest.approx(2.0, rel=0.1)
    assert forward_exchange < 0.25 * forward  # nothing but its mark in the legend


def test_every_picture_can_be_drawn_without_anything_and_is_the_same_every_time(tmp_path: Path) -> None:
    from matplotlib import pyplot

    unknown = NetworkAccuracy(math.nan, math.nan)
    for name in ("first", "second"):
        plot_device_costs({}, "no task that all could place", tmp_path / f"{name}_devices.png")
        plot_predicted_vs_measured([INFEASIBLE], unknown, CPU, tmp_path / f"{name}_nothing.png")
        plot_cost_per_round([], tmp_path / f"{name}_rounds.png")
    plot_predicted_vs_measured([MEASURED, INFEASIBLE], ACCURACY, CPU, tmp_path / "predicted.png")
    for path in tmp_path.glob("first_*"):
        assert path.read_bytes() == path.with_name(path.name.replace("first", "second")).read_bytes()
    assert pyplot.get_fignums() == []


def test_rounds_show_what_a_search_proposed_apart_and_neither_shards_nor_controls(tmp_path: Path) -> None:
    searched = replace(PLACED, proposed_by="evenshard", round=2)
    unasked = [replace(PLACED, proposed_by=who, round=9) for who in (RANDOM_SHARD, CONTROL)]
    unasked.append(replace(PLACED, cost=PlacementCost((DeviceCost.out_of_memory(),) * 2, "modelled"), round=9))
    for name, shown in {"plain": [PLACED], "more": [PLACED, *unasked], "searched": [PLACED, searched]}.items():
        plot_cost_per_round(shown, tmp_path / f"{name}.png")
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "more.png").read_bytes()
    (_, policys, _), (_, searchs, _) = PROPOSED.values()
    assert share_of(tmp_path / "plain.png", policys) > 0 == share_of(tmp_path / "plain.png", searchs)
    assert share_of(tmp_path / "searched.png", policys) > 0 < share_of(tmp_path / "searched.png", searchs)
