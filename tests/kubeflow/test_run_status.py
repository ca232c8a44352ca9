"""Argo's nodes, as a real Kubeflow Pipelines reports them, read as the tasks of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kfp_server_api import ApiClient

from evenshard.kubeflow.run_status import (
    OPEN,
    RECORDED_WITHIN,
    RunStatus,
    TaskStatus,
    explain_failure,
    find_record_end,
    tasks_of,
    was_stopped,
)
from support.kfp_server import RUNS, more_runs, nodes_of, runs_with_history


def as_read(run: dict[str, Any]) -> Any:
    """As the SDK reads it."""

    class Answer:
        data = json.dumps(run)

    return ApiClient().deserialize(Answer, "V2beta1Run")


def details(nodes: list[dict[str, Any]]) -> Any:
    return as_read({"run_details": {"task_details": nodes}}).run_details.task_details


def shown(run: str, clock: str = "23:59:59") -> list[tuple[str, str]]:
    return [(task.name, task.state) for task in tasks_of(details(nodes_of(run, clock)))]


DONE = "SUCCEEDED"
ROUND_1 = [("generate-tables", DONE), ("benchmark", DONE), ("benchmark", DONE), ("merge-costs", DONE)]
ROUND_1 += [("train-cost", DONE), ("train-policy", DONE)]


@pytest.mark.parametrize(
    ("run", "clock", "tasks"),
    [
        ("place_failed", "23:59:59", [("importer", DONE), ("place", "FAILED"), ("record-outcome", DONE)]),
        ("place_succeeded", "23:59:59", [("importer", DONE), ("place", DONE), ("record-outcome", DONE)]),
        ("train_succeeded", "04:33:45", [("generate-tables", "PENDING")]),  # its driver runs
        ("train_succeeded", "04:34:10", [("generate-tables", "RUNNING")]),
        ("train_succeeded", "04:41:20", [*ROUND_1, ("benchmark-2", "PENDING"), ("benchmark-2", "PENDING")]),
        ("train_succeeded", "04:41:30", [*ROUND_1, ("benchmark-2", "RUNNING"), ("benchmark-2", "RUNNING")]),
    ],
)
def test_the_tasks_are_those_of_the_pipeline(run: str, clock: str, tasks: list[tuple[str, str]]) -> None:
    assert shown(run, clock) == tasks


def test_of_parts_side_by_side_some_may_wait() -> None:
    nodes = nodes_of("train_succeeded", "04:41:30")
    running = next(one for one in nodes if one.get("display_name") == "executor(0)" and one["state"] == "RUNNING")
    running["state"] = "PENDING"
    states = [task.state for task in tasks_of(details(nodes)) if task.name == "benchmark-2"]
    assert sorted(states) == ["PENDING", "RUNNING"]


def test_a_pod_is_known_by_the_way_down_to_it() -> None:
    """The two runs' executors have the same names; each task gets its own."""
    pods = {task.name: task.nodes for task in tasks_of(details(nodes_of("place_failed")))}
    assert pods == {
        "importer": ("evenshard-place-ptvzd-1504500805",),
        "place": ("evenshard-place-ptvzd-2412005322",),
        "record-outcome": ("evenshard-place-ptvzd-3153203710",),
    }
    parts = [task.nodes for task in tasks_of(details(nodes_of("train_succeeded"))) if task.name == "benchmark"]
    assert len(set(parts)) == 2 and all(len(one) == 1 for one in parts)


def test_a_driver_that_fails_is_named() -> None:
    nodes = [one for one in nodes_of("place_failed", "04:17:12") if one["display_name"] != "place"]
    for one in nodes:
        if one["display_name"] == "place-driver":
            one["state"] = "FAILED"
    assert ("place-driver", "FAILED") in [(task.name, task.state) for task in tasks_of(details(nodes))]


