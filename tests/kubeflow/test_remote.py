"""Wire-shape tests: what evenshard sends to Kubeflow Pipelines' v2beta1 API, and what it says about each answer.

The server is a stand-in (kfp_server.py): no cluster is behind it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenshard.cli import main
from evenshard.kubeflow import remote
from support.http_server import Request, answering
from support.kfp_server import FakePipelines, serving
from support.kubeflow_builders import SMALL_PARAMS, compiled

SUBMIT = ["pipeline", "submit", "--namespace", "team-a", "--package", "pipeline.yaml"]
STATUS = ["pipeline", "status", "r1", "--namespace", "team-a"]
WAIT = ["--wait", "--poll-seconds", "0.01"]
WORKFLOW = "evenshard-place-ptvzd"
POD = "evenshard-place-ptvzd-retry-system-container-impl-2412005322"


@dataclass
class Pipelines(FakePipelines):
    """The server, and the commands that talk to it."""

    capsys: pytest.CaptureFixture[str] | None = None

    def run(self, words: list[str], *more: str) -> int:
        return main([*words, "--endpoint", self.url, *more])

    def told(self, words: list[str], *more: str, code: int = 0) -> str:
        """What a command prints, or, if it shall fail, the line that says why."""
        assert self.run(words, *more) == code
        return self.line() if code else self.out()

    def out(self) -> str:
        assert self.capsys
        return self.capsys.readouterr().out

    def line(self) -> str:
        """What the command says; log lines reach stderr too where an earlier test has set up logging."""
        assert self.capsys is not None
        (line,) = [line for line in self.capsys.readouterr().err.splitlines() if line.startswith("evenshard ")]
        return line


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "params.yaml").write_text(yaml.safe_dump(SMALL_PARAMS))
    return compiled("place", folder / "params.yaml", folder / "pipeline.yaml")


@pytest.fixture
def fake(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Pipelines]:
    """The server; the working directory holds pipeline.yaml, and home is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_SA_TOKEN_PATH", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pipeline.yaml").write_bytes(package.read_bytes())
    make = remote.Endpoint.__init__
    monkeypatch.setattr(remote.Endpoint, "__init__", lambda *words, **named: make(*words, **named | {"backoff_s": 0.0}))
    monkeypatch.setattr(remote, "LISTED_AFTER_S", 0.0)
    server = Pipelines(capsys=capsys)
    with serving(server):
        yield server


def test_submit_makes_the_experiment_and_the_run(fake: Pipelines) -> None:
    words = ["--experiment", "tables", "--run-name", "first", "--set", "request={num_devices: 8}"]
    assert fake.told(SUBMIT, *words) == f"run: r1\n{fake.url}/#/runs/details/r1\n"
    (looked,) = fake.asked("GET", "/experiments")
    assert looked.query["namespace"] == "team-a"
    (experiment,) = fake.asked("POST", "/experiments")
    assert (experiment.body["display_name"], experiment.body["namespace"]) == ("tables", "team-a")
    (sent,) = fake.asked("POST", "/runs")
    assert (sent.body["experiment_id"], sent.body["display_name"]) == ("e1", "first")
    assert sent.body["service_account"] == "evenshard-runner"
    assert sent.body["runtime_config"]["parameters"] == {"request": {"num_devices": 8}}
    assert sent.body["pipeline_spec"]["pipeline_spec"]["pipelineInfo"]["name"] == "evenshard-place"
    assert "kubernetes" in sent.body["pipeline_spec"]["platform_spec"]["platforms"]
    assert not Path("home").exists()  # the SDK would keep the namespace there
    assert fake.run(SUBMIT, *words) == 0
    assert len(fake.asked("POST", "/experiments")) == 1
    assert {one.body["experiment_id"] for one in fake.asked("POST", "/runs")} == {"e1"}


def test_wait_ends_as_the_run_does(fake: Pipelines) -> None:
    fake.states = ["RUNNING"]
    told = fake.told(SUBMIT, *WAIT, "--patience-minutes", "0.001", code=1)
    assert "is still RUNNING after 0.06 s, and continues" in told
    fake.states, fake.requests = ["PENDING", "RUNNING", "SUCCEEDED"], []
    assert fake.run(SUBMIT, *WAIT, "--patience-minutes", "5") == 0
    assert len(fake.asked("GET", "/runs/r1")) == 3
    assert "SUCCEEDED: a run" in fake.out()
    page = f"See {fake.url}/#/runs/details/r1"
    command = "kubectl -n team-a logs -c main $(kubectl -n team-a get pods -o name | grep 2412005322)"
    failed = f"run r1 ended as FAILED. place failed in the pod whose name ends with 2412005322: `{command}`. {page}"
    for state, line in (("FAILED", failed), ("CANCELED", f"run r1 was stopped. {page}")):
        fake.states = ["RUNNING", state]
        assert fake.told(SUBMIT, *WAIT, code=1) == f"evenshard pipeline failed: {line}"


