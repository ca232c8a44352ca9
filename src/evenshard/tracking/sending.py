"""How does MLflow get what a run has to say? One operation at a time, each of which may be sent twice and counts once.

An operation is a dict that JSON can hold: the outbox keeps the same ones. Runs are found by a tag of their own, metrics
carry their time, files and models their place: what a call without an answer has written is not written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenshard.tracking.client import experiment_id
from evenshard.tracking.dataset_inputs import dataset_input
from evenshard.tracking.parents import KEY_TAG, Parent, ensure_parent, find_by_tag
from evenshard.tracking.registry import register_model

BATCH = 1000
Operation = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """A run, before MLflow knows it.

    Attributes:
        key: value of its tag ``evenshard.key``; empty means the parent itself.
        name: of the run, such as train_cost_2.
        experiment: name of the experiment.
        start_ms: when it began, ms since 1970.
        parent: its loop, if it is of one.
        tags: of the run.
        params: its settings.
    """

    key: str
    name: str
    experiment: str
    start_ms: int
    parent: Parent | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)


def ensure_run(client: Any, record: Record) -> str:
    """The id of a run, which is made, with its parent, if it is not there."""
    from mlflow.entities import Param

    parent = record.parent
    if parent is not None and parent.run_id:
        experiment = client.get_run(parent.run_id).info.experiment_id
    else:
        experiment = experiment_id(client, record.experiment)
    parent_id = "" if parent is None else ensure_parent(client, experiment, parent, record.start_ms)
    if not record.key:
        return parent_id
    run_id = find_by_tag(client, experiment, KEY_TAG, record.key)
    if not run_id:
        tags = {**record.tags, KEY_TAG: record.key, **({"mlflow.parentRunId": parent_id} if parent_id else {})}
        run_id = client.create_run(experiment, record.start_ms, tags, record.name).info.run_id
    client.log_batch(run_id, params=[Param(key, value) for key, value in record.params.items()])
    return str(run_id)


def send(client: Any, run_id: str, operation: Operation, folder: Path) -> None:
    """Sends one operation.

    Args:
        folder: that the paths of the operation start from.

    Raises:
        Exception: MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds.
    """
    kind = operation["kind"]
    if kind == "metrics":
        _metrics(client, run_id, operation["points"])
    elif kind == "tags":
        for key, value in operation["tags"].items():
            client.set_tag(run_id, key, value)
    elif kind == "artifact":
        path = folder / operation["path"]
        if path.is_dir():
            client.log_artifacts(run_id, str(path), path.name)
        else:
            client.log_artifact(run_id, str(path))
    elif kind == "table":
        _table(client, run_id, operation["name"], operation["table"])
    elif kind == "datasets":
        client.log_inputs(run_id, [dataset_input(one) for one in operation["datasets"]])
    elif kind == "model":
        register_model(
            folder / operation["path"], operation["tags"], operation["metrics"], run_id, operation["name"], client
        )
    elif kind == "end":
        client.set_terminated(run_id, operation["status"], operation["end_ms"])
    else:
        raise ValueError(f"an operation of kind {kind!r}, which this version of evenshard does not know")


def _metrics(client: Any, run_id: str, points: Sequence[tuple[str, float, int, int]]) -> None:
    """Points are name, value, time in ms since 1970, step. The same point twice is one point."""
    from mlflow.entities import Metric

    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=[Metric(*point) for point in points[start : start + BATCH]])


def _table(client: Any, run_id: str, name: str, table: Mapping[str, Any]) -> None:
    """As MLflow's ``log_table``, which would append the rows to those of a call without an answer."""
    client.log_text(run_id, json.dumps(table), name)
    known = json.loads(client.get_run(run_id).data.tags.get("mlflow.loggedArtifacts", "[]"))
    if {"path": name, "type": "table"} not in known:
        client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([*known, {"path": name, "type": "table"}]))
