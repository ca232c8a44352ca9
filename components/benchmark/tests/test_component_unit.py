"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenshard.base.errors import BadConfig, MeasurementFailed
from evenshard.kubeflow import pod
from evenshard.measure.cost_rows import read_rows
from evenshard.measure.journal import Journal, Visit
from evenshard_components.benchmark.component import benchmark
from evenshard_components.conftest import CONFIG

SETTINGS = {"config": CONFIG["benchmark"], "measure": CONFIG["measure"]}
Artifacts = Callable[..., dict[str, Any]]


def costs_in(outputs: dict[str, Any], round_number: int = 1) -> Path:
    return Path(outputs["costs"].path, f"round_{round_number:03d}.parquet")


def test_round_1_measures_random_placements_in_parts(given: Artifacts, made: Artifacts) -> None:
    outputs = made("costs", "metrics")
    benchmark.python_func(**given("tables", "tasks"), **outputs, **SETTINGS, round_number=1, part=2, num_parts=2)
    found = read_rows(costs_in(outputs))
    assert {row["proposed_by"] for row in found} == {"random", "control"}
    assert {row["measurement_id"] for row in found if row["proposed_by"] == "random"} == {
        f"round1-{number:05d}" for number in (1, 3)
    }
    assert outputs["metrics"].metadata["num_placements"] == 2


def test_later_rounds_measure_what_the_networks_propose(given: Artifacts, made: Artifacts) -> None:
    outputs = made("costs", "metrics")
    inputs = given("tables", "tasks", "cost_net", "policy", "cost_model", earlier="costs")
    benchmark.python_func(**inputs, **outputs, **SETTINGS, round_number=2)
    found = read_rows(costs_in(outputs, 2))
    assert {row["proposed_by"] for row in found} == {"dreamshard", "evenshard", "control"}
    assert costs_in(outputs).read_bytes() == Path(inputs["earlier"].path, "round_001.parquet").read_bytes()


def test_a_failure_goes_on_from_the_journal(
    given: Artifacts, made: Artifacts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured = []
    append = Journal.append

    def third_fails(self: Journal, visit: Visit) -> None:
        measured.append((visit.job, visit.number))
        if len(measured) == 3:
            raise MeasurementFailed("the device is away")
        append(self, visit)

    monkeypatch.setattr(Journal, "append", third_fails)
    monkeypatch.setenv("EVENSHARD_RETRY_PAUSES", "0")
    outputs = made("costs", "metrics")
    with caplog.at_level("INFO", "evenshard"):
        benchmark.python_func(**given("tables", "tasks"), **outputs, **SETTINGS, round_number=1)
    assert measured[3] == measured[2] and len(set(measured)) == len(measured) - 1  # nothing else was measured twice
    assert outputs["metrics"].metadata["num_placements"] == 4
    assert "resuming with 2 measurements" in caplog.text


class Processes:
    """Those that would measure on GPUs: their commands, and the exit codes of the first of them."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.exit_codes: list[int] = []

    def run(self, words: list[str], folder: Path) -> int:
        self.commands.append(words)
        Path(words[words.index("--metrics") + 1]).write_text('{"num_placements": 6}')
        return self.exit_codes.pop(0) if self.exit_codes else 0


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Processes:
    monkeypatch.chdir(tmp_path)
    started = Processes()
    monkeypatch.setattr(pod, "_exit_code", started.run)
    monkeypatch.setenv("EVENSHARD_RETRY_PAUSES", "0")
    return started


@pytest.mark.parametrize("num_gpus", [1, 4])
def test_gpus_are_measured_on_by_processes_of_their_own(
    given: Artifacts, made: Artifacts, processes: Processes, monkeypatch: pytest.MonkeyPatch, num_gpus: int
) -> None:
    monkeypatch.setenv("EVENSHARD_JOURNAL_FOLDER", "journals")
    if num_gpus > 1:
        monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")
    outputs, inputs = made("costs", "metrics"), given("tables", "tasks", "cost_net", "policy", "cost_model")
    benchmark.python_func(**inputs, **outputs, **SETTINGS, round_number=2, num_gpus=num_gpus)
    (words,) = processes.commands
    torchrun = [] if num_gpus == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [*torchrun, "-m", "evenshard", "benchmark"]
    assert words[1 : 1 + len(command)] == command
    flags = dict(zip(words[1 + len(command) :: 2], words[2 + len(command) :: 2], strict=True))
    assert (flags["--round"], flags["--policy"], flags["--part"]) == ("2", inputs["policy"].path, "1")
    assert flags["--out"] == str(costs_in(outputs, 2)) and "--budget-minutes" not in flags
    journals = [] if num_gpus == 1 else [Path("journals/wf-1/benchmark_2")]
    assert [Path(flags[name]).parent for name in flags if name == "--journal"] == journals
    assert outputs["metrics"].metadata["num_placements"] == 6


def test_gpus_get_a_new_process_for_another_try(given: Artifacts, made: Artifacts, processes: Processes) -> None:
    asked = {**given("tables", "tasks"), **SETTINGS, "round_number": 1}
    processes.exit_codes = [1]
    benchmark.python_func(**asked, **made("costs", "metrics"), num_gpus=1)
    assert len(processes.commands) == 2
    processes.exit_codes = [2]
    with pytest.raises(BadConfig, match="See the log above"):
        benchmark.python_func(**asked, **made("costs", "metrics"), num_gpus=1)
    assert len(processes.commands) == 3
    processes.exit_codes = [1, 1]
    with pytest.raises(MeasurementFailed, match="4 GPUs failed: exit code 1"):
        benchmark.python_func(**asked, **made("costs", "metrics"), num_gpus=4)
    assert len(processes.commands) == 5