@pytest.mark.parametrize(
    ("history", "stopped"),
    [
        (["PENDING", "RUNNING", "CANCELING"], True),
        (["PENDING", "RUNNING"], False),
        (["RUNNING", "CANCELING", "FAILED", "RUNNING"], False),  # tried again
    ],
)
def test_a_stopped_run_has_not_failed(fake: Pipelines, history: list[str], stopped: bool) -> None:
    """Kubeflow Pipelines ends it as FAILED."""
    fake.states, fake.history = ["FAILED"], history
    line = fake.told(STATUS, code=1)
    assert ("run r1 was stopped. See" if stopped else "run r1 ended as FAILED. place failed") in line
    assert fake.run(STATUS, "--json") == 1
    assert json.loads(fake.out())["state"] == ("CANCELED" if stopped else "FAILED")


def test_a_schedule_is_a_recurring_run(fake: Pipelines) -> None:
    words = ["pipeline", "schedule", *SUBMIT[2:], "--run-name", "weekly", "--cron"]
    assert "recurring run: rr1" in fake.told([*words, "0 3 * * 0"])
    (sent,) = fake.asked("POST", "/recurringruns")
    assert sent.body["trigger"]["cron_schedule"]["cron"] == "0 0 3 * * 0"  # Kubeflow's begin with the seconds
    assert int(sent.body["max_concurrency"]) == 1 and sent.body["no_catchup"] is True
    assert (sent.body["display_name"], sent.body["experiment_id"]) == ("weekly", "e1")
    assert sent.body["service_account"] == "evenshard-runner"
    assert "has 1 fields" in fake.told([*words, "weekly"], code=2)


def test_a_recurring_run_is_deleted_by_its_name(fake: Pipelines) -> None:
    schedule = ["pipeline", "schedule", *SUBMIT[2:], "--cron", "0 3 * * 0", "--run-name"]
    unschedule = ["pipeline", "unschedule", *SUBMIT[2:4]]
    for name in (["weekly"], ["daily"], ["daily"], ["weekly", "--experiment", "other"]):
        assert fake.run([*schedule, *name]) == 0
    assert fake.run([*unschedule, "weekly"]) == 0
    assert fake.out().splitlines()[-1].startswith("deleted: recurring run rr1.")
    assert set(fake.recurring) == {"rr2", "rr3", "rr4"}
    line = fake.told([*unschedule, "daily"], code=2)
    assert "2 recurring runs in experiment evenshard are called 'daily'; the experiment has daily (rr2), daily" in line
    assert fake.run([*unschedule, "rr3"]) == 0
    assert set(fake.recurring) == {"rr2", "rr4"}
    line = fake.told([*unschedule, "weekly", "--experiment", "another"], code=2)
    assert "in experiment another are called 'weekly'; the experiment has none." in line
    assert "another" not in {one["display_name"] for one in fake.experiments.values()}


