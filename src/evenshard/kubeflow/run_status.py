"""The status of a run: its tasks, read from the nodes of Argo Workflows that Kubeflow Pipelines keeps, and as text.

One task of a pipeline is six nodes or more: ``place-driver``, ``place-driver(0)``, ``place``, ``place(0)``,
``executor`` and ``executor(0)``, which is its pod; and each group of tasks (``root``, ``exit-handler-1``,
``for-loop-3``, ``condition-4``) is as many. A node names its children by their ids and does not say its own, so the
executor of a task is found by the time of its start and its state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

PENDING, RUNNING, SUCCEEDED, FAILED, SKIPPED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "SKIPPED"
FINISHED = (SUCCEEDED, FAILED, "CANCELED", SKIPPED)
DRIVER = "-driver"
_GROUP = re.compile(r"root|exit-handler-\d+(\.onExit)?|for-loop-\d+|iteration(-item|-iterations)?|condition(-.+)?-\d+")
_IMPORTER = re.compile(r"importer(-\d+)?")
# Kubeflow Pipelines notes what a pod has reported some ten seconds later, and the end of a run in a second or two.
NOTED_WITHIN = timedelta(seconds=60)
# A pod that has not started for so long may never: an image is pulled by then, most often.
SLOW_START = timedelta(minutes=2)
SHOWN = ((SUCCEEDED, "done"), (RUNNING, "running"), (PENDING, "waiting"), (FAILED, "failed"))
MOST = 3  # failed tasks of one message


@dataclass(frozen=True)
class TaskStatus:
    """One task of a pipeline; of a loop's body, one for each of its items.

    Attributes:
        name: name in the pipeline. What prepares a task is part of it, unless it has failed: ``place-driver``.
        state: PENDING while its pod has not started, RUNNING, SUCCEEDED, FAILED or SKIPPED.
        since: time when it began, or its pod was made.
        nodes: ids of its pods, one for each try. The names of the pods end with the same number.
        cached: true if Kubeflow Pipelines took an earlier result and made no pod.
        pod: name of the last of them, where Kubernetes could be asked.
        reason: why that pod does not start, or has failed, where Kubernetes could be asked.
        evicted: true if the cluster has ended that pod, and not the program in it.
    """

    name: str
    state: str
    since: datetime
    nodes: tuple[str, ...]
    cached: bool = False
    pod: str = ""
    reason: str = ""
    evicted: bool = False

    @property
    def prepares_a_group(self) -> bool:
        """True if it is not a task of the pipeline, but the driver of a group of tasks."""
        return self.name.endswith(DRIVER) and bool(_GROUP.fullmatch(self.name.removesuffix(DRIVER)))

    @property
    def is_slow(self) -> bool:
        """True if it waits for its pod longer than a cluster with free resources takes."""
        return self.state == PENDING and datetime.now(UTC) - self.since > SLOW_START

    @property
    def pod_number(self) -> str:
        """The number that the name of its last pod ends with."""
        return self.nodes[-1].rpartition("-")[2]


@dataclass(frozen=True)
class RunStatus:
    """The status of a run.

    Attributes:
        run_id, name: id and name of the run.
        namespace: namespace of its pods.
        state: PENDING, RUNNING, SUCCEEDED, FAILED, CANCELING, CANCELED, SKIPPED or PAUSED. A run that was stopped is
            CANCELED, although Kubeflow Pipelines ends it as FAILED.
        tasks: tasks that have begun.
        recorded_until: time until which Kubeflow Pipelines recorded what they do; None if nothing shows that it has
            stopped.
        url: address of its page.
    """

    run_id: str
    name: str
    namespace: str
    state: str
    tasks: tuple[TaskStatus, ...]
    recorded_until: datetime | None
    url: str

    @property
    def is_finished(self) -> bool:
        """True if it will not change any more."""
        return self.state in FINISHED

    @property
    def was_evicted(self) -> bool:
        """True if it has failed because the cluster has ended pods, as far as Kubernetes could be asked."""
        failed = [one for one in self.tasks if one.state == FAILED]
        return self.state == FAILED and bool(failed) and all(one.evicted for one in failed)


def tasks_of(details: Sequence[Any]) -> tuple[TaskStatus, ...]:
    """Return the tasks that have begun, in the order of their beginning.

    Args:
        details: ``task_details`` of a run of the API.
    """
    nodes = sorted((one for one in details if one.display_name and one.state), key=lambda one: one.start_time)
    ids = [child.pod_name for one in nodes for child in one.child_tasks or ()]
    if not ids:
        return ()
    workflow = min(ids).rpartition("-")[0]
    executors = [one for one in nodes if one.display_name == "executor"]
    waiting = [one for one in nodes if one.display_name.startswith("executor") and one.state == PENDING]
    found = []
    for node in reversed(nodes):  # the youngest first: what waits is one of its
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
            if state in (PENDING, RUNNING) and (mine := [one for one in waiting if one.start_time >= since]):
                waiting.remove(mine[-1])
                state, since = PENDING, mine[-1].start_time
            if not _IMPORTER.fullmatch(name) and (executor := _executor_of(node.start_time, state, executors)):
                executors.remove(executor)
                pods, cached = executor, (node.state, executor.state) == (SUCCEEDED, SKIPPED)
        tries = () if cached else tuple(one.pod_name for one in pods.child_tasks or ())
        found.append(TaskStatus(name, state, since, tries, cached))
    return tuple(reversed(found))


def _executor_of(begun: datetime, state: str, executors: Sequence[Any]) -> Any:
    later = [one for one in executors if one.start_time >= begun]
    return min(later, key=lambda one: (one.state not in (state, SKIPPED), one.start_time), default=None)


def record_ends(details: Sequence[Any], finished_at: datetime | None, now: datetime) -> datetime | None:
    """Return when Kubeflow Pipelines stopped to note what the tasks do; None where nothing shows that it has.

    A run of 34 pods was noted up to its hundredth node and no further, presumably because Argo compresses more of them.

    Args:
        finished_at: end of the run; None for one that goes on.
    """
    last = max((state.update_time for one in details for state in one.state_history or ()), default=None)
    if last is None:
        return None
    events = [time for one in details if not one.state for time in (one.start_time, one.end_time) if time]
    if finished_at is not None and has_open(details):
        events.append(finished_at)
    return last if any(last < time < now - NOTED_WITHIN for time in events) else None


def has_open(details: Sequence[Any]) -> bool:
    """True if a node is noted as one that has not ended; of a run that has, some are for a moment."""
    return any(one.state in (PENDING, RUNNING) for one in details)


def was_stopped(run: Any) -> bool:
    """True if a run has ended because it was terminated through the API, and was not tried again."""
    before = [one.state for one in run.state_history or () if one.state not in (None, run.state)]
    return run.state == FAILED and before[-1:] == ["CANCELING"]


def progress_of(status: RunStatus) -> str:
    """Return one line: ``done: generate-tables; running: benchmark (2); waiting: benchmark (2)``."""
    parts = []
    for state, word in SHOWN:
        if status.is_finished and state in (RUNNING, PENDING):  # where the record ends, not where the run did
            continue
        names = Counter(task.name for task in status.tasks if task.state == state)
        if names:
            counted = (name if number == 1 else f"{name} ({number})" for name, number in names.items())
            parts.append(f"{word}: {', '.join(counted)}")
    return "; ".join(parts)


def notes_on(status: RunStatus) -> Iterator[str]:
    """Yield what a user who waits for the run should know: pods that do not start, and where the record ends."""
    ended = status.recorded_until
    slow = {} if status.is_finished else {task.name: task for task in status.tasks if task.is_slow}
    for task in slow.values():
        if task.reason or ended is None:
            yield _waits(task, status.namespace)
    if ended is not None:
        yield (
            f"Kubeflow Pipelines has noted nothing of the tasks since {ended.astimezone():%H:%M:%S %Z}: the run has "
            f"more nodes than it keeps. `kubectl -n {status.namespace} get pods` shows its pods"
        )


def failure_of(status: RunStatus) -> str:
    """Return why a run has failed, as far as it is known, and the commands that show the logs."""
    if status.state == "CANCELED":
        return f"run {status.run_id} was stopped. See {status.url}"
    failed = {task.name: task for task in status.tasks if task.state == FAILED}
    logs = [_failure_text(task, status.namespace) for task in failed.values()]
    more = f" And {len(logs) - MOST} more." if len(logs) > MOST else ""
    tasks = "".join(f" {one}." for one in (logs or [*notes_on(status)])[:MOST])
    return f"run {status.run_id} ended as {status.state}.{tasks}{more} See {status.url}"


def _waits(task: TaskStatus, namespace: str) -> str:
    minutes = (datetime.now(UTC) - task.since).total_seconds() / 60
    if task.reason:
        whose = f". Its pod {task.pod}" if task.pod else ", and has no pod"
        return f"{task.name} has not started for {minutes:.0f} minutes{whose}: {task.reason}"
    return (
        f"{task.name} has not been seen to start for {minutes:.0f} minutes: its pod may fit no node, or its image is "
        f"on its way. Look with `kubectl -n {namespace} get events --field-selector type=Warning`"
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
