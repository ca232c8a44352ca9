"""What a stage tells MLflow: its run, the child of its loop's; a stage never fails or waits long because of it."""

from __future__ import annotations

import csv
import logging
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from evenshard.tracking.client import connect, experiment_name, first_line, patience, tracking_uri
from evenshard.tracking.dataset_inputs import describe_costs
from evenshard.tracking.deadline import NoAnswer
from evenshard.tracking.outbox import KeptRun
from evenshard.tracking.parents import Parent, current_parent, parent_of
from evenshard.tracking.registry import COST, POLICY, copy_parts
from evenshard.tracking.sending import Operation, Record, ensure_run, send
from evenshard.tracking.system_metrics import watched
from evenshard.tracking.tags import (
    COMMIT,
    COSTS_DVC_MD5,
    COSTS_SHA256,
    HARDWARE,
    LIBRARIES,
    PARAMS_HASH,
    ROUND,
    STAGE,
    TABLES_SHA256,
    VERSION,
    VERSIONS,
    costs_tags,
    model_tags,
    network_tags,
    origin_tags,
    tables_tags,
)
from evenshard.utils.errors import MissingPackage
from evenshard.utils.extras import require_package
from evenshard.utils.messages import reason_of, without_credentials
from evenshard.utils.scratch import scratch_folder

SYSTEM_METRICS = "train_"
"""Stages whose CPU, memory and GPU are watched: those that compute for long and measure nothing. A thread that asks the
system every few seconds while kernels are timed would stand in the figures."""
MODEL_TAGS = (COMMIT, PARAMS_HASH, VERSION, LIBRARIES, TABLES_SHA256, COSTS_SHA256, COSTS_DVC_MD5, HARDWARE, VERSIONS)
_HANGING: set[str] = set()
"""Addresses that have been silent for too long: a stage with several runs waits for them once."""
log = logging.getLogger(__name__)


class StageRun:
    """The run of a stage. What MLflow does not take goes to the outbox; without a record nothing is tracked."""

    def __init__(self, record: Record | None = None) -> None:
        self._record = record
        self._tags = {} if record is None else dict(record.tags)
        self._kept: KeptRun | None = None
        self._client: Any = None
        self._run_id = ""
        if record is not None:
            self._try(self._open, "MLflow cannot be reached")

    def metrics(self, values: Mapping[str, float]) -> None:
        """Logs final metrics."""
        now = _now_ms()
        self._do({"kind": "metrics", "points": [(name, float(value), now, 0) for name, value in values.items()]})

    def series(self, name: str, values: Sequence[float]) -> None:
        """Logs a curve, one value per step."""
        now = _now_ms()
        points = [(name, float(value), now, step) for step, value in enumerate(values)]
        self._do({"kind": "metrics", "points": points})

    def points(self, points: Sequence[tuple[str, float, int, int]]) -> None:
        """Logs values with their time: name, value, ms since 1970, step."""
        self._do({"kind": "metrics", "points": list(points)})

    def tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, which the models that this run registers carry too."""
        self._tags |= {key: str(value) for key, value in tags.items()}
        self._do({"kind": "tags", "tags": {key: str(value)[:5000] for key, value in tags.items()}})

    def artifact(self, path: Path) -> None:
        """Uploads a file, or the files of a folder."""
        self._do({"kind": "artifact", "path": str(path)})

    def table(self, name: str, path: Path) -> None:
        """Logs a CSV file as a table, which MLflow's pages show and compare.

        Args:
            name: of the table, ending in .json.
        """
        if self._record is None:
            return
        with path.open(newline="") as file:
            columns, *rows = csv.reader(file)
        data = [[_number(cell) for cell in row] for row in rows]
        self._do({"kind": "table", "name": name, "table": {"columns": columns, "data": data}})

    def costs(self, paths: Sequence[Path], context: str) -> None:
        """Says which cost datasets the stage has read or written, and tags the run with their hashes and hardware.

        Args:
            context: benchmark, training or evaluation.
        """
        if self._record is None:
            return
        self.tags(costs_tags(paths))
        self._datasets(paths, context)

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

    def register(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Makes a model's folder a new version of evenshard-cost, and of evenshard-policy where it has a policy."""
        if self._record is None:
            return
        tags = {**self.origin, **model_tags(folder)}
        names = [name for name, part in ((COST, "cost_model"), (POLICY, "policy")) if (folder / part).is_dir()]
        for name in names:
            with scratch_folder() as scratch:
                copy_parts(folder, scratch / "model", name)
                path = str(scratch / "model")
                self._do({"kind": "model", "name": name, "path": path, "tags": tags, "metrics": dict(metrics)})

    def evaluation(
        self, report: Path, model: Mapping[str, Path], costs: Sequence[Path], metrics: Mapping[str, float]
    ) -> None:
        """Logs what an evaluation has written, and registers the networks that it has evaluated.

        Args:
            report: its folder: pictures, evaluation.csv, evaluation_costs.parquet.
            model: folders of the networks by their part of a model, such as cost_net.
            costs: the cost datasets that they were trained on.
            metrics: its headline.
        """
        if self._record is None:
            return
        self.metrics(metrics)
        self.artifact(report)
        self.table("evaluation.json", report / "evaluation.csv")
        self._datasets([report / "evaluation_costs.parquet"], "evaluation")
        self.costs(costs, "training")
        with scratch_folder() as scratch:
            for part, folder in model.items():
                shutil.copytree(folder, scratch / part)
            self.register(scratch, metrics)

    def end(self, status: str) -> None:
        """Ends the run, as FINISHED, FAILED or KILLED."""
        self._do({"kind": "end", "status": status, "end_ms": _now_ms()})
        self.close()

    def close(self) -> None:
        """Ends nothing, but lets ``evenshard sync`` have what is kept."""
        if self._kept is not None:
            with self._unless_full("What is for MLflow cannot be kept"):
                self._kept.close()

    def _datasets(self, paths: Sequence[Path], context: str) -> None:
        self._do({"kind": "datasets", "datasets": [describe_costs(path, context) for path in paths]})

    def _open(self) -> None:
        assert self._record is not None
        if tracking_uri() in _HANGING:
            raise NoAnswer("no answer to an earlier run of this process")
        self._client = connect()
        self._run_id = ensure_run(self._client, self._record)

    def _do(self, operation: Operation) -> None:
        if self._record is not None and self._kept is None:
            self._try(lambda: send(self._client, self._run_id, operation, Path()), "MLflow stopped answering")
        if self._kept is not None:
            with self._unless_full("What is for MLflow cannot be kept"):
                self._kept.add(operation)

    def _try(self, action: Any, otherwise: str) -> None:
        """From the first failure on, everything is kept: nothing waits for the same server twice."""
        assert self._record is not None
        uri = tracking_uri()
        try:
            with patience():
                action()
        except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
            if isinstance(error, NoAnswer):
                _HANGING.add(uri)
            problem = f"{otherwise} at {without_credentials(uri)} ({first_line(error)})"
            with self._unless_full(f"{problem}, and nothing can be kept"):
                self._kept = KeptRun(self._record)
                log.warning(
                    "%s. The stage goes on; what it logs will be in %s, and `evenshard sync` sends it later",
                    problem,
                    self._kept.folder,
                )

    @contextmanager
    def _unless_full(self, problem: str) -> Iterator[None]:
        """On a full disk nothing is kept; what the stage itself has written is more than MLflow's copy of it."""
        try:
            yield
        except OSError as error:
            log.warning("%s (%s). The stage goes on, and is not logged", problem, error.strerror or reason_of(error))
            if self._kept is not None:
                self._kept.discard()
            self._record = self._kept = None