def test_a_run_in_progress_outlives_its_schedule(fake: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recurring run owns its workflow: it is paused until the run has ended, and deleted then."""
    weekly = ["pipeline", "schedule", *SUBMIT[2:], "--cron", "0 3 * * 0", "--run-name", "weekly"]
    assert fake.run(weekly) == 0
    words = [*SUBMIT[2:4], "weekly"]
    fake.runs = [
        {"run_id": "r7", "experiment_id": "e1", "recurring_run_id": "rr9", "state": "RUNNING"},  # another's
        {"run_id": "r8", "experiment_id": "e1", "recurring_run_id": "rr1", "state": "FAILED"},
        {"run_id": "r9", "experiment_id": "e1", "recurring_run_id": "rr1", "state": "CANCELING"},
    ]
    line = fake.told(["pipeline", "unschedule", *words], code=1)
    assert "recurring run rr1 is paused, not deleted: its run r9 is in progress. Unschedule" in line
    assert fake.recurring["rr1"]["status"] == "DISABLED"
    for command, told, status in (("resume", "resumed", "ENABLED"), ("pause", "paused", "DISABLED")):
        assert fake.told(["pipeline", command, *words]) == f"{told}: recurring run rr1\n"
        assert fake.recurring["rr1"]["status"] == status
    fake.runs[2]["state"] = "SUCCEEDED"
    assert fake.run(["pipeline", "unschedule", *words]) == 0
    assert fake.recurring == {}
    assert fake.run(weekly) == 0
    fake.runs[2]["state"] = "RUNNING"
    assert fake.run(["pipeline", "unschedule", *words, "--force"]) == 0
    assert fake.recurring == {}
    assert fake.run(weekly) == 0
    late, fake.runs = fake.runs[2:], []
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: fake.runs.extend(late))
    assert fake.run(["pipeline", "unschedule", *words]) == 1  # the API knows of a new run some seconds later


def test_a_run_is_stopped_once(fake: Pipelines) -> None:
    stop = ["pipeline", "stop", *STATUS[2:]]
    fake.states = ["RUNNING", "CANCELED"]
    assert fake.told(stop) == f"run r1 is stopping; it was RUNNING\n{fake.url}/#/runs/details/r1\n"
    assert fake.told(stop).startswith("run r1 had already ended: CANCELED\n")
    assert len(fake.asked("POST", "/runs/r1:terminate")) == 1
    assert fake.run([*stop[:2], "r9", *stop[3:]]) == 2


def test_status_tells_the_state_and_the_tasks(fake: Pipelines) -> None:
    fake.states, page = ["RUNNING"], f"{fake.url}/#/runs/details/r1"
    done = "done: generate-tables, benchmark (2), merge-costs, train-cost, train-policy"
    assert fake.told(STATUS) == f"RUNNING: a run\n{done}; running: benchmark-2 (2)\n{page}\n"
    found = json.loads(fake.told(STATUS, "--json"))
    assert (found["state"], found["recorded_until"], found["url"]) == ("RUNNING", None, page)
    assert (found["tasks"][-1]["name"], found["tasks"][-1]["state"]) == ("benchmark-2", "RUNNING")
    fake.states = ["PENDING"]
    assert fake.told(STATUS) == f"PENDING: a run\n{page}\n"


def test_a_pod_that_does_not_start_is_told(fake: Pipelines, caplog: pytest.LogCaptureFixture) -> None:
    fake.states, fake.running = ["RUNNING"], ("place_failed", "04:17:25", 60.0)
    out = fake.told(STATUS)
    assert "done: importer; waiting: place\n" in out and "minutes" not in out
    note = "place has not started for 6 minutes: its pod may fit no node, or its image is still being pulled."
    note += " Check with `kubectl -n team-a get events --field-selector type=Warning`"
    fake.running = ("place_failed", "04:16:25", 0.0)  # what prepares a group is named only if it does not start
    assert "root" not in fake.told(STATUS)
    fake.running = ("place_failed", "04:16:25", 360.0)
    assert "waiting: root-driver\nroot-driver has not started for 6 minutes" in fake.told(STATUS)
    fake.states, fake.running = ["RUNNING", "RUNNING", "SUCCEEDED"], ("place_failed", "04:17:25", 360.0)
    assert fake.run(SUBMIT, *WAIT) == 0
    logged = [record.message for record in caplog.records if record.name == "evenshard.cli.pipeline"]
    assert logged == ["done: importer; waiting: place", note]


@pytest.mark.slow
def test_the_last_answer_has_all_tasks(fake: Pipelines) -> None:
    """Kubeflow Pipelines says that a run has ended a moment before it says so of the last tasks."""
    at_its_end, later = ("place_succeeded", "04:27:04"), ("place_succeeded", "04:27:05")
    fake.finished_at = datetime.now(UTC)
    for words in ([*SUBMIT, *WAIT], STATUS):
        fake.states, fake.ended = ["SUCCEEDED"], [at_its_end, at_its_end, later]
        assert "done: importer, place, record-outcome\nhttp" in fake.told(words)
        assert fake.ended == [later]
    fake.ended, fake.finished_at = [(*at_its_end, 60.0)], datetime.now(UTC) - timedelta(seconds=59.5)
    assert fake.run(STATUS) == 0  # nothing more comes
    assert "Kubeflow Pipelines stopped recording tasks at" in fake.out()


@dataclass
class Kubernetes:
    """What Kubernetes knows of the one pod that it has, with the log of its container ``main``, and of its workflow."""

    status: dict[str, Any] = field(default_factory=dict)  # of the pod; empty where none was made
    spec: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    workflow: dict[str, Any] | None = None  # its status; None where it may not be read

    def answer(self, request: Request) -> tuple[int, Any]:
        if request.path == f"/api/v1/namespaces/team-a/pods/{POD}/log":
            assert request.query["container"] == "main"
            return 200, self.log
        if request.path == f"/apis/argoproj.io/v1alpha1/namespaces/team-a/workflows/{WORKFLOW}":
            return (403, {}) if self.workflow is None else (200, {"status": self.workflow})
        assert request.path == "/api/v1/namespaces/team-a/pods"
        assert request.query["labelSelector"] == f"workflows.argoproj.io/workflow={WORKFLOW}"
        pod = {"metadata": {"name": POD}, "spec": {"containers": [], **self.spec}, "status": self.status}
        pods = [pod] if self.status else []
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """Kubernetes' API, which a kubeconfig leads to."""
    known = Kubernetes()
    with answering(known.answer) as url:
        named = {"clusters": {"server": url}, "users": {}, "contexts": {"cluster": "one", "user": "one"}}
        config = {key: [{"name": "one", key.removesuffix("s"): value}] for key, value in named.items()}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**config, "current-context": "one"}))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield known


