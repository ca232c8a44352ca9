"""A stage that a real signal to its real process ends: MLflow has its run as KILLED, with what it has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.base.process import TERMINATED
from evenshard.cli import main
from support.kubeflow_builders import SMALL_PARAMS
from support.patience import PATIENCE_S, wait_until
from support.tracking_builders import AWAY, empty_mlflow, runs_of

# So many visits of each placement that no stage ends by itself before the signal comes, however busy the machine is.
PARAMS = {
    **SMALL_PARAMS,
    "measure": {**SMALL_PARAMS["measure"], "visits": 1000},
    "benchmark": {"placements_per_round": 2_000, "searched_share": 0.0},
}
BENCHMARK = ["benchmark", "--tables", "tables/tables.parquet", "--tasks", "tasks", "--out", "costs.parquet"]
IN_A_POD = """
import json, os, sys
from kfp import dsl
from evenshard_components.benchmark.component import benchmark
params, num_gpus = json.loads(sys.argv[1]), int(sys.argv[2])
files = {name: dsl.Dataset(name=name, uri=os.path.abspath(name)) for name in ("tables", "tasks", "costs")}
benchmark.python_func(**files, metrics=dsl.Metrics(name="metrics", uri="metrics"), config=params["benchmark"],
                      measure=params["measure"], round_number=1, num_gpus=num_gpus)
"""
# With a GPU, a pod measures in a process of its own, which logs to MLflow.
POD = ["-c", IN_A_POD, json.dumps(PARAMS)]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables and tasks of a loop, as its commands and as its pods take them."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    words = ["generate-tables", "--params", f"{folder}/params.yaml"]
    words += ["--tables-out", f"{folder}/tables/tables.parquet", "--tasks-out", f"{folder}/tasks.json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", AWAY)
        assert main(words) == 0
    (folder / "tasks.json").rename(folder / "tasks")
    return folder


@pytest.fixture
def client(generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of the MLflow in the folder of the loop."""
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for name in ("MLFLOW_RUN_ID", "EVENSHARD_LOOP_ID"):
        monkeypatch.delenv(name, raising=False)
    return empty_mlflow(tmp_path)


@contextmanager
def running(words: Sequence[str], client: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The stage, once MLflow has a run of it."""
    with subprocess.Popen([sys.executable, *words], start_new_session=True) as process:
        try:
            wait_until(lambda: "benchmark_1" in runs_of(client), "the stage has not begun")
            assert runs_of(client)["benchmark_1"].info.status == "RUNNING"
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.tracked
@pytest.mark.parametrize("words", [["-m", "evenshard", *BENCHMARK], [*POD, "1"]], ids=["command", "pod"])
def test_sigterm_ends_the_run_as_killed_and_the_process_as_ever(client: Any, words: list[str]) -> None:
    """Of a pod, the signal reaches the first process alone."""
    with running(words, client) as process:
        process.terminate()
        assert process.wait(PATIENCE_S) == TERMINATED == 143
    run = runs_of(client)["benchmark_1"]
    assert run.info.status == "KILLED" and run.info.end_time
    assert run.data.params["placements_per_round"] == "2000"
    assert "stage `benchmark_1`" in run.data.tags["mlflow.note.content"]
    assert not Path("costs.parquet").exists()
