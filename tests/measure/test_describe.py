"""Describe: everything that a cost dataset holds, and the noise of its controls, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenshard.base.provenance import Lineage
from evenshard.measure.cost_dataset import load_costs, save_costs
from evenshard.measure.cost_rows import read_rows
from evenshard.measure.describe import describe, format_description
from evenshard.measure.noise import ControlCost, Noise, estimate_noise, find_controls, fit_drift, group_controls
from evenshard.placement.placement import Placement
from evenshard.price.costs import CONTROL, DeviceCost, MeasuredPlacement, PlacementCost
from support.builders import PROVENANCE, cost, measured, some_tables, task

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


# Noise of controls ----------------------------------------------------------------------------------------------------


def run(*costs: float, placement: str = "a", start: float = 0.0) -> list[ControlCost]:
    """One control, measured once a minute."""
    return [ControlCost(placement, ms, start + 60.0 * number) for number, ms in enumerate(costs)]


def test_the_spread_within_a_run_by_hand() -> None:
    """Logarithms -d, 0, d have the standard deviation d; how slow a control is does not count."""
    found = estimate_noise([run(10 * math.exp(-0.02), 10.0, 10 * math.exp(0.02))])
    assert found.within_run_pct == pytest.approx(2.0)
    assert found.between_run_pct is None
    assert (found.num_controls, found.num_runs) == (1, 1)
    slow, fast = run(100.0, 102.0, 104.0), run(1.0, 1.02, 1.04, placement="b")
    assert estimate_noise([slow + fast]).within_run_pct == pytest.approx(estimate_noise([fast]).within_run_pct)


def test_the_spread_between_runs_is_what_the_spread_within_does_not_explain() -> None:
    quiet = [run(10.0, 10.0), run(11.0, 11.0)]
    assert estimate_noise(quiet).within_run_pct == 0.0
    assert estimate_noise(quiet).between_run_pct == pytest.approx(100 * math.log(1.1) / math.sqrt(2))
    rng = np.random.default_rng(0)
    noisy = [run(*(10 * np.exp(rng.normal(0, 0.05, 40)))) for _ in range(30)]
    found = estimate_noise(noisy)
    assert found.within_run_pct == pytest.approx(5.0, rel=0.1)
    assert found.between_run_pct is not None and found.between_run_pct < 0.5


def test_a_run_that_is_slow_as_a_whole_changes_no_comparison() -> None:
    """Twice as slow, all of it; then one control alone 10 % slower: +-2.5 % in a grid of 2 x 2, so 5 %."""
    calm = run(10.0, 10.0) + run(20.0, 20.0, placement="b")
    slow = run(20.0, 20.0) + run(40.0, 40.0, placement="b")
    found = estimate_noise([calm, slow])
    assert found.between_run_pct == pytest.approx(100 * math.log(2) / math.sqrt(2))
    assert (found.relative_between_run_pct, found.relative_pct, found.difference_pct(9)) == pytest.approx((0, 0, 0))
    one = run(10.0 * math.exp(0.1), 10.0 * math.exp(0.1)) + run(20.0, 20.0, placement="b")
    assert estimate_noise([calm, one]).relative_between_run_pct == pytest.approx(5.0)
    off = (0.98, 1 / 0.98) * 2
    spread = [[replace(x, cost_ms=x.cost_ms * by) for x, by in zip(of, off, strict=False)] for of in (calm, one)]
    found = estimate_noise(spread)  # a mean of two has half of the variance within a run
    assert found.relative_between_run_pct == pytest.approx(math.sqrt(25 - (found.within_run_pct or 0) ** 2 / 2))


def test_without_controls_nothing_is_known_and_more_tasks_tell_smaller_differences() -> None:
    assert estimate_noise([]) == estimate_noise([[], []]) == Noise(None, None, None, 0, 0)
    assert estimate_noise([run(10.0)]) == Noise(None, None, None, 1, 1)
    assert estimate_noise([]).difference_pct(10) == 0.0
    noise = Noise(3.0, 40.0, 4.0, num_controls=2, num_runs=2)
    assert noise.difference_pct(1) == pytest.approx(1.96 * math.sqrt(2) * 5.0)
    assert noise.difference_pct(100) == pytest.approx(noise.difference_pct(1) / 10)


def test_drift_by_hand() -> None:
    """1 % a minute for ten minutes, on two controls of different cost."""
    steps = [math.exp(0.01 * minute) for minute in range(11)]
    slow, fast = run(*(20 * step for step in steps)), run(*(2 * step for step in steps), placement="b")
    assert fit_drift(slow + fast) == pytest.approx(10.0)
    assert fit_drift(run(*reversed([one.cost_ms for one in slow]))) == pytest.approx(-10.0)
    assert fit_drift(run(5.0, 5.0, 5.0)) == pytest.approx(0.0)
    assert fit_drift([]) is None and fit_drift(run(5.0)) is None


def test_controls_are_the_same_in_memory_and_in_the_file(tmp_path: Path) -> None:
    """And only those that fitted their devices; the order in which a task lists its tables does not matter."""
    control = replace(measured(TASK, (0, 1, 1), cost(1.0, 3.0), "c0"), proposed_by=CONTROL, measured_at=5.0)
    again = replace(control, measurement_id="c1", cost=cost(1.0, 4.0), measured_at=6.0)
    elsewhere = replace(
        control, measurement_id="c2", task=task(TABLES[::-1], 2, task_id="train-000"), measured_at=7.0,
        parts=Placement((1, 1, 0), 2).parts(TABLES[::-1]),
    )  # fmt: skip
    other = replace(control, measurement_id="c3", parts=Placement((1, 1, 1), 2).parts(TABLES))
    too_big = PlacementCost((DeviceCost.out_of_memory(), DeviceCost(1.0, 0.0, 0.0, 1.0)), "modelled")
    other_hardware = replace(control, measurement_id="c5", provenance=replace(PROVENANCE, hardware="cpu: another"))
    no_fit = replace(control, measurement_id="c4", cost=too_big)
    ordinary = measured(TASK, (0, 1, 1), cost(1.0, 3.0), "m0")
    all_of_them = [control, again, elsewhere, other, no_fit, ordinary, other_hardware]
    save_costs(all_of_them, tmp_path / "costs.parquet")

    found = find_controls(all_of_them)
    assert [one.cost_ms for one in found] == [3.0, 4.0, 3.0, 3.0, 3.0]
    assert len({one.placement for one in found}) == 3 and found[0].placement == found[2].placement
    assert group_controls(read_rows(tmp_path / "costs.parquet")) == found
    assert find_controls(load_costs(tmp_path / "costs.parquet", TABLES)) == found
