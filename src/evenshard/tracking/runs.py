"""Runs of stages in MLflow, each the child of its loop's run.

A stage never fails, and never waits long, because MLflow is away: that is said once, the stage goes on without a
record, and what it has measured and learned is in its files.
"""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenshard.tracking.client import connect, experiment_id, first_line, short_timeouts, tracking_uri
from evenshard.tracking.dataset_inputs import dataset_input
from evenshard.tracking.descriptions import REGISTERED_AS, describe_run
from evenshard.tracking.parents import (
    ENDED_AS,
    PARENT_TAG,
    Parent,
    current_parent,
    end_with_stages,
    ensure_parent,
    find_parent,
    has_ended,
    parent_of,
    share_with_parent,
)
from evenshard.tracking.pyfunc import ServedCode
from evenshard.tracking.registry import REGISTERED_COST, REGISTERED_POLICY, ensure_version
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
from evenshard.utils.errors import MissingPackage
from evenshard.utils.extras import require_package
from evenshard.utils.messages import without_credentials
from evenshard.utils.scratch import scratch_folder

MODEL_TAGS = (COMMIT, PARAMS_HASH, VERSION, LIBRARIES, TABLES_SHA256, COSTS_SHA256, COSTS_DVC_MD5, HARDWARE, VERSIONS)
BATCH = 1000
"""Metrics that MLflow takes in one call."""
_AWAY: set[str] = set()
"""Addresses of which it has been said that they do not answer: a stage has several runs, and says so once."""
log = logging.getLogger(__name__)


