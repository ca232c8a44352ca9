"""Records of MLflow runs as JSON-serializable values: the run of a stage, and the run of its loop.

A new loop begins when ``generate_tables`` runs or the parameters change; ``work/mlflow_parent.json`` stores its id. On
Kubeflow, MLFLOW_RUN_ID names the run of the loop; without it, pods with the same EVENSHARD_LOOP_ID share a loop.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evenshard.base.outputs import write_text
from evenshard.base.provenance import params_hash
from evenshard.tracking.client import address
from evenshard.tracking.tags import origin_tags

PARENT_FILE = Path("work/mlflow_parent.json")
LOOP_ID, LOOP_TAG = "EVENSHARD_LOOP_ID", "evenshard.loop_id"
LOCAL = "local-"  # prefix of the id of a loop whose pipeline runs on this machine
# Tag of every run of evenshard. It finds a run that an earlier call created although its answer was lost.
KEY_TAG = "evenshard.key"
Point = tuple[str, float, int, int]  # name, value, time in ms since 1970, step


@dataclass
class Record:
    """A run of a stage or of a loop."""

    start_ms: int  # ms since 1970
    key: str = ""  # value of the tag that identifies the run
    tag: str = KEY_TAG  # name of that tag
    run_id: str = ""  # id of a loop's run that another program created
    is_loop: bool = False
    parent: Record | None = None  # the run of its loop; None for a run outside any loop
    name: str = ""
    about: str = ""  # purpose, in a sentence
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)  # its settings; for a loop, all known sections of params.yaml
    points: list[Point] = field(default_factory=list)  # values of its metrics; equal points count once
    texts: dict[str, str] = field(default_factory=dict)  # contents of text artifacts, by name
    files: list[tuple[str, str | None]] = field(default_factory=list)  # uploads, with artifact folder (None: top level)
    datasets: list[dict[str, Any]] = field(default_factory=list)  # cost datasets; see ``dataset_record``
    model: dict[str, str] = field(default_factory=dict)  # folders of a model to register, by part; empty for none
    model_tags: dict[str, str] = field(default_factory=dict)  # lineage of the model's versions
    model_metrics: dict[str, float] = field(default_factory=dict)  # headline metrics of the model's versions
    loop_points: list[Point] = field(default_factory=list)  # metrics for the run of the loop that this stage concludes
    loop_tags: dict[str, str] = field(default_factory=dict)  # tags for that run
    status: str = ""  # FINISHED, FAILED or KILLED; "" for a loop that its pipeline ends
    end_ms: int = 0
    outcome: str = ""  # state of the loop's pipeline, from its exit handler
    must_exist: bool = False  # True to log nothing if the run does not exist

    @property
    def has_exit_handler(self) -> bool:
        """Return True if a pipeline's exit handler ends the loop; only on a cluster, as Ctrl-C can stop a local one.

        Kubeflow Pipelines runs the handler once, so a retried run finds its loop already ended.
        """
        return self.tag == LOOP_TAG and not self.key.startswith(LOCAL)


def now_ms() -> int:
    """Return the time in ms since 1970."""
    return int(time.time() * 1000)


def parent_of(params: Mapping[str, Any], new_loop: bool) -> Record:
    """Return the loop of a stage with these settings; store a new loop in ``work/mlflow_parent.json``."""
    if os.environ.get("MLFLOW_RUN_ID") or os.environ.get(LOOP_ID):
        tags = origin_tags(None)  # a pod has only its own settings, whose hash is not the loop's
    else:
        tags = origin_tags(params)
        identity = {"uri": address(), "params": params_hash(params)}
        known = _read_parents()
        if new_loop or not known.get("key") or {key: known.get(key) for key in identity} != identity:
            write_text(PARENT_FILE, json.dumps({**identity, "key": secrets.token_hex(8)}) + "\n")
    parent = current_parent()
    assert parent is not None
    return replace(parent, tags=tags, params=dict(params))


def current_parent() -> Record | None:
    """Return the loop of the last stage in this folder, or None."""
    if injected := os.environ.get("MLFLOW_RUN_ID"):
        return Record(now_ms(), run_id=injected, is_loop=True)
    if loop_id := os.environ.get(LOOP_ID):
        return Record(now_ms(), loop_id, LOOP_TAG, is_loop=True, name=f"loop-{loop_id}")
    known = _read_parents()
    if not known.get("key"):
        return None
    # The name contains the hash of the loop's settings and a prefix of its key.
    return Record(now_ms(), known["key"], is_loop=True, name=f"loop-{known['params'][:8]}-{known['key'][:4]}")


def _read_parents() -> dict[str, str]:
    try:
        content = json.loads(PARENT_FILE.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