QUOTA = f'pods "{POD}" is forbidden: exceeded quota: evenshard, requested: requests.memory=8256Mi'


@pytest.mark.parametrize("compressed", [False, True])
def test_a_pod_that_a_quota_refuses_is_explained(fake: Pipelines, cluster: Kubernetes, compressed: bool) -> None:
    """No such pod is ever made: Argo has the reason, in the workflow."""
    nodes = {f"{WORKFLOW}-2412005322": {"phase": "Pending", "message": QUOTA}, WORKFLOW: {"phase": "Running"}}
    packed = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
    cluster.workflow = {"compressedNodes": packed} if compressed else {"nodes": nodes}
    fake.states, fake.running = ["RUNNING"], ("place_failed", "04:17:25", 360.0)
    assert fake.run(STATUS) == 0
    said = fake.out()
    assert f"waiting: place\nplace has not started for 6 minutes, and has no pod: {QUOTA}\n" in said
    cluster.workflow = None
    assert "place has not started for 6 minutes" in fake.told(STATUS)


# The end of a log: Kubeflow's executor, its launcher, and Argo's executor write there.
LOG = """\
I1128 19:44:38.100000      12 launcher_v2.go:199] publish success.
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/usr/lib/python3/site-packages/evenshard/tables/files.py", line 88, in load
    raise BadFile(path, "no such file", "Check the path.")
{error}
F1128 19:44:40.200000      12 main.go:59] failed to execute component: exit status 1
time="2026-11-28T19:44:40.300Z" level=info msg="sub-process exited" argo=true error="<nil>"
Error: exit status 1
"""
BAD_INPUT = "s3://evenshard/data/none.csv: no such file. Check the path."


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (LOG.format(error=f"evenshard.base.errors.BadFile: {BAD_INPUT}"), BAD_INPUT[:-1]),
        (LOG.format(error="IndexError: out of range"), "IndexError: out of range"),
        (  # a stage that measures on a GPU runs in a process of its own
            f"evenshard benchmark: {BAD_INPUT}\n"
            + LOG.format(error="evenshard.base.errors.BadConfig: benchmark: bad input. See the log above."),
            BAD_INPUT[:-1],
        ),
        ("Error: exit status 1\n", "Error, exit code 1"),
    ],
)
def test_the_log_of_a_failed_pod_says_why(fake: Pipelines, cluster: Kubernetes, log: str, why: str) -> None:
    cluster.status.update(phase="Failed", containerStatuses=[ended(1, "Error")])
    cluster.log, fake.states = log, ["RUNNING", "FAILED"]
    line = fake.told(SUBMIT, *WAIT, code=1)
    assert f"place failed in pod {POD} ({why}): `kubectl -n team-a logs {POD} -c main`. See" in line


MAIN = {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0}
UNSCHEDULED = {"type": "PodScheduled", "status": "False"}


