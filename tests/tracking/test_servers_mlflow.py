"""MLflow with PostgreSQL and an S3 behind it: stages end well wherever it dies, and whole loops arrive there."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evenshard import tracking
from evenshard.cli import main
from evenshard.tracking import records, run_files
from evenshard.tracking.client import connect
from evenshard.tracking.descriptions import NOTE, experiment_id
from evenshard.tracking.pyfunc import build_serving_code
from support import servers
from support.dying_server import ANSWER, MIDDLE, REQUEST, Dying, dying
from support.http_server import hanging
from support.loops import CHANGES, Loop, params_with
from support.tracking_builders import parts_of, write_costs, write_model

PARAMS = {"loop": {"num_rounds": 1}}
LOSSES = [4.0, 3.0, 2.5, 2.25]


@pytest.fixture
def at(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files to log, and an experiment of its own. A server that is away is not waited for."""
    settle(workdir, monkeypatch)
    return workdir


def settle(folder: Path, patch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)  # only the server has keys to the S3
    patch.setenv("MLFLOW_EXPERIMENT_NAME", f"fault-{secrets.token_hex(4)}")
    patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    costs = write_costs(folder / "measured" / "costs.parquet")
    write_model(folder / "round_1", (costs,), seed=secrets.randbits(31))  # weights that no other test has registered


def a_stage() -> None:
    """Logs something of each kind."""
    with tracking.stage_run("train_cost_1", PARAMS, {"num_updates": 4, "seed": 0}) as run:
        run.series("loss_per_update", LOSSES)
        run.metrics({"median_abs_pct_error": 7.5})
        run.costs([Path("measured/costs.parquet")], "training")
        run.artifact(Path("measured/costs.parquet"))
        run.register(parts_of(Path("round_1")), build_serving_code(), {"evenshard.mean_measured_ms": 1.5})
        run.conclude({"evenshard.mean_measured_ms": 1.5})


def known_to(url: str) -> dict[str, Any]:
    """All that MLflow knows of the experiment, without ids and times."""
    from mlflow import MlflowClient

    client = MlflowClient(url, url)
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    names = {run.info.run_id: run.info.run_name for run in runs}
    versions = [one for name in ("evenshard-cost", "evenshard-policy") for one in versions_of(client, name)]
    logged = client.search_logged_models([experiment.experiment_id])
    return {
        "runs": sorted(names.values()),
        "logged models": sorted((one.name, str(one.status), names[one.source_run_id]) for one in logged),
        "versions": sorted((one.name, one.status, names[one.run_id]) for one in versions if one.run_id in names),
        **{run.info.run_name: known_of(client, run, names) for run in reversed(runs)},  # the newest of a name
    }


def known_of(client: Any, run: Any, names: Mapping[str, str]) -> dict[str, Any]:
    run_id, data = run.info.run_id, run.data
    points = {name: [(one.step, one.value) for one in client.get_metric_history(run_id, name)] for name in data.metrics}
    return {
        "status": run.info.status,
        "parent": names.get(data.tags.get("mlflow.parentRunId", ""), ""),
        "metrics": {name: some for name, some in points.items() if not name.startswith("system/")},
        "params": data.params,
        "tags": sorted(data.tags),
        "datasets": [(one.dataset.name, one.dataset.digest) for one in run.inputs.dataset_inputs],
        "models": len(run.outputs.model_outputs) if run.outputs else 0,
        "files": sorted((one.path, one.file_size) for one in client.list_artifacts(run_id)),
    }


def versions_of(client: Any, name: str) -> list[Any]:
    return list(client.search_model_versions(f"name = '{name}'"))


