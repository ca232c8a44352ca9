"""A run's status as text: the tasks of its pipeline, what is done, runs and waits, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from evenshard.kubeflow.remote import RunStatus, is_slow
from evenshard.kubeflow.run_tasks import FAILED, PENDING, RUNNING, SUCCEEDED, TaskStatus

SHOWN = ((SUCCEEDED, "done"), (RUNNING, "running"), (PENDING, "waiting"), (FAILED, "failed"))
MOST = 3  # failed tasks of one message


def progress_of(status: RunStatus) -> str:
    """One line: ``done: generate-tables; running: benchmark (2); waiting: benchmark (2)``."""
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
    """What a user who waits for the run should know: pods that do not start, and where the record ends."""
    ended = status.recorded_until
    slow = {} if status.is_finished else {task.name: task for task in status.tasks if is_slow(task)}
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
    number = task.nodes[-1].rpartition("-")[2]  # the rest of the pod's name is left out
    return (
        f"{task.name} failed in the pod whose name ends with {number}{reason}: "
        f"`kubectl -n {namespace} logs -c main $(kubectl -n {namespace} get pods -o name | grep {number})`"
    )
