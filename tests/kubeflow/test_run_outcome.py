"""How a run ends, as its exit handler finds out: real runs, as the API of Kubeflow Pipelines showed them to it."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from kubernetes.config import incluster_config

from evenshard.kubeflow import run_outcome
from evenshard.kubeflow.run_outcome import query_run
from evenshard.tracking.runs import StageRun, _open
from evenshard_components.record_outcome.component import record_outcome
from support.http_server import Request, answering
from support.kfp_server import FakePipelines, as_asked, serving
from support.tracking_builders import runs_of

Start = Callable[..., FakePipelines]
STAGES = ("generate-tables", "benchmark", "train-cost", "train-policy", "evaluate")
NOT_RECORDED = "Kubeflow Pipelines has not recorded how the tasks ended"
ACCOUNT = {"namespace": "team-a", "serviceaccount": {"name": "evenshard-runner", "uid": "1"}}
_CLAIMS = base64.urlsafe_b64encode(json.dumps({"kubernetes.io": ACCOUNT}).encode()).decode().rstrip("=")
OWN_TOKEN = f"header.{_CLAIMS}.signature"  # of a pod's account, as the kubelet projects it
GIVEN = {
    "spec": {"audiences": ["pipelines.kubeflow.org"], "expirationSeconds": 600, "boundObjectRef": None},
    "status": {"token": "for kubeflow", "expirationTimestamp": "2026-11-28T20:00:00Z"},
}


@contextmanager
def kubernetes(folder: Path, patch: pytest.MonkeyPatch, allowed: bool = True) -> Iterator[list[Request]]:
    """Kubernetes' API by TLS, with the account's files in ``folder``; yields what it was asked."""
    asked: list[Request] = []

    def answer(request: Request) -> tuple[int, Any]:
        asked.append(request)
        return (201, GIVEN) if allowed else (403, {"message": "forbidden"})

    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(OWN_TOKEN)
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=kubernetes"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.crt"]
    subprocess.run([*words.split(), *names], cwd=folder, check=True, capture_output=True)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    with answering(answer, served) as url:
        for key, value in zip(("HOST", "PORT"), url.removeprefix("https://").split(":"), strict=True):
            patch.setenv(f"KUBERNETES_SERVICE_{key}", value)
        yield asked


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own, and no pauses."""
    for name in ("KF_PIPELINES_SA_TOKEN_PATH", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "wf")
    monkeypatch.setenv("KUBECONFIG", "none")
    for name, file in (("TOKEN", "token"), ("CERT", "ca.crt")):
        monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(tmp_path / "account" / file))
    monkeypatch.setattr(run_outcome.time, "sleep", lambda seconds: None)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Lets an API answer so, which the pod is told of."""
    with serving(FakePipelines()) as fake:
        monkeypatch.setenv("KF_PIPELINES_API", fake.url)

        def start(*recorded: Any, token: str | None = None) -> FakePipelines:
            fake.recorded, fake.token = list(recorded), token
            return fake

        yield start


@pytest.mark.parametrize(
    ("name", "state", "failed", "cached", "ran"),
    [
        ("termrun", "CANCELED", ("benchmark",), STAGES[:1], ()),
        ("evictrun", "FAILED", ("train-cost",), STAGES[:1], ("benchmark",)),
        ("cache2", "SUCCEEDED", (), STAGES, ()),
        ("retrain1", "SUCCEEDED", (), (), ("drift",)),  # whose last branch was skipped
    ],
)
def test_the_outcome_is_that_of_the_recorded_run(
    answers: Start, name: str, state: str, failed: Any, cached: Any, ran: Any
) -> None:
    answers(as_asked(name))
    seen = query_run("id-7")
    assert (seen.state, seen.failed, seen.cached, seen.ran) == (state, failed, cached, ran)
    assert seen.problem == ""


def test_what_is_not_noted_is_asked_for_again(answers: Start) -> None:
    answers(503, {"run_id": "id-7", "state": "RUNNING"}, as_asked("evictrun"))
    assert query_run("id-7").state == "FAILED"
    fake = answers(as_asked("parts2"))  # a run in two parts has more nodes than are ever noted
    fake.requests.clear()
    seen = query_run("id-7")
    assert (seen.state, seen.problem) == ("UNKNOWN", NOT_RECORDED)
    assert len(fake.requests) == 1 + len(run_outcome.PAUSES_S)
    answers(403)
    seen = query_run("id-7")
    assert seen.state == "UNKNOWN" and "did not return the state of the run: 403 Forbidden" in seen.problem


def test_for_a_pipeline_on_this_machine_nobody_is_asked(answers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook of the cluster neither, where there is an API to ask."""
    fake = answers(as_asked("termrun"))
    monkeypatch.setenv("EVENSHARD_LOOP_ID", "local-1a2b")
    assert query_run("id-7") == run_outcome.RunReport()
    monkeypatch.delenv("EVENSHARD_LOOP_ID")
    assert query_run("id-7") == run_outcome.RunReport() and fake.requests == []