@contextmanager
def stage_run(stage: str, params: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[StageRun]:
    """The child run of one stage, marked failed if the stage raises.

    Args:
        stage: run name, such as ``train_cost_2``.
        params: all of params.yaml, which identifies the loop.
        settings: this stage's own settings, logged as the run's parameters.
    """
    with _logged(_open(stage, params, settings)) as run:
        yield run


@contextmanager
def study_run(study: str, settings: Mapping[str, Any]) -> Iterator[StageRun]:
    """A run of its own, outside of any loop, marked failed if the study raises.

    Args:
        study: run name, such as ``bench_mixed``.
        settings: logged as the run's parameters.
    """
    with _logged(_open(study, None, settings)) as run:
        yield run


def log_to_parent(values: Mapping[str, float], origin: Mapping[str, str] | None = None) -> None:
    """Puts the loop's headline metrics on the parent run, so that loops can be compared side by side.

    Args:
        origin: tags: what the loop was measured on, and what it has learned from.
    """
    run = _parent_run()
    run.metrics(values)
    if origin:
        run.tags(origin)
    run.end("FINISHED")


def end_loop(state: str, page: str) -> None:
    """Writes on the parent run how the loop ended.

    Args:
        state: SUCCEEDED, FAILED or CANCELED.
        page: where the run of the pipeline can be seen, or its id.
    """
    run = _parent_run()
    run.tags({"evenshard.outcome": state, "evenshard.kubeflow_run": page})
    run.end({"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELED": "KILLED"}[state])


@contextmanager
def _logged(run: StageRun) -> Iterator[StageRun]:
    stage = "" if run._record is None else run._record.name
    try:
        with watched(run) if stage.startswith(SYSTEM_METRICS) else nullcontext():
            yield run
    except BaseException:
        run.end("FAILED")
        raise
    run.end("FINISHED")


def _open(stage: str, params: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> StageRun:
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
    loop = None if params is None else parent_of(params, new_loop=stage == "generate_tables")
    return StageRun(_record(stage, secrets.token_hex(8), loop, tags, settings))


def _parent_run() -> StageRun:
    """The loop's own run; untracked where no stage has been tracked here."""
    parent = current_parent()
    if parent is None:
        log.warning("no stage of this loop was tracked here; its metrics were not logged to MLflow")
        return StageRun()
    return StageRun(_record("", "", parent, {}, {}))


def _record(name: str, key: str, parent: Parent | None, tags: Mapping[str, str], settings: Mapping[str, Any]) -> Record:
    params = {name: str(value)[:6000] for name, value in settings.items()}
    return Record(key, name, experiment_name(), _now_ms(), parent, dict(tags), params)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _number(cell: str) -> float | str | None:
    if not cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
