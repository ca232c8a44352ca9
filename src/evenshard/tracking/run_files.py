"""Run files: a stage writes its log as one JSON file, which is then sent to MLflow.

::

    work/mlflow_backlog/20260301T101500-train_cost_2-5f0c.../
        run.json    the run (``Record``), and the address of its MLflow, without a password
        files/      copies of the files and models that the run names

A folder is written atomically when its run ends, and removed when MLflow has it: at once, or by the next stage that
reaches MLflow. A run may be sent twice: MLflow finds runs by their own tag, metrics by their time, files by their path
and models by the hash of their weights.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evenshard.base.messages import reason_of
from evenshard.base.outputs import atomic_path
from evenshard.tracking.client import (
    address,
    connect,
    first_line,
    is_refusal,
    protect_database,
    short_timeouts,
    write_together,
)
from evenshard.tracking.descriptions import NOTE, experiment_id, loop_note, stage_note
from evenshard.tracking.pyfunc import ServedCode
from evenshard.tracking.records import KEY_TAG, Point, Record
from evenshard.tracking.registry import ensure_models, log_output
from evenshard.tracking.tags import OUTCOME, PARENT_TAG, REGISTERED_AS, dataset_input

# Variable: the folder of run files.
BACKLOG = "EVENSHARD_BACKLOG"
BACKLOG_NAME = "mlflow_backlog"
# Tag of a logged run with its source folder. Other pods may have copies of the folder.
LOGGED_TAG = "evenshard.backlog"
CREATOR_TAG = "evenshard.created_by"  # with the key of a stage
# Most metrics per call of MLflow.
BATCH = 1000
_RUN, _FILES = "run.json", "files"
# MLflow's status of a loop by the state of its pipeline's run.
ENDED_AS = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELED": "KILLED"}
# MLflow's status of a stage whose process disappeared, by the same state; FAILED for other states. In a run that
# succeeded or was stopped, the process was ended from outside: another pod has replaced it, or the run was cancelled.
LEFT_AS = {"SUCCEEDED": "KILLED", "CANCELED": "KILLED"}
log = logging.getLogger(__name__)


def backlog_folder() -> Path:
    """Return ``work/mlflow_backlog``, or the folder in EVENSHARD_BACKLOG."""
    return Path(os.environ.get(BACKLOG) or Path("work", BACKLOG_NAME))


def write_run(record: Record) -> Path:
    """Write a run's folder, with copies of the files that it names, and return it.

    Raises:
        OSError: if the disk is full, or the folder is not writable.
    """
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(record.start_ms / 1000))
    folder = backlog_folder() / f"{when}-{record.name or 'loop'}-{time.time_ns():x}"
    with atomic_path(folder) as draft:
        draft.mkdir()

        def keep(source: str, inside: str) -> str:
            kept = Path(_FILES, inside)
            (draft / kept).parent.mkdir(parents=True, exist_ok=True)
            copy: Callable[..., object] = shutil.copytree if Path(source).is_dir() else shutil.copyfile
            copy(source, draft / kept)
            return kept.as_posix()

        files = [(keep(path, f"{nth}/{Path(path).name}"), inside) for nth, (path, inside) in enumerate(record.files)]
        model = {part: keep(path, f"model/{part}") for part, path in record.model.items()}
        run = {"uri": address(), "record": asdict(replace(record, files=files, model=model))}
        (draft / _RUN).write_text(json.dumps(run, default=str) + "\n")  # YAML knows dates, JSON does not
    return folder


def log_backlog(code: Callable[[], ServedCode]) -> int:
    """Log the runs that this MLflow missed, the oldest first, until it stops answering.

    Args:
        code: function that returns the serving code of the runs' models.

    Returns:
        The number of logged runs.
    """
    done = 0
    for folder in sorted(path.parent for path in backlog_folder().glob(f"[!.]*/{_RUN}")):
        try:
            done += log_run(folder, code)
        except (BlockingIOError, FileNotFoundError):  # another process logs or has logged it
            continue
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be logged to MLflow (%s). Delete the folder", folder, reason_of(error))
        except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of types
            log.warning("%s is kept: MLflow at %s did not accept it (%s)", folder, address(), first_line(error))
            if not is_refusal(error):
                break
    if done:
        runs = "a run" if done == 1 else f"{done} runs"
        log.warning("logged %s that MLflow at %s had missed", runs, address())
    return done


def log_run(folder: Path, code: Callable[[], ServedCode], max_retries: int | None = None) -> bool:
    """Log a run to MLflow and remove its folder; return False if it is meant for another MLflow.

    Args:
        max_retries: number of retries of a request; see ``short_timeouts``.

    Raises:
        ValueError: if its file is damaged, or names files outside of the folder.
        Exception: MLflow, SQLAlchemy, requests and the artifact stores raise dozens of types.
    """
    with _lock_folder(folder):
        content: dict[str, Any] = json.loads((folder / _RUN).read_text())
        if content["uri"] != address():
            return False
        of = content["record"]
        record = Record(**{**of, "parent": of["parent"] and Record(**of["parent"])})
        for path in map(Path, (*(source for source, _ in record.files), *record.model.values())):
            if path.is_absolute() or ".." in path.parts:
                raise ValueError("it names a file outside its folder")
        with protect_database(), short_timeouts(max_retries):
            client = connect()
            run_id = _open_run(client, record)
            if run_id and client.get_run(run_id).data.tags.get(LOGGED_TAG) != folder.name:
                _send(client, run_id, record, folder, code)
                client.set_tag(run_id, LOGGED_TAG, folder.name)
        retired = folder.with_name(f".{folder.name}")
        folder.rename(retired)
        with suppress(OSError):
            shutil.rmtree(retired)
    return True


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; raise BlockingIOError if another process has it. Do nothing on volumes without locks."""
    with (folder / _RUN).open() as run:
        try:
            fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield


