"""Status of a run, from the Argo Workflows nodes that Kubeflow Pipelines records, and from Kubernetes' pods.

Each task of a pipeline has at least six nodes: ``place-driver``, ``place-driver(0)``, ``place``, ``place(0)``,
``executor`` and ``executor(0)``, which is its pod. Each group of tasks (``root``, ``exit-handler-1``, ``for-loop-3``,
``condition-4``) has as many. A node has the ids of its children but not its own id, so the executor of a task is found
by start time and state.

Only Kubernetes knows why a pod failed or does not start; asking it needs a kubeconfig or a pod's service account.
Kubeflow Pipelines shows a pod that fits no node as PENDING, like a pod that pulls its image.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from evenshard.base.messages import cut, one_line

PENDING, RUNNING, SUCCEEDED, FAILED, SKIPPED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "SKIPPED"
OPEN = (PENDING, RUNNING)
FINISHED = (SUCCEEDED, FAILED, "CANCELED", SKIPPED)
DRIVER = "-driver"
_GROUP = re.compile(r"root|exit-handler-\d+(\.onExit)?|for-loop-\d+|iteration(-item|-iterations)?|condition(-.+)?-\d+")
_IMPORTER = re.compile(r"importer(-\d+)?")
# Kubeflow Pipelines records the end of a pod about ten seconds later, and the end of a run within a second or two.
RECORDED_WITHIN = timedelta(seconds=60)
# A pod that has not started by then may never start: most images are pulled faster.
SLOW_START = timedelta(minutes=2)
STATE_LABELS = ((SUCCEEDED, "done"), (RUNNING, "running"), (PENDING, "waiting"), (FAILED, "failed"))
MAX_SHOWN = 3  # failed tasks per message
TIMEOUT_S = 5.0  # per request to Kubernetes, which is optional for a status
STARTING = ("ContainerCreating", "PodInitializing")
_LOG_LINES = 200  # lines at the end of a pod's log in which to look for its error
_GATES = {"kueue.x-k8s.io/admission": "Kueue has not admitted the pod: see `kubectl describe workloads`"}
# Messages of commands, or exceptions at the end of Python tracebacks; Kubeflow's launcher adds other lines.
_COMMAND_ERROR = re.compile(r"^evenshard [a-z-]+(?: failed)?: (.+)", re.MULTILINE)
_EXCEPTION = re.compile(r"^Traceback .*\n(?:[ \t].*\n)+(?:evenshard\.[\w.]+: )?(.+)", re.MULTILINE)
_Answer = TypeVar("_Answer")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskStatus:
    """A task of a pipeline; in a ParallelFor, one task per iteration.

    ``pod``, ``reason`` and ``evicted`` are known only if Kubernetes answered.
    """

    name: str  # name in the pipeline; a failed driver is a task of its own: ``place-driver``
    state: str  # PENDING while its pod has not started, RUNNING, SUCCEEDED, FAILED or SKIPPED
    since: datetime  # time of its start, or of its pod's creation
    nodes: tuple[str, ...]  # ids of its pods, one per attempt; the names of the pods end with the same number
    cached: bool = False  # True if Kubeflow Pipelines reused an earlier result and created no pod
    pod: str = ""  # name of the last pod
    reason: str = ""  # reason why that pod did not start or failed
    evicted: bool = False  # True if the cluster ended that pod

    @property
    def prepares_a_group(self) -> bool:
        """Return True for the driver of a group of tasks, which is not a task of the pipeline."""
        return self.name.endswith(DRIVER) and bool(_GROUP.fullmatch(self.name.removesuffix(DRIVER)))

    @property
    def is_slow(self) -> bool:
        """Return True if it has been PENDING for longer than ``SLOW_START``."""
        return self.state == PENDING and datetime.now(UTC) - self.since > SLOW_START

    @property
    def pod_number(self) -> str:
        """Return the number at the end of the name of the task's latest pod."""
        return self.nodes[-1].rpartition("-")[2]


