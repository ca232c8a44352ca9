"""Runs in MLflow, by id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenshard.tracking.client import (
    ask_mlflow,
    connect,
    require_mlflow,
    tracking_uri,
)

_NO_ANSWER = "did not answer", "Set MLFLOW_TRACKING_URI."


@dataclass(frozen=True)
class FoundRun:
    """A run.

    Attributes:
        run_id: 32 hex digits.
        name: such as loop-1a2b3c4d-5e6f or train_cost_2.
        status: FINISHED, FAILED, KILLED or RUNNING.
        params: settings; of a loop, those of all sections, such as ``loop.num_rounds``.
        metrics: the last value of each.
        tags: those of MLflow included.
        parent_id: id of the loop; empty for a loop.
        start_ms: start, ms since 1970.
    """

    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    parent_id: str
    start_ms: int


def find_run(run_id: str) -> FoundRun | None:
    """One run, of whatever experiment; None where it is not there, or deleted.

    Raises:
        TrackingFailed: if MLflow cannot be reached.
    """
    from mlflow.exceptions import MlflowException

    require_mlflow(run_id)
    with ask_mlflow(tracking_uri(), *_NO_ANSWER):
        try:
            found = connect().get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
    return _run(found) if found.info.lifecycle_stage == "active" else None


def _run(one: Any) -> FoundRun:
    data, info = one.data, one.info
    parent = data.tags.get("mlflow.parentRunId", "")
    return FoundRun(
        info.run_id,
        info.run_name,
        info.status,
        dict(data.params),
        dict(data.metrics),
        dict(data.tags),
        parent,
        info.start_time,
    )