class StageRun:
    """A run in MLflow, from its first call to ``end``. Nothing is logged after the first call that fails.

    Args:
        open_run: makes the run with a client and returns its id; nothing is logged without one, or if that is empty.
        tags: tags of the run that are known beforehand.
        about: what it does, in a sentence.
    """

    def __init__(
        self,
        open_run: Callable[[Any], str] | None = None,
        tags: Mapping[str, str] | None = None,
        about: str = "",
    ) -> None:
        self._tags, self._about = dict(tags or {}), about
        self._client: Any = None
        self._run_id = ""
        if open_run is not None:
            with self._unless_away("cannot be reached"):
                client = connect()
                self._run_id = open_run(client)
                self._client = client if self._run_id else None
                _AWAY.discard(tracking_uri())

    def metrics(self, values: Mapping[str, float]) -> None:
        """Logs final metrics."""
        self._points([(name, value, 0) for name, value in values.items()])

    def series(self, name: str, values: Sequence[float]) -> None:
        """Logs a curve, one value per step."""
        self._points([(name, value, step) for step, value in enumerate(values)])

    def tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, which the models that this run registers carry too."""
        self._tags |= {key: str(value) for key, value in tags.items()}
        for key, value in tags.items():
            self._log(lambda client, run_id, key=key, value=value: client.set_tag(run_id, key, str(value)[:5000]))

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Uploads a file, or a folder with all of its files.

        Args:
            folder: folder of the run's artifacts for the file; None for their top.
        """
        if path.is_dir():
            self._log(lambda client, run_id: client.log_artifacts(run_id, str(path), path.name))
        else:
            self._log(lambda client, run_id: client.log_artifact(run_id, str(path), folder))

    def table(self, name: str, path: Path) -> None:
        """Logs a CSV file as a table, which MLflow's pages show and compare.

        Args:
            name: name of the table, ending in .json.
        """
        if self._client is None:
            return
        with path.open(newline="") as file:
            columns, *rows = csv.reader(file)
        table = {"columns": columns, "data": [[_number(cell) for cell in row] for row in rows]}
        self._log(lambda client, run_id: client.log_text(run_id, json.dumps(table), name))
        listed = json.dumps([{"path": name, "type": "table"}])  # MLflow's own log_table warns with pandas 3
        self._log(lambda client, run_id: client.set_tag(run_id, "mlflow.loggedArtifacts", listed))

    def costs(self, paths: Sequence[Path], context: str) -> None:
        """Names the cost datasets that the stage has read or written, and tags the run with their hashes and hardware.

        Args:
            context: benchmark, training or evaluation.
        """
        if self._client is not None:
            self.tags(costs_tags(paths))
            self._datasets(paths, context)

    def tables(self, path: Path) -> None:
        """Tags the run with the hash of the tables that it works on."""
        if self._client is not None:
            self.tags(tables_tags(path))

    def learned_from(self, cost_net: Path) -> None:
        """Tags the run of a policy with what its cost network was trained on."""
        if self._client is not None:
            self.tags(network_tags(cost_net))

    @property
    def origin(self) -> dict[str, str]:
        """What its tags say so far about code, settings, hardware and data."""
        return {key: value for key, value in self._tags.items() if key in MODEL_TAGS}

    def register(self, folder: Path, code: ServedCode, metrics: Mapping[str, float]) -> None:
        """Makes a model's folder a version of evenshard-cost, and of evenshard-policy where it has a policy.

        A version that has its weights already is taken, which is said.
        """
        if self._client is None:
            return
        tags, known = {**self.origin, **model_tags(folder)}, []

        def ensure(client: Any, run_id: str, name: str) -> None:
            version, is_new = ensure_version(folder, code, tags, metrics, run_id, name, client)
            known.append(version.uri)
            if not is_new:
                log.info("%s has these weights already: no new version is registered", version.uri)

        for name, part in ((REGISTERED_COST, "cost_model"), (REGISTERED_POLICY, "policy")):
            if (folder / part).is_dir():
                self._log(lambda client, run_id, name=name: ensure(client, run_id, name))
        if known:
            self.tags({REGISTERED_AS: ", ".join(known)})

    def register_parts(self, parts: Mapping[str, Path], code: ServedCode, metrics: Mapping[str, float]) -> None:
        """Likewise, of a model whose parts lie apart, such as the networks of a round.

        Args:
            parts: their folders, by the name of the part.
            code: answers with them where MLflow serves them.
        """
        if self._client is None:
            return
        with scratch_folder() as scratch:
            for part, folder in parts.items():
                shutil.copytree(folder, scratch / part)
            self.register(scratch, code, metrics)

    def end(self, status: str) -> None:
        """Ends the run, as FINISHED, FAILED or KILLED, gives its loop what it has, and describes both."""
        self.describe()
        self._log(lambda client, run_id: client.set_terminated(run_id, status))

    def has_ended(self) -> bool:
        """Whether the run was ended before, by whomever."""
        found: list[bool] = []
        self._log(lambda client, run_id: found.append(has_ended(client, run_id)))
        return found == [True]

    def describe(self) -> None:
        """Gives its loop what the run has, and describes both."""
        self._log(share_with_parent)
        self._log(lambda client, run_id: describe_run(client, run_id, self._about))

    def end_loop(self, state: str) -> None:
        """Ends a loop's own run, and those of its stages that are open still; see ``parents.end_with_stages``."""
        self._log(lambda client, run_id: end_with_stages(client, run_id, state))
        self.describe()

    def _points(self, points: Sequence[tuple[str, float, int]]) -> None:
        """Logs values by name and step."""
        if self._client is None:
            return
        from mlflow.entities import Metric

        now = _now_ms()
        metrics = [Metric(name, float(value), now, step) for name, value, step in points]
        for start in range(0, len(metrics), BATCH):
            some = metrics[start : start + BATCH]
            self._log(lambda client, run_id, some=some: client.log_batch(run_id, metrics=some))

    def _datasets(self, paths: Sequence[Path], context: str) -> None:
        inputs = [dataset_input(path, context) for path in paths]
        self._log(lambda client, run_id: client.log_inputs(run_id, inputs))

    def _log(self, call: Callable[..., Any]) -> None:
        """Calls something with client and run id, while MLflow answers."""
        if self._client is not None:
            with self._unless_away("stopped answering"):
                call(self._client, self._run_id)

    @contextmanager
    def _unless_away(self, problem: str) -> Iterator[None]:
        uri = tracking_uri()
        try:
            with short_timeouts():
                yield
        except Exception as error:  # MLflow, SQLAlchemy, requests and the artifact stores raise dozens of kinds
            self._client = None
            if uri not in _AWAY:
                _AWAY.add(uri)
                said = f"MLflow {problem} at {without_credentials(uri)} ({first_line(error)})"
                log.warning("%s. The stage goes on, and this run is not logged any further", said)


