"""What does MLflow know? Runs of loops and stages, and registered models. The only module that imports mlflow.

One parent run per loop, one child run per stage.

Runs go to MLFLOW_TRACKING_URI, or to ``sqlite:///mlflow.db`` in the working directory. A loop begins when
``generate_tables`` runs or the parameters change; its parent run is remembered in ``work/mlflow_parent.json``.
Under Kubeflow the run that MLFLOW_RUN_ID names is the parent, or the one that all pods of one EVENSHARD_LOOP_ID share.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenshard.errors import BadConfig
from evenshard.lineage import params_hash

EXPERIMENT = "evenshard"
DEFAULT_URI = "sqlite:///mlflow.db"
PARENT_FILE = Path("work/mlflow_parent.json")
LOOP_ID, LOOP_TAG = "EVENSHARD_LOOP_ID", "evenshard.loop_id"
log = logging.getLogger(__name__)


class StageRun:
    """The child run of a stage; every method is a no-op where MLflow cannot be reached."""

    def __init__(self, client: Any = None, run_id: str = "") -> None:
        self._client = client
        self._run_id = run_id

    def metrics(self, values: Mapping[str, float]) -> None:
        """Logs final metrics."""
        self._try(lambda: [self._client.log_metric(self._run_id, name, value) for name, value in values.items()])

    def series(self, name: str, values: Sequence[float]) -> None:
        """Logs a curve, one value per step, in as few requests as the server takes."""

        def send() -> None:
            from mlflow.entities import Metric

            points = [Metric(name, value, 0, step) for step, value in enumerate(values)]
            for start in range(0, len(points), 1000):
                self._client.log_batch(self._run_id, metrics=points[start : start + 1000])

        self._try(send)

    def artifact(self, path: Path) -> None:
        """Uploads a file, or the files of a folder."""

        def send() -> None:
            if path.is_dir():
                self._client.log_artifacts(self._run_id, str(path), path.name)
            else:
                self._client.log_artifact(self._run_id, str(path))

        self._try(send)

    def _try(self, action: Any) -> None:
        if self._client is None:
            return
        try:
            action()
        except Exception as error:
            self._client = None
            log.warning("MLflow stopped answering (%s); the stage goes on without it", _first_line(error))


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


@contextmanager
def _logged(opened: tuple[Any, str] | None) -> Iterator[StageRun]:
    if opened is None:
        yield StageRun()
        return
    client, run_id = opened
    run = StageRun(client, run_id)
    try:
        yield run
    except BaseException:
        run._try(lambda: client.set_terminated(run_id, "FAILED"))
        raise
    run._try(lambda: client.set_terminated(run_id, "FINISHED"))


def _open(stage: str, params: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> tuple[Any, str] | None:
    """A new run, the child of the loop of ``params``; of none without them. None where MLflow cannot be reached."""
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        uri = os.environ.get("MLFLOW_TRACKING_URI", DEFAULT_URI)
        client = MlflowClient(uri)
        injected, tags = os.environ.get("MLFLOW_RUN_ID"), {"evenshard.stage": stage}
        if injected:
            parent, experiment = injected, client.get_run(injected).info.experiment_id
            tags["mlflow.parentRunId"] = parent
        else:
            experiment = _experiment(client)
            if params is not None and os.environ.get(LOOP_ID):
                tags["mlflow.parentRunId"] = _shared_parent(client, experiment, os.environ[LOOP_ID])
            elif params is not None:
                parent = _parent(client, experiment, uri, params, new_loop=stage == "generate_tables")
                tags["mlflow.parentRunId"] = parent
        run = client.create_run(experiment, run_name=stage, tags=tags)
        client.log_batch(run.info.run_id, params=[Param(key, str(value)) for key, value in settings.items()])
        return client, run.info.run_id
    except Exception as error:
        log.warning("MLflow cannot be reached (%s); the stage runs untracked", _first_line(error))
        return None


def _experiment(client: Any) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _parent(client: Any, experiment: str, uri: str, params: Mapping[str, Any], new_loop: bool) -> str:
    identity = {
        "uri": uri,
        "params": params_hash(params),
    }
    if PARENT_FILE.exists() and not new_loop:
        known = json.loads(PARENT_FILE.read_text())
        if {key: known.get(key) for key in identity} == identity:
            return str(known["run_id"])
    run = client.create_run(
        experiment, run_name=f"loop-{identity['params'][:8]}", tags={"evenshard.params_hash": identity["params"]}
    )
    client.log_dict(run.info.run_id, dict(params), "params.yaml")
    client.set_terminated(run.info.run_id, "FINISHED")  # its children tell how it went
    PARENT_FILE.parent.mkdir(parents=True, exist_ok=True)
    PARENT_FILE.write_text(json.dumps({**identity, "run_id": run.info.run_id}) + "\n")
    return str(run.info.run_id)


def _shared_parent(client: Any, experiment: str, loop_id: str) -> str:
    """The parent run of a loop whose stages share no file; pods that make one at the same time agree on the first."""

    def found() -> list[Any]:
        runs = client.search_runs([experiment], filter_string=f"tags.`{LOOP_TAG}` = '{loop_id}'")
        return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))

    if known := found():
        return str(known[0].info.run_id)
    made = client.create_run(experiment, run_name=f"loop-{loop_id}", tags={LOOP_TAG: loop_id})
    client.set_terminated(made.info.run_id, "FINISHED")  # its children tell how it went
    first = str(found()[0].info.run_id)
    if first != made.info.run_id:
        client.delete_run(made.info.run_id)
    return first


def log_to_parent(values: Mapping[str, float]) -> None:
    """Puts the loop's headline metrics on the parent run, so that loops can be compared side by side."""

    def send(client: Any, parent: str) -> None:
        for name, value in values.items():
            client.log_metric(parent, name, value)

    _with_parent(send, "the loop's metrics were not logged to MLflow")