@dataclass(frozen=True)
class RunStatus:
    """Status of a run and its tasks at the time of a query."""

    run_id: str
    name: str
    namespace: str  # namespace of its pods
    # PENDING, RUNNING, SUCCEEDED, FAILED, CANCELING, CANCELED, SKIPPED or PAUSED. A stopped run is CANCELED here, but
    # FAILED in Kubeflow Pipelines.
    state: str
    tasks: tuple[TaskStatus, ...]  # tasks that have started
    recorded_until: datetime | None  # time when Kubeflow Pipelines stopped recording the tasks; None if it has not
    url: str  # address of its page

    @property
    def is_finished(self) -> bool:
        """Return True if the state of the run is final."""
        return self.state in FINISHED

    @property
    def is_settling(self) -> bool:
        """Return True if the run has ended, but the end of a task is not recorded yet."""
        return self.is_finished and self.recorded_until is None and any(task.state in OPEN for task in self.tasks)

    @property
    def was_evicted(self) -> bool:
        """Return True if the run failed, and Kubernetes reports that the cluster ended the pods of all failed tasks."""
        return self.state == FAILED and bool(self.failed) and all(task.evicted for task in self.failed)

    @property
    def failed(self) -> list[TaskStatus]:
        """Return the failed tasks."""
        return [task for task in self.tasks if task.state == FAILED]


def status_of(run: Any, namespace: str, url: str) -> RunStatus:
    """Convert the API's description of a run to a status, without Kubernetes' reasons for the states of pods."""
    details = getattr(run.run_details, "task_details", None) or []
    before = [past.state for past in run.state_history or () if past.state not in (None, run.state)]
    was_stopped = run.state == FAILED and before[-1:] == ["CANCELING"]  # through the API, and not retried
    state = "CANCELED" if was_stopped else str(run.state or PENDING)
    return RunStatus(
        run_id=str(run.run_id),
        name=str(run.display_name),
        namespace=namespace,
        state=state,
        tasks=tasks_of(details),
        recorded_until=find_record_end(details, run.finished_at if state in FINISHED else None, datetime.now(UTC)),
        url=url,
    )


def tasks_of(details: Sequence[Any]) -> tuple[TaskStatus, ...]:
    """Find the started tasks in the ``task_details`` of a run, ordered by start."""
    nodes = sorted((node for node in details if node.display_name and node.state), key=lambda node: node.start_time)
    ids = [child.pod_name for node in nodes for child in node.child_tasks or ()]
    if not ids:
        return ()
    workflow = min(ids).rpartition("-")[0]
    executors = [node for node in nodes if node.display_name == "executor"]
    waiting = [node for node in nodes if node.display_name.startswith("executor") and node.state == PENDING]
    found = []
    for node in reversed(nodes):  # latest first, because the pods that wait belong to the latest tasks
        name, state, since = node.display_name, node.state, node.start_time
        if name == workflow or "(" in name or name == "executor" or _GROUP.fullmatch(name):
            continue
        pods, cached = node, False
        if name.endswith(DRIVER):
            if state == SUCCEEDED:
                continue
            if state != FAILED:
                state = PENDING
                name = name if _GROUP.fullmatch(name.removesuffix(DRIVER)) else name.removesuffix(DRIVER)
        else:
            if state in OPEN and (mine := [node for node in waiting if node.start_time >= since]):
                waiting.remove(mine[-1])
                state, since = PENDING, mine[-1].start_time
            if not _IMPORTER.fullmatch(name) and (executor := _executor_of(node.start_time, state, executors)):
                executors.remove(executor)
                pods, cached = executor, (node.state, executor.state) == (SUCCEEDED, SKIPPED)
        tries = () if cached else tuple(child.pod_name for child in pods.child_tasks or ())
        found.append(TaskStatus(name, state, since, tries, cached))
    return tuple(reversed(found))


def _executor_of(begun: datetime, state: str, executors: Sequence[Any]) -> Any:
    later = [node for node in executors if node.start_time >= begun]
    return min(later, key=lambda node: (node.state not in (state, SKIPPED), node.start_time), default=None)


def find_record_end(details: Sequence[Any], finished_at: datetime | None, now: datetime) -> datetime | None:
    """Return the time when Kubeflow Pipelines stopped recording tasks; None if nothing shows that it stopped.

    Of a run with 34 pods, only the first hundred nodes were recorded, presumably because Argo compresses longer lists.

    Args:
        finished_at: end of the run; None for a run in progress.
    """
    last = max((state.update_time for node in details for state in node.state_history or ()), default=None)
    if last is None:
        return None
    events = [time for node in details if not node.state for time in (node.start_time, node.end_time) if time]
    if finished_at is not None and any(node.state in OPEN for node in details):
        events.append(finished_at)
    return last if any(last < time < now - RECORDED_WITHIN for time in events) else None