@contextmanager
def stage_run(
    stage: str, params: Mapping[str, Any], settings: Mapping[str, Any], about: str = ""
) -> Iterator[StageRun]:
    """The child run of one stage, marked failed if the stage raises.

    Args:
        stage: run name, such as ``train_cost_2``.
        params: all of params.yaml, which identifies the loop.
        settings: this stage's own settings, logged as the run's parameters.
        about: what it does, in a sentence, for MLflow's pages.
    """
    with _ended(_open(stage, params, settings, about)) as run:
        yield run


@contextmanager
def study_run(study: str, settings: Mapping[str, Any]) -> Iterator[StageRun]:
    """A run of its own, outside of any loop, marked failed if the study raises.

    Args:
        study: run name, such as ``bench_mixed``.
        settings: logged as the run's parameters.
    """
    with _ended(_open(study, None, settings)) as run:
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
    run = _parent_run(parent, ensure_parent)
    run.metrics(values)
    run.tags(origin or {})
    if not parent.has_exit_handler:
        run.end("FINISHED")
    elif run.has_ended():
        run.tags({OUTCOME: "SUCCEEDED"})
        run.end("FINISHED")
    else:
        run.describe()


def end_loop(state: str, page: str, tasks: Mapping[str, Sequence[str]] | None = None) -> None:
    """Writes on the parent run how the loop ended, and ends the runs of its stages that are still open.

    Args:
        state: SUCCEEDED, FAILED, CANCELED or UNKNOWN. If it is known, a run is made where no stage has made one.
        page: address of the pipeline's run, or its id.
        tasks: names of its tasks by what has become of them: failed, cached or ran.
    """
    parent = current_parent()
    if parent is None:
        return
    run = _parent_run(parent, ensure_parent if state in ENDED_AS else find_parent)
    run.tags({OUTCOME: state, "evenshard.kubeflow_run": page})
    run.tags({f"{TASKS}{what}": ", ".join(names) for what, names in (tasks or {}).items() if names})
    run.end_loop(state)


@contextmanager
def _ended(run: StageRun) -> Iterator[StageRun]:
    try:
        yield run
        run.end("FINISHED")
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or SIGTERM as ``run_stage`` hears it
        run.end("KILLED")
        raise
    except BaseException:
        run.end("FAILED")
        raise


def _open(stage: str, params: Mapping[str, Any] | None, settings: Mapping[str, Any], about: str = "") -> StageRun:
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
    start_ms = _now_ms()

    def open_run(client: Any) -> str:
        from mlflow.entities import Param

        experiment = _experiment(client, parent)
        all_tags = dict(tags)
        if parent is not None:
            all_tags[PARENT_TAG] = ensure_parent(client, experiment, parent, start_ms)
        run_id = str(client.create_run(experiment, start_ms, all_tags, stage).info.run_id)
        client.log_batch(run_id, params=[Param(name, str(value)[:6000]) for name, value in settings.items()])
        return run_id

    return StageRun(open_run, tags, about)


def _parent_run(parent: Parent, get: Callable[..., str]) -> StageRun:
    """The loop's own run, as ``get`` makes or finds it."""
    return StageRun(lambda client: get(client, _experiment(client, parent), parent))


def _experiment(client: Any, parent: Parent | None) -> str:
    """The id of the experiment that a run belongs to: that of its loop, if another program has made the loop's run."""
    if parent is not None and parent.run_id:
        return str(client.get_run(parent.run_id).info.experiment_id)
    return experiment_id(client)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _number(cell: str) -> float | str | None:
    if not cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
