"""The body, called as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenshard.cost_dataset import read_rows
from evenshard.kubeflow import measuring
from evenshard_components.benchmark.component import benchmark
from evenshard_components.conftest import CONFIG

SETTINGS = {"config": CONFIG["benchmark"], "measure": CONFIG["measure"]}
Artifacts = Callable[..., dict[str, Any]]


def test_round_1_measures_random_placements_in_parts(given: Artifacts, made: Artifacts) -> None:
    outputs = made("costs", "metrics")
    benchmark.python_func(**given("tables", "tasks"), **outputs, **SETTINGS, round_number=1, part=2, num_parts=2)
    found = read_rows(Path(outputs["costs"].path)).rows
    assert {row["proposed_by"] for row in found} == {"random", "control"}
    assert {row["measurement_id"] for row in found if row["proposed_by"] == "random"} == {
        f"round1-{number:05d}" for number in (1, 3, 5)
    }
    assert outputs["metrics"].metadata["num_placements"] == 3


def test_later_rounds_measure_what_the_networks_propose(given: Artifacts, made: Artifacts) -> None:
    outputs = made("costs", "metrics")
    inputs = given("tables", "tasks", "cost_net", "policy", "cost_model")
    benchmark.python_func(**inputs, **outputs, **SETTINGS, round_number=2)
    found = read_rows(Path(outputs["costs"].path)).rows
    assert {row["proposed_by"] for row in found} == {"dreamshard", "evenshard", "control"}


def test_several_gpus_measure_under_torchrun(
    given: Artifacts, made: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def run(words: list[str], cwd: str) -> Any:
        called.append(words)
        Path(words[words.index("--metrics") + 1]).write_text('{"num_placements": 6}')
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(measuring.subprocess, "run", run)
    outputs = made("costs", "metrics")
    inputs = given("tables", "tasks", "cost_net", "policy", "cost_model")
    benchmark.python_func(**inputs, **outputs, **SETTINGS, round_number=2, num_gpus=4)
    (words,) = called
    assert words[1:9] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"),
        *("-m", "evenshard", "benchmark"),
    ]
    flags = dict(zip(words[9::2], words[10::2], strict=True))
    assert flags["--round"] == "2" and flags["--policy"] == inputs["policy"].path
    assert flags["--out"] == outputs["costs"].path and flags["--part"] == "1"
    assert not {"--journal", "--budget-minutes"} & flags.keys()
    assert outputs["metrics"].metadata["num_placements"] == 6