def test_the_record_of_a_long_run_ends_before_it() -> None:
    now = datetime.now(UTC)
    assert find_record_end(details(nodes_of("place_failed")), now, now) is None
    assert find_record_end(details(nodes_of("train_succeeded")), now, now) is not None
    assert find_record_end(details(nodes_of("train_succeeded", "04:46:30")), None, now) is not None
    for clock in ("04:34:10", "04:37:10", "04:41:30", "04:43:40"):
        assert find_record_end(details(nodes_of("train_succeeded", clock)), None, now) is None
    assert find_record_end([], now, now) is None and tasks_of([]) == ()


def hour(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)


def known(node: dict[str, Any], moment: datetime) -> Iterator[SimpleNamespace]:
    """What the API says of a node at a moment.

    A pod also reports itself, as a node without name and state; that report goes when the pod's state is noted.
    """
    noted = [one for one in node.get("state_history", ()) if hour(one["update_time"]) <= moment]
    ended, state = hour(node["end_time"]) <= moment, noted[-1].get("state") if noted else None
    report = {"start_time": hour(node["start_time"]), "end_time": hour(node["end_time"]) if ended else None}
    if "state" not in node or (state == "RUNNING" and node["display_name"] == "executor(0)"):
        yield SimpleNamespace(**report, state=None, state_history=None)
    if noted:
        history = [SimpleNamespace(update_time=hour(one["update_time"])) for one in noted]
        yield SimpleNamespace(**report, state=state, state_history=history)


def moments(run: dict[str, Any]) -> Iterator[tuple[datetime, list[SimpleNamespace], datetime | None]]:
    """Each second of a recorded run's life and two minutes more: its nodes as known then, and its end once known."""
    moment, end = hour(run["created_at"]), hour(run["state_history"][-1]["update_time"])
    while moment < end + timedelta(minutes=2):
        begun = [one for one in run["tasks"] if hour(one["start_time"]) <= moment]
        is_finished = moment >= end and run["state"] != "RUNNING"
        nodes = [node for one in begun for node in known(one, moment)]
        yield moment, nodes, hour(run["finished_at"]) if is_finished else None
        moment += timedelta(seconds=1)


@pytest.mark.slow
def test_of_28_real_runs_the_record_of_two_ends() -> None:
    """Those in two parts, of more than a hundred nodes. At the end of ten others some nodes are open for a second."""
    said, open_at_the_end = {}, set()
    for name, run in (RUNS | more_runs()).items():
        last = max(hour(one["update_time"]) for node in run["tasks"] for one in node.get("state_history", ()))
        for moment, nodes, finished_at in moments(run):
            until = find_record_end(nodes, finished_at, moment)
            assert until in (None, last), (name, moment)
            if until is not None:
                said.setdefault(name, moment - last)
            if finished_at is not None and any(one.state in OPEN for one in nodes):
                open_at_the_end.add(name)
    assert said.keys() == {"train_succeeded", "parts2"} < open_at_the_end
    assert all(RECORDED_WITHIN < after < 2 * RECORDED_WITHIN for after in said.values())
    assert len(open_at_the_end) == 12


def test_a_failure_names_three_tasks_each_once() -> None:
    tasks = tuple(TaskStatus(name, "FAILED", datetime.now(UTC), ()) for name in "aabcde")
    line = explain_failure(RunStatus("r1", "a run", "team-a", "FAILED", tasks, None, "http://page"))
    assert line == "run r1 ended as FAILED. a failed. b failed. c failed. And 2 more. See http://page"


def test_recorded_runs_that_were_stopped_are_told_from_those_that_failed() -> None:
    runs = {one["run"]["run_id"]: (one["what"], as_read(one["run"])) for one in runs_with_history()}
    stopped = [what for what, run in runs.values() if was_stopped(run)]
    failed = [what for what, run in runs.values() if run.state == "FAILED" and not was_stopped(run)]
    assert sorted(stopped) == [
        "place over the memory quota (no pod made), stopped after 6 minutes",
        "place, image that cannot be pulled, stopped",
        "train with a GPU over a quota of 0 GPUs (no pod made)",
        "train, stopped during benchmark",
    ]
    assert len(failed) == 5 and "train, benchmark OOMKilled" in failed
