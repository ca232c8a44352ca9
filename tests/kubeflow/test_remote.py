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
from support import kfp_server
from support.documented import command
from support.http_server import Request, answering
from support.kfp_server import FakePipelines, nodes_of, serving
from support.kubeflow_builders import SMALL_PARAMS, compiled

SUBMIT = ["pipeline", "submit", "--namespace", "team-a", "--package", "pipeline.yaml"]
STATUS = ["pipeline", "status", "r1", "--namespace", "team-a"]
WAIT = ["--wait", "--poll-seconds", "0.01"]
WORKFLOW = "evenshard-place-ptvzd"
POD = "evenshard-place-ptvzd-retry-system-container-impl-2412005322"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "params.yaml").write_text(yaml.safe_dump(SMALL_PARAMS))
    return compiled("place", folder / "params.yaml", folder / "pipeline.yaml")


@pytest.fixture
def fake(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePipelines]:
    """The server; the working directory holds pipeline.yaml, and home is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_SA_TOKEN_PATH", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pipeline.yaml").write_bytes(package.read_bytes())
    make = remote.Endpoint.__init__
    monkeypatch.setattr(remote.Endpoint, "__init__", lambda *words, **named: make(*words, **named | {"backoff_s": 0.0}))
    monkeypatch.setattr(remote, "LISTED_AFTER_S", 0.0)
    with serving(FakePipelines()) as server:
        yield server


def run(fake: FakePipelines, words: list[str], *more: str) -> int:
    return main([*words, "--endpoint", fake.url, *more])


def the_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says; log lines reach stderr too where an earlier test has set up logging."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("evenshard ")]
    return line


def test_submit_makes_the_experiment_and_the_run(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--experiment", "tables", "--run-name", "first", "--set", "request={num_devices: 8}"]
    assert run(fake, SUBMIT, *words) == 0
    assert capsys.readouterr().out == f"run: r1\n{fake.url}/#/runs/details/r1\n"
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
    assert run(fake, SUBMIT, *words) == 0
    assert len(fake.asked("POST", "/experiments")) == 1
    assert {one.body["experiment_id"] for one in fake.asked("POST", "/runs")} == {"e1"}


@pytest.mark.slow
def test_without_a_package_the_settings_are_compiled(fake: FakePipelines, caplog: pytest.LogCaptureFixture) -> None:
    Path("params.yaml").write_text(yaml.safe_dump({**SMALL_PARAMS, "loop": {"num_rounds": 1}}))
    assert run(fake, SUBMIT[:4], "--num-parts", "2") == 0
    (sent,) = fake.asked("POST", "/runs")
    tasks = sent.body["pipeline_spec"]["pipeline_spec"]["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert "merge-costs" in tasks and "merge-costs-2" not in tasks
    assert "a cluster cannot pull this image" in caplog.text


def test_wait_ends_as_the_run_does(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.states = ["PENDING", "RUNNING", "SUCCEEDED"]
    assert run(fake, SUBMIT, *WAIT, "--patience-minutes", "5") == 0
    assert len(fake.asked("GET", "/runs/r1")) == 3
    assert "SUCCEEDED: a run" in capsys.readouterr().out
    page = f"See {fake.url}/#/runs/details/r1"
    command = "kubectl -n team-a logs -c main $(kubectl -n team-a get pods -o name | grep 2412005322)"
    failed = f"run r1 ended as FAILED. place failed in the pod whose name ends with 2412005322: `{command}`. {page}"
    for state, line in (("FAILED", failed), ("CANCELED", f"run r1 was stopped. {page}")):
        fake.states = ["RUNNING", state]
        assert run(fake, SUBMIT, *WAIT) == 1
        assert the_line(capsys) == f"evenshard pipeline failed: {line}"


@pytest.mark.parametrize(
    ("history", "stopped"),
    [
        (["PENDING", "RUNNING", "CANCELING"], True),
        (["PENDING", "RUNNING"], False),
        (["RUNNING", "CANCELING", "FAILED", "RUNNING"], False),  # tried again
    ],
)
def test_a_stopped_run_has_not_failed(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], history: list[str], stopped: bool
) -> None:
    """Kubeflow Pipelines ends it as FAILED."""
    fake.states, fake.history = ["FAILED"], history
    assert run(fake, STATUS) == 1
    assert ("run r1 was stopped. See" if stopped else "run r1 ended as FAILED. place failed") in the_line(capsys)
    assert run(fake, STATUS, "--json") == 1
    assert json.loads(capsys.readouterr().out)["state"] == ("CANCELED" if stopped else "FAILED")


def test_patience_has_an_end(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.states = ["RUNNING"]
    assert run(fake, SUBMIT, *WAIT, "--patience-minutes", "0.001") == 1
    assert "is still RUNNING after 0.06 s, and continues" in the_line(capsys)


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


def test_a_recurring_run_is_deleted_by_its_name(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ["pipeline", "schedule", *SUBMIT[2:], "--cron", "0 3 * * 0", "--run-name"]
    unschedule = ["pipeline", "unschedule", *SUBMIT[2:4]]
    for name in (["weekly"], ["daily"], ["daily"], ["weekly", "--experiment", "other"]):
        assert run(fake, [*schedule, *name]) == 0
    assert run(fake, [*unschedule, "weekly"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("deleted: recurring run rr1.")
    assert set(fake.recurring) == {"rr2", "rr3", "rr4"}
    assert run(fake, [*unschedule, "daily"]) == 2
    assert (
        "2 recurring runs in experiment evenshard are called 'daily'; the experiment has daily (rr2), daily (rr3)"
        in (the_line(capsys))
    )
    assert run(fake, [*unschedule, "rr3"]) == 0
    assert set(fake.recurring) == {"rr2", "rr4"}
    assert run(fake, [*unschedule, "weekly", "--experiment", "another"]) == 2
    assert "in experiment another are called 'weekly'; the experiment has none." in the_line(capsys)
    assert "another" not in {one["display_name"] for one in fake.experiments.values()}


def test_a_run_in_progress_outlives_its_schedule(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recurring run owns its workflow: it is paused until the run has ended, and deleted then."""
    weekly = ["pipeline", "schedule", *SUBMIT[2:], "--cron", "0 3 * * 0", "--run-name", "weekly"]
    assert run(fake, weekly) == 0
    words = [*SUBMIT[2:4], "weekly"]
    fake.runs = [
        {"run_id": "r7", "experiment_id": "e1", "recurring_run_id": "rr9", "state": "RUNNING"},  # another's
        {"run_id": "r8", "experiment_id": "e1", "recurring_run_id": "rr1", "state": "FAILED"},
        {"run_id": "r9", "experiment_id": "e1", "recurring_run_id": "rr1", "state": "CANCELING"},
    ]
    assert run(fake, ["pipeline", "unschedule", *words]) == 1
    assert "recurring run rr1 is paused, not deleted: its run r9 is in progress. Unschedule" in the_line(capsys)
    assert fake.recurring["rr1"]["status"] == "DISABLED"
    assert run(fake, ["pipeline", "resume", *words]) == 0
    assert capsys.readouterr().out == "resumed: recurring run rr1\n" and fake.recurring["rr1"]["status"] == "ENABLED"
    assert run(fake, ["pipeline", "pause", *words]) == 0
    assert capsys.readouterr().out == "paused: recurring run rr1\n"
    assert fake.recurring["rr1"]["status"] == "DISABLED"
    fake.runs[2]["state"] = "SUCCEEDED"
    assert run(fake, ["pipeline", "unschedule", *words]) == 0
    assert fake.recurring == {}
    assert run(fake, weekly) == 0
    fake.runs[2]["state"] = "RUNNING"
    assert run(fake, ["pipeline", "unschedule", *words, "--force"]) == 0
    assert fake.recurring == {}
    assert run(fake, weekly) == 0
    late, fake.runs = fake.runs[2:], []
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: fake.runs.extend(late))
    assert run(fake, ["pipeline", "unschedule", *words]) == 1  # the API knows of a new run some seconds later


