"""What stages tell MLflow, and what becomes of it while MLflow is away."""

from __future__ import annotations

import datetime
import fcntl
import json
import logging
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.cli import main
from evenshard.tracking import runs, system_metrics
from evenshard.tracking.client import first_line
from evenshard.tracking.outbox import KeptRun, entries
from evenshard.tracking.parents import Parent, ensure_parent, flattened
from evenshard.tracking.sending import Record, ensure_run, send
from evenshard.utils.errors import BadConfig, TrackingFailed
from evenshard.utils.provenance import params_hash
from support.tracking_builders import AWAY, empty_mlflow, runs_of, write_costs, write_model

PARAMS = {"loop": {"num_rounds": 2}, "train_cost": {"seed": 0}}
POINTS = [("loss", 3.0, 1000, 0), ("loss", 2.0, 1000, 1)]


@pytest.fixture
def client(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow, empty."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workdir}/mlflow.db")  # MLflow keeps what a name once meant
    return empty_mlflow(workdir)


@pytest.fixture
def away(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server answers."""
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
        run.register(model, {"evenshard.mean_measured_ms": 1.5})
    tracking.log_to_parent({"evenshard.mean_measured_ms": 1.5}, run.origin)


def check_loop(client: Any) -> None:
    """MLflow has all of it, once."""
    found = runs_of(client)
    parent = found.pop(f"loop-{params_hash(PARAMS)[:8]}")
    assert found.keys() == {"generate_tables", "train_cost_2"}
    assert parent.data.params == {"loop.num_rounds": "2", "train_cost.seed": "0"}
    assert parent.data.metrics == {"evenshard.mean_measured_ms": 1.5}
    assert len(client.get_metric_history(parent.info.run_id, "evenshard.mean_measured_ms")) == 1
    for run in (parent, *found.values()):
        assert run.info.status == "FINISHED"
        assert run.data.tags["evenshard.params_hash"] == params_hash(PARAMS)
        assert run.data.tags["evenshard.git_commit"]
        assert "torch " in run.data.tags["evenshard.libraries"]
    for run in found.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    train = found["train_cost_2"]
    assert train.data.params == {"seed": "0"}
    assert train.data.tags["evenshard.round"] == "2"
    assert train.data.tags["evenshard.hardware"] == "simulated: adds up"
    for key in ("evenshard.hardware", "evenshard.costs_sha256", "evenshard.costs_dvc_md5"):
        assert parent.data.tags[key] == train.data.tags[key]
    history = client.get_metric_history(train.info.run_id, "loss_per_update")
    assert [(point.step, point.value) for point in history] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    [dataset] = train.inputs.dataset_inputs
    sha256 = train.data.tags["evenshard.costs_sha256"]
    assert dataset.dataset.digest == sha256[:36] and len(sha256) == 64
    of_dataset = {tag.key: tag.value for tag in dataset.tags}
    assert of_dataset["mlflow.data.context"] == "training"
    for key in ("evenshard.costs_sha256", "evenshard.costs_dvc_md5"):
        assert of_dataset[key] == train.data.tags[key]
    assert {one.path for one in client.list_artifacts(train.info.run_id)} == {"cost_net", "costs.parquet"}
    versions = client.search_model_versions()
    assert sorted(one.name for one in versions) == ["evenshard-cost", "evenshard-policy"]
    for one in versions:
        assert (one.version, one.run_id) == (1, train.info.run_id) or (str(one.version), one.run_id) == (
            "1",
            train.info.run_id,
        )
        assert one.tags["evenshard.costs_sha256"] == sha256
        assert one.tags["evenshard.num_measured"] == "1"
        assert one.tags["evenshard.metric.evenshard.mean_measured_ms"] == "1.5"
    assert len(train.outputs.model_outputs) == 2


def test_a_loop_is_a_run_with_a_run_for_each_stage(
    client: Any, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_loop(workdir)
    check_loop(client)
    assert not entries()
    assert capsys.readouterr().out == ""


def test_other_settings_or_new_tables_are_another_loop(client: Any) -> None:
    def parent_of(stage: str, params: Mapping[str, Any]) -> str:
        with tracking.stage_run(stage, params, {}):
            pass
        experiment = client.get_experiment_by_name("evenshard").experiment_id
        newest = client.search_runs([experiment], f"tags.`evenshard.stage` = '{stage}'", max_results=1)[0]
        return str(newest.data.tags["mlflow.parentRunId"])

    first = parent_of("generate_tables", PARAMS)
    assert parent_of("evaluate", PARAMS) == first
    assert parent_of("evaluate", {"loop": {"num_rounds": 3}}) != first
    assert parent_of("generate_tables", PARAMS) != first


def test_a_loop_learns_its_origin_from_whoever_knows_it(client: Any) -> None:
    """A parent that was made by one that knew no more than its name, as from an outbox."""
    experiment = client.create_experiment("evenshard")
    known = Parent("", "evenshard.key", "1", "loop-1", {"evenshard.git_commit": "abc"}, PARAMS)
    first = ensure_parent(client, experiment, Parent("", "evenshard.key", "1", "loop-1"), 1000)
    assert ensure_parent(client, experiment, known, 2000) == first
    [loop] = runs_of(client).values()
    assert loop.data.tags["evenshard.git_commit"] == "abc" and loop.data.params["loop.num_rounds"] == "2"


def test_a_stage_that_fails_is_a_run_that_failed(client: Any) -> None:
    with pytest.raises(ZeroDivisionError), tracking.stage_run("train_cost_1", PARAMS, {}):
        raise ZeroDivisionError
    assert runs_of(client)["train_cost_1"].info.status == "FAILED"


def test_a_study_belongs_to_no_loop(client: Any) -> None:
    with tracking.study_run("bench_mixed", {"seeds": 3}) as run:
        run.metrics({"ms": 1.0})
    [(name, run)] = runs_of(client).items()
    assert (name, run.data.params, run.data.metrics) == ("bench_mixed", {"seeds": "3"}, {"ms": 1.0})
    assert "mlflow.parentRunId" not in run.data.tags


def test_a_table_is_one_that_mlflow_reads(client: Any, workdir: Path) -> None:
    (workdir / "evaluation.csv").write_text("task,sharder,ms\na,random,1.5\nb,random,\n")
    with tracking.stage_run("evaluate", PARAMS, {}) as run:
        run.table("evaluation.json", Path("evaluation.csv"))
    run_id = runs_of(client)["evaluate"].info.run_id
    experiment = client.get_experiment_by_name("evenshard").experiment_id
    table = client.load_table(experiment, "evaluation.json", [run_id])
    assert list(table["task"]) == ["a", "b"]
    assert table["ms"][0] == 1.5 and table["ms"].isna()[1]


def test_cpu_and_memory_are_watched_where_nothing_is_measured(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("train_cost_1", "benchmark_1", "evaluate"):
        with tracking.stage_run(stage, PARAMS, {}):
            pass
    found = runs_of(client)
    watched = {name for name, run in found.items() if any(key.startswith("system/") for key in run.data.metrics)}
    assert watched == {"train_cost_1"}
    assert found["train_cost_1"].data.metrics["system/system_memory_usage_percentage"] > 0


def test_system_metrics_are_asked_for_at_intervals() -> None:
    class Run:
        points: list[Any]

        def points(self, points: list[Any]) -> None:  # type: ignore[no-redef]
            self.kept = points

    run: Any = Run()
    with system_metrics.watched(run, interval_s=0.05):
        import time

        time.sleep(0.3)
    steps = [step for name, _, _, step in run.kept if name == "system/cpu_utilization_percentage"]
    assert steps == list(range(len(steps))) and len(steps) >= 4


def test_each_sample_is_of_its_own_moment(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rising:
        def __init__(self) -> None:
            self.values: list[float] = []
            self.now = 0.0

        def collect_metrics(self) -> None:
            self.now += 10
            self.values.append(self.now)

        def aggregate_metrics(self) -> dict[str, float]:
            return {"load": sum(self.values) / len(self.values)}

        def clear_metrics(self) -> None:
            self.values.clear()

    monkeypatch.setattr(system_metrics, "_monitors", lambda: [Rising()])
    with tracking.stage_run("train_cost_1", PARAMS, {}):
        pass
    history = client.get_metric_history(runs_of(client)["train_cost_1"].info.run_id, "system/load")
    assert [point.value for point in history] == [10, 20]


def test_a_monitor_that_fails_ends_no_training(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Lost:
        def collect_metrics(self) -> None:
            raise OSError("GPU is lost")

    working = system_metrics._monitors()
    monkeypatch.setattr(system_metrics, "_monitors", lambda: [Lost(), *working])
    with tracking.stage_run("train_cost_1", PARAMS, {}):
        pass
    [warning] = caplog.records
    assert "Lost failed (GPU is lost)" in warning.getMessage()
    assert "system/cpu_utilization_percentage" in runs_of(client)["train_cost_1"].data.metrics


# Twice is once -------------------------------------------------------------------------------------------------------


def test_every_operation_counts_once(client: Any, workdir: Path) -> None:
    costs = write_costs(workdir / "costs.parquet")
    write_model(workdir / "model", (costs,))
    from evenshard.tracking.dataset_inputs import describe_costs

    operations: list[dict[str, Any]] = [
        {"kind": "metrics", "points": POINTS},
        {"kind": "tags", "tags": {"one": "1"}},
        {"kind": "artifact", "path": "costs.parquet"},
        {"kind": "artifact", "path": "model"},
        {"kind": "table", "name": "t.json", "table": {"columns": ["a"], "data": [[1]]}},
        {"kind": "datasets", "datasets": [describe_costs(costs, "training")]},
        {"kind": "model", "name": "evenshard-cost", "path": "model", "tags": {}, "metrics": {}},
        {"kind": "end", "status": "FINISHED", "end_ms": 2000},
    ]
    record = Record("key", "stage", "evenshard", 1000, tags={}, params={"a": "1"})
    for _ in range(2):
        run_id = ensure_run(client, record)
        for operation in operations:
            for _ in range(2):
                send(client, run_id, operation, workdir)
    run = runs_of(client)["stage"]
    assert (run.info.start_time, run.info.end_time, run.info.status) == (1000, 2000, "FINISHED")
    assert [point.value for point in client.get_metric_history(run_id, "loss")] == [3.0, 2.0]
    assert len(run.inputs.dataset_inputs) == len(run.outputs.model_outputs) == 1
    experiment = client.get_experiment_by_name("evenshard").experiment_id
    assert len(client.load_table(experiment, "t.json", [run_id])) == 1
    assert len(client.search_model_versions()) == len(client.search_logged_models([experiment])) == 1
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "t.json", "type": "table"}]


def test_an_operation_of_a_later_version_is_no_silence(client: Any, workdir: Path) -> None:
    with pytest.raises(ValueError, match="'video'"):
        send(client, "run", {"kind": "video"}, workdir)


# Away ----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("away")
def test_what_is_logged_while_mlflow_is_away_is_sent_later_once(
    workdir: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING):
        a_loop(workdir)
    warnings = [record.getMessage() for record in caplog.records if "MLflow cannot be reached" in record.getMessage()]
    assert len(warnings) == len(caplog.records) == 3  # one for each run
    assert all("`evenshard sync`" in one and "Connection refused" in one for one in warnings)
    for folder in ("round_1", "costs.parquet"):
        (workdir / "work" / folder).rename(workdir / folder)  # the outbox has copies of its own
    assert main(["sync"]) == 1
    assert "3 of 3 stay in the outbox" in capsys.readouterr().err
    assert len(entries()) == 3
    client = empty_mlflow(workdir)
    assert main(["sync", "--to", f"sqlite:///{workdir}/mlflow.db"]) == 0
    check_loop(client)
    assert not list(Path("work/mlflow_outbox").iterdir())
    assert main(["sync"]) == 0
    assert capsys.readouterr().out.endswith("the outbox is empty\n")


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("nth", [0, 1, 3, 6])
def test_a_server_that_dies_in_the_middle_loses_and_doubles_nothing(
    client: Any, workdir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: str, nth: int
) -> None:
    sent, calls = runs.send, []

    def dying(*args: Any) -> None:
        calls.append(args[2]["kind"])
        if len(calls) <= nth:
            sent(*args)
            return
        if lost == "reply":
            sent(*args)
        raise ConnectionResetError("the server is gone")

    costs = write_costs(workdir / "work" / "costs.parquet")
    model = write_model(workdir / "work" / "round_1", (costs,))
    monkeypatch.setattr(runs, "send", dying)
    monkeypatch.setattr(system_metrics, "_monitors", list)
    with tracking.stage_run("generate_tables", PARAMS, {"num_tables": 4}) as run:
        pass
    calls.clear()
    with tracking.stage_run("train_cost_2", PARAMS, {"seed": 0}) as run:
        run.costs([costs], "training")
        run.series("loss_per_update", [3.0, 2.0, 1.0])
        run.metrics({"loss": 1.0})
        run.artifact(costs)
        run.register(model, {"evenshard.mean_measured_ms": 1.5})
    assert len(calls) == nth + 1  # a server that is gone is asked no more
    assert "MLflow stopped answering" in caplog.text and "the server is gone" in caplog.text
    monkeypatch.setattr(runs, "send", sent)
    assert all(not one.problem for one in tracking.sync())
    train = runs_of(client)["train_cost_2"]
    assert train.info.status == "FINISHED"
    assert [point.value for point in client.get_metric_history(train.info.run_id, "loss_per_update")] == [3, 2, 1]
    assert len(client.get_metric_history(train.info.run_id, "loss")) == 1
    assert [one.path for one in client.list_artifacts(train.info.run_id)] == ["costs.parquet"]
    assert len(client.search_model_versions()) == len(train.outputs.model_outputs) == 2


def kept(name: str = "stage") -> Path:
    entry = KeptRun(Record(f"key of {name}", name, "evenshard", 1000))
    entry.add({"kind": "metrics", "points": POINTS})
    entry.add({"kind": "end", "status": "FINISHED", "end_ms": 2000})
    entry.close()
    return entry.folder


def test_what_is_kept_appears_when_its_stage_has_ended(client: Any) -> None:
    entry = KeptRun(Record("key", "stage", "evenshard", 1000))
    entry.add({"kind": "metrics", "points": POINTS})
    assert tracking.sync() == []
    entry.close()
    assert [one.problem for one in tracking.sync()] == [""]


@pytest.mark.parametrize(
    ("last", "status"), [('{"kind": "end", "status": "FINISHED", "end_ms": 2000}\n', "FINISHED"), ('{"kind', "KILLED")]
)
def test_what_an_earlier_version_has_kept_is_sent(client: Any, last: str, status: str) -> None:
    folder = kept()
    content = json.loads((folder / "run.json").read_text())
    metrics = json.dumps(content.pop("operations")[0])
    (folder / "run.json").write_text(json.dumps(content))
    (folder / "operations.jsonl").write_text(f"{metrics}\n{last}")
    assert [one.problem for one in tracking.sync()] == [""]
    run = runs_of(client)["stage"]
    assert (run.info.status, run.data.metrics) == (status, {"loss": 2.0})
    assert not entries()


def test_a_loop_that_a_stage_logs_to_is_not_ended_by_it(client: Any) -> None:
    parent = Parent("", "evenshard.key", "key of the loop", "loop-1")
    entry = KeptRun(Record("", "", "evenshard", 1000, parent))  # as end_loop("SUCCEEDED") leaves it
    entry.add({"kind": "tags", "tags": {"evenshard.outcome": "SUCCEEDED"}})
    entry.close()
    assert [one.problem for one in tracking.sync()] == [""]
    loop = runs_of(client)["loop-1"]
    assert loop.info.status == "FINISHED"
    assert loop.data.tags["evenshard.outcome"] == "SUCCEEDED"


def test_two_syncs_at_once_send_nothing_twice(client: Any) -> None:
    with (kept() / "run.json").open() as run:
        fcntl.flock(run, fcntl.LOCK_EX)  # as the other does
        assert [one.problem for one in tracking.sync()] == ["another sync is sending it"]
        assert not runs_of(client)
    assert [one.problem for one in tracking.sync()] == [""]
    assert tracking.sync() == []


def test_what_a_sync_could_not_send_counts_once_after_the_next(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept("first")
    kept("second")

    def failing(client: Any, run_id: str, operation: Mapping[str, Any], folder: Path) -> None:
        if folder.name.split("-")[1] == "first" and operation["kind"] == "end":
            raise OSError(28, "No space left on device")
        send(client, run_id, operation, folder)

    with monkeypatch.context() as patch:
        patch.setattr("evenshard.tracking.outbox.send", failing)
        by_name = {one.name.split("-")[1]: one.problem for one in tracking.sync()}
    assert by_name.pop("first").endswith("No space left on device") and by_name == {"second": ""}
    assert [one.problem for one in tracking.sync()] == [""]
    first = runs_of(client)["first"]
    assert first.info.status == "FINISHED"
    assert [point.value for point in client.get_metric_history(first.info.run_id, "loss")] == [3.0, 2.0]


@pytest.mark.usefixtures("away")
def test_an_mlflow_that_is_away_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kept("first")
    kept("second")
    asked: list[str] = []

    def connect(uri: str) -> Any:
        asked.append(uri)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("evenshard.tracking.outbox.connect", connect)
    assert [one.problem for one in tracking.sync()] == [f"{AWAY}: Connection refused"] * 2
    assert asked == [AWAY]


def test_the_outbox_can_be_elsewhere(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENSHARD_OUTBOX", str(workdir / "volume"))
    folder = kept()
    assert folder.parent == workdir / "volume" and entries() == [folder]


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_full_disk_stops_no_stage(workdir: Path, caplog: pytest.LogCaptureFixture, at_its_end: bool) -> None:
    big = workdir / "big.bin"
    big.write_bytes(b"x" * 200_000)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with tracking.stage_run("benchmark_1", PARAMS, {}) as run:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
            if at_its_end:
                run.series("loss", [1.0] * 10_000)
            else:
                run.artifact(big)
            run.metrics({"one": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    _, warning = caplog.records
    assert "What is for MLflow cannot be kept (File too large). The stage goes on" in warning.getMessage()
    assert not list((workdir / "work" / "mlflow_outbox").iterdir())


def test_a_folder_where_nothing_may_be_written_stops_no_stage(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, away: None
) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("EVENSHARD_OUTBOX", "file/outbox")
    with tracking.stage_run("train_cost_1", PARAMS, {}) as run:
        run.metrics({"one": 1.0})
    [warning] = caplog.records
    assert "nothing can be kept" in warning.getMessage() and "Not a directory" in warning.getMessage()


@pytest.mark.usefixtures("away")
def test_settings_that_json_does_not_know_are_kept(workdir: Path) -> None:
    with tracking.stage_run("benchmark_1", {**PARAMS, "mine": {"since": datetime.date(2026, 1, 31)}}, {}):
        pass
    client = empty_mlflow(workdir)
    assert all(not one.problem for one in tracking.sync(f"sqlite:///{workdir}/mlflow.db"))
    [parent] = [run for name, run in runs_of(client).items() if name.startswith("loop-")]
    assert parent.data.params["mine.since"] == "2026-01-31"


def test_an_entry_that_cannot_be_read_keeps_no_other(client: Any, workdir: Path) -> None:
    for name, content in (("torn", ""), ("later", '{"uri": "", "record": {"parent": null, "colour": "red"}}')):
        (kept(name) / "run.json").write_text(content)
    kept("whole")
    done = {one.name.split("-")[1]: one.problem for one in tracking.sync()}
    assert done["whole"] == "" and "cannot be read" in done["torn"] and "'colour'" in done["later"]
    assert len(entries()) == 2


# Settings ------------------------------------------------------------------------------------------------------------


def test_no_password_is_kept(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "http://me:secret@127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with tracking.stage_run("benchmark_1", PARAMS, {}):
        pass
    files = [path for path in workdir.rglob("*") if path.is_file()]
    assert files and not any(b"secret" in path.read_bytes() for path in files)
    assert [one.problem[:28] for one in tracking.sync()] == ["http://***@127.0.0.1:9: Conn"]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    kept("another")  # which needs no password
    problems = {one.name.split("-")[1]: one.problem for one in tracking.sync()}
    assert "meant for http://***@127.0.0.1:9. Set MLFLOW_TRACKING_URI" in problems.pop("benchmark_1")
    assert problems == {"another": ""}


@pytest.mark.parametrize("uri", ["http://s3cr@127.0.0.1:9", "http://bob:s3cr/et@127.0.0.1:9"])
def test_no_command_gives_a_password_away(workdir: Path, uri: str) -> None:
    """Neither printed, nor logged or warned of by a library, nor in a file."""
    (workdir / "tables.csv").write_text("name,num_rows,embedding_dim,pooling_factor\na,1000,16,1\nb,1000,16,1\n")
    commands = [
        ["place", "tables.csv", "--devices", "2", "--model", "models:/x@champion"],
        ["compare", "a", "b"],
        ["sync"],
        ["sync", "--to", uri],
    ]
    code = f"""
import warnings
from evenshard import tracking
from evenshard.utils.progress import log_to_stderr
from evenshard.cli import main
log_to_stderr()
warnings.warn("of {uri}/x")
with tracking.stage_run("benchmark_1", {PARAMS}, {{}}) as run:
    run.metrics({{"one": 1.0}})
print([main(command) for command in {commands}])
"""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    files = [path for path in workdir.rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    assert "s3cr" not in said and not any(b"s3cr" in path.read_bytes() for path in files)
    assert said.count("***@127.0.0.1:9") >= 1 + 1 + len(commands)
    assert done.stdout.splitlines()[-1] == ("[2, 2, 1, 1]" if "/et" in uri else "[1, 1, 1, 1]")


def test_a_database_that_is_away_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch, workdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg://me:secret@127.0.0.1:9/db")
    with tracking.stage_run("benchmark_1", PARAMS, {}):
        pass
    assert "Connection refused" in caplog.text and "secret" not in caplog.text
    assert len(entries()) == 1


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg"])
def test_a_server_that_hangs_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, workdir: Path, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    """It takes connections and says nothing."""
    if "+" in scheme:
        pytest.importorskip("psycopg")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://me:secret@127.0.0.1:{silent.getsockname()[1]}/db")
        with tracking.stage_run("evaluate", PARAMS, {}) as run:
            run.metrics({"one": 1.0})
        begin = time.monotonic()
        tracking.log_to_parent({"one": 1.0})
        assert time.monotonic() - begin < 0.5
        with pytest.raises(TrackingFailed) as caught:
            tracking.champion()
        problems = [one.problem for one in tracking.sync()]
    assert len(problems) == 2 and problems[0] == problems[1]
    for said in (caplog.text, str(caught.value), problems[0]):
        assert "://***@127.0.0.1" in said and "no answer within 1 s" in said and "secret" not in said


def test_settings_are_flat() -> None:
    assert flattened({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": None}) == {"a.b.c": "1", "a.d": "[1, 2]", "e": "None"}


def _refused() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


def _read_only() -> None:
    raise sqlite3.OperationalError("attempt to write a readonly database")


@pytest.mark.parametrize(
    ("raising", "says"),
    [
        (_refused, "Connection refused"),
        (_read_only, "attempt to write a readonly database"),
        (lambda: int("x"), "invalid literal"),
    ],
)
def test_of_a_chain_of_errors_the_first_says_what_happened(raising: Callable[[], None], says: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        try:
            raising()
        except Exception as error:
            raise RuntimeError("invalid literal after a long way\nand more") from error
    assert first_line(caught.value).startswith(says)


# Search --------------------------------------------------------------------------------------------------------------


def test_loops_are_found_by_name_and_by_id(client: Any, workdir: Path) -> None:
    a_loop(workdir)
    [loop] = tracking.find_runs()
    assert [one.name for one in loop.children] == ["generate_tables", "train_cost_2"]
    assert loop.params["loop.num_rounds"] == "2" and loop.metrics == {"evenshard.mean_measured_ms": 1.5}
    for name in (loop.name, loop.run_id, loop.run_id[:8]):
        assert tracking.find_runs([name]) == [loop]
    [stage] = tracking.find_runs(["train_cost_2"])
    assert stage.parent_id == loop.run_id
    assert tracking.find_run(stage.run_id) == stage
    assert tracking.find_run("0" * 32) is None
    assert tracking.run_artifact(loop.run_id, "params.yaml", workdir).read_text().startswith("loop:")
    with pytest.raises(BadConfig, match=f"no run 'nobody'.*Loops there: {loop.name}"):
        tracking.find_runs(["nobody"])
    with pytest.raises(BadConfig, match="has no nothing"):
        tracking.run_artifact(loop.run_id, "nothing", workdir)


def test_of_two_loops_with_one_name_the_newest_is_meant(client: Any) -> None:
    for _ in range(2):
        with tracking.stage_run("generate_tables", PARAMS, {}):
            pass
    newest, oldest = tracking.find_runs()
    assert newest.name == oldest.name and newest.start_ms >= oldest.start_ms
    assert tracking.find_runs([newest.name]) == [newest]