def start_run(record: Record) -> None:
    """Create a run in MLflow when its stage starts, without retries.

    Raises:
        Exception: MLflow, SQLAlchemy and requests raise dozens of types.
    """
    with protect_database(), short_timeouts(0):
        _open_run(connect(), record)


def _open_run(client: Any, record: Record) -> str:
    """Return the id of a run; create it and its loop's run if missing. Return "" for a loop that must already exist."""
    from mlflow.entities import Param

    loop = record if record.is_loop else record.parent
    if loop is not None and loop.run_id:  # created by another program, possibly in another experiment
        experiment = str(client.get_run(loop.run_id).info.experiment_id)
    else:
        experiment = experiment_id(client)
    parent_id = "" if loop is None else ensure_loop(client, experiment, loop, record.key)
    if record.is_loop:
        return parent_id
    tags = {**record.tags, **stage_note(experiment, record.name, record.about, parent_id)}
    tags |= {PARENT_TAG: parent_id} if parent_id else {}
    run_id = _ensure_run(client, experiment, replace(record, tags=tags), record.key)
    if parent_id and client.get_run(run_id).data.tags.get(PARENT_TAG) != parent_id:  # that loop's run was a duplicate
        for key in (PARENT_TAG, NOTE):
            client.set_tag(run_id, key, tags[key])
    client.log_batch(run_id, params=[Param(key, value) for key, value in record.params.items()])
    return run_id


def ensure_loop(client: Any, experiment: str, loop: Record, creator: str) -> str:
    """Return the id of a loop's run; create it if missing, or return "" if it should already exist.

    If several stages create it at once, later calls return the first run, and each stage deletes its own duplicate.

    Args:
        creator: key of the stage.
    """
    if not loop.run_id and loop.must_exist and not find_runs(client, experiment, loop.tag, loop.key):
        return ""
    noted = replace(loop, tags={**loop.tags, **loop_note()})
    run_id = loop.run_id or _ensure_run(client, experiment, noted, creator)
    try:
        if loop.params:
            _log_settings(client, run_id, loop)
    except Exception:
        if loop.run_id or client.get_run(run_id).info.lifecycle_stage == "active":
            raise
        return ensure_loop(client, experiment, loop, creator)  # its creator has just deleted it as a duplicate
    return run_id


def _ensure_run(client: Any, experiment: str, record: Record, creator: str) -> str:
    """Return the id of the first run with a record's key; create it if missing.

    Delete the creator's duplicates: another stage was first, or an earlier call created a run but got no answer.
    """
    runs = find_runs(client, experiment, record.tag, record.key)
    if not runs:
        tags = {**record.tags, record.tag: record.key, CREATOR_TAG: creator}
        made = client.create_run(experiment, record.start_ms, tags, record.name)
        if record.is_loop and not record.has_exit_handler:
            client.set_terminated(made.info.run_id, "FINISHED")  # its children show the outcome
        runs = find_runs(client, experiment, record.tag, record.key) or [made]
    for duplicate in runs[1:]:
        if duplicate.data.tags.get(CREATOR_TAG) == creator:
            client.delete_run(duplicate.info.run_id)
    return str(runs[0].info.run_id)


