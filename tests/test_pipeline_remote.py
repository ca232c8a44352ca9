"""Wire-shape tests: what evenshard sends to Kubeflow Pipelines' v2beta1 API, and what it says about each answer.

The server is a stand-in (kfp_server.py): no cluster is behind it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.cli import main
from evenshard.kubeflow import remote
from kfp_server import FakePipelines, serving
from kubeflow_builders import SMALL_PARAMS, compiled

SUBMIT = ["pipeline", "submit", "--namespace", "team-a", "--package", "pipeline.yaml"]
STATUS = ["pipeline", "status", "r1", "--namespace", "team-a"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "params.yaml").write_text(yaml.safe_dump(SMALL_PARAMS))
    return compiled("train", folder / "params.yaml", folder / "pipeline.yaml")


@pytest.fixture
def fake(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePipelines]:
    """The server; the working directory holds pipeline.yaml, and home is nobody's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_SA_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pipeline.yaml").write_bytes(package.read_bytes())
    monkeypatch.setattr(remote.Endpoint, "__init__", _impatient(remote.Endpoint.__init__))
    with serving(FakePipelines()) as server:
        yield server


def _impatient(original: Any) -> Any:
    """No pauses between tries."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "pauses_s": (0.0, 0.0, 0.0)})

    return init


def run(fake: FakePipelines, words: list[str], *more: str) -> int:
    return main([*words, "--endpoint", fake.url, *more])


def the_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_submit_makes_the_experiment_and_the_run(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--experiment", "tables", "--run-name", "first", "--set", "evaluate_config={num_rollouts: 8}"]
    assert run(fake, SUBMIT, *words) == 0
    assert capsys.readouterr().out == f"run: r1\n{fake.url}/#/runs/details/r1\n"
    (looked,) = fake.asked("GET", "/experiments")
    assert looked.query["namespace"] == "team-a"
    (experiment,) = fake.asked("POST", "/experiments")
    assert (experiment.body["display_name"], experiment.body["namespace"]) == ("tables", "team-a")
    (sent,) = fake.asked("POST", "/runs")
    assert (sent.body["experiment_id"], sent.body["display_name"]) == ("e1", "first")
    assert sent.body["service_account"] == "evenshard-runner"
    assert sent.body["runtime_config"]["parameters"] == {"evaluate_config": {"num_rollouts": 8}}
    assert sent.body["pipeline_spec"]["pipeline_spec"]["pipelineInfo"]["name"] == "evenshard-train"
    assert "kubernetes" in sent.body["pipeline_spec"]["platform_spec"]["platforms"]
    assert not Path("home").exists()  # the SDK would keep the namespace there


def test_an_experiment_of_the_name_is_used_again(fake: FakePipelines) -> None:
    assert run(fake, SUBMIT) == 0 and run(fake, SUBMIT) == 0
    assert len(fake.asked("POST", "/experiments")) == 1
    assert {one.body["experiment_id"] for one in fake.asked("POST", "/runs")} == {"e1"}


def test_without_a_package_the_settings_are_compiled(fake: FakePipelines, caplog: pytest.LogCaptureFixture) -> None:
    Path("params.yaml").write_text(yaml.safe_dump({**SMALL_PARAMS, "loop": {"num_rounds": 1}}))
    assert run(fake, SUBMIT[:4], "--num-parts", "2") == 0
    (sent,) = fake.asked("POST", "/runs")
    tasks = sent.body["pipeline_spec"]["pipeline_spec"]["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert "merge-costs" in tasks and "merge-costs-2" not in tasks
    assert "a cluster cannot pull this image" in caplog.text


@pytest.mark.parametrize("state", ["FAILED", "CANCELED"])
def test_wait_ends_as_the_run_does(fake: FakePipelines, capsys: pytest.CaptureFixture[str], state: str) -> None:
    wait = ["--wait", "--poll-seconds", "0.01", "--patience-minutes", "5"]
    fake.states = ["PENDING", "RUNNING", "SUCCEEDED"]
    assert run(fake, SUBMIT, *wait) == 0
    assert len(fake.asked("GET", "/runs/r1")) == 3
    assert "SUCCEEDED: a run" in capsys.readouterr().out
    fake.states, fake.error = ["RUNNING", state], "the benchmark ran out\nof memory"
    assert run(fake, SUBMIT, *wait) == 1
    line = the_line(capsys)
    assert f"run r1 ended as {state}." in line and "the benchmark ran out of memory" in line
    assert f"{fake.url}/#/runs/details/r1" in line
    assert ("Failed: loop." in line) == (state == "FAILED")


def test_patience_has_an_end(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.states = ["RUNNING"]
    words = ["--wait", "--poll-seconds", "0.01", "--patience-minutes", "0.001"]
    assert run(fake, SUBMIT, *words) == 1
    assert "is RUNNING after 0.06 s. It goes on" in the_line(capsys)


def test_a_schedule_is_a_recurring_run(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "schedule", *SUBMIT[2:], "--run-name", "weekly", "--cron"]
    assert run(fake, [*words, "0 3 * * 0"]) == 0
    assert "recurring run: rr1" in capsys.readouterr().out
    (sent,) = fake.asked("POST", "/recurringruns")
    assert sent.body["trigger"]["cron_schedule"]["cron"] == "0 0 3 * * 0"  # Kubeflow's begin with the seconds
    assert int(sent.body["max_concurrency"]) == 1 and sent.body["no_catchup"] is True
    assert (sent.body["display_name"], sent.body["experiment_id"]) == ("weekly", "e1")
    assert sent.body["service_account"] == "evenshard-runner"
    assert run(fake, [*words, "weekly"]) == 2
    assert "has 1 fields" in the_line(capsys)


def test_status_tells_the_state(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.states = ["RUNNING"]
    assert run(fake, STATUS) == 0
    assert capsys.readouterr().out.startswith("RUNNING: a run\n")
    assert run(fake, STATUS, "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "RUNNING"
    fake.states = ["FAILED"]
    assert run(fake, STATUS) == 1


def test_the_token_is_read_anew_for_each_call(fake: FakePipelines, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    fake.token = "first"
    endpoint = remote.Endpoint(fake.url, "team-a", token)
    connected = remote.Remote(endpoint)
    assert connected.status("r1").state == "SUCCEEDED"
    token.write_text("second")
    fake.token = "second"
    assert connected.status("r1").state == "SUCCEEDED"


def test_a_pod_brings_its_own_token(fake: FakePipelines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "projected").write_text("of the pod")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "projected"))
    fake.token = "of the pod"
    assert run(fake, STATUS) == 0


def test_an_expired_token_is_named(fake: FakePipelines, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.token = "new"
    (tmp_path / "old").write_text("old")
    assert run(fake, STATUS, "--token-file", "old") == 2
    line = the_line(capsys)
    assert "does not accept the token in old (401): token has expired" in line and "--token-file" in line
    assert run(fake, STATUS) == 2
    assert "a call without a token (401)" in the_line(capsys)
    assert len(fake.requests) == 2  # nothing was tried again
    (tmp_path / "two").write_text("not one\n")
    assert run(fake, STATUS, "--token-file", "two") == 2
    assert "holds no token" in the_line(capsys) and len(fake.requests) == 2


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        (400, 2, "refuses it (400): told to answer 400. Correct what it names"),
        (403, 2, "not allowed in namespace team-a (403)"),
        (404, 2, "not found at"),
    ],
)
def test_a_refusal_is_bad_input(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], status: int, code: int, why: str
) -> None:
    fake.failures["POST /runs"] = [status]
    assert run(fake, SUBMIT) == code
    assert why in the_line(capsys)
    assert len(fake.asked("POST", "/runs")) == 1


def test_a_run_that_is_not_there(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fake, ["pipeline", "status", "r9", "--namespace", "team-a"]) == 2
    assert "run r9: not found" in the_line(capsys)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_looking_is_tried_again(fake: FakePipelines, capsys: pytest.CaptureFixture[str], status: int) -> None:
    fake.failures["GET /runs/r1"] = [status] * 3
    assert run(fake, STATUS) == 0
    fake.failures["GET /runs/r1"] = [status] * 4
    assert run(fake, STATUS) == 1
    assert f"is in trouble ({status}): told to answer {status}" in the_line(capsys)


def test_a_run_is_started_again_only_if_it_was_not_begun(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.failures["POST /runs"] = [503, 502]
    assert run(fake, SUBMIT) == 0
    assert len(fake.asked("POST", "/runs")) == 3
    fake.failures["POST /runs"] = [500]
    assert run(fake, SUBMIT) == 1
    assert len(fake.asked("POST", "/runs")) == 4
    assert "is in trouble (500)" in the_line(capsys)


def test_a_silent_server_is_given_up(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.failures["POST /runs"] = [0]
    assert run(fake, SUBMIT, "--timeout-seconds", "0.2") == 1
    line = the_line(capsys)
    assert "did not answer in time. It may have been done" in line
    assert len(fake.asked("POST", "/runs")) == 1
    fake.failures["GET /runs/r1"] = [0]
    assert run(fake, STATUS, "--timeout-seconds", "0.2") == 0
    asked = len(fake.asked("GET", "/runs/r1"))
    fake.failures["GET /runs/r1"] = [0] * 20
    assert run(fake, STATUS, "--timeout-seconds", "0.2") == 1
    assert len(fake.asked("GET", "/runs/r1")) == asked + 4, "nobody but us tries again"


def test_a_login_page_is_no_api(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.login_page = True
    assert run(fake, SUBMIT) == 2
    assert "answers, but not as Kubeflow Pipelines does" in the_line(capsys)


def test_nobody_at_the_address(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert main([*SUBMIT, "--endpoint", f"http://127.0.0.1:{port}"]) == 1
    assert f"http://127.0.0.1:{port} cannot be reached" in the_line(capsys)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (SUBMIT, "no endpoint"),
        ([*SUBMIT, "--endpoint", "kubeflow.example.com"], "is no address"),
        ([*SUBMIT, "--endpoint", "http://h", "--token-file", "none"], "no token can be read"),
        ([*SUBMIT, "--endpoint", "http://h", "--token-file", "pipeline.yaml"], "holds no token"),
        ([*SUBMIT[:-1], "none.yaml", "--endpoint", "http://h"], "none.yaml: no such file"),
    ],
)
def test_bad_input_is_told_before_anything_is_sent(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(words) == 2
    assert why in the_line(capsys)
    assert fake.requests == []
