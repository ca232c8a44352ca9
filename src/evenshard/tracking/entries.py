"""What a run logs, entry by entry. Each may be sent twice and counts once.

An entry is a mapping that JSON can hold, so that the backlog can keep it: runs are found by a tag of their own, metrics
carry their time, files their place and models the hash of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenshard.tracking.dataset_inputs import dataset_input
from evenshard.tracking.descriptions import REGISTERED_AS, describe_run, experiment_id
from evenshard.tracking.parents import (
    KEY_TAG,
    PARENT_TAG,
    Parent,
    end_with_stages,
    ensure_parent,
    ensure_run,
    find_parent,
    has_ended,
    share_with_parent,
)
from evenshard.tracking.pyfunc import ServedCode
from evenshard.tracking.registry import ensure_models
from evenshard.tracking.tags import OUTCOME

Entry = Mapping[str, Any]
# Metrics that MLflow takes in one call.
BATCH = 1000


@dataclass(frozen=True)
class Record:
    """A run, before MLflow knows it.

    Attributes:
        start_ms: its start, ms since 1970.
        parent: its loop; None for a run outside of any.
        key: value of its tag ``evenshard.key``; empty means the loop's own run.
        name: its name, such as train_cost_2.
        about: its purpose, in a sentence.
        tags: its tags that are known beforehand.
        params: its settings.
        must_exist: whether nothing is logged where there is no such run.
    """

    start_ms: int
    parent: Parent | None
    key: str = ""
    name: str = ""
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    must_exist: bool = False


def open_run(client: Any, record: Record) -> str:
    """The id of a run in MLflow, which is made if it is not there, as is its loop; "" where it must exist already."""
    from mlflow.entities import Param

    parent = record.parent
    if parent is not None and parent.run_id:  # made by another program, perhaps in an experiment of its own
        experiment = str(client.get_run(parent.run_id).info.experiment_id)
    else:
        experiment = experiment_id(client)
    if record.must_exist and parent is not None:
        return find_parent(client, experiment, parent)
    parent_id = "" if parent is None else ensure_parent(client, experiment, parent, record.start_ms)
    if not record.key:
        return parent_id
    tags = {**record.tags, **({PARENT_TAG: parent_id} if parent_id else {})}
    run_id = ensure_run(client, experiment, (KEY_TAG, record.key), record.start_ms, tags, record.name)
    client.log_batch(run_id, params=[Param(key, value) for key, value in record.params.items()])
    return run_id


@dataclass(frozen=True)
class Sender:
    """Sends entries of a run to MLflow.

    Attributes:
        client: MLflow's client.
        run_id: the run's id there.
        about: its purpose, in a sentence.
    """

    client: Any
    run_id: str
    about: str

    def send(self, entry: Entry, code: ServedCode | None = None, folder: Path = Path()) -> None:
        """Sends one entry.

        Args:
            code: answers with the run's models where MLflow serves them; None for a run that has none.
            folder: folder that paths in the entry start from.

        Raises:
            ValueError: if no entry looks so.
            Exception: MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds.
        """
        match entry:
            case {"kind": "metrics", "points": points}:
                self._metrics(points)
            case {"kind": "tags", "tags": tags}:
                self._tags(tags)
            case {"kind": "artifact", "path": path, "folder": inside}:
                self._artifact(folder / path, inside)
            case {"kind": "text", "name": name, "text": text}:
                self.client.log_text(self.run_id, text, name)
            case {"kind": "datasets", "datasets": records}:
                self.client.log_inputs(self.run_id, [dataset_input(one) for one in records])
            case {"kind": "model", "path": path, "tags": tags, "metrics": metrics} if code is not None:
                versions = ensure_models(folder / path, code, tags, metrics, self.run_id, self.client)
                self._tags({REGISTERED_AS: ", ".join(one.uri for one in versions)})
            case {"kind": "end", "status": status, "time_ms": time_ms}:
                self._describe()
                self.client.set_terminated(self.run_id, status, time_ms)
            case {"kind": "conclude"}:
                self._describe()
                _end_again(self.client, self.run_id)
            case {"kind": "end_loop", "state": state}:
                end_with_stages(self.client, self.run_id, state)
                self._describe()
            case _:
                raise ValueError(f"an entry of kind {entry.get('kind')!r}, which cannot be sent")

    def _metrics(self, points: Sequence[tuple[str, float, int, int]]) -> None:
        """Points are name, value, time in ms since 1970, step; the same point twice is one point."""
        from mlflow.entities import Metric

        for start in range(0, len(points), BATCH):
            some = [Metric(*point) for point in points[start : start + BATCH]]
            self.client.log_batch(self.run_id, metrics=some)

    def _tags(self, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self.client.set_tag(self.run_id, key, value[:5000])

    def _artifact(self, path: Path, inside: str | None) -> None:
        if path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), path.name)
        else:
            self.client.log_artifact(self.run_id, str(path), inside)

    def _describe(self) -> None:
        """Gives its loop what the run has, and describes both."""
        share_with_parent(self.client, self.run_id)
        describe_run(self.client, self.run_id, self.about)


def _end_again(client: Any, run_id: str) -> None:
    """End a loop as FINISHED that its exit handler has ended before: its pipeline was tried again."""
    if has_ended(client, run_id):
        client.set_tag(run_id, OUTCOME, "SUCCEEDED")
        end_with_stages(client, run_id, "SUCCEEDED")
