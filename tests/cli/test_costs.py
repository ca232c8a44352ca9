"""Measuring from the command line: journals, budgets, plans for bare boxes, descriptions and calibrations."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from evenshard.cli import main
from evenshard.measure.__main__ import main as bare_main
from evenshard.price.gpu_profile import FREE_CONSTANTS
from evenshard.price.hardware import profile_path
from evenshard.tracking import StageRun

POOL = ["--tables", "t.parquet", "--tasks", "tasks.json"]
GENERATE = ["generate-tables", "--tables-out", "t.parquet", "--tasks-out", "tasks.json"]
SIMULATED = ["--hardware", "simulated:h200"]
BENCHMARK = ["benchmark", *POOL, "--out", "costs.parquet"]


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenshard.tracking.runs._open", lambda *args: StageRun())


@pytest.fixture
def pool(workdir: Path) -> Path:
    assert main(GENERATE) == 0
    return workdir


def settings(change: Callable[[dict[str, Any]], None]) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    change(params)
    Path("params.yaml").write_text(yaml.safe_dump(params))


def measured() -> dict[str, float]:
    return {row["measurement_id"]: row["max_device_ms"] for row in pq.read_table("costs.parquet").to_pylist()}


def visits(name: str) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in Path(name).read_text().splitlines()]
    return [(line["job"], line["visit"]) for line in lines if "job" in line]


# The journal ---------------------------------------------------------------------------------------------------------


def test_a_benchmark_resumes_and_measures_nothing_twice(pool: Path) -> None:
    """4 placements and 2 controls of 2 repeats, each in 2 visits; then 6 shards more."""
    settings(lambda p: p["measure"].update(control_repeats=2))
    with_journal = [*BENCHMARK, *SIMULATED, "--journal", "j.jsonl"]
    assert main(with_journal) == 0
    assert len(visits("j.jsonl")) == 16
    first = measured()
    assert main([*with_journal, "--metrics", "again.json"]) == 0
    assert len(visits("j.jsonl")) == 16
    assert measured() == first
    assert json.loads(Path("again.json").read_text())["kernel_share_of_wall_time"] == 0
    assert main([*with_journal, "--shards", "6"]) == 0
    assert len(visits("j.jsonl")) == len(set(visits("j.jsonl"))) == 28
    assert measured().items() >= first.items()


def test_a_budget_stops_the_benchmark_and_zero_only_reads_the_journal(
    pool: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenshard.measure.campaign import Job

    measure = Job.measure_on

    def take_longer(*args: Any) -> Any:
        time.sleep(0.01)  # all 200 take 2 s, and the budget is 0.6 s, however fast the machine is
        return measure(*args)

    monkeypatch.setattr(Job, "measure_on", take_longer)
    some = [*BENCHMARK, *SIMULATED, "--placements", "0", "--shards", "200", "--journal", "j.jsonl"]
    assert main([*some, "--budget-minutes", "0.01"]) == 0
    done = measured()
    assert 0 < len(done) < 200
    monkeypatch.setattr("evenshard.loop.benchmark.open_hardware", lambda measure: pytest.fail("opened"))
    assert main([*some[:-4], "--shards", "200", "--journal", "j.jsonl", "--budget-minutes", "0"]) == 0
    assert measured() == done
    assert main([*BENCHMARK, "--journal", "none.jsonl", "--budget-minutes", "0"]) == 2
    assert "none.jsonl: no such file" in capsys.readouterr().err


def test_without_a_journal_a_failed_benchmark_goes_on_where_it_was(
    pool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from evenshard.base.errors import MeasurementFailed
    from evenshard.measure.simulated_hardware import SimulatedHardware

    measure, calls = SimulatedHardware.measure, []

    def fail_at_the_tenth(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 10:
            raise MeasurementFailed("the neighbour pulled the plug")
        return measure(*args)

    monkeypatch.setattr(SimulatedHardware, "measure", fail_at_the_tenth)
    assert main([*BENCHMARK, *SIMULATED]) == 1
    assert not Path("costs.parquet").exists() and Path(".costs.parquet.journal").exists()
    with caplog.at_level(logging.INFO):
        assert main([*BENCHMARK, *SIMULATED]) == 0
    assert "9 measurements of an earlier run" in caplog.text
    assert len(calls) == 2 * (4 + 8) + 1
    assert not Path(".costs.parquet.journal").exists()


# A bare box ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_measured_elsewhere_and_comes_back_as_costs(
    pool: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [*BENCHMARK, *SIMULATED, "--shards", "5"]
    assert main([*some, "--plan-out", "plan.json"]) == 0
    assert not Path("costs.parquet").exists()
    assert bare_main(["plan.json", "--journal", "box.jsonl"]) == 0
    monkeypatch.setattr("evenshard.loop.benchmark.open_hardware", lambda measure: pytest.fail("opened"))
    assert main([*some, "--journal", "box.jsonl", "--budget-minutes", "0"]) == 0
    assert len(measured()) == 4 + 8 + 5
    assert pq.read_table("costs.parquet")["hardware"].unique().to_pylist() == ["simulated: h200"]
    assert bare_main(["none.json", "--journal", "box.jsonl"]) == 2
    assert bare_main(["plan.json", "--journal", "box.jsonl", "--hardware", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err


# Calibrating ---------------------------------------------------------------------------------------------------------


def a_profile(name: str, **constants: float) -> Path:
    """The profile of the A100 with other constants, as a file."""
    content = yaml.safe_load(profile_path("a100_80gb").read_text())
    content.update({one: {"value": value, "source": "made up for a test"} for one, value in constants.items()})
    Path(name).write_text(yaml.safe_dump(content))
    return Path(name)


def test_a_device_is_calibrated_to_its_costs_and_then_simulated(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_profile("truth.yaml", fwd_overhead_us=100, bwd_overhead_us=500)
    settings(lambda p: p["measure"].update(hardware="simulated:truth.yaml"))
    assert main([*BENCHMARK, "--placements", "0", "--shards", "60"]) == 0
    capsys.readouterr()
    words = ["calibrate-device", "--costs", "costs.parquet", "--tables", "t.parquet", "--out", "mine.yaml"]
    assert main([*words, "--profile", "a100_80gb"]) == 0
    said = capsys.readouterr().out
    assert "shards of simulated: truth; errors on" in said and "saved: mine.yaml" in said
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.strip()}
    for call in ("forward", "backward"):
        before, _, after, _ = (float(number) for number in lines[call][1:])
        assert before > 20 and after < 2
    assert set(FREE_CONSTANTS) <= set(lines)
    assert main([*BENCHMARK, "--hardware", "simulated:mine.yaml", "--placements", "0", "--shards", "3"]) == 0
