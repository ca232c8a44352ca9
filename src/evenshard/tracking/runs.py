"""Runs of stages in MLflow, each the child of its loop's run.

A stage never fails because MLflow is away: MLflow's client tries for a while (``MOST_RETRIES``), then it says so once
and goes on. What MLflow
has missed is kept in the ``backlog``, and logged by the next stage that reaches it.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenshard.tracking.backlog import KeptRun, backlog_folder, has_backlog
from evenshard.tracking.client import (
    address,
    connect,
    describe_miss,
    first_line,
    in_one_piece,
    is_refusal,
    short_timeouts,
    tracking_uri,
)
from evenshard.tracking.dataset_inputs import dataset_record
from evenshard.tracking.entries import Entry, Record, Sender, open_run
from evenshard.tracking.parents import ENDED_AS, current_parent, parent_of
from evenshard.tracking.pyfunc import ServedCode
from evenshard.tracking.tags import (
    COMMIT,
    COSTS_DVC_MD5,
    COSTS_SHA256,
    HARDWARE,
    LIBRARIES,
    OUTCOME,
    PARAMS_HASH,
    ROUND,
    STAGE,
    TABLES_SHA256,
    TASKS,
    VERSION,
    VERSIONS,
    costs_tags,
    model_tags,
    network_tags,
    origin_tags,
    tables_tags,
)
from evenshard.utils.errors import MissingPackage, TrackingFailed
from evenshard.utils.extras import require_package
from evenshard.utils.scratch import scratch_folder

MODEL_TAGS = (COMMIT, PARAMS_HASH, VERSION, LIBRARIES, TABLES_SHA256, COSTS_SHA256, COSTS_DVC_MD5, HARDWARE, VERSIONS)
# Variable: if it is set, a stage whose model MLflow does not take fails.
MUST_REGISTER = "EVENSHARD_MUST_REGISTER"
# Retries of a stage's request, by MLflow's own setting, whose pauses of 4, 8, 16, ... s add up to two minutes.
MOST_RETRIES = 6
# Messages about servers that are away: a stage has several runs, and says so once.
_SAID: set[str] = set()
log = logging.getLogger(__name__)


class StageRun:
    """A run in MLflow, from its start to ``end``. From the first call on that fails, all of it is kept in the backlog.

    Args:
        record: the run; None logs nothing at all.
        is_last: whether no stage comes after it that would log what MLflow has missed.
    """

    def __init__(self, record: Record | None = None, is_last: bool = False) -> None:
        self._record, self._tags = record, dict(record.tags) if record else {}
        self._sender: Sender | None = None
        self._kept: KeptRun | None = None
        self._is_refused = False
        waits = is_last or not has_backlog()  # else an earlier stage has waited already
        self._retries = MOST_RETRIES if waits else 0

    def start(self) -> None:
        """Lets MLflow show that it runs. If that fails, it is tried again when there is something to log."""
        if self._record is None:
            return
        try:
            with in_one_piece():
                self._open(0)
        except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
            _say(describe_miss(error, "cannot be reached"), tracking_uri())

    def metrics(self, values: Mapping[str, float]) -> None:
        """Logs final metrics."""
        self._points([(name, value, 0) for name, value in values.items()])

    def series(self, name: str, values: Sequence[float]) -> None:
        """Logs a curve, one value per step."""
        self._points([(name, value, step) for step, value in enumerate(values)])

    def tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, which the models that this run registers carry too."""
        told = {key: str(value) for key, value in tags.items()}
        self._tags |= told
        self._log({"kind": "tags", "tags": told})

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Uploads a file, or a folder with all of its files.

        Args:
            folder: folder of the run's artifacts for the file; None for their top.
        """
        self._log({"kind": "artifact", "path": str(path), "folder": folder})

    def table(self, name: str, path: Path) -> None:
        """Logs a CSV file as a table, which MLflow's pages show and compare.

        Args:
            name: name of the table, ending in .json.
        """
        if self._record is None:
            return
        with path.open(newline="") as file:
            columns, *rows = csv.reader(file)
        table = {"columns": columns, "data": [[_number(cell) for cell in row] for row in rows]}
        self._log({"kind": "text", "name": name, "text": json.dumps(table)})
        listed = json.dumps([{"path": name, "type": "table"}])  # MLflow's own log_table warns with pandas 3
        self._log({"kind": "tags", "tags": {"mlflow.loggedArtifacts": listed}})

    def costs(self, paths: Sequence[Path], context: str) -> None:
        """Names the cost datasets that the stage has read or written, and tags the run with their hashes and hardware.

        Args:
            context: benchmark, training or evaluation.
        """
        if self._record is not None:
            self.tags(costs_tags(paths))
            self._log({"kind": "datasets", "datasets": [dataset_record(path, context) for path in paths]})

    def tables(self, path: Path) -> None:
        """Tags the run with the hash of the tables that it works on."""
        if self._record is not None:
            self.tags(tables_tags(path))

    def learned_from(self, cost_net: Path) -> None:
        """Tags the run of a policy with what its cost network was trained on."""
        if self._record is not None:
            self.tags(network_tags(cost_net))

    @property
    def origin(self) -> dict[str, str]:
        """What its tags say so far about code, settings, hardware and data."""
        return {key: value for key, value in self._tags.items() if key in MODEL_TAGS}

    @property
    def is_kept(self) -> bool:
        """Whether MLflow has missed something of it."""
        return self._kept is not None

    def register(self, folder: Path, code: ServedCode, metrics: Mapping[str, float]) -> None:
        """Makes a model's folder a version of evenshard-cost, and of evenshard-policy where it has a policy.

        A version that has its weights already is taken, which is said.

        Raises:
            TrackingFailed: if MLflow does not take it, and EVENSHARD_MUST_REGISTER is set.
        """
        if self._record is None:
            return
        tags = {**self.origin, **model_tags(folder)}
        self._log({"kind": "model", "path": str(folder), "tags": tags, "metrics": dict(metrics)}, code)
        if self._kept is not None and os.environ.get(MUST_REGISTER):
            raise TrackingFailed(
                f"The model is not registered: MLflow at {address()} did not take it. "
                f"Register it with `evenshard promote --candidate`, or run this again."
            )

    def register_parts(self, parts: Mapping[str, Path], code: ServedCode, metrics: Mapping[str, float]) -> None:
        """Registers a model whose parts lie apart, such as the networks of a round; see ``register``.

        Args:
            parts: their folders, by the name of the part.
            code: answers with them where MLflow serves them.
        """
        if self._record is None:
            return
        with scratch_folder() as scratch:
            for part, folder in parts.items():
                shutil.copytree(folder, scratch / part)
            self.register(scratch, code, metrics)

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED, give its loop its data and models, and describe both.

        On a cluster the exit handler ends a run that was killed: its pod has about a second, and its journal needs it.
        """
        if status == "KILLED":
            self._retries = 0  # nobody waits for it
            if self._kept is None and self._record and self._record.parent and self._record.parent.has_exit_handler:
                return
        self._end({"kind": "end", "status": status, "time_ms": _now_ms()})

    def conclude(self) -> None:
        """Describes a loop that a pipeline's exit handler ends, and ends its run if that handler has run before."""
        self._end({"kind": "conclude"})

    def end_loop(self, state: str) -> None:
        """Ends a loop's own run, and those of its stages that are open still; see ``parents.end_with_stages``."""
        self._end({"kind": "end_loop", "state": state})

    def _end(self, entry: Entry) -> None:
        """Logs the last entry, and lets the next stage have what is kept."""
        self._log(entry)
        if self._kept is not None:
            with self._survive_full_disk():
                self._kept.close()
                kept_in = str(backlog_folder())
                when = f"a stage logs it once MLflow at {address()} takes it"
                when = when if self._is_refused else "the next stage that reaches it logs it"
                _say(f"What MLflow misses is kept in {kept_in}: {when}", kept_in)

    def _points(self, points: Sequence[tuple[str, float, int]]) -> None:
        """Logs values by name and step."""
        now = _now_ms()
        self._log({"kind": "metrics", "points": [(name, float(value), now, step) for name, value, step in points]})

    def _open(self, retries: int) -> Sender:
        assert self._record is not None
        record = self._record
        with short_timeouts(retries):
            client = connect()
            run_id = open_run(client, record)
        _SAID.discard(tracking_uri())
        self._sender = Sender(client, run_id, record.about)
        return self._sender

    def _log(self, entry: Entry, code: ServedCode | None = None) -> None:
        """Sends an entry; keeps it if that fails, or has failed before."""
        if self._record is None:
            return
        if self._kept is None:
            try:
                with in_one_piece(), short_timeouts(self._retries):
                    sender = self._sender or self._open(self._retries)
                    if sender.run_id:  # else there is no such run, and none is made
                        sender.send(entry, code)
                return
            except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
                _say(describe_miss(error, "stopped answering"), tracking_uri())
                self._is_refused = is_refusal(error)
        with self._survive_full_disk():
            self._kept = self._kept or KeptRun(self._record)
            self._kept.add(entry)

    @contextmanager
    def _survive_full_disk(self) -> Iterator[None]:
        """A full disk ends no stage."""
        try:
            yield
        except OSError as error:
            folder = str(backlog_folder())
            _say(f"What MLflow misses cannot be kept in {folder} ({first_line(error)})", folder)
            if self._kept is not None:
                self._kept.discard()
            self._record = None


