"""Runs in MLflow: loops by id or by name, with their stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenshard.tracking.client import (
    ask_mlflow,
    connect,
    experiment_name,
    first_line,
    is_refusal,
    require_mlflow,
    tracking_uri,
)
from evenshard.tracking.tags import STAGE
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief

_NO_ANSWER = "did not answer", "Set MLFLOW_TRACKING_URI."
# Loops that the message about a wrong name lists, the newest first.
_LISTED = 10


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
        children: stages of a loop, in their order.
    """

    run_id: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    parent_id: str
    start_ms: int
    children: tuple[FoundRun, ...] = ()


def find_runs(names: Sequence[str] = ()) -> list[FoundRun]:
    """Loops, in the order of ``names``; all of the experiment, the newest first, without names.

    Args:
        names: ids (or their first 6 digits and more) or names of runs. Of several runs with one name, the newest.

    Raises:
        BadConfig: if one is not there.
        TrackingFailed: if MLflow cannot be reached.
    """
    require_mlflow(", ".join(names) or "runs")
    with ask_mlflow(tracking_uri(), *_NO_ANSWER):
        runs = _all_runs(connect())
    by_parent: dict[str, list[FoundRun]] = {}
    for run in sorted(runs, key=lambda one: one.start_ms):
        by_parent.setdefault(run.parent_id, []).append(run)
    loops = [_with_children(run, by_parent) for run in reversed(by_parent.get("", []))]
    stages = [run for parent, some in by_parent.items() if parent for run in reversed(some)]
    return [_find_run(name, [*loops, *stages]) for name in names] if names else loops


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


def run_artifact(run_id: str, path: str, folder: Path) -> Path:
    """Fetches a file that a run has uploaded, such as ``reports/metrics.json``, into a folder.

    Raises:
        BadConfig: if it is not there.
        TrackingFailed: if MLflow does not answer.
    """
    with ask_mlflow(tracking_uri(), *_NO_ANSWER):
        try:
            return Path(connect().download_artifacts(run_id, path, str(folder)))
        except Exception as error:
            if not is_refusal(error):
                raise
            raise BadConfig(f"run {run_id} has no {path} ({first_line(error)}). Name another run.") from None


def _all_runs(client: Any) -> list[FoundRun]:
    experiment = client.get_experiment_by_name(experiment_name())
    if experiment is None:
        return []
    runs, token = [], None
    while True:
        page = client.search_runs([experiment.experiment_id], max_results=1000, page_token=token)
        runs += [_run(one) for one in page]
        token = page.token
        if not token:
            return runs


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


def _with_children(run: FoundRun, by_parent: Mapping[str, Sequence[FoundRun]]) -> FoundRun:
    return FoundRun(**{**vars(run), "children": tuple(by_parent.get(run.run_id, ()))})


def _find_run(name: str, runs: Sequence[FoundRun]) -> FoundRun:
    for run in runs:
        if run.name == name or run.run_id == name or (len(name) >= 6 and run.run_id.startswith(name)):
            return run
    loops = [f"{run.name} ({run.run_id[:8]})" for run in runs if not run.parent_id and STAGE not in run.tags]
    known = ", ".join([*loops[:_LISTED], *(["..."] if len(loops) > _LISTED else [])]) or "none"
    raise BadConfig(f"there is no run {brief(name)} in experiment {experiment_name()}. Loops there: {known}.")
