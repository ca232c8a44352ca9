"""The body, called as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from evenshard_components.record_outcome.component import record_outcome

Artifacts = Callable[..., dict[str, Any]]


STATES = {"COMPLETE": "SUCCEEDED", "SUCCEEDED": "SUCCEEDED", "FAILED": "FAILED", "CANCELED": "CANCELED"}


@pytest.mark.parametrize(("said", "state"), [*STATES.items(), ("RUNNING", "UNKNOWN")])
def test_the_states_of_a_cluster_are_those_of_a_run(made: Artifacts, said: str, state: str) -> None:
    outputs = made("outcome", "summary")
    status = dsl.PipelineTaskFinalStatus(said, "run-7", "exit-handler-1", None, None)
    record_outcome.python_func(status=status, run_id="id-7", **outputs)
    found = json.loads(Path(outputs["outcome"].path).read_text())
    assert (found["state"], found["said"], found["run"], found["page"]) == (state, said, "run-7", "id-7")
    summary = Path(outputs["summary"].path).read_text()
    assert summary.startswith(f"**{state}**: run-7") and summary.endswith("See id-7\n")
    assert (said in summary) == (said == state or state == "UNKNOWN")


def test_the_page_is_named_where_its_address_is_known(made: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", "https://me:secret@kubeflow.example.com/pipeline/")
    outputs = made("outcome", "summary")
    status = dsl.PipelineTaskFinalStatus("FAILED", "run-7", "exit-handler-1", None, None)
    record_outcome.python_func(status=status, run_id="id-7", **outputs)
    page = "https://***@kubeflow.example.com/pipeline/#/runs/details/id-7"
    assert Path(outputs["summary"].path).read_text() == f"**FAILED**: run-7. See {page}\n"
