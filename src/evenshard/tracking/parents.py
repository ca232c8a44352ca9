"""The parent run of a loop, made by whichever of its stages runs first.

A loop begins when ``generate_tables`` runs or the parameters change; ``work/mlflow_parent.json`` remembers it. Under
Kubeflow the run that MLFLOW_RUN_ID names is the parent, or the one that all pods of one EVENSHARD_LOOP_ID share.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evenshard.tracking.client import address, write_together
from evenshard.tracking.descriptions import loop_note
from evenshard.tracking.registry import log_output
from evenshard.tracking.tags import PARENT_TAG, origin_tags
from evenshard.utils.atomic import atomic_path
from evenshard.utils.provenance import params_hash

PARENT_FILE = Path("work/mlflow_parent.json")
LOOP_ID, LOOP_TAG = "EVENSHARD_LOOP_ID", "evenshard.loop_id"
# Begins the id of a loop whose pipeline runs on this machine.
LOCAL = "local-"
# MLflow's status of a loop by the state of its pipeline's run.
ENDED_AS = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELED": "KILLED"}
# MLflow's status of a stage whose process is gone without a word, by the same state; FAILED else.
#
# In a run that has succeeded or was stopped, it was ended from outside: another pod has taken its place, or none
# should.
LEFT_AS = {"SUCCEEDED": "KILLED", "CANCELED": "KILLED"}
# Tag of every run that evenshard makes: one that was made before, perhaps by a call that got no answer, is found.
KEY_TAG = "evenshard.key"


@dataclass(frozen=True)
class Parent:
    """The parent run, known by its id or by the value of one tag.

    Attributes:
        run_id: id of a run that another process has made; empty otherwise.
        tag, value: tag of the run and its value, by which it is found.
        name: name of the run.
        tags: more of them.
        params: settings of all sections that are known; they become the run's parameters.
    """

    run_id: str = ""
    tag: str = ""
    value: str = ""
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_exit_handler(self) -> bool:
        """Whether it is RUNNING until a pipeline's exit handler ends it, as on a cluster; here, Ctrl-C ends both.

        Kubeflow Pipelines runs the handler once: of a run that is tried again, it has ended the loop before.
        """
        return self.tag == LOOP_TAG and not self.value.startswith(LOCAL)


def parent_of(params: Mapping[str, Any], new_loop: bool) -> Parent:
    """The parent of a stage that runs now with these settings; ``work/mlflow_parent.json`` remembers a new one."""
    if os.environ.get("MLFLOW_RUN_ID") or os.environ.get(LOOP_ID):
        of_code = origin_tags(None)  # a pod knows its own settings alone: their hash is not the loop's
    else:
        of_code = origin_tags(params)
        identity = {"uri": address(), "params": params_hash(params)}
        known = _read_parents()
        if new_loop or not known.get("key") or {key: known.get(key) for key in identity} != identity:
            with atomic_path(PARENT_FILE) as draft:
                draft.write_text(json.dumps({**identity, "key": secrets.token_hex(8)}) + "\n")
    parent = current_parent()
    assert parent is not None
    return replace(parent, tags={**of_code, **loop_note()}, params=params)


def current_parent() -> Parent | None:
    """The parent of the loop that the last stage here belonged to, or None."""
    if injected := os.environ.get("MLFLOW_RUN_ID"):
        return Parent(injected)
    if loop_id := os.environ.get(LOOP_ID):
        return Parent("", LOOP_TAG, loop_id, f"loop-{loop_id}")
    known = _read_parents()
    if not known.get("key"):
        return None
    # The hash of its settings, and what tells it from others with the same.
    return Parent("", KEY_TAG, known["key"], f"loop-{known['params'][:8]}-{known['key'][:4]}")


def ensure_parent(client: Any, experiment: str, parent: Parent, start_ms: int) -> str:
    """The id of the parent run, which is made if it is not there; those that make one at once agree on the first.

    Args:
        start_ms: start of the loop, ms since 1970, for a new run.
    """
    run_id = find_parent(client, experiment, parent)
    if not run_id:
        run_id = ensure_run(client, experiment, (parent.tag, parent.value), start_ms, parent.tags, parent.name)
        if not parent.has_exit_handler:
            client.set_terminated(run_id, "FINISHED")  # its children tell how it went
    if parent.params:
        _log_settings(client, run_id, parent)
    return str(run_id)


def end_with_stages(client: Any, run_id: str, state: str) -> None:
    """Ends a loop, and the stages that no process will end any more.

    Args:
        state: SUCCEEDED, FAILED or CANCELED; after any other one the loop has FINISHED if all of its stages have.
    """
    experiment = client.get_run(run_id).info.experiment_id
    stages = client.search_runs([experiment], f"tags.`{PARENT_TAG}` = '{run_id}'")
    last = {}
    for one in sorted(stages, key=lambda one: one.info.start_time):
        last[one.info.run_name] = one.info.status
        if one.info.status == "RUNNING":
            client.set_terminated(one.info.run_id, LEFT_AS.get(state, "FAILED"))
    by_stages = "FINISHED" if set(last.values()) <= {"FINISHED"} else "FAILED"
    client.set_terminated(run_id, ENDED_AS.get(state, by_stages))


def ensure_run(
    client: Any, experiment: str, key: tuple[str, str], start_ms: int, tags: Mapping[str, str], name: str
) -> str:
    """The id of the run with this tag, which is made if there is none; of several made at once, the first.

    A call that got no answer may have made a run, too.

    Args:
        key: the tag and its value.
        start_ms: its start, ms since 1970.
    """
    if found := find_by_tag(client, experiment, *key):
        return found
    made = client.create_run(experiment, start_ms, {**tags, key[0]: key[1]}, name).info.run_id
    run_id = find_by_tag(client, experiment, *key) or made
    for other in _with_tag(client, experiment, *key):
        if other.info.run_id != run_id and other.info.start_time == start_ms:
            client.delete_run(other.info.run_id)
    return str(run_id)


def share_with_parent(client: Any, run_id: str) -> None:
    """Gives a loop's run the datasets and the models of a stage, so that its row on MLflow's pages shows them too."""
    run = client.get_run(run_id)
    parent_id = run.data.tags.get(PARENT_TAG)
    if parent_id is None:
        return

    def share() -> None:
        parent = client.get_run(parent_id)
        read = {(one.dataset.name, one.dataset.digest) for one in _datasets(parent)}
        inputs = [one for one in _datasets(run) if (one.dataset.name, one.dataset.digest) not in read]
        if inputs:
            client.log_inputs(parent_id, inputs)
        for one in run.outputs.model_outputs if run.outputs else ():
            log_output(client, parent_id, one.model_id)

    write_together(share)


def _datasets(run: Any) -> Sequence[Any]:
    return run.inputs.dataset_inputs if run.inputs else ()


def find_parent(client: Any, experiment: str, parent: Parent) -> str:
    """The id of the parent run; empty where there is none yet."""
    return parent.run_id or find_by_tag(client, experiment, parent.tag, parent.value)


def find_by_tag(client: Any, experiment: str, tag: str, value: str) -> str:
    """The id of the first run with this value of a tag; empty where there is none."""
    runs = _with_tag(client, experiment, tag, value)
    first = min(runs, key=lambda run: (run.info.start_time, run.info.run_id), default=None)
    return "" if first is None else str(first.info.run_id)


def _with_tag(client: Any, experiment: str, tag: str, value: str) -> Sequence[Any]:
    runs: Sequence[Any] = client.search_runs([experiment], filter_string=f"tags.`{tag}` = '{value}'")
    return runs


def _log_settings(client: Any, run_id: str, parent: Parent) -> None:
    """Settings as the parent's parameters, so that loops can be compared; each once, whoever tells it first."""
    from mlflow.entities import Param

    known = client.get_run(run_id).data
    for key in parent.tags.keys() - known.tags.keys():  # made by one that knew no more than its name
        write_together(client.set_tag, run_id, key, parent.tags[key])
    new = {key: value for key, value in flatten(parent.params).items() if key not in known.params}
    if new:
        if parent.tag == KEY_TAG:  # the file first: the parameters tell that it is there
            client.log_dict(run_id, dict(parent.params), "params.yaml")
        write_together(client.log_batch, run_id, params=[Param(key, value) for key, value in new.items()])


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``{"loop": {"num_rounds": 3}}`` as ``{"loop.num_rounds": "3"}``."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = str(value)[:6000]
    return flat


def _read_parents() -> dict[str, str]:
    try:
        content = json.loads(PARENT_FILE.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
