"""An MLflow in a file, made once for all tests, and cost datasets and models for what is logged there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import pytest

from evenshard.base.provenance import Lineage
from evenshard.measure.cost_dataset import save_costs
from evenshard.sharders.training_domain import TrainingDomain
from evenshard.tracking import REGISTERED_COST, ModelVersion, registry
from evenshard.tracking.client import connect, experiment_name, short_timeouts
from evenshard.tracking.pyfunc import ServedCode
from support.builders import cost, cost_net, measured, policy, some_tables, task
from support.convex_builders import NORMALIZER, random_model
from support.model_builders import save_model

AWAY = "http://127.0.0.1:9"
ROWS = [measured(task(some_tables(4), 2), (0, 1, 0, 1), cost(1.0, 2.0))]


@cache
def _empty() -> Path:
    """MLflow takes seconds to make its tables."""
    from mlflow import MlflowClient

    path = Path(mkdtemp(prefix="evenshard-test-")) / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def empty_file(folder: Path) -> Path:
    """``folder/mlflow.db``, which is where evenshard looks without settings."""
    return Path(shutil.copy(_empty(), folder / "mlflow.db"))


def empty_mlflow(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{empty_file(folder)}")


@contextmanager
def new_registry(folders: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an empty MLflow, which is the working directory within the block."""
    folder = folders.mktemp("registry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.chdir(folder)
        empty_mlflow(folder)
        yield folder


def register_model(
    folder: Path, code: ServedCode, tags: Any, metrics: Any = None, run_id: str = "", name: str = "", client: Any = None
) -> ModelVersion:
    """Makes a model's folder a new version, where others have its weights too."""
    with short_timeouts():
        client = client or connect()
        labels = {**tags, **{f"{registry.METRIC_TAG}{key}": f"{value:.6g}" for key, value in (metrics or {}).items()}}
        logged = registry._upload_model(client, name or REGISTERED_COST, folder, code, labels, run_id)
        return registry._ensure_version(client, logged, run_id)


def runs_of(client: Any, name: str = "evenshard") -> dict[str, Any]:
    """Runs of an experiment by name; two of one name would be a fault."""
    experiment = client.get_experiment_by_name(name)
    found = [] if experiment is None else client.search_runs([experiment.experiment_id])
    by_name = {run.info.run_name: run for run in found}
    assert len(by_name) == len(found)
    return by_name


class Loop(NamedTuple):
    run: Any
    children: list[Any]  # the runs of its stages, the oldest first


def loops() -> list[Loop]:
    """The parent runs of the experiment, the newest first."""
    client = connect()
    experiment = client.get_experiment_by_name(experiment_name())
    of_parent: dict[str, list[Any]] = {}
    for run in [] if experiment is None else client.search_runs([experiment.experiment_id]):
        of_parent.setdefault(run.data.tags.get("mlflow.parentRunId", ""), []).append(run)
    return [Loop(run, of_parent.get(run.info.run_id, [])[::-1]) for run in of_parent.get("", [])]


def write_costs(path: Path, lineage: Lineage | None = None) -> Path:
    save_costs(ROWS, path, lineage)
    return path


def parts_of(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir() if path.is_dir()}


def write_model(
    folder: Path, costs: tuple[Path, ...] = (), seed: int = 0, commit: str = "unknown", hardware: str = ""
) -> Path:
    """A model that was trained on these datasets."""
    seen = TrainingDomain.of(ROWS, commit, costs)
    seen = replace(seen, hardware=hardware or seen.hardware)
    save_model(folder, random_model(seed), seen, (cost_net(), policy(seed), NORMALIZER))
    return folder