@pytest.mark.parametrize(
    ("says", "gate", "why"),
    [
        ({"conditions": [{**UNSCHEDULED, "reason": "Unschedulable", "message": "0/1 nodes are available."}]}, "",
         "Unschedulable: 0/1 nodes are available"),
        ({"containerStatuses": [{**MAIN, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "none"}}}]},
         "", "ImagePullBackOff: none"),
        ({"conditions": [{**UNSCHEDULED, "reason": "SchedulingGated", "message": "blocked"}]},
         "kueue.x-k8s.io/admission", "Kueue has not admitted the pod: see `kubectl describe workloads`"),
        ({"conditions": [{**UNSCHEDULED, "reason": "SchedulingGated", "message": "blocked"}]},
         "example.com/other", "held by the scheduling gate example.com/other"),
    ],
)  # fmt: skip
def test_kubernetes_says_why_a_pod_does_not_start(
    fake: Pipelines, cluster: Kubernetes, says: dict[str, Any], gate: str, why: str
) -> None:
    fake.states, fake.running = ["RUNNING"], ("place_failed", "04:17:25", 360.0)
    cluster.status = {"phase": "Pending", **says}
    cluster.spec = {"schedulingGates": [{"name": gate}]} if gate else {}
    assert f"place has not started for 6 minutes. Its pod {POD}: {why}\n" in fake.told(STATUS)
    cluster.status, cluster.spec = {"phase": "Running"}, {}  # which Kubeflow Pipelines has not noted yet
    assert "running: place\nhttp" in fake.told(STATUS)


def ended(code: int, reason: str) -> dict[str, Any]:
    """What Kubernetes says of a container that has ended."""
    return {**MAIN, "state": {"terminated": {"exitCode": code, "reason": reason}}}


# What Kubernetes says of a pod that the kubelet has evicted; of a node that is shut down, the reason is Terminated.
EVICTED: dict[str, Any] = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "The node was low on resource: memory.",
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
}


@pytest.mark.parametrize("reason", ["Evicted", "Terminated"])
def test_a_run_that_lost_a_pod_to_an_eviction_is_tried_again(
    fake: Pipelines, cluster: Kubernetes, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    cluster.status.update({**EVICTED, "reason": reason})
    fake.states = ["RUNNING", "FAILED", "SUCCEEDED"]
    assert fake.run(SUBMIT, *WAIT) == 0
    assert len(fake.asked("POST", "/runs/r1:retry")) == len(fake.asked("POST", "/runs")) == 1
    assert f"place lost its pod ({reason}: The node was low on resource: memory). The run is retried" in caplog.text


def test_it_is_tried_again_as_often_as_a_pod_would_be(fake: Pipelines, cluster: Kubernetes) -> None:
    cluster.status.update(EVICTED)
    fake.states = ["FAILED"]
    assert "run r1 ended as FAILED. place failed in pod" in fake.told(SUBMIT, *WAIT, code=1)
    assert fake.run(STATUS) == 1  # who looks changes nothing
    assert len(fake.asked("POST", "/runs/r1:retry")) == 2


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"containerStatuses": [ended(137, "OOMKilled")]}, f"failed in pod {POD} (OOMKilled, exit code 137): `kubectl"),
        ({"reason": "DeadlineExceeded", "message": "too long"}, f"failed in pod {POD} (DeadlineExceeded: too long): "),
        ({"containerStatuses": "torn"}, "whose name ends with 2412005322"),  # an answer that cannot be read is none
        (None, "whose name ends with 2412005322"),  # no pod of that name is there any more
    ],
)
def test_a_run_that_failed_by_itself_says_why_and_is_not_tried_again(
    fake: Pipelines, cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any] | None, why: str
) -> None:
    if status is None:
        monkeypatch.setenv("KUBECONFIG", "none")
    else:
        cluster.status.update(phase="Failed", **status)
    fake.states = ["FAILED"]
    assert why in fake.told(SUBMIT, *WAIT, code=1)
    assert not fake.asked("POST", "/runs/r1:retry")


