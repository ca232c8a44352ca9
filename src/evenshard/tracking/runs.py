"""Runs of stages in MLflow, each the child of its loop's run.

A stage never fails because MLflow is down: its client retries for a while (``MOST_RETRIES``), then the stage warns once
and continues. The file of its run (``run_files``) is kept until a later stage reaches MLflow.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenshard.base.documents import sha256_of
from evenshard.base.errors import MissingPackage, TrackingFailed
from evenshard.base.installation import require_package
from evenshard.tracking import tags as run_tags
from evenshard.tracking.client import address, describe_miss, first_line, is_refusal, tracking_uri
from evenshard.tracking.pyfunc import ServedCode
from evenshard.tracking.records import Point, Record, current_parent, now_ms, parent_of
from evenshard.tracking.run_files import ENDED_AS, backlog_folder, log_run, start_run, write_run

# Tags of a stage that are copied to its loop's run, and those that are copied to its models.
DATA_TAGS = (
    run_tags.TABLES_SHA256,
    run_tags.COSTS_SHA256,
    run_tags.COSTS_DVC_MD5,
    run_tags.HARDWARE,
    run_tags.VERSIONS,
)
MODEL_TAGS = (run_tags.COMMIT, run_tags.PARAMS_HASH, run_tags.VERSION, run_tags.LIBRARIES, *DATA_TAGS)
MUST_REGISTER = "EVENSHARD_MUST_REGISTER"  # variable: if it is set, a stage fails if MLflow rejects its model
# Value of MLflow's setting for retries of a request; the pauses of 4, 8, 16, ... s add up to a minute.
MOST_RETRIES = 5
# Messages about unreachable servers; a stage has several runs, but warns only once.
_WARNED: set[str] = set()
log = logging.getLogger(__name__)


class StageRun:
    """MLflow run of a stage; ``end`` writes it to a file and logs the file to MLflow.

    Args:
        record: the run; None logs nothing at all.
    """

    def __init__(self, record: Record | None = None) -> None:
        self._logs, self._record, self._code = record is not None, record or Record(now_ms()), _no_code
        self.is_kept = False

    def start(self) -> None:
        """Create the run in MLflow; if that fails, ``end`` creates it."""
        try:
            if self._logs:
                start_run(self._record)
                _WARNED.discard(tracking_uri())
        except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of types
            _warn_once(describe_miss(error, "cannot be reached"), tracking_uri())

    def metrics(self, values: Mapping[str, float]) -> None:
        """Log final metrics."""
        self._record.points += _make_points(values)

    def series(self, name: str, values: Sequence[float]) -> None:
        """Log a curve, one value per step."""
        now = now_ms()
        self._record.points += [(name, float(value), now, step) for step, value in enumerate(values)]

    def tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run and of the models that it registers."""
        self._record.tags |= {key: str(value) for key, value in tags.items()}

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Upload a file, or a folder with all of its files, when the run ends.

        Args:
            folder: folder of the run's artifacts for the file; None for the top level.
        """
        self._record.files.append((str(path), folder))

    def table(self, name: str, path: Path) -> None:
        """Log a CSV file as a table, which MLflow's pages can show and compare.

        Args:
            name: name of the table, ending in .json.
        """
        with path.open(newline="") as file:
            columns, *rows = csv.reader(file)
        table = {"columns": columns, "data": [[_parse_number(cell) for cell in row] for row in rows]}
        self._record.texts[name] = json.dumps(table)
        listed = [{"path": text, "type": "table"} for text in self._record.texts]
        self.tags({"mlflow.loggedArtifacts": json.dumps(listed)})  # MLflow's own log_table warns with pandas 3

    def costs(self, paths: Sequence[Path], context: str) -> None:
        """Log the cost datasets that the stage read or wrote, and tag the run with their hashes and hardware.

        Args:
            context: use of the datasets: benchmark, training or evaluation.
        """
        if self._logs:
            self.tags(run_tags.costs_tags(paths))
            self._record.datasets += [run_tags.dataset_record(path, context) for path in paths]

    def tables(self, path: Path) -> None:
        """Tag the run with the hash of its tables."""
        if self._logs:
            self.tags({run_tags.TABLES_SHA256: sha256_of(path)})

    def tag_training_data(self, cost_net: Path) -> None:
        """Tag the run of a policy with the data that its cost network was trained on."""
        if self._logs:
            self.tags(run_tags.network_tags(cost_net))

    def register(self, parts: Mapping[str, Path], code: ServedCode, metrics: Mapping[str, float]) -> None:
        """Register a model when the run ends; see ``ensure_models``.

        Args:
            parts: folders of the model's networks, by name of the part.
            code: code with which MLflow serves the model.
            metrics: headline metrics of the model.
        """
        from evenshard.sharders.models import COST_MODEL

        if not self._logs:
            return
        self._code = lambda: code
        self._record.model = {part: str(folder) for part, folder in parts.items()}
        origin = {key: value for key, value in self._record.tags.items() if key in MODEL_TAGS}
        self._record.model_tags = {
            **origin,
            **(run_tags.network_tags(parts[COST_MODEL]) if COST_MODEL in parts else {}),
        }
        self._record.model_metrics = dict(metrics)

    def conclude(self, values: Mapping[str, float]) -> None:
        """Log the loop's headline metrics and origin tags to the loop's run, so that loops can be compared."""
        self._record.loop_points = _make_points(values)
        self._record.loop_tags = {key: value for key, value in self._record.tags.items() if key in DATA_TAGS}

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED, and log it; if MLflow rejects it, the next stage retries.

        On a cluster the exit handler ends a killed run, because the pod needs its last second to write the journal.

        Raises:
            TrackingFailed: if MLflow did not accept the run's model, and EVENSHARD_MUST_REGISTER is set.
        """
        record, logs, self._logs = self._record, self._logs, False
        if not logs:
            return
        if status == "KILLED" and record.parent is not None and record.parent.has_exit_handler:
            return
        record.status, record.end_ms = status, now_ms()
        # A killed run has no time for retries.
        self.is_kept = not log_record(record, self._code, 0 if status == "KILLED" else MOST_RETRIES)
        if self.is_kept and record.model and os.environ.get(MUST_REGISTER):
            raise TrackingFailed(
                f"The model is not registered: MLflow at {address()} did not accept it. "
                f"Register it with `evenshard promote --candidate`, or rerun this stage."
            )