def summarize_progress(status: RunStatus) -> str:
    """Summarize the status in one line: ``done: generate-tables; running: benchmark (2); waiting: benchmark (2)``."""
    parts = []
    for state, word in STATE_LABELS:
        if status.is_finished and state in OPEN:  # the record ended before the run did
            continue
        names = Counter(task.name for task in status.tasks if task.state == state)
        if names:
            counted = (name if number == 1 else f"{name} ({number})" for name, number in names.items())
            parts.append(f"{word}: {', '.join(counted)}")
    return "; ".join(parts)


def list_notes(status: RunStatus) -> Iterator[str]:
    """Yield a note for each pod that does not start, and a note if not all tasks of the run were recorded."""
    ended = status.recorded_until
    slow = {} if status.is_finished else {task.name: task for task in status.tasks if task.is_slow}
    for task in slow.values():
        if task.reason or ended is None:
            yield _explain_wait(task, status.namespace)
    if ended is not None:
        yield (
            f"Kubeflow Pipelines stopped recording tasks at {ended.astimezone():%H:%M:%S %Z}, because the run has too "
            f"many nodes. List its pods with `kubectl -n {status.namespace} get pods`"
        )


def explain_failure(status: RunStatus) -> str:
    """Explain why a run has failed, with the commands that show the logs."""
    if status.state == "CANCELED":
        return f"run {status.run_id} was stopped. See {status.url}"
    failed = {task.name: task for task in status.failed}
    logs = [_failure_text(task, status.namespace) for task in failed.values()]
    more = f" And {len(logs) - MAX_SHOWN} more." if len(logs) > MAX_SHOWN else ""
    tasks = "".join(f" {text}." for text in (logs or [*list_notes(status)])[:MAX_SHOWN])
    return f"run {status.run_id} ended as {status.state}.{tasks}{more} See {status.url}"


def _explain_wait(task: TaskStatus, namespace: str) -> str:
    minutes = (datetime.now(UTC) - task.since).total_seconds() / 60
    if task.reason:
        whose = f". Its pod {task.pod}" if task.pod else ", and has no pod"
        return f"{task.name} has not started for {minutes:.0f} minutes{whose}: {task.reason}"
    return (
        f"{task.name} has not started for {minutes:.0f} minutes: its pod may fit no node, or its image is still being "
        f"pulled. Check with `kubectl -n {namespace} get events --field-selector type=Warning`"
    )


def _failure_text(task: TaskStatus, namespace: str) -> str:
    reason = f" ({task.reason})" if task.reason else ""
    if task.pod:
        return f"{task.name} failed in pod {task.pod}{reason}: `kubectl -n {namespace} logs {task.pod} -c main`"
    if not task.nodes:
        return f"{task.name} failed"
    number = task.pod_number  # the rest of the pod's name is left out
    return (
        f"{task.name} failed in the pod whose name ends with {number}{reason}: "
        f"`kubectl -n {namespace} logs -c main $(kubectl -n {namespace} get pods -o name | grep {number})`"
    )


def add_pod_reasons(status: RunStatus) -> RunStatus:
    """Add Kubernetes' reasons for failed and pending pods to a status, if Kubernetes answers.

    Omit the drivers of groups of tasks, unless they have failed or do not start.
    """
    tasks = [task for task in status.tasks if not task.prepares_a_group or task.state == FAILED or task.is_slow]
    asked = [task for task in tasks if task.nodes and (task.state == FAILED or task.is_slow)]
    pods = _pods_of(status.namespace, asked) if asked else {}
    for place, task in enumerate(tasks):
        pod = pods.get(task.pod_number) if task in asked else None
        if pod is None:
            continue
        reason, started = pod.reason, task.state == PENDING and pod.phase != "Pending"
        if status.is_finished and reason.startswith("Error,"):  # the program's own error, not OOMKilled or Evicted
            reason = _last_error(status.namespace, pod.name) or reason
        state = RUNNING if started else task.state
        tasks[place] = replace(task, state=state, pod=pod.name, reason=reason, evicted=pod.evicted)
    return replace(status, tasks=tuple(tasks))


@dataclass(frozen=True)
class Pod:
    """State of a pod in Kubernetes."""

    name: str  # "" for a pod that was never created, or is gone
    phase: str
    reason: str  # reason why it does not start or has failed; "" without a problem
    evicted: bool = False  # True if the cluster ended it