def test_kubernetes_gives_the_pod_a_token_for_kubeflow(
    answers: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = answers({"run_id": "id-7", "state": "CANCELING"}, token="for kubeflow")
    with kubernetes(tmp_path / "account", monkeypatch) as asked:
        assert query_run("id-7").state == "CANCELED"
        path = "/api/v1/namespaces/team-a/serviceaccounts/evenshard-runner/token"
        body = {"spec": {"audiences": ["pipelines.kubeflow.org"], "expirationSeconds": 600}}
        assert asked == [Request("POST", path, {}, f"bearer {OWN_TOKEN}", body)]
    fake.token = None
    with kubernetes(tmp_path / "account", monkeypatch, allowed=False) as asked:
        assert query_run("id-7").state == "CANCELED"  # by a Kubeflow without users
    assert len(asked) == 1 and fake.requests[-1].token is None
    (tmp_path / "projected").write_text("of a volume\n")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "projected"))
    fake.token = "of a volume"
    assert query_run("id-7").state == "CANCELED"


def record(folder: Path, told: str) -> None:
    outputs = {one: dsl.Artifact(name=one, uri=str(folder / one)) for one in ("outcome", "summary")}
    status = dsl.PipelineTaskFinalStatus(told, "run-7", "exit-handler-1", None, None)
    record_outcome.python_func(status=status, run_id="id-7", **outputs)


@pytest.mark.parametrize(
    ("name", "told", "state", "because"),
    [
        ("evictrun", "RUNNING", "FAILED", "train-cost failed; from the cache: generate-tables"),
        ("termrun", "RUNNING", "CANCELED", "benchmark was stopped; from the cache: generate-tables"),
        ("parts2", "COMPLETE", "SUCCEEDED", f"{NOT_RECORDED}; the exit handler received COMPLETE"),
        (
            "parts2",
            "RUNNING",
            "UNKNOWN",
            f"{NOT_RECORDED}; the exit handler received RUNNING, which it also receives from successful runs",
        ),
    ],
)
def test_the_component_says_what_it_found(
    answers: Start, tmp_path: Path, name: str, told: str, state: str, because: str
) -> None:
    answers(as_asked(name))
    record(tmp_path, told)
    assert (tmp_path / "summary").read_text() == f"**{state}**: run-7 ({because}). See id-7\n"
    found = json.loads((tmp_path / "outcome").read_text())
    assert (found["state"], found["said"]) == (state, told) and found["seen"]["problem"] in because


def begin(stage: str) -> StageRun:
    run = _open(stage, {"loop": {"num_rounds": 1}}, {})
    run.start()
    return run


def states_in(client: Any) -> dict[str, str]:
    return {name: run.info.status for name, run in runs_of(client).items()}


@pytest.mark.tracked
@pytest.mark.parametrize(
    ("name", "stages", "left"),
    [
        ("termrun", {"benchmark_1": "RUNNING"}, {"loop-wf": "KILLED", "benchmark_1": "KILLED"}),
        ("cache2", {}, {"loop-wf": "FINISHED"}),
        ("parts2", {"benchmark_1": "FINISHED", "train_cost_1": "RUNNING"},
         {"loop-wf": "FAILED", "benchmark_1": "FINISHED", "train_cost_1": "FAILED"}),
        ("parts2", {"benchmark_1": "FINISHED"}, {"loop-wf": "FINISHED", "benchmark_1": "FINISHED"}),
        ("parts2", {}, {}),
    ],
)  # fmt: skip
def test_mlflow_has_the_loop_and_its_stages_as_they_ended(
    answers: Start, client: Any, tmp_path: Path, name: str, stages: dict[str, str], left: dict[str, str]
) -> None:
    """Told RUNNING, as the handlers of all of these were or may have been."""
    for stage, ended in stages.items():
        run = begin(stage)
        if ended != "RUNNING":
            run.end(ended)
    assert states_in(client) == ({"loop-wf": "RUNNING", **stages} if stages else {})
    answers(as_asked(name))
    record(tmp_path, "RUNNING")
    assert states_in(client) == left
    if name == "cache2":
        assert runs_of(client)["loop-wf"].data.tags["evenshard.tasks_cached"] == ", ".join(STAGES)


@pytest.mark.tracked
def test_a_run_that_is_tried_again_ends_its_loop_although_its_handler_ran_before(
    answers: Start, client: Any, tmp_path: Path
) -> None:
    begin("benchmark_1").end("FINISHED")
    begin("train_cost_1")
    answers(as_asked("evictrun"))
    record(tmp_path, "RUNNING")
    assert states_in(client) == {"loop-wf": "FAILED", "benchmark_1": "FINISHED", "train_cost_1": "FAILED"}
    _open("train_cost_1", {"loop": {"num_rounds": 1}}, {}).end("FINISHED")
    loop = client.search_runs(["1"], "attributes.run_name = 'loop-wf'")[0].info.run_id
    assert client.get_run(loop).info.status == "FAILED"  # it may fail again
    begin("benchmark_2")  # in a pod that was ended
    run = begin("evaluate")
    run.conclude({"evenshard.mean_measured_ms": 1.5})
    run.end("FINISHED")
    assert client.get_run(loop).info.status == "FINISHED"
    assert client.get_run(loop).data.tags["evenshard.outcome"] == "SUCCEEDED"
    (ended,) = client.search_runs(["1"], "attributes.run_name = 'benchmark_2'")
    assert ended.info.status == "KILLED"