def test_a_run_is_stopped_once(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    stop = ["pipeline", "stop", *STATUS[2:]]
    fake.states = ["RUNNING", "CANCELED"]
    assert run(fake, stop) == 0
    assert capsys.readouterr().out == f"run r1 is stopping; it was RUNNING\n{fake.url}/#/runs/details/r1\n"
    assert len(fake.asked("POST", "/runs/r1:terminate")) == 1
    assert run(fake, stop) == 0
    assert capsys.readouterr().out.startswith("run r1 had already ended: CANCELED\n")
    assert len(fake.asked("POST", "/runs/r1:terminate")) == 1
    assert run(fake, [*stop[:2], "r9", *stop[3:]]) == 2


# Commands of docs/kubeflow.md: the pipeline, when it runs (with seconds first; None: at once), its parameters.
DOCUMENTED = {
    "pipeline schedule --cron": ("train", "0 0 3 * * 0", {}),
    "pipeline schedule --pipeline watch": (
        "watch",
        "0 0 5 * * *",
        {
            "traces": "s3://team-ads/job/traces",
            "in_use": "s3://team-ads/job/placement.json",
            "watch_request": {"steps": 2_000_000, "restart_minutes": 15},
        },
    ),
    "pipeline submit --pipeline place": (
        "place",
        None,
        {
            "tables": "s3://team-data/tables.parquet",
            "model_uri": "models:/evenshard-cost@champion",
            "request": {"num_devices": 8, "memory_cap_gb": 64, "hardware": "cuda", "allow_column_split": True},
        },
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("start", DOCUMENTED)
def test_documented_commands_send_their_pipeline_and_parameters(fake: FakePipelines, start: str) -> None:
    """All but the cluster behind it: the endpoint in place of the page's three dots is the stand-in."""
    name, cron, parameters = DOCUMENTED[start]
    Path("params.yaml").write_text(yaml.safe_dump(SMALL_PARAMS))
    words = command("docs/kubeflow.md", f"evenshard {start}")
    assert main([fake.url if word == "..." else word for word in words]) == 0
    (sent,) = fake.asked("POST", "/runs" if cron is None else "/recurringruns")
    assert cron is None or sent.body["trigger"]["cron_schedule"]["cron"] == cron
    given = sent.body["runtime_config"].get("parameters", {})
    assert {key: value for key, value in given.items() if not key.endswith("_hash")} == parameters
    (looked,) = fake.asked("GET", "/experiments")
    assert looked.query["namespace"] == "evenshard" and sent.body["service_account"] == "evenshard-runner"
    spec = sent.body["pipeline_spec"]["pipeline_spec"]
    assert spec["pipelineInfo"]["name"] == f"evenshard-{name}"
    asked_for = spec["root"]["inputDefinitions"]["parameters"]
    assert set(given) <= set(asked_for)
    assert {key for key, one in asked_for.items() if not one.get("isOptional")} <= set(given)


def test_status_tells_the_state_and_the_tasks(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.states, page = ["RUNNING"], f"{fake.url}/#/runs/details/r1"
    assert run(fake, STATUS) == 0
    done = "done: generate-tables, benchmark (2), merge-costs, train-cost, train-policy"
    assert capsys.readouterr().out == f"RUNNING: a run\n{done}; running: benchmark-2 (2)\n{page}\n"
    assert run(fake, STATUS, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["recorded_until"], found["url"]) == ("RUNNING", None, page)
    assert (found["tasks"][-1]["name"], found["tasks"][-1]["state"]) == ("benchmark-2", "RUNNING")
    fake.states = ["SUCCEEDED"]
    assert run(fake, STATUS) == 0
    assert capsys.readouterr().out == f"SUCCEEDED: a run\ndone: importer, place, record-outcome\n{page}\n"
    fake.states = ["PENDING"]
    assert run(fake, STATUS) == 0
    assert capsys.readouterr().out == f"PENDING: a run\n{page}\n"


def test_a_pod_that_does_not_start_is_told(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fake.states, fake.running = ["RUNNING"], ("place_failed", "04:17:25", 60.0)
    assert run(fake, STATUS) == 0
    out = capsys.readouterr().out
    assert "done: importer; waiting: place\n" in out and "minutes" not in out
    fake.running = ("place_failed", "04:17:25", 360.0)
    note = "place has not started for 6 minutes: its pod may fit no node, or its image is still being pulled."
    note += " Check with `kubectl -n team-a get events --field-selector type=Warning`"
    assert run(fake, STATUS) == 0
    assert f"\n{note}\n" in capsys.readouterr().out
    fake.running = ("place_failed", "04:16:25", 0.0)  # what prepares a group is named only if it does not start
    assert run(fake, STATUS) == 0
    assert "root" not in capsys.readouterr().out
    fake.running = ("place_failed", "04:16:25", 360.0)
    assert run(fake, STATUS) == 0
    assert "waiting: root-driver\nroot-driver has not started for 6 minutes" in capsys.readouterr().out
    fake.states, fake.running = ["RUNNING", "RUNNING", "SUCCEEDED"], ("place_failed", "04:17:25", 360.0)
    assert run(fake, SUBMIT, *WAIT) == 0
    logged = [record.message for record in caplog.records if record.name == "evenshard.cli.pipeline"]
    assert logged == ["done: importer; waiting: place", note]


def test_a_record_that_ends_is_told(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run of many nodes Kubeflow Pipelines keeps no more, while its pods go on."""
    fake.states, fake.running = ["RUNNING"], ("train_succeeded", "04:46:30", 0.0)
    assert run(fake, STATUS) == 0
    out = capsys.readouterr().out
    assert "Kubeflow Pipelines stopped recording tasks at " in out
    assert "has not started" not in out  # it may have
    nodes = nodes_of("train_succeeded")
    monkeypatch.setattr(kfp_server, "nodes_of", lambda run: nodes)
    fake.states = ["SUCCEEDED"]
    assert run(fake, STATUS) == 0
    out = capsys.readouterr().out
    assert "merge-costs-2\nKubeflow Pipelines stopped recording" in out and "minutes" not in out
    fake.states = ["FAILED"]
    assert run(fake, STATUS) == 1
    assert "ended as FAILED. Kubeflow Pipelines stopped recording tasks at" in the_line(capsys)


@pytest.mark.slow
def test_the_last_answer_has_all_tasks(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Kubeflow Pipelines says that a run has ended a moment before it says so of the last tasks."""
    at_its_end, later = ("place_succeeded", "04:27:04"), ("place_succeeded", "04:27:05")
    fake.finished_at = datetime.now(UTC)
    for words in ([*SUBMIT, *WAIT], STATUS):
        fake.states, fake.ended = ["SUCCEEDED"], [at_its_end, at_its_end, later]
        assert run(fake, words) == 0
        assert "done: importer, place, record-outcome\nhttp" in capsys.readouterr().out
        assert fake.ended == [later]
    fake.ended, fake.finished_at = [(*at_its_end, 60.0)], datetime.now(UTC) - timedelta(seconds=59.5)
    assert run(fake, STATUS) == 0  # nothing more comes
    assert "Kubeflow Pipelines stopped recording tasks at" in capsys.readouterr().out


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
def test_a_pod_that_a_quota_refuses_is_explained(
    fake: FakePipelines, cluster: Kubernetes, capsys: pytest.CaptureFixture[str], compressed: bool
) -> None:
    """No such pod is ever made: Argo has the reason, in the workflow."""
    nodes = {f"{WORKFLOW}-2412005322": {"phase": "Pending", "message": QUOTA}, WORKFLOW: {"phase": "Running"}}
    packed = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
    cluster.workflow = {"compressedNodes": packed} if compressed else {"nodes": nodes}
    fake.states, fake.running = ["RUNNING"], ("place_failed", "04:17:25", 360.0)
    assert run(fake, STATUS) == 0
    said = capsys.readouterr().out
    assert f"waiting: place\nplace has not started for 6 minutes, and has no pod: {QUOTA}\n" in said
    cluster.workflow = None
    assert run(fake, STATUS) == 0
    assert "place has not started for 6 minutes" in capsys.readouterr().out


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
def test_the_log_of_a_failed_pod_says_why(
    fake: FakePipelines, cluster: Kubernetes, capsys: pytest.CaptureFixture[str], log: str, why: str
) -> None:
    cluster.status.update(phase="Failed", containerStatuses=[ended(1, "Error")])
    cluster.log, fake.states = log, ["RUNNING", "FAILED"]
    assert run(fake, SUBMIT, *WAIT) == 1
    assert f"place failed in pod {POD} ({why}): `kubectl -n team-a logs {POD} -c main`. See" in the_line(capsys)


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
    fake: FakePipelines,
    cluster: Kubernetes,
    capsys: pytest.CaptureFixture[str],
    says: dict[str, Any],
    gate: str,
    why: str,
) -> None:
    fake.states, fake.running = ["RUNNING"], ("place_failed", "04:17:25", 360.0)
    cluster.status = {"phase": "Pending", **says}
    cluster.spec = {"schedulingGates": [{"name": gate}]} if gate else {}
    assert run(fake, STATUS) == 0
    assert f"place has not started for 6 minutes. Its pod {POD}: {why}\n" in capsys.readouterr().out
    cluster.status, cluster.spec = {"phase": "Running"}, {}  # which Kubeflow Pipelines has not noted yet
    assert run(fake, STATUS) == 0
    assert "running: place\nhttp" in capsys.readouterr().out


def test_kubernetes_knows_the_name_of_a_failed_pod(
    fake: FakePipelines, cluster: Kubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.status.update(phase="Failed", containerStatuses=[ended(137, "OOMKilled")])
    fake.states = ["FAILED"]
    assert run(fake, STATUS) == 1
    found = f"place failed in pod {POD} (OOMKilled, exit code 137): `kubectl -n team-a logs {POD} -c main`. See"
    assert found in the_line(capsys)
    cluster.status["containerStatuses"] = "torn"  # an answer that cannot be read is none
    assert run(fake, STATUS) == 1
    assert "whose name ends with 2412005322" in the_line(capsys)


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
    fake: FakePipelines, cluster: Kubernetes, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    cluster.status.update({**EVICTED, "reason": reason})
    fake.states = ["RUNNING", "FAILED", "SUCCEEDED"]
    assert run(fake, SUBMIT, *WAIT) == 0
    assert len(fake.asked("POST", "/runs/r1:retry")) == len(fake.asked("POST", "/runs")) == 1
    assert f"place lost its pod ({reason}: The node was low on resource: memory). The run is retried" in caplog.text


def test_it_is_tried_again_as_often_as_a_pod_would_be(
    fake: FakePipelines, cluster: Kubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.status.update(EVICTED)
    fake.states = ["FAILED"]
    assert run(fake, SUBMIT, *WAIT) == 1
    assert len(fake.asked("POST", "/runs/r1:retry")) == 2
    assert "run r1 ended as FAILED. place failed in pod" in the_line(capsys)
    assert run(fake, STATUS) == 1
    assert len(fake.asked("POST", "/runs/r1:retry")) == 2  # who looks changes nothing


@pytest.mark.parametrize(
    "status",
    [
        {"containerStatuses": [ended(2, "Error")]},  # bad input
        {"containerStatuses": [ended(137, "OOMKilled")]},
        {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"},
        None,  # no pod of that name is there any more
    ],
)
def test_a_run_that_failed_by_itself_is_not_tried_again(
    fake: FakePipelines, cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any] | None
) -> None:
    if status is None:
        monkeypatch.setenv("KUBECONFIG", "none")
    else:
        cluster.status.update(phase="Failed", **status)
    fake.states = ["FAILED"]
    assert run(fake, SUBMIT, *WAIT) == 1
    assert not fake.asked("POST", "/runs/r1:retry")


def test_a_retry_that_is_refused_leaves_the_failure(
    fake: FakePipelines, cluster: Kubernetes, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.status.update(EVICTED)
    fake.states, fake.failures["POST /runs/r1:retry"] = ["FAILED"], [403]
    assert run(fake, SUBMIT, *WAIT) == 1
    assert "not allowed in namespace team-a (403)" in caplog.text
    assert "place failed in pod" in the_line(capsys)


def test_a_retry_whose_answer_was_lost_has_begun(fake: FakePipelines, cluster: Kubernetes) -> None:
    cluster.status.update(EVICTED)
    fake.states, fake.failures["POST /runs/r1:retry"] = ["FAILED", "RUNNING", "SUCCEEDED"], [500, 400]
    assert run(fake, SUBMIT, *WAIT) == 0


def test_the_token_is_read_again_for_each_call(fake: FakePipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    token = Path("token")
    token.write_text("first\n")
    fake.token = "first"
    connected = remote.Remote(remote.Endpoint("team-a", fake.url, token))
    assert connected.status("r1").state == "SUCCEEDED"
    token.write_text("second")
    fake.token = "second"
    assert connected.status("r1").state == "SUCCEEDED"
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(token))  # of a pod
    assert run(fake, STATUS) == 0


def test_an_expired_token_is_named(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.token = "new"
    Path("old").write_text("old")
    assert run(fake, STATUS, "--token-file", "old") == 2
    line = the_line(capsys)
    assert "does not accept the token in old (401): token has expired" in line and "--token-file" in line
    assert run(fake, STATUS) == 2
    assert "a call without a token (401)" in the_line(capsys)
    assert len(fake.requests) == 2  # nothing was tried again


def test_who_waits_does_not_mind_a_401_for_a_moment(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Kubeflow Pipelines answers so while it cannot ask Kubernetes whose token it is."""
    wait = [*SUBMIT, *WAIT]
    fake.states, fake.failures["GET /runs/r1"] = ["RUNNING", "SUCCEEDED"], [401] * 5
    assert run(fake, wait) == 0
    assert "SUCCEEDED: a run" in capsys.readouterr().out
    assert caplog.messages.count("Kubeflow Pipelines failed (401); retrying") == 5
    fake.failures["GET /runs/r1"] = [401] * 6
    assert run(fake, wait) == 2
    assert "does not accept a call without a token (401)" in the_line(capsys)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (400, "rejects the call (400): told to answer 400. Correct the value"),
        (403, "not allowed in namespace team-a (403)"),
        (404, "not found at"),
    ],
)
def test_a_refusal_is_bad_input(fake: FakePipelines, capsys: pytest.CaptureFixture[str], status: int, why: str) -> None:
    fake.failures["POST /runs"] = [status]
    assert run(fake, SUBMIT) == 2
    assert why in the_line(capsys)
    assert len(fake.asked("POST", "/runs")) == 1


@pytest.mark.parametrize("status", [500, 503])
def test_looking_is_tried_again(fake: FakePipelines, capsys: pytest.CaptureFixture[str], status: int) -> None:
    fake.failures["GET /runs/r1"] = [status] * 5
    assert run(fake, STATUS) == 0
    fake.failures["GET /runs/r1"] = [status] * 6
    assert run(fake, STATUS) == 1
    assert f"failed with status {status}: told to answer {status}" in the_line(capsys)


def test_a_run_is_started_again_only_if_it_was_not_begun(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.failures["POST /runs"] = [503, 502, 429, 503, 503]
    fake.failures["POST /experiments"] = [503]
    assert run(fake, SUBMIT) == 0
    assert len(fake.asked("POST", "/runs")) == 6
    fake.failures["POST /runs"] = [500]
    assert run(fake, SUBMIT) == 1
    assert len(fake.asked("POST", "/runs")) == 7
    assert "failed with status 500" in the_line(capsys)


@pytest.mark.slow
def test_a_silent_server_is_given_up(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.failures["POST /runs"] = [0]
    assert run(fake, SUBMIT, "--timeout-seconds", "2") == 1
    line = the_line(capsys)
    assert "did not answer in time. The call may have succeeded" in line
    assert len(fake.asked("POST", "/runs")) == 1
    fake.failures["GET /runs/r1"] = [0]
    assert run(fake, STATUS, "--timeout-seconds", "2") == 0
    asked = len(fake.asked("GET", "/runs/r1"))
    fake.failures["GET /runs/r1"] = [0] * 20
    assert run(fake, STATUS, "--timeout-seconds", "2") == 1
    assert len(fake.asked("GET", "/runs/r1")) == asked + 4


def test_what_is_no_api_is_told(fake: FakePipelines, capsys: pytest.CaptureFixture[str]) -> None:
    fake.login_page = True
    assert run(fake, STATUS) == 2
    assert "does not answer like Kubeflow Pipelines" in the_line(capsys)
    assert main([*STATUS, "--endpoint", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1 cannot be reached" in the_line(capsys)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (SUBMIT, "no endpoint"),
        ([*SUBMIT, "--endpoint", "kubeflow.example.com"], "is not an address"),
        ([*SUBMIT, "--endpoint", "http://h", "--token-file", "none"], "no token can be read"),
        ([*SUBMIT, "--endpoint", "http://h", "--token-file", "pipeline.yaml"], "contains no token"),
        ([*SUBMIT[:-1], "none.yaml", "--endpoint", "http://h"], "none.yaml: no such file"),
    ],
)
def test_bad_input_is_told_before_anything_is_sent(
    fake: FakePipelines, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(words) == 2
    assert why in the_line(capsys)
    assert fake.requests == []
