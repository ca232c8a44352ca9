"""Run files: a stage writes what it logs as one JSON file, and MLflow gets it from there.

::

    work/mlflow_backlog/20260301T101500-train_cost_2-5f0c.../
        run.json    the run (``Record``), and for which MLflow, without a password
        files/      copies of the files and models that it names

A folder appears whole when its run ends, and goes when MLflow has it: at once, or by the next stage that reaches
MLflow. Each may be sent twice and counts once: runs are found by a tag of their own, metrics carry their time, files
their place and models the hash of their weights.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evenshard.tracking.client import address, connect, first_line, in_one_piece, is_refusal, short_timeouts
from evenshard.tracking.dataset_inputs import dataset_input
from evenshard.tracking.descriptions import experiment_id, stage_note
from evenshard.tracking.parents import (
    KEY_TAG,
    Parent,
    end_with_stages,
    ensure_parent,
    ensure_run,
    find_parent,
    share_with_parent,
)
from evenshard.tracking.pyfunc import ServedCode
from evenshard.tracking.registry import ensure_models
from evenshard.tracking.tags import OUTCOME, PARENT_TAG, REGISTERED_AS
from evenshard.utils.atomic import atomic_path
from evenshard.utils.messages import reason_of

# Variable: the folder of run files.
BACKLOG = "EVENSHARD_BACKLOG"
BACKLOG_NAME = "mlflow_backlog"
# Tag of a run that MLflow has got: from which folder. Other pods may have copies of it.
LOGGED_TAG = "evenshard.backlog"
# Metrics that MLflow takes in one call.
BATCH = 1000
_RUN, _FILES = "run.json", "files"
# Name, value, time in ms since 1970, step.
Point = tuple[str, float, int, int]
log = logging.getLogger(__name__)


@dataclass
class Record:
    """A run, as plain values that JSON can hold.

    Attributes:
        start_ms: its start, ms since 1970.
        parent: its loop; None for a run outside of any.
        key: value of its tag ``evenshard.key``; empty means the loop's own run.
        name: its name, such as train_cost_2.
        about: its purpose, in a sentence.
        params: its settings.
        points: values of its metrics; the same point twice is one point.
        texts: contents of text artifacts, by name.
        files: files and folders to upload, each with its folder among the artifacts, or None for their top.
        datasets: cost datasets; see ``dataset_record``.
        model: folders of a model to register, by the name of the part; empty for none.
        model_tags, model_metrics: lineage and headline metrics of its versions.
        loop_points, loop_tags: what the loop's own run gets of a stage that concludes it.
        status: FINISHED, FAILED or KILLED; "" for a run of a loop that ends with its pipeline.
        end_ms: its end, ms since 1970.
        outcome: state of the loop's pipeline, told by its exit handler.
        must_exist: whether nothing is logged where there is no such run.
    """

    start_ms: int
    parent: Parent | None
    key: str = ""
    name: str = ""
    about: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    files: list[tuple[str, str | None]] = field(default_factory=list)
    datasets: list[dict[str, Any]] = field(default_factory=list)
    model: dict[str, str] = field(default_factory=dict)
    model_tags: dict[str, str] = field(default_factory=dict)
    model_metrics: dict[str, float] = field(default_factory=dict)
    loop_points: list[Point] = field(default_factory=list)
    loop_tags: dict[str, str] = field(default_factory=dict)
    status: str = ""
    end_ms: int = 0
    outcome: str = ""
    must_exist: bool = False


def backlog_folder() -> Path:
    """Return ``work/mlflow_backlog``, or the folder that EVENSHARD_BACKLOG names."""
    return Path(os.environ.get(BACKLOG) or Path("work", BACKLOG_NAME))


def write_run(record: Record) -> Path:
    """Write a run's folder, with copies of the files that it names, and return it.

    Raises:
        OSError: if the disk is full, or the folder must not be written.
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
    """Log the runs that this MLflow has missed, the oldest first, until it does not answer.

    Args:
        code: gives the code that answers for their models.

    Returns:
        The number of runs.
    """
    done = 0
    for folder in sorted(path.parent for path in backlog_folder().glob(f"[!.]*/{_RUN}")):
        try:
            done += log_run(folder, code)
        except (BlockingIOError, FileNotFoundError):  # another process logs it, or has done so
            continue
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be logged to MLflow (%s). Delete it", folder, reason_of(error))
        except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
            log.warning("%s stays there: MLflow at %s did not take it (%s)", folder, address(), first_line(error))
            if not is_refusal(error):
                break
    if done:
        runs = "a run" if done == 1 else f"{done} runs"
        log.warning("MLflow at %s has got what it had missed of %s", address(), runs)
    return done


