"""The stages of a pipeline share no file: in MLflow they find their loop by its id."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from evenshard.base.errors import BadConfig
from evenshard.kubeflow.pod import add_round, log_metrics, path_or_address, require_address, round_costs
from evenshard.kubeflow.run_outcome import RunReport, log_outcome
from evenshard.tracking import BACKLOG, stage_run
from evenshard.tracking.records import Record
from evenshard.tracking.run_files import ensure_loop
from evenshard_components.conftest import CONFIG
from evenshard_components.generate_tables.component import generate_tables
from support.tracking_builders import runs_of

LOOP = {"loop": {"num_rounds": 3}}


@pytest.mark.tracked
def test_pods_of_one_run_have_one_parent(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for loop, stages in (("wf-1", ("benchmark_1", "train_cost_1")), ("wf-2", ("generate_tables",))):
        monkeypatch.setenv("EVENSHARD_LOOP_ID", loop)
        for stage in stages:
            (tmp_path / loop / stage).mkdir(parents=True)
            monkeypatch.chdir(tmp_path / loop / stage)
            with stage_run(stage, LOOP, {}) as run:
                run.conclude({"evenshard.mean_measured_ms": 2.5})
    log_outcome("FAILED", "http://kubeflow/#/runs/details/1", RunReport(failed=("evaluate",)))
    runs = runs_of(client)
    for stage, loop in (("benchmark_1", "wf-1"), ("train_cost_1", "wf-1"), ("generate_tables", "wf-2")):
        assert runs[stage].data.tags["mlflow.parentRunId"] == runs[f"loop-{loop}"].info.run_id
    ended, goes_on = runs["loop-wf-2"], runs["loop-wf-1"]
    assert (ended.info.status, ended.data.tags["evenshard.outcome"]) == ("FAILED", "FAILED")
    assert ended.data.tags["evenshard.tasks_failed"] == "evaluate"
    assert ended.data.params == {"loop.num_rounds": "3"} and ended.data.metrics["evenshard.mean_measured_ms"] == 2.5
    # until its exit handler ends it, whatever its stages do
    assert (goes_on.info.status, goes_on.data.tags.get("evenshard.outcome")) == ("RUNNING", None)
    assert "evenshard.params_hash" not in ended.data.tags  # of all sections, which no pod knows
    assert not [path for path in tmp_path.glob("wf-*/*/work/**/*") if path.is_file()]


@pytest.mark.tracked
def test_the_run_that_kubeflow_made_says_which_code_ran(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    injected = client.create_run("0", tags={"evenshard.git_commit": "told before"}).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", injected)
    with stage_run("generate_tables", LOOP, {}):
        pass
    tags = client.get_run(injected).data.tags
    assert "torch " in tags["evenshard.libraries"] and tags["evenshard.git_commit"] == "told before"


@pytest.mark.tracked
def test_the_exit_handler_logs_what_mlflow_has_missed(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")
    monkeypatch.setenv(BACKLOG, f"{tmp_path}/volume")

    def gone() -> None:
        raise ConnectionResetError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr("evenshard.tracking.run_files.connect", gone)
        with stage_run("evaluate", LOOP, {}) as run:
            run.metrics({"one": 1.0})
            run.conclude({"evenshard.mean_measured_ms": 2.5})
    assert len(list(tmp_path.glob("volume/*"))) == 1
    log_outcome("SUCCEEDED", "http://kubeflow/#/runs/details/1", RunReport())
    found = {name: (run.info.status, run.data.metrics) for name, run in runs_of(client).items()}
    loop = ("FINISHED", {"evenshard.mean_measured_ms": 2.5})
    assert found == {"evaluate": ("FINISHED", {"one": 1.0}), "loop-wf-1": loop}
    assert not list(tmp_path.glob("volume/*"))


@pytest.mark.tracked
def test_pods_that_make_a_parent_at_once_agree(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pod's run appears while this one makes its own."""
    create, made = client.create_run, []

    def create_two(experiment: str, start_ms: int, tags: dict[str, str], name: str) -> Any:
        other = {**tags, "evenshard.created_by": "another pod"}
        made.extend((create(experiment, start_ms - 1, other, name), create(experiment, start_ms, tags, name)))
        return made[1]

    monkeypatch.setattr(client, "create_run", create_two)
    loop = Record(5, "wf-1", "evenshard.loop_id", is_loop=True, name="loop-wf-1")
    assert ensure_loop(client, "0", loop, "this pod") == made[0].info.run_id
    assert [run.info.run_id for run in client.search_runs(["0"])] == [made[0].info.run_id]


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    metrics = dsl.Metrics(name="metrics", uri="unused")
    log_metrics(metrics, {"one": 1, "none": None, "nan": math.nan, "infinite": math.inf})
    assert metrics.metadata == {"one": 1.0}


def test_the_costs_of_rounds_are_in_their_order(tmp_path: Path) -> None:
    for name in ("round_010.parquet", "round_002.parquet", "round_001.parquet", "other.parquet"):
        (tmp_path / name).write_text(name)
    assert [path.name[6:9] for path in round_costs(tmp_path)] == ["001", "002", "010"]
    assert add_round(tmp_path / "next", 11, tmp_path) == tmp_path / "next/round_011.parquet"
    assert [path.read_text() for path in round_costs(tmp_path / "next")] == [
        path.name for path in round_costs(tmp_path)
    ]


def test_an_artifact_comes_before_an_address_that_the_pod_reads_itself() -> None:
    artifact = dsl.Artifact(name="tables", uri="/data/t.csv")
    assert path_or_address(artifact, "s3://b/other.csv") == "/data/t.csv"
    assert path_or_address(None, "s3://b/t.csv") == "s3://b/t.csv" and path_or_address(None, "") is None
    with pytest.raises(BadConfig, match="the address of tables is empty"):
        require_address("tables", None, "")
    with pytest.raises(BadConfig, match="was not compiled to import"):
        path_or_address(None, "minio://b/t.csv")


def test_without_a_server_nothing_is_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # by a ConfigMap that has the key alone
    outputs = {
        name: dsl.Metrics(name=name, uri=str(tmp_path / "out" / name)) for name in ("tables", "tasks", "metrics")
    }
    generate_tables.python_func(config=CONFIG["generate_tables"], **outputs)
    log_outcome("SUCCEEDED", "1", RunReport())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