def _pods_of(namespace: str, tasks: Sequence[TaskStatus]) -> dict[str, Pod]:
    """Return the pods of a run by the number at the end of their names; none if Kubernetes does not answer.

    If a quota rejected a pod, or the pod is gone, the reason is the message of its node in Argo's workflow.
    """
    workflow = tasks[0].nodes[-1].rpartition("-")[0]
    pods = _ask(lambda api: _list_pods(api, namespace, workflow)) or {}
    if all(task.pod_number in pods for task in tasks):
        return pods
    return (_ask(lambda api: _read_nodes(api, namespace, workflow)) or {}) | pods


def _last_error(namespace: str, pod: str) -> str:
    """Return the error in the log of a stage's failed pod, as one line; "" if there is none."""
    settings = {"container": "main", "tail_lines": _LOG_LINES, "_request_timeout": TIMEOUT_S, "_preload_content": False}
    log_of = _ask(lambda api: api.read_namespaced_pod_log(pod, namespace, **settings).data)
    text = (log_of or b"").decode(errors="replace")
    found = _COMMAND_ERROR.findall(text) or _EXCEPTION.findall(text)
    return shorten_message(found[-1]) if found else ""


def _ask(question: Callable[[Any], _Answer]) -> _Answer | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return question(kubernetes_api())
    except Exception as error:  # no kubeconfig, a cluster that is down, no rights: dozens of types
        log.debug("Kubernetes did not answer (%s)", error)
        return None


def _list_pods(api: Any, namespace: str, workflow: str) -> dict[str, Pod]:
    label = f"workflows.argoproj.io/workflow={workflow}"
    found = api.list_namespaced_pod(namespace, label_selector=label, _request_timeout=TIMEOUT_S).items
    pods = {}
    for pod in found:
        # The cluster ended the pod if its node ran out of a resource, was shut down or disappeared.
        status, conditions = pod.status, pod.status.conditions or ()
        disrupted = any(one.type == "DisruptionTarget" and one.status == "True" for one in conditions)
        evicted = status.phase == "Failed" and (disrupted or status.reason == "Evicted")
        name = str(pod.metadata.name)
        pods[name.rpartition("-")[2]] = Pod(name, str(status.phase), _reason(pod), evicted)
    return pods


def _read_nodes(api: Any, namespace: str, workflow: str) -> dict[str, Pod]:
    from kubernetes.client import CustomObjectsApi

    where = ("argoproj.io", "v1alpha1", namespace, "workflows", workflow)
    status = CustomObjectsApi(api.api_client).get_namespaced_custom_object(*where, _request_timeout=TIMEOUT_S)["status"]
    nodes = status.get("nodes") or json.loads(gzip.decompress(base64.b64decode(status["compressedNodes"])))
    said = {name.rpartition("-")[2]: node["message"] for name, node in nodes.items() if node.get("message")}
    return {number: Pod("", "Pending", shorten_message(message)) for number, message in said.items()}


def kubernetes_api() -> Any:
    """Return a client of Kubernetes' core API, authenticated by a kubeconfig or the account of this pod."""
    from kubernetes import client, config

    settings = client.Configuration()
    settings.retries = False
    try:
        named = os.environ.get("KUBECONFIG") or "~/.kube/config"
        config.load_kube_config(config_file=named, client_configuration=settings)
    except config.ConfigException:  # no configuration
        config.load_incluster_config(client_configuration=settings)
    return client.CoreV1Api(client.ApiClient(settings))


def _reason(pod: Any) -> str:
    status, gates = pod.status, [gate.name for gate in pod.spec.scheduling_gates or ()]
    said = [_GATES.get(gate, f"held by the scheduling gate {gate}") for gate in gates]
    said += [_reason_text(status.reason, status.message)]  # such as Evicted, DeadlineExceeded
    said += [
        _reason_text(condition.reason, condition.message)  # such as Unschedulable
        for condition in status.conditions or ()
        if condition.type == "PodScheduled" and condition.status == "False"
    ]
    for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        if one.state.waiting and one.state.waiting.reason not in STARTING:
            said.append(_reason_text(one.state.waiting.reason, one.state.waiting.message))  # such as ImagePullBackOff
        if one.state.terminated and one.state.terminated.exit_code:
            said.append(f"{one.state.terminated.reason}, exit code {one.state.terminated.exit_code}")  # OOMKilled
    return next((shorten_message(text) for text in said if text), "")


def shorten_message(text: str) -> str:
    """Shorten another program's message to one line of at most 300 characters."""
    return cut(one_line(text), 300).rstrip(".")


def _reason_text(reason: str | None, message: str | None) -> str:
    return ": ".join(part for part in (reason, message) if part)