def log_run(folder: Path, code: Callable[[], ServedCode], max_retries: int | None = None) -> bool:
    """Log a run to MLflow and remove its folder; return False if it is meant for another MLflow.

    Args:
        max_retries: number of retries of a request; see ``short_timeouts``.

    Raises:
        ValueError: if its file is damaged, or names files outside of the folder.
        Exception: MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds.
    """
    with _lock_folder(folder):
        told: dict[str, Any] = json.loads((folder / _RUN).read_text())
        if told["uri"] != address():
            return False
        of = told["record"]
        record = Record(**{**of, "parent": of["parent"] and Parent(**of["parent"])})
        for path in (Path(one) for one in (*(path for path, _ in record.files), *record.model.values())):
            if path.is_absolute() or ".." in path.parts:
                raise ValueError("it names a file outside of itself")
        with in_one_piece(), short_timeouts(max_retries):
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
    """Raise BlockingIOError if another process has the lock. A volume may know no locks."""
    with (folder / _RUN).open() as run:
        try:
            fcntl.flock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield


def start_run(record: Record) -> None:
    """Let MLflow show that a run has begun, without a second try.

    Raises:
        Exception: MLflow, SQLAlchemy and requests raise dozens of kinds.
    """
    with in_one_piece(), short_timeouts(0):
        _open_run(connect(), record)


def _open_run(client: Any, record: Record) -> str:
    """Return the id of a run, which is made if it is not there, as is its loop; "" where it must exist already."""
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
    tags = {**record.tags, **stage_note(experiment, record.name, record.about, parent_id)}
    tags |= {PARENT_TAG: parent_id} if parent_id else {}
    run_id = ensure_run(client, experiment, (KEY_TAG, record.key), record.start_ms, tags, record.name)
    client.log_batch(run_id, params=[Param(key, value) for key, value in record.params.items()])
    return run_id


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
        client.log_inputs(run_id, [dataset_input(one) for one in record.datasets])
    if record.model:
        model = folder / _FILES / "model"
        versions = ensure_models(model, code(), record.model_tags, record.model_metrics, run_id, client)
        client.set_tag(run_id, REGISTERED_AS, ", ".join(one.uri for one in versions))
    share_with_parent(client, run_id)
    if record.outcome:
        end_with_stages(client, run_id, record.outcome)
    if record.status:
        client.set_terminated(run_id, record.status, record.end_ms)
    parent_id = client.get_run(run_id).data.tags.get(PARENT_TAG)
    if record.loop_points and parent_id:
        _send_values(client, parent_id, record.loop_points, record.loop_tags)
        if record.parent is None or not record.parent.has_exit_handler:
            client.set_terminated(parent_id, record.status, record.end_ms)
        elif client.get_run(parent_id).info.status != "RUNNING":
            # its exit handler has ended it as failed: the pipeline was tried again
            client.set_tag(parent_id, OUTCOME, "SUCCEEDED")
            end_with_stages(client, parent_id, "SUCCEEDED")


def _send_values(client: Any, run_id: str, points: Sequence[Point], tags: dict[str, str]) -> None:
    from mlflow.entities import Metric

    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=[Metric(*point) for point in points[start : start + BATCH]])
    for key, value in tags.items():
        client.set_tag(run_id, key, value[:5000])
