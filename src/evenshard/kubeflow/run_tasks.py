"""The state of a run's tasks, read from the nodes of Argo Workflows, which is what Kubeflow Pipelines keeps.

One task of a pipeline is six nodes or more: ``place-driver``, ``place-driver(0)``, ``place``, ``place(0)``,
``executor`` and ``executor(0)``, which is its pod; and each group of tasks (``root``, ``exit-handler-1``,
``for-loop-3``, ``condition-4``) is as many. A node names its children by their ids and does not say its own;
but an id is the hash of the names on the way from the root down to it, so the way can be found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

PENDING, RUNNING, SUCCEEDED, FAILED, SKIPPED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "SKIPPED"
DRIVER = "-driver"
_GROUP = re.compile(r"root|exit-handler-\d+(\.onExit)?|for-loop-\d+|iteration(-item|-iterations)?|condition(-.+)?-\d+")
# Kubeflow Pipelines notes what a pod has reported some ten seconds later, and the end of a run in a second or two.
NOTED_WITHIN = timedelta(seconds=60)


@dataclass(frozen=True)
class TaskStatus:
    """One task of a pipeline; of a loop's body, one for each of its items.

    Attributes:
        name: name in the pipeline. What prepares a task is part of it, unless it has failed: ``place-driver``.
        state: PENDING while its pod has not started, RUNNING, SUCCEEDED, FAILED or SKIPPED.
        since: time when it began, or its pod was made.
        nodes: ids of its pods, one for each try. The names of the pods end with the same number.
        cached: whether it made no pod because Kubeflow Pipelines took an earlier result.
        pod: name of the last of them, where Kubernetes could be asked.
        reason: why that pod does not start, or has failed, where Kubernetes could be asked.
        evicted: whether the cluster has ended that pod, and not what ran in it.
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
        """Whether it is not a task of the pipeline, but what a group of tasks waits for."""
        return self.name.endswith(DRIVER) and bool(_GROUP.fullmatch(self.name.removesuffix(DRIVER)))


def tasks_of(details: Sequence[Any]) -> tuple[TaskStatus, ...]:
    """The tasks that have begun, in the order of their beginning.

    Args:
        details: ``task_details`` of a run of the API.
    """
    nodes = sorted((one for one in details if one.display_name and one.state), key=lambda one: one.start_time)
    ids = {child.pod_name for one in nodes for child in one.child_tasks or ()}
    if not ids:
        return ()
    workflow = min(ids).rpartition("-")[0]
    paths = _paths(workflow, ids, {one.display_name for one in nodes})
    waiting = [one for one in nodes if one.display_name.startswith("executor") and one.state == PENDING]
    skipped = {one.start_time for one in nodes if one.display_name == "executor" and one.state == SKIPPED}
    found = []
    for node in reversed(nodes):  # the youngest first: what waits is one of its
        name, children = node.display_name, tuple(one.pod_name for one in node.child_tasks or ())
        if name == workflow or "(" in name or name == "executor" or _GROUP.fullmatch(name):
            continue
        state, since, pods = node.state, node.start_time, _pods(name, children, paths)
        if name.endswith(DRIVER):
            if state == SUCCEEDED:
                continue
            pods = children
            if state != FAILED:
                state = PENDING
                name = name if _GROUP.fullmatch(name.removesuffix(DRIVER)) else name.removesuffix(DRIVER)
        elif state in (PENDING, RUNNING):
            mine = [one for one in waiting if one.start_time >= node.start_time]
            if mine:
                waiting.remove(mine[-1])
                state, since = PENDING, mine[-1].start_time
        cached = state == SUCCEEDED and node.start_time in skipped
        found.append(TaskStatus(name, state, since, () if cached else pods, cached))
    return tuple(reversed(found))


def record_ends(details: Sequence[Any], finished_at: datetime | None, now: datetime) -> datetime | None:
    """When Kubeflow Pipelines stopped to note what the tasks do; None where nothing shows that it has.

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
    """Whether a node is noted as one that has not ended; of a run that has, some are for a moment."""
    return any(one.state in (PENDING, RUNNING) for one in details)


def _paths(workflow: str, ids: set[str], names: set[str]) -> dict[str, str]:
    """The way down to each node of ``ids``: ``wf(0).root(0).place(0).executor(0)``."""
    found: dict[str, str] = {}
    todo = [(workflow, workflow)]
    while todo:
        path, name = todo.pop()
        hashed = _fnv_1a(path)
        for other in names:
            more = [f".{other}"]
            if other.startswith(name) and other != name:  # a try of it, an item of a loop, its exit handler
                more.append(other.removeprefix(name))
            for suffix in more:
                node = f"{workflow}-{_fnv_1a(suffix, hashed)}"
                if node in ids and node not in found:
                    found[node] = path + suffix
                    todo.append((path + suffix, other))
    return found


def _fnv_1a(text: str, state: int = 0x811C9DC5) -> int:
    """The 32-bit hash that Argo's ids end with, of ``text`` behind what ``state`` is the hash of."""
    for byte in text.encode():
        state = ((state ^ byte) * 0x01000193) & 0xFFFFFFFF
    return state


def _pods(name: str, children: Sequence[str], paths: dict[str, str]) -> tuple[str, ...]:
    """The ids of a task's pods: its executors', or an importer's own."""
    task = re.compile(rf"(.*\.{re.escape(name)})(\(\d+\))?(\.executor(\(\d+\))?)?")
    own = next((match[1] for child in children if (match := task.fullmatch(paths.get(child, "")))), None)
    if own is None:
        return ()
    for kind in (r"(\(\d+\))?\.executor\(\d+\)", r"(\(\d+\))?\.executor", r"\(\d+\)"):
        tries = sorted(
            (path, node)
            for node, path in paths.items()
            if path.startswith(own) and re.fullmatch(kind, path.removeprefix(own))
        )
        if tries:
            return tuple(node for _, node in tries)
    return ()