def test_a_retry_that_is_refused_leaves_the_failure(
    fake: Pipelines, cluster: Kubernetes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.status.update(EVICTED)
    fake.states, fake.failures["POST /runs/r1:retry"] = ["FAILED"], [403]
    assert fake.run(SUBMIT, *WAIT) == 1
    assert "not allowed in namespace team-a (403)" in caplog.text
    assert "place failed in pod" in fake.line()
    # of one whose answer was lost, the run goes on
    fake.states, fake.failures["POST /runs/r1:retry"] = ["FAILED", "RUNNING", "SUCCEEDED"], [500, 400]
    assert fake.run(SUBMIT, *WAIT) == 0


def test_the_token_is_read_again_for_each_call(fake: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    token = Path("token")
    token.write_text("first\n")
    fake.token = "first"
    connected = remote.Remote(remote.Endpoint("team-a", fake.url, token))
    assert connected.status("r1").state == "SUCCEEDED"
    token.write_text("second")
    fake.token = "second"
    assert connected.status("r1").state == "SUCCEEDED"
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(token))  # of a pod
    assert fake.run(STATUS) == 0


def test_an_expired_token_is_named(fake: Pipelines) -> None:
    fake.token = "new"
    Path("old").write_text("old")
    assert fake.run(STATUS, "--token-file", "old") == 2
    line = fake.line()
    assert "does not accept the token in old (401): token has expired" in line and "--token-file" in line
    assert "a call without a token (401)" in fake.told(STATUS, code=2)
    assert len(fake.requests) == 2  # nothing was tried again


def test_who_waits_does_not_mind_a_401_for_a_moment(fake: Pipelines, caplog: pytest.LogCaptureFixture) -> None:
    """Kubeflow Pipelines answers so while it cannot ask Kubernetes whose token it is."""
    wait = [*SUBMIT, *WAIT]
    fake.states, fake.failures["GET /runs/r1"] = ["RUNNING", "SUCCEEDED"], [401] * 5
    assert "SUCCEEDED: a run" in fake.told(wait)
    assert caplog.messages.count("Kubeflow Pipelines failed (401); retrying") == 5
    fake.failures["GET /runs/r1"] = [401] * 6
    assert "does not accept a call without a token (401)" in fake.told(wait, code=2)


def test_a_refusal_is_bad_input(fake: Pipelines) -> None:
    for status, why in (
        (400, "rejects the call (400): told to answer 400. Correct the value"),
        (403, "not allowed in namespace team-a (403)"),
        (404, "not found at"),
    ):
        fake.failures["POST /runs"], fake.requests = [status], []
        assert why in fake.told(SUBMIT, code=2)
        assert len(fake.asked("POST", "/runs")) == 1


def test_looking_is_tried_again_and_a_run_is_started_again_only_if_it_was_not_begun(fake: Pipelines) -> None:
    for status in (500, 503):
        fake.failures["GET /runs/r1"] = [status] * 5
        assert fake.run(STATUS) == 0
        fake.failures["GET /runs/r1"] = [status] * 6
        assert f"failed with status {status}: told to answer {status}" in fake.told(STATUS, code=1)
    fake.failures["POST /runs"], fake.failures["POST /experiments"] = [503, 502, 429, 503, 503], [503]
    assert fake.run(SUBMIT) == 0
    assert len(fake.asked("POST", "/runs")) == 6
    fake.failures["POST /runs"] = [500]
    assert "failed with status 500" in fake.told(SUBMIT, code=1)
    assert len(fake.asked("POST", "/runs")) == 7


@pytest.mark.slow
def test_a_silent_server_is_given_up(fake: Pipelines) -> None:
    fake.failures["POST /runs"] = [0]
    line = fake.told(SUBMIT, "--timeout-seconds", "1", code=1)
    assert "did not answer in time. The call may have succeeded" in line
    assert len(fake.asked("POST", "/runs")) == 1
    fake.failures["GET /runs/r1"] = [0] * 20
    assert fake.run(STATUS, "--timeout-seconds", "1") == 1
    assert len(fake.asked("GET", "/runs/r1")) == 4


def test_what_is_no_api_is_told(fake: Pipelines) -> None:
    fake.login_page = True
    assert "does not answer like Kubeflow Pipelines" in fake.told(STATUS, code=2)
    assert main([*STATUS, "--endpoint", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1 cannot be reached" in fake.line()


def test_bad_input_is_told_before_anything_is_sent(fake: Pipelines) -> None:
    for words, why in (
        (["--endpoint", "kubeflow.example.com"], "is not an address"),
        (["--endpoint", "http://h", "--token-file", "none"], "no token can be read"),
        (["--endpoint", "http://h", "--token-file", "pipeline.yaml"], "contains no token"),
        (["--endpoint", "http://h", "--package", "none.yaml"], "none.yaml: no such file"),
    ):
        assert main([*SUBMIT, *words]) == 2
        assert why in fake.line()
    assert fake.requests == []
