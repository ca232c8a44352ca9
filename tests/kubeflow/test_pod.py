"""The stages of a pipeline share no file: in MLflow they find their loop by its id."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from kfp import dsl

from evenshard.kubeflow.pod import log_metrics, round_costs
from evenshard.kubeflow.run_outcome import RunReport, log_outcome
from evenshard.tracking import BACKLOG, stage_run
from evenshard.tracking.records import Record
from evenshard.tracking.run_files import ensure_loop
from evenshard_components.conftest import CONFIG
from evenshard_components.generate_tables.component import generate_tables
from support.tracking_builders import empty_file

LOOP = {"loop": {"num_rounds": 3}}


@pytest.mark.tracked
def test_pods_of_one_run_have_one_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{empty_file(tmp_path)}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    for loop, stages in (("wf-1", ("generate_tables", "benchmark_1")), ("wf-2", ("generate_tables",))):
        monkeypatch.setenv("EVENSHARD_LOOP_ID", loop)
        for stage in stages:
            (tmp_path / loop / stage).mkdir(parents=True)
            monkeypatch.chdir(tmp_path / loop / stage)
            with stage_run(stage, LOOP, {}) as run:
                run.metrics({"one": 1.0})
                run.conclude({"evenshard.mean_measured_ms": 2.5})
    log_outcome("FAILED", "http://kubeflow/#/runs/details/1", RunReport(failed=("evaluate",)))
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("evenshard")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    parents = {run.data.tags["evenshard.loop_id"]: run for run in runs if "evenshard.loop_id" in run.data.tags}
    assert parents.keys() == {"wf-1", "wf-2"}
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    by_parent = sorted((run.data.tags["mlflow.parentRunId"], run.info.run_name) for run in children)
    expected = [("wf-1", "benchmark_1"), ("wf-1", "generate_tables"), ("wf-2", "generate_tables")]
    assert by_parent == sorted((parents[loop].info.run_id, stage) for loop, stage in expected)
    ended = parents["wf-2"]
    assert (ended.info.status, ended.data.tags["evenshard.outcome"]) == ("FAILED", "FAILED")
    assert ended.data.tags["evenshard.tasks_failed"] == "evaluate"
    assert ended.data.params == {"loop.num_rounds": "3"}
    assert ended.data.metrics["evenshard.mean_measured_ms"] == 2.5
    goes_on = parents["wf-1"]  # until its exit handler ends it, whatever its stages do
    assert (goes_on.info.status, goes_on.data.tags.get("evenshard.outcome")) == ("RUNNING", None)
    for run in runs:
        assert run.data.tags["evenshard.git_commit"] and "torch " in run.data.tags["evenshard.libraries"]
    assert "evenshard.params_hash" not in ended.data.tags  # of all sections, which no pod knows
    assert not [path for path in tmp_path.glob("wf-*/*/work/**/*") if path.is_file()]


@pytest.mark.tracked
def test_the_run_that_kubeflow_made_says_which_code_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{empty_file(tmp_path)}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(uri)
    injected = client.create_run("0", tags={"evenshard.git_commit": "told before"}).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", injected)
    monkeypatch.chdir(tmp_path)
    with stage_run("generate_tables", LOOP, {}):
        pass
    tags = client.get_run(injected).data.tags
    assert "torch " in tags["evenshard.libraries"] and tags["evenshard.git_commit"] == "told before"


@pytest.mark.tracked
def test_the_exit_handler_logs_what_mlflow_has_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{empty_file(tmp_path)}"
    for name, value in (("MLFLOW_TRACKING_URI", uri), ("EVENSHARD_LOOP_ID", "wf-1"), (BACKLOG, f"{tmp_path}/volume")):
        monkeypatch.setenv(name, value)

    def gone() -> None:
        raise ConnectionResetError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr("evenshard.tracking.run_files.connect", gone)
        with stage_run("evaluate", LOOP, {}) as run:
            run.metrics({"one": 1.0})
            run.conclude({"evenshard.mean_measured_ms": 2.5})
    assert len(list(tmp_path.glob("volume/*"))) == 1
    log_outcome("SUCCEEDED", "http://kubeflow/#/runs/details/1", RunReport())
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("evenshard")
    assert experiment is not None
    stage, loop = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_name)
    assert (stage.info.status, stage.data.metrics) == ("FINISHED", {"one": 1.0})
    assert (loop.info.status, loop.data.metrics) == ("FINISHED", {"evenshard.mean_measured_ms": 2.5})
    assert loop.data.tags["evenshard.outcome"] == "SUCCEEDED" and not list(tmp_path.glob("volume/*"))


def test_pods_that_make_a_parent_at_once_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        def __init__(self, run_id: str, start_time: int) -> None:
            self.run_id, self.start_time = run_id, start_time

    class Run:
        def __init__(self, run_id: str, start_time: int) -> None:
            self.info = Info(run_id, start_time)

    class Client:
        """Another pod's run appears while this one makes its own."""

        deleted: list[str] = []  # noqa: RUF012
        runs: list[Run] = []  # noqa: RUF012

        def search_runs(self, experiments: list[str], filter_string: str) -> list[Run]:
            return list(self.runs)

        def create_run(self, experiment: str, start_ms: int, tags: dict[str, str], name: str) -> Run:
            assert (tags["evenshard.loop_id"], name) == ("wf-1", "loop-wf-1")
            mine = Run("mine", 5)
            self.runs = [mine, Run("theirs", 4)]
            return mine

        def set_terminated(self, run_id: str, status: str) -> None: ...

        def delete_run(self, run_id: str) -> None:
            self.deleted.append(run_id)

    client = Client()
    loop = Record(5, "wf-1", "evenshard.loop_id", is_loop=True, name="loop-wf-1")
    assert ensure_loop(client, "0", loop) == "theirs"
    assert client.deleted == ["mine"]


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    logged: dict[str, float] = {}

    class Metrics:
        def log_metric(self, name: str, value: float) -> None:
            logged[name] = value

    log_metrics(Metrics(), {"one": 1, "none": None, "nan": math.nan, "infinite": math.inf})
    assert logged == {"one": 1.0}


def test_the_costs_of_rounds_are_in_their_order(tmp_path: Path) -> None:
    for name in ("round_010.parquet", "round_002.parquet", "round_001.parquet", "other.parquet"):
        (tmp_path / name).write_text(name)
    assert [path.name[6:9] for path in round_costs(tmp_path)] == ["001", "002", "010"]


@pytest.mark.parametrize("uri", [None, ""])
def test_without_a_server_nothing_is_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str | None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if uri is not None:  # a ConfigMap that has the key alone
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    names = ("tables", "tasks", "metrics")
    outputs = {name: dsl.Metrics(name=name, uri=str(tmp_path / "out" / name)) for name in names}
    generate_tables.python_func(config=CONFIG["generate_tables"], **outputs)
    log_outcome("SUCCEEDED", "1", RunReport())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