def find_runs(client: Any, experiment: str, tag: str, value: str) -> list[Any]:
    """Return the runs with this value of a tag in an order on which all stages agree."""
    runs = client.search_runs([experiment], filter_string=f"tags.`{tag}` = '{value}'")
    return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def _log_settings(client: Any, run_id: str, loop: Record) -> None:
    """Log settings as parameters of the loop's run, to compare loops; each is logged by the first stage that has it."""
    from mlflow.entities import Param

    known = client.get_run(run_id).data
    tags = {**loop.tags, **loop_note()}
    for key in tags.keys() - known.tags.keys():  # missing if its creator knew only the loop's id
        write_together(client.set_tag, run_id, key, tags[key])
    new = {key: value for key, value in flatten(loop.params).items() if key not in known.params}
    if new:
        if loop.tag == KEY_TAG and loop.key:  # the file first, because the parameters indicate that it exists
            client.log_dict(run_id, loop.params, "params.yaml")
        write_together(client.log_batch, run_id, params=[Param(key, value) for key, value in new.items()])


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten ``{"loop": {"num_rounds": 3}}`` to ``{"loop.num_rounds": "3"}``."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = str(value)[:6000]  # MLflow's limit for parameters
    return flat


def _send(client: Any, run_id: str, record: Record, folder: Path, code: Callable[[], ServedCode]) -> None:
    _send_values(client, run_id, record.points, record.tags)
    for name, text in record.texts.items():
        client.log_text(run_id, text, name)
    for path, inside in record.files:
        if (folder / path).is_dir():
            client.log_artifacts(run_id, str(folder / path), Path(path).name)
        else:
            client.log_artifact(run_id, str(folder / path), inside)
    if record.datasets:
        client.log_inputs(run_id, [dataset_input(dataset) for dataset in record.datasets])
    if record.model:
        model = folder / _FILES / "model"
        versions = ensure_models(model, code(), record.model_tags, record.model_metrics, run_id, client)
        client.set_tag(run_id, REGISTERED_AS, ", ".join(version.uri for version in versions))
    _share_with_loop(client, run_id)
    if record.outcome:
        _end_with_stages(client, run_id, record.outcome)
    if record.status:
        client.set_terminated(run_id, record.status, record.end_ms)
    parent_id = client.get_run(run_id).data.tags.get(PARENT_TAG)
    if record.loop_points and parent_id:
        _send_values(client, parent_id, record.loop_points, record.loop_tags)
        if record.parent is None or not record.parent.has_exit_handler:
            client.set_terminated(parent_id, record.status, record.end_ms)
        elif client.get_run(parent_id).info.status != "RUNNING":
            # the exit handler ended it as failed, and the pipeline was retried
            client.set_tag(parent_id, OUTCOME, "SUCCEEDED")
            _end_with_stages(client, parent_id, "SUCCEEDED")


def _send_values(client: Any, run_id: str, points: Sequence[Point], tags: dict[str, str]) -> None:
    from mlflow.entities import Metric

    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=[Metric(*point) for point in points[start : start + BATCH]])
    for key, value in tags.items():
        client.set_tag(run_id, key, value[:5000])  # the limit of older MLflow servers


def _end_with_stages(client: Any, run_id: str, state: str) -> None:
    """End the run of a loop, and the runs of its stages that are still open.

    Args:
        state: SUCCEEDED, FAILED or CANCELED; for any other state the loop is FINISHED if all of its stages are.
    """
    experiment = client.get_run(run_id).info.experiment_id
    stages = client.search_runs([experiment], f"tags.`{PARENT_TAG}` = '{run_id}'")
    last = {}
    for stage in sorted(stages, key=lambda stage: stage.info.start_time):
        last[stage.info.run_name] = stage.info.status
        if stage.info.status == "RUNNING":
            client.set_terminated(stage.info.run_id, LEFT_AS.get(state, "FAILED"))
    by_stages = "FINISHED" if set(last.values()) <= {"FINISHED"} else "FAILED"
    client.set_terminated(run_id, ENDED_AS.get(state, by_stages))


def _share_with_loop(client: Any, run_id: str) -> None:
    """Copy the datasets and models of a stage to its loop's run, so that MLflow's pages show them in the loop's row."""
    run = client.get_run(run_id)
    parent_id = run.data.tags.get(PARENT_TAG)
    if parent_id is None:
        return

    def share() -> None:
        read = {(entry.dataset.name, entry.dataset.digest) for entry in _datasets(client.get_run(parent_id))}
        inputs = [entry for entry in _datasets(run) if (entry.dataset.name, entry.dataset.digest) not in read]
        if inputs:
            client.log_inputs(parent_id, inputs)
        for output in run.outputs.model_outputs if run.outputs else ():
            log_output(client, parent_id, output.model_id)

    write_together(share)


def _datasets(run: Any) -> Sequence[Any]:
    return run.inputs.dataset_inputs if run.inputs else ()
