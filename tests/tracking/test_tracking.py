"""Runs that stages log to MLflow, and stages that go on while MLflow is away."""

from __future__ import annotations

import logging
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.base.errors import TrackingFailed
from evenshard.base.process import on_sigterm, terminate
from evenshard.base.provenance import params_hash
from evenshard.tracking import run_files
from evenshard.tracking.pyfunc import build_serving_code
from evenshard.tracking.records import Record
from evenshard.tracking.run_files import ensure_loop
from support.http_server import hanging, num_taken
from support.tracking_builders import AWAY, empty_mlflow, parts_of, runs_of, write_costs, write_model

PARAMS = {"loop": {"num_rounds": 2}, "train_cost": {"seed": 0}}


@pytest.fixture
def away(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def a_loop(folder: Path) -> None:
    """What a small loop logs."""
    costs = write_costs(folder / "work" / "costs.parquet")
    model = write_model(folder / "work" / "round_1", (costs,))
    with tracking.stage_run("generate_tables", PARAMS, {"num_tables": 4}) as run:
        run.metrics({"num_tables": 4})
    with tracking.stage_run("train_cost_2", PARAMS, {"seed": 0}) as run:
        run.costs([costs], "training")
        run.series("loss_per_update", [3.0, 2.0, 1.0])
        run.metrics({"loss": 1.0})
        run.artifact(costs)
        run.artifact(model / "cost_net")
        run.register(parts_of(model), build_serving_code(), {"evenshard.mean_measured_ms": 1.5})
        run.conclude({"evenshard.mean_measured_ms": 1.5})


def check_loop(client: Any) -> None:
    """MLflow has all of it, once."""
    found = runs_of(client)
    (name,) = (name for name in found if re.fullmatch(f"loop-{params_hash(PARAMS)[:8]}-[0-9a-f]{{4}}", name))
    parent = found.pop(name)
    assert found.keys() == {"generate_tables", "train_cost_2"}
    assert parent.data.params == {"loop.num_rounds": "2", "train_cost.seed": "0"}
    assert parent.data.metrics == {"evenshard.mean_measured_ms": 1.5}
    assert len(client.get_metric_history(parent.info.run_id, "evenshard.mean_measured_ms")) == 1
    for run in (parent, *found.values()):
        assert run.info.status == "FINISHED"
        assert run.data.tags["evenshard.params_hash"] == params_hash(PARAMS)
        assert run.data.tags["evenshard.git_commit"] and "torch " in run.data.tags["evenshard.libraries"]
        assert run.data.tags["mlflow.source.name"] and run.data.tags["mlflow.user"] == run.info.user_id == getuser()
        assert run is parent or run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    train = found["train_cost_2"]
    tags = train.data.tags
    assert train.data.params == {"seed": "0"}
    assert (tags["evenshard.round"], tags["evenshard.hardware"]) == ("2", "simulated: adds up")
    history = client.get_metric_history(train.info.run_id, "loss_per_update")
    assert [(point.step, point.value) for point in history] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    [dataset] = train.inputs.dataset_inputs
    sha256 = tags["evenshard.costs_sha256"]
    assert dataset.dataset.digest == sha256[:36] and len(sha256) == 64
    of_dataset = {tag.key: tag.value for tag in dataset.tags}
    assert of_dataset["mlflow.data.context"] == "training"
    for key in ("evenshard.costs_sha256", "evenshard.costs_dvc_md5"):
        assert of_dataset[key] == tags[key] == parent.data.tags[key]
    assert {one.path for one in client.list_artifacts(train.info.run_id)} == {"cost_net", "costs.parquet"}
    versions = client.search_model_versions()
    assert sorted(one.name for one in versions) == ["evenshard-cost", "evenshard-policy"]
    for one in versions:
        assert (str(one.version), one.run_id) == ("1", train.info.run_id)
        assert (one.tags["evenshard.costs_sha256"], one.tags["evenshard.num_measured"]) == (sha256, "1")
        assert one.tags["evenshard.device_error"] == "assumed accurate to a factor of 3.49 (unverified)"
        assert one.tags["evenshard.metric.evenshard.mean_measured_ms"] == "1.5"
    assert len(train.outputs.model_outputs) == 2
    assert [one.dataset.digest for one in parent.inputs.dataset_inputs] == [dataset.dataset.digest]
    made = {one.model_id for one in train.outputs.model_outputs}
    assert {one.model_id for one in parent.outputs.model_outputs} == made, "the loop's row shows what its stages have"


@pytest.mark.slow
def test_a_loop_is_a_run_with_a_run_for_each_stage(client: Any, workdir: Path) -> None:
    a_loop(workdir)
    check_loop(client)


def test_other_settings_or_new_tables_are_another_loop(client: Any) -> None:
    def parent_of(stage: str, params: Mapping[str, Any] | None) -> Any:
        with tracking.stage_run(stage, params, {}):
            pass
        experiment = client.get_experiment_by_name("evenshard").experiment_id
        newest = client.search_runs([experiment], f"tags.`evenshard.stage` = '{stage}'", max_results=1)[0]
        return newest.data.tags.get("mlflow.parentRunId")

    first = parent_of("generate_tables", PARAMS)
    assert parent_of("evaluate", PARAMS) == first
    assert parent_of("evaluate", {"loop": {"num_rounds": 3}}) != first
    assert parent_of("generate_tables", PARAMS) != first
    assert parent_of("bench_mixed", None) is None  # a study belongs to no loop


def test_a_loop_learns_its_origin_from_whoever_knows_it(client: Any) -> None:
    """A parent that was made by one that knew no more than its name, such as the end of a pipeline."""
    experiment = client.create_experiment("evenshard")
    by_name = Record(1000, "1", is_loop=True, name="loop-1")
    first = ensure_loop(client, experiment, by_name, "1")
    known = replace(by_name, start_ms=2000, tags={"evenshard.git_commit": "abc"}, params=PARAMS)
    assert ensure_loop(client, experiment, known, "2") == first
    [loop] = runs_of(client).values()
    assert loop.data.tags["evenshard.git_commit"] == "abc" and loop.data.params["loop.num_rounds"] == "2"


def test_a_stage_moves_from_its_duplicate_of_the_loops_run_to_the_first(client: Any, monkeypatch: Any) -> None:
    """Another pod's run of the same loop appears only after this stage has begun."""
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf-1")
    with tracking.stage_run("train_cost_1", PARAMS, {}):
        [duplicate] = [run for run in runs_of(client).values() if run.info.run_name == "loop-wf-1"]
        experiment, tags = duplicate.info.experiment_id, {"evenshard.loop_id": "wf-1"}
        first = client.create_run(experiment, duplicate.info.start_time - 1, tags, "loop-wf-1").info.run_id
    runs = runs_of(client)
    assert runs["loop-wf-1"].info.run_id == first and runs["loop-wf-1"].data.params["loop.num_rounds"] == "2"
    stage = runs["train_cost_1"].data.tags
    assert stage["mlflow.parentRunId"] == first and first in stage["mlflow.note.content"]


def test_a_loops_run_that_its_creator_deletes_meanwhile_is_replaced(client: Any, monkeypatch: Any) -> None:
    log_settings = run_files._log_settings

    def delete(client: Any, run_id: str, loop: Record) -> None:
        monkeypatch.setattr(run_files, "_log_settings", log_settings)
        client.delete_run(run_id)
        log_settings(client, run_id, loop)

    monkeypatch.setattr(run_files, "_log_settings", delete)
    experiment = client.create_experiment("evenshard")
    loop = ensure_loop(client, experiment, Record(1, "1", is_loop=True, name="loop-1", params=PARAMS), "a stage")
    assert runs_of(client)["loop-1"].info.run_id == loop


def test_a_stage_that_fails_is_a_run_that_failed(client: Any) -> None:
    with pytest.raises(ZeroDivisionError), tracking.stage_run("train_cost_1", PARAMS, {}):
        raise ZeroDivisionError
    assert runs_of(client)["train_cost_1"].info.status == "FAILED"


@pytest.mark.parametrize("number", [14, 49])
def test_an_order_to_end_while_a_run_begins_ends_it_as_killed(
    client: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    from sqlalchemy.engine.default import DefaultDialect

    executed: list[str] = []
    execute = DefaultDialect.do_execute

    def signal_at(self: Any, cursor: Any, statement: str, *others: Any) -> None:
        execute(self, cursor, statement, *others)
        executed.append(statement)
        if len(executed) == number:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(DefaultDialect, "do_execute", signal_at)
    with on_sigterm(terminate), pytest.raises(SystemExit), tracking.stage_run("train_cost_1", PARAMS, {}):
        raise AssertionError("it goes on")
    assert runs_of(client)["train_cost_1"].info.status == "KILLED"


@pytest.mark.parametrize(("loop", "status"), [("evenshard-train-2w4hm", "RUNNING"), ("local-1", "KILLED")])
def test_a_stage_of_a_cluster_that_is_ended_leaves_its_run_to_the_exit_handler(
    client: Any, monkeypatch: pytest.MonkeyPatch, loop: str, status: str
) -> None:
    """Its pod has about a second left, which MLflow may take alone."""
    monkeypatch.setenv("EVENSHARD_LOOP_ID", loop)
    with on_sigterm(terminate), pytest.raises(SystemExit), tracking.stage_run("benchmark_1", PARAMS, {}):
        signal.raise_signal(signal.SIGTERM)
    assert runs_of(client)["benchmark_1"].info.status == status


def test_a_table_is_one_that_mlflow_reads(client: Any) -> None:
    Path("evaluation.csv").write_text("task,sharder,ms\na,random,1.5\nb,random,\n")
    with tracking.stage_run("evaluate", PARAMS, {}) as run:
        run.table("evaluation.json", Path("evaluation.csv"))
    info = runs_of(client)["evaluate"].info
    table = client.load_table(info.experiment_id, "evaluation.json", [info.run_id])
    assert list(table["task"]) == ["a", "b"]
    assert table["ms"][0] == 1.5 and table["ms"].isna()[1]


@pytest.mark.usefixtures("away")
def test_stages_go_on_while_mlflow_is_away_and_say_so_once(workdir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        a_loop(workdir)
    assert [record.getMessage() for record in caplog.records] == [
        f"MLflow cannot be reached at {AWAY} (Connection refused). The stage continues",
        "Runs that MLflow missed are kept in work/mlflow_backlog; the next stage that reaches MLflow logs them",
    ]
    with pytest.raises(ZeroDivisionError), tracking.stage_run("train_cost_1", PARAMS, {}):
        raise ZeroDivisionError


def test_a_refusal_is_told_from_a_server_that_is_away(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with tracking.stage_run("evaluate", PARAMS, {}) as run:
        run.metrics({"ms": 1.0})
    refused, kept = (record.getMessage() for record in caplog.records)
    assert refused.startswith("MLflow refuses to log at ./mlruns (The filesystem")
    assert "set `MLFLOW_ALLOW_FILE_STORE=true`" in refused, "MLflow's remedy is at the end of its message"
    assert kept.endswith("work/mlflow_backlog; a stage logs them once MLflow at ./mlruns accepts them")
    caplog.clear()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert tracking.log_backlog(build_serving_code) == 1 and not tracking.log_backlog(build_serving_code)


class Dying:
    """A client of MLflow whose nth call, and all after it, fail until it is mended; the nth may have been heard."""

    def __init__(self, client: Any, nth: int, heard: bool) -> None:
        self._client, self._nth, self._heard = client, nth, heard
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls < self._nth:
                return getattr(self._client, name)(*args, **named)
            if self.calls == self._nth and self._heard:
                getattr(self._client, name)(*args, **named)
            raise ConnectionResetError("the server is gone")

        return call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nth", "heard"), [(1, False), (12, False), (34, False), (3, True), (7, True), (28, True), (57, True)]
)
def test_wherever_mlflow_dies_it_has_all_of_a_loop_once_when_it_is_back(
    client: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch, heard: bool, nth: int
) -> None:
    dying = Dying(client, nth, heard)
    with monkeypatch.context() as patch:
        patch.setattr(run_files, "connect", lambda: dying)
        a_loop(workdir)
    assert dying.calls >= nth
    shutil.rmtree(workdir / "work" / "round_1")  # the run's file has its own copy
    assert tracking.log_backlog(build_serving_code) >= 1
    check_loop(client)
    assert not tracking.log_backlog(build_serving_code), "nothing is left"
    [experiment] = client.search_experiments(filter_string="name = 'evenshard'")
    models = client.search_logged_models([experiment.experiment_id])
    assert [str(one.status) for one in models] == ["READY", "READY"]


@pytest.mark.usefixtures("away")
def test_a_model_that_must_be_registered_fails_its_stage(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENSHARD_MUST_REGISTER", "1")
    model = write_model(workdir / "work" / "round_1")
    says = rf"The model is not registered: MLflow at {AWAY} did not accept it"
    with pytest.raises(TrackingFailed, match=says), tracking.stage_run("evaluate", PARAMS, {}) as run:
        run.register(parts_of(model), build_serving_code(), {})


@pytest.fixture
def kept(client: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a run that MLflow missed."""
    (workdir / "secret").write_text("s3cr")
    with monkeypatch.context() as patch:
        patch.setattr(run_files, "connect", lambda: Dying(client, 1, False))
        with tracking.stage_run("benchmark_1", PARAMS, {"seed": 0}) as run:
            run.artifact(workdir / "secret")
            run.series("ms", [3.0, 2.0])
    [path] = workdir.glob("work/mlflow_backlog/*/run.json")
    return path


def test_what_is_kept_names_no_file_elsewhere(kept: Path, client: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A backlog on a volume may be written by others."""
    kept.write_text(kept.read_text().replace("files/0/secret", "../../../secret"))
    assert not tracking.log_backlog(build_serving_code)
    assert "names a file outside its folder" in caplog.messages[-1] and not runs_of(client)


def test_a_copy_of_what_was_kept_counts_once(
    kept: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    """Pods that read the same artifact have one each."""
    shutil.copytree(workdir / "work" / "mlflow_backlog", workdir / "copy")
    for folder in ("work/mlflow_backlog", "copy"):
        monkeypatch.setenv("EVENSHARD_BACKLOG", folder)
        assert tracking.log_backlog(build_serving_code) == 1
    known = runs_of(client)["benchmark_1"]
    assert [one.value for one in client.get_metric_history(known.info.run_id, "ms")] == [3.0, 2.0]
    assert known.data.params == {"seed": "0"} and len(runs_of(client)) == 2


def test_what_is_kept_for_one_mlflow_is_not_logged_to_another(
    kept: Path, monkeypatch: pytest.MonkeyPatch, workdir: Path
) -> None:
    (workdir / "other").mkdir()
    other = empty_mlflow(workdir / "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workdir}/other/mlflow.db")
    assert not tracking.log_backlog(build_serving_code) and not runs_of(other) and kept.exists()


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, workdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes connections and says nothing: at the start, and when there is something to log."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with hanging() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{server.getsockname()[1]}")
        with tracking.stage_run("evaluate", PARAMS, {}) as run:
            run.metrics({"one": 1.0})
            run.conclude({"one": 1.0})
        assert num_taken(server) == 1 + 2, "at the start, and for its file"
        with pytest.raises(TrackingFailed) as caught:
            tracking.champion()
    away, kept = (one.getMessage() for one in caplog.records)
    for said in (away, str(caught.value)):
        assert "://***@127.0.0.1" in said and "timed out" in said
    assert "mlflow_backlog" in kept and "secret" not in caplog.text + str(caught.value)
    assert not any(b"secret" in path.read_bytes() for path in workdir.rglob("*") if path.is_file())
