"""Argo's nodes, as a real Kubeflow Pipelines reports them, read as the tasks of a pipeline."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kfp_server_api import ApiClient

from evenshard.kubeflow.run_status import (
    RECORDED_WITHIN,
    RunStatus,
    TaskStatus,
    explain_failure,
    find_record_end,
    list_notes,
    summarize_progress,
    tasks_of,
)
from support.kfp_server import RUNS, nodes_of


def details(nodes: list[dict[str, Any]]) -> Any:
    """As the SDK reads them."""

    class Answer:
        data = json.dumps({"task_details": nodes})

    return ApiClient().deserialize(Answer, "V2beta1RunDetails").task_details


DONE = "SUCCEEDED"
ROUND_1 = [("generate-tables", DONE), ("benchmark", DONE), ("benchmark", DONE), ("merge-costs", DONE)]
ROUND_1 += [("train-cost", DONE), ("train-policy", DONE)]


@pytest.mark.parametrize(
    ("run", "clock", "tasks"),
    [
        ("place_failed", "23:59:59", [("importer", DONE), ("place", "FAILED"), ("record-outcome", DONE)]),
        ("train_succeeded", "04:33:45", [("generate-tables", "PENDING")]),  # its driver runs
        ("train_succeeded", "04:34:10", [("generate-tables", "RUNNING")]),
        ("train_succeeded", "04:41:20", [*ROUND_1, ("benchmark-2", "PENDING"), ("benchmark-2", "PENDING")]),
        ("train_succeeded", "04:41:30", [*ROUND_1, ("benchmark-2", "RUNNING"), ("benchmark-2", "RUNNING")]),
    ],
)
def test_the_tasks_are_those_of_the_pipeline(run: str, clock: str, tasks: list[tuple[str, str]]) -> None:
    assert [(task.name, task.state) for task in tasks_of(details(nodes_of(run, clock)))] == tasks


def test_of_parts_side_by_side_some_may_wait_and_a_driver_that_fails_is_named() -> None:
    nodes = nodes_of("train_succeeded", "04:41:30")
    running = next(one for one in nodes if one.get("display_name") == "executor(0)" and one["state"] == "RUNNING")
    running["state"] = "PENDING"
    states = [task.state for task in tasks_of(details(nodes)) if task.name == "benchmark-2"]
    assert sorted(states) == ["PENDING", "RUNNING"]
    nodes = [one for one in nodes_of("place_failed", "04:17:12") if one["display_name"] != "place"]
    for one in nodes:
        if one["display_name"] == "place-driver":
            one["state"] = "FAILED"
    assert ("place-driver", "FAILED") in [(task.name, task.state) for task in tasks_of(details(nodes))]


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


def test_the_record_of_a_long_run_ends_before_it() -> None:
    now = datetime.now(UTC)
    assert find_record_end(details(nodes_of("place_failed")), now, now) is None
    assert find_record_end(details(nodes_of("train_succeeded")), now, now) is not None
    assert find_record_end(details(nodes_of("train_succeeded", "04:46:30")), None, now) is not None
    for clock in ("04:34:10", "04:37:10", "04:41:30", "04:43:40"):
        assert find_record_end(details(nodes_of("train_succeeded", clock)), None, now) is None
    assert find_record_end([], now, now) is None and tasks_of([]) == ()
    # of a run in two parts, with more than a hundred nodes, a minute after its last record
    cut, last = details(RUNS["parts2"]["tasks"]), datetime.fromisoformat(RUNS["parts2"]["finished_at"])
    until = max(one.update_time for node in cut for one in node.state_history or ())
    assert find_record_end(cut, last, last + timedelta(hours=1)) == until
    assert find_record_end(cut, last, until + RECORDED_WITHIN) is None


OLD = datetime.now(UTC) - timedelta(minutes=6)
TASKS = tuple(TaskStatus(*one, OLD, ()) for one in (("a", DONE), ("b", "RUNNING"), ("b", "RUNNING"), ("c", "PENDING")))
STATUS = RunStatus("r1", "a run", "team-a", "RUNNING", TASKS, None, "http://page")


def test_a_status_is_summed_up_and_a_failure_names_three_tasks_each_once() -> None:
    assert summarize_progress(STATUS) == "done: a; running: b (2); waiting: c"
    assert summarize_progress(replace(STATUS, state="FAILED")) == "done: a"  # the record ended before the run did
    (note,) = list_notes(STATUS)
    assert note.startswith("c has not started for ")
    just_now = replace(TASKS[-1], since=datetime.now(UTC) - timedelta(minutes=1))
    assert not list(list_notes(replace(STATUS, tasks=(just_now,))))
    cut = replace(STATUS, recorded_until=OLD)
    (note,) = list_notes(cut)  # the task that has not started may have
    assert "stopped recording tasks at" in note
    assert note in explain_failure(replace(cut, state="FAILED", tasks=()))
    tasks = tuple(TaskStatus(name, "FAILED", OLD, ()) for name in "aabcde")
    line = explain_failure(replace(STATUS, state="FAILED", tasks=tasks))
    assert line == "run r1 ended as FAILED. a failed. b failed. c failed. And 2 more. See http://page"


def test_a_run_is_settled_once_no_task_is_open_and_was_evicted_if_all_that_failed_were() -> None:
    assert not STATUS.is_settling and replace(STATUS, state="FAILED").is_settling
    assert not replace(STATUS, state="FAILED", recorded_until=OLD).is_settling
    lost = TaskStatus("d", "FAILED", OLD, (), evicted=True)
    assert replace(STATUS, state="FAILED", tasks=(*TASKS, lost)).was_evicted
    assert not replace(STATUS, state="FAILED", tasks=(lost, replace(lost, evicted=False))).was_evicted
    assert not replace(STATUS, state="FAILED").was_evicted and not replace(STATUS, tasks=(lost,)).was_evicted