@contextmanager
def stage_run(
    stage: str, params: Mapping[str, Any], settings: Mapping[str, Any], about: str = "", is_last: bool = False
) -> Iterator[StageRun]:
    """The child run of one stage, marked failed if the stage raises.

    Args:
        stage: run name, such as ``train_cost_2``.
        params: all of params.yaml, which identifies the loop.
        settings: this stage's own settings, logged as the run's parameters.
        about: what it does, in a sentence, for MLflow's pages.
        is_last: whether it ends the loop.
    """
    with _start_and_end(_open(stage, params, settings, about, is_last)) as run:
        yield run


@contextmanager
def study_run(study: str, settings: Mapping[str, Any]) -> Iterator[StageRun]:
    """A run of its own, outside of any loop, marked failed if the study raises.

    Args:
        study: run name, such as ``bench_mixed``.
        settings: logged as the run's parameters.
    """
    with _start_and_end(_open(study, None, settings)) as run:
        yield run


def log_to_parent(values: Mapping[str, float], origin: Mapping[str, str] | None = None) -> None:
    """Puts the loop's headline metrics on the parent run, so that loops can be compared side by side.

    Args:
        origin: tags: what the loop was measured on, and what it has learned from.
    """
    parent = current_parent()
    if parent is None:
        log.warning("no stage of this loop was tracked here; its metrics were not logged to MLflow")
        return
    run = StageRun(Record(_now_ms(), parent))
    run.metrics(values)
    run.tags(origin or {})
    if parent.has_exit_handler:
        run.conclude()
    else:
        run.end("FINISHED")