def end_loop(state: str, message: str = "") -> None:
    """Writes on the parent run how the loop ended.

    Args:
        state: SUCCEEDED, FAILED or CANCELLED.
        message: of the failure.
    """

    def send(client: Any, parent: str) -> None:
        client.set_tag(parent, "evenshard.outcome", state)
        if message:
            client.set_tag(parent, "evenshard.outcome_message", message[:1000])
        if state != "SUCCEEDED":
            client.set_terminated(parent, "FAILED" if state == "FAILED" else "KILLED")

    _with_parent(send, "the end of the loop was not logged to MLflow")


def _with_parent(send: Callable[[Any, str], None], otherwise: str) -> None:
    try:
        from mlflow import MlflowClient

        client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", DEFAULT_URI))
        parent = os.environ.get("MLFLOW_RUN_ID")
        if not parent and os.environ.get(LOOP_ID):
            parent = _shared_parent(client, _experiment(client), os.environ[LOOP_ID])
        send(client, parent or json.loads(PARENT_FILE.read_text())["run_id"])
    except Exception as error:
        log.warning("%s (%s)", otherwise, _first_line(error))


def download_model(uri: str) -> Path:
    """Fetches a registered model, such as ``models:/evenshard-cost@champion`` or ``models:/evenshard-cost/3``.

    Returns:
        A folder that lives as long as this process. What is in there is for ``evenshard.models`` to say.

    Raises:
        BadConfig: if there is no such model, alias or version, or MLflow cannot be reached.
    """
    where = os.environ.get("MLFLOW_TRACKING_URI", DEFAULT_URI)
    registry = os.environ.get("MLFLOW_REGISTRY_URI", where)
    if registry == DEFAULT_URI and not Path(DEFAULT_URI.removeprefix("sqlite:///")).exists():  # MLflow would make one
        raise BadConfig(
            f"{uri}: there is no mlflow.db in this folder. Set MLFLOW_TRACKING_URI, or name a model's folder."
        )
    folder = Path(tempfile.mkdtemp(prefix="evenshard-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with _environment({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}):
            from mlflow.artifacts import download_artifacts

            downloaded = download_artifacts(uri, dst_path=str(folder), tracking_uri=where, registry_uri=registry)
        return Path(downloaded)
    except Exception as error:  # MLflow, SQLAlchemy, requests and the stores' own clients raise dozens of kinds
        reason = _first_line(error).rstrip(".")
        raise BadConfig(
            f"{uri}: MLflow at {registry} did not give this model ({reason}). Name a model, alias or version that is "
            f"registered there, or a model's folder."
        ) from None


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a while, where the user has set none: MLflow reads its settings nowhere else."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