@pytest.fixture
def server(at: Path, mlflow_server: servers.MLflow, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dying]:
    """The MLflow server of all tests, behind a proxy that can die."""
    with dying(mlflow_server.url) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
        yield proxy


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith("evenshard")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "path", "nth"),
    [
        (REQUEST, "experiments/get-by-name", 1),  # away from the start
        pytest.param(ANSWER, "runs/create", 1, marks=pytest.mark.slow),  # the loop's
        pytest.param(ANSWER, "runs/create", 2, marks=pytest.mark.slow),  # the stage's
        pytest.param(ANSWER, "runs/log-batch", 3, marks=pytest.mark.slow),  # a curve
        pytest.param(ANSWER, "artifacts/costs.parquet", 1, marks=pytest.mark.slow),
        pytest.param(REQUEST, "model/cost_net/state.pt", 1, marks=pytest.mark.slow),
        pytest.param(ANSWER, "model-versions/create", 2, marks=pytest.mark.slow),
        pytest.param(ANSWER, "runs/update", 3, marks=pytest.mark.slow),  # the end of the loop
    ],
)
def test_wherever_it_dies_the_stage_ends_well_and_mlflow_gets_the_rest_later(
    server: Dying, lost: str, path: str, nth: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.counts, server.lost, server.stop_at = lambda method, asked: asked.split("?")[0].endswith(path), lost, nth
    a_stage()
    assert server.dead
    away, kept = warnings_in(caplog)
    assert "The stage continues" in away and "mlflow_backlog" in kept
    server.go_on()
    assert tracking.log_backlog(build_serving_code)
    check_stage(known_to(server.url))


def check_stage(known: Mapping[str, Any]) -> None:
    """MLflow has all of ``a_stage``, once."""
    loop, stage = known["runs"]
    assert loop.startswith("loop-") and stage == "train_cost_1"
    assert known["logged models"] == [(name, "READY", stage) for name in ("evenshard-cost", "evenshard-policy")]
    assert known["versions"] == known["logged models"]
    assert known[stage]["status"] == known[loop]["status"] == "FINISHED" and known[stage]["parent"] == loop
    assert known[stage]["metrics"] == {"loss_per_update": list(enumerate(LOSSES)), "median_abs_pct_error": [(0, 7.5)]}
    assert known[stage]["params"] == {"num_updates": "4", "seed": "0"}
    assert len(known[stage]["datasets"]) == len(known[stage]["files"]) == 1
    assert known[stage]["models"] == known[loop]["models"] == 2
    assert known[loop]["metrics"] == {"evenshard.mean_measured_ms": [(0, 1.5)]}


@pytest.mark.slow
def test_a_server_that_is_slow_gets_a_whole_model(
    server: Dying, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes longer for all files than for a request it may, and nothing is tried twice."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    server.counts, server.pause_s = lambda method, path: method == "PUT", 0.6
    a_stage()
    uploads = [path for method, path in server.requests]
    assert len(uploads) > 2 * 12 and len(uploads) == len({*uploads}), "two models of a dozen files each"
    assert len(uploads) * server.pause_s > 5 and not warnings_in(caplog)
    check_stage(known_to(server.url))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["experiments/get-by-name", "runs/log-batch", "model/cost_net/state.pt"])
def test_a_server_that_comes_back_in_time_misses_nothing(
    server: Dying, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    server.counts, server.lost = lambda method, asked: asked.split("?")[0].endswith(path), REQUEST
    server.stop_at = 1
    back = threading.Timer(4.0, server.go_on)
    back.start()
    try:
        a_stage()
    finally:
        back.join()
    assert [one for one in warnings_in(caplog) if "cannot be reached" not in one] == []
    check_stage(known_to(server.url))


@pytest.mark.slow
def test_an_s3_behind_it_that_is_away_for_a_while_costs_nothing(
    at: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if reason := servers.missing_seaweedfs():
        pytest.skip(reason)
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")
    with servers.seaweedfs() as store, servers.mlflow_server(f"sqlite:///{at}/of_server.db", store) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        store.kill()
        with ThreadPoolExecutor() as threads:
            stage = threads.submit(a_stage)
            time.sleep(15.0)
            store.start()  # here: it ends with the thread that has started it
            stage.result()
        assert [one for one in warnings_in(caplog) if "cannot be reached" not in one] == []
        check_stage(known_to(server.url))


@pytest.mark.slow
def test_a_stage_waits_no_longer_than_it_may(
    at: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a server that hangs: tries and pauses end."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    with hanging() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        a_stage()
        first = len(server.taken)
        with tracking.stage_run("benchmark_2", PARAMS, {}) as run:
            run.metrics({"one": 1.0})
    assert first == 1 + 3, "at the start, and for its file"
    assert len(server.taken) == 2 * first
    assert len(warnings_in(caplog)) == 2


@pytest.mark.slow
def test_the_next_stage_logs_what_mlflow_has_missed(server: Dying, at: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = params_with({})
    Path("params.yaml").write_text(json.dumps(settings))
    server.stop_at, server.lost = 1, REQUEST
    generate = ["generate-tables", "--params", "params.yaml", "--tables-out", "t.parquet", "--tasks-out", "tasks.json"]
    assert main(generate) == 0 and server.dead
    server.go_on()
    assert main([*generate, "--seed", "1"]) == 0
    known = known_to(server.url)
    assert [name for name in known["runs"] if not name.startswith("loop-")] == ["generate_tables"] * 2
    assert "logged a run that MLflow at" in warnings_in(caplog)[-1]


@pytest.fixture(scope="module")
def own_server(s3: servers.S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MLflow]:
    """A server that a test may kill."""
    with servers.mlflow_server(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db", s3) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("path", ["log-batch", "big.bin"])
def test_a_server_that_is_killed_in_the_middle_of_a_call_leaves_no_half_file(
    own_server: servers.MLflow,
    s3: servers.S3,
    at: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    Path("big.bin").write_bytes(os.urandom(8 << 20))
    before = set(s3.keys())
    with dying(own_server.url) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
        proxy.counts, proxy.lost, proxy.kill = lambda method, asked: asked.endswith(path), MIDDLE, own_server.kill
        proxy.stop_at = 4 if path == "log-batch" else 1
        with tracking.stage_run("benchmark_1", PARAMS, {}) as run:
            run.series("loss", [1.0 / (1 + step) for step in range(2500)])  # more than one request
            run.artifact(Path("big.bin"))
        assert proxy.dead and len(warnings_in(caplog)) == 2
    own_server.start()
    assert not [key for key in set(s3.keys()) - before if key.endswith("big.bin")]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["start", "middle", "upload"])
def test_a_server_that_hangs_is_left(
    own_server: servers.MLflow, at: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own_server.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    Path("file.bin").write_bytes(os.urandom(8 << 20))
    try:
        own_server.hang(when == "start")
        with tracking.stage_run("benchmark_1", PARAMS, {}) as run:
            own_server.hang(when != "upload")
            run.series("loss", LOSSES)
            own_server.hang()
            run.artifact(Path("file.bin"))
            run.conclude({"evenshard.mean_measured_ms": 1.5})
    finally:
        own_server.hang(False)
    away, kept = warnings_in(caplog)
    assert "timed out" in away and "mlflow_backlog" in kept
    assert tracking.log_backlog(build_serving_code)
    stage, loop = known_to(own_server.url)["runs"]
    assert stage == "benchmark_1" and loop.startswith("loop-")


def at_once(call: Callable[[int], object], count: int = 8) -> None:
    """Calls something in threads that start together."""
    together = threading.Barrier(count)

    def one(number: int) -> None:
        together.wait()
        call(number)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(one, range(count)))


def ask_again(patch: pytest.MonkeyPatch, server: servers.MLflow) -> None:
    """MLflow's search answers 500 now and then while runs are written: it is asked again, as outside of tests."""
    patch.setenv("MLFLOW_TRACKING_URI", server.url)
    patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))  # each meets in the middle of another call
def test_all_that_need_an_experiment_at_once_make_and_describe_it(
    mlflow_server: servers.MLflow, at: Path, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    ask_again(monkeypatch, mlflow_server)
    client = connect()
    at_once(lambda _: experiment_id(connect()))
    assert {NOTE, "mlflow.experimentKind"} <= set(client.get_experiment(experiment_id(client)).tags)


@pytest.mark.slow
def test_pods_of_one_loop_that_run_at_once_are_all_logged(
    mlflow_server: servers.MLflow, at: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pod(number: int) -> None:
        with tracking.stage_run(f"benchmark_{number}", PARAMS, {}):
            pass

    ask_again(monkeypatch, mlflow_server)
    monkeypatch.setenv("EVENSHARD_LOOP_ID", secrets.token_hex(4))
    loop_run({})
    at_once(pod)
    known = known_to(mlflow_server.url)
    assert not warnings_in(caplog)
    [loop] = (known[name] for name in known["runs"] if name.startswith("loop-"))
    assert NOTE in loop["tags"] and len(known["runs"]) == 9


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_settings_that_pods_of_one_loop_tell_at_once_are_all_known(
    mlflow_server: servers.MLflow, at: Path, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    ask_again(monkeypatch, mlflow_server)
    monkeypatch.setenv("EVENSHARD_LOOP_ID", secrets.token_hex(4))
    run_id = loop_run({})
    settings = [{"shared": {str(key): key for key in range(20)}, f"of_{pod}": {"seed": pod}} for pod in range(8)]
    at_once(lambda pod: loop_run(settings[pod]))
    expected = {**{f"shared.{key}": str(key) for key in range(20)}, **{f"of_{pod}.seed": str(pod) for pod in range(8)}}
    assert connect().get_run(run_id).data.params == expected


def loop_run(params: Mapping[str, Any]) -> str:
    """The run of the loop that the environment names, told these settings."""
    client, loop = connect(), records.parent_of(params, new_loop=False)
    return run_files.ensure_loop(client, experiment_id(client), loop)


@pytest.mark.slow
def test_loops_that_write_at_once_keep_apart(mlflow_server: servers.MLflow, three_loops: list[Loop]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_server.url, mlflow_server.url)
    experiment = client.get_experiment_by_name("evenshard")
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    parents = {run_id for run_id, run in runs.items() if "mlflow.parentRunId" not in run.data.tags}
    assert parents == {loop.run_id for loop in three_loops}
    for loop in three_loops:
        parent, params = runs[loop.run_id], params_with(CHANGES[loop.name])
        assert parent.data.params["train_policy.entropy_weight"] == str(params["train_policy"]["entropy_weight"])
        rounds = range(1, params["loop"]["num_rounds"] + 1)
        stages = {f"{stage}_{k}" for stage in ("benchmark", "train_cost", "train_policy") for k in rounds}
        children = [run for run in runs.values() if run.data.tags.get("mlflow.parentRunId") == loop.run_id]
        assert sorted(run.info.run_name for run in children) == sorted({*stages, "generate_tables", "evaluate"})
        assert {run.info.status for run in children} == {"FINISHED"}
        for run in children:
            if run.info.run_name.startswith("train_cost"):
                losses = client.get_metric_history(run.info.run_id, "loss_per_update")
                assert [one.step for one in losses] == list(range(params["train_cost"]["num_updates"]))
        evaluate = next(run for run in children if run.info.run_name == "evaluate")
        assert evaluate.data.metrics["evenshard.mean_measured_ms"] == parent.data.metrics["evenshard.mean_measured_ms"]


@pytest.mark.slow
def test_every_file_of_every_loop_is_in_the_s3_and_its_model_can_be_used(
    mlflow_server: servers.MLflow,
    s3: servers.S3,
    three_loops: list[Loop],
    at: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_server.url, mlflow_server.url)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.url)
    loop = three_loops[0]
    evaluate = next(
        version
        for version in versions_of(client, "evenshard-cost")
        if client.get_run(version.run_id).data.tags.get("mlflow.parentRunId") == loop.run_id
    )
    keys = s3.keys("mlflow/")
    assert any(key.endswith(f"{evaluate.run_id}/artifacts/reports/evaluation.csv") for key in keys)
    tables = loop.folder / "work" / "tables.parquet"
    devices = ["--devices", "2", "--memory-cap-gb", "64", "--batch-size", "4096"]
    place = ["place", str(tables), *devices, "--model", f"models:/evenshard-cost/{evaluate.version}"]
    assert main([*place, "-o", "placement.json"]) == 0, capsys.readouterr().err
    assert (at / "placement.json").exists()