def end_loop(state: str, page: str, tasks: Mapping[str, Sequence[str]] | None = None) -> None:
    """Writes on the parent run how the loop ended, and ends the runs of its stages that are still open.

    Args:
        state: SUCCEEDED, FAILED, CANCELED or UNKNOWN. If it is known, a run is made where no stage has made one.
        page: address of the pipeline's run, or its id.
        tasks: names of its tasks by what has become of them: failed, stopped, cached or ran.
    """
    parent = current_parent()
    if parent is None:
        return
    run = StageRun(Record(_now_ms(), parent, must_exist=state not in ENDED_AS), is_last=True)
    run.tags({OUTCOME: state, "evenshard.kubeflow_run": page})
    run.tags({f"{TASKS}{what}": ", ".join(names) for what, names in (tasks or {}).items() if names})
    run.end_loop(state)


@contextmanager
def _start_and_end(run: StageRun) -> Iterator[StageRun]:
    try:
        run.start()
        yield run
        run.end("FINISHED")
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or SIGTERM as ``run_stage`` hears it
        run.end("KILLED")
        raise
    except BaseException:
        run.end("FAILED")
        raise


def _open(
    stage: str, params: Mapping[str, Any] | None, settings: Mapping[str, Any], about: str = "", is_last: bool = True
) -> StageRun:
    """A new run, the child of the loop of ``params``; of none without them."""
    try:
        require_package("mlflow")
    except MissingPackage as error:
        log.warning("%s is not tracked. %s", stage, error)
        return StageRun()
    number = re.search(r"_(\d+)(?:_part_\d+)?$", stage)
    hardware = settings.get("hardware")
    tags = {
        **origin_tags(params),
        STAGE: stage,
        **({ROUND: number[1]} if number else {}),
        **({HARDWARE: str(hardware)} if hardware else {}),
    }
    parent = None if params is None else parent_of(params, new_loop=stage == "generate_tables")
    values = {name: str(value)[:6000] for name, value in settings.items()}
    return StageRun(Record(_now_ms(), parent, secrets.token_hex(8), stage, about, tags, values), is_last)


def _say(what: str, about: str) -> None:
    """Says something once.

    Args:
        about: server or folder that it is about.
    """
    if about not in _SAID:
        _SAID.add(about)
        log.warning("%s", what)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _number(cell: str) -> float | str | None:
    if not cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