def log_record(record: Record, code: Callable[[], ServedCode], max_retries: int) -> bool:
    """Write a run to its file and log it from there; return False if MLflow did not accept it.

    A full disk does not raise an error.
    """
    kept_in = str(backlog_folder())
    try:
        folder = write_run(record)
    except OSError as error:
        _warn_once(f"A run cannot be logged: its file cannot be written to {kept_in} ({first_line(error)})", kept_in)
        return False
    try:
        log_run(folder, code, max_retries)
        _WARNED.discard(tracking_uri())
    except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of types
        _warn_once(describe_miss(error, "stopped answering"), tracking_uri())
        when = "the next stage that reaches MLflow logs them"
        when = f"a stage logs them once MLflow at {address()} accepts them" if is_refusal(error) else when
        _warn_once(f"Runs that MLflow missed are kept in {kept_in}; {when}", kept_in)
        return False
    return True


@contextmanager
def stage_run(
    stage: str, params: Mapping[str, Any] | None, settings: Mapping[str, Any], about: str = ""
) -> Iterator[StageRun]:
    """Log a stage, as the child run of its loop; mark it as failed if the block raises.

    Args:
        stage: run name, such as ``train_cost_2``, or ``bench_mixed`` for a study.
        params: all of params.yaml, which identifies the loop; None for a run outside any loop.
        settings: the stage's own settings, logged as the run's parameters.
        about: its purpose, in a sentence, for MLflow's pages.
    """
    run = _open(stage, params, settings, about)
    try:
        run.start()
        yield run
        run.end("FINISHED")
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or SIGTERM in ``run_stage``
        run.end("KILLED")
        raise
    except BaseException:
        run.end("FAILED")
        raise


def end_loop(state: str, page: str, tasks: Mapping[str, Sequence[str]] | None = None) -> None:
    """Tag the loop's run with its outcome, and end the open runs of its stages.

    Args:
        state: SUCCEEDED, FAILED, CANCELED or UNKNOWN. If it is known, a missing run is created.
        page: address of the pipeline's run, or its id.
        tasks: names of the pipeline's tasks by outcome: failed, stopped, cached or ran.
    """
    parent = current_parent()
    if parent is None:
        return
    tags = {f"{run_tags.TASKS}{what}": ", ".join(names) for what, names in (tasks or {}).items() if names}
    tags |= {run_tags.OUTCOME: state, "evenshard.kubeflow_run": page}
    loop = replace(parent, tags=tags, outcome=state, must_exist=state not in ENDED_AS)
    log_record(loop, _no_code, MOST_RETRIES)


def _open(stage: str, params: Mapping[str, Any] | None, settings: Mapping[str, Any], about: str = "") -> StageRun:
    try:
        require_package("mlflow")
    except MissingPackage as error:
        log.warning("%s is not tracked. %s", stage, error)
        return StageRun()
    number = re.search(r"_(\d+)(?:_part_\d+)?$", stage)
    hardware = settings.get("hardware")
    tags = {**run_tags.origin_tags(params), run_tags.STAGE: stage}
    tags |= {run_tags.ROUND: number[1]} if number else {}
    tags |= {run_tags.HARDWARE: str(hardware)} if hardware else {}
    parent = None if params is None else parent_of(params, new_loop=stage == "generate_tables")
    values = {name: str(value)[:6000] for name, value in settings.items()}  # MLflow's limit for parameters
    key = secrets.token_hex(8)
    return StageRun(Record(now_ms(), key, parent=parent, name=stage, about=about, tags=tags, params=values))


def _warn_once(what: str, about: str) -> None:
    if about not in _WARNED:
        _WARNED.add(about)
        log.warning("%s", what)


def _make_points(values: Mapping[str, float]) -> list[Point]:
    now = now_ms()
    return [(name, float(value), now, 0) for name, value in values.items()]


def _no_code() -> ServedCode:
    raise ValueError("the code that serves the model is missing")


def _parse_number(cell: str) -> float | str | None:
    if not cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
