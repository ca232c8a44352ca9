"""A component's work around its stage: finds files in artifacts, tracks the stage, reports its metrics."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenshard import tracking
from evenshard.kubeflow.addresses import require_readable
from evenshard.kubeflow.remote import ENDPOINT, run_page
from evenshard.stages.record_outcome import UNKNOWN
from evenshard.tracking import StageRun
from evenshard.utils.console import log_to_stderr
from evenshard.utils.errors import BadConfig
from evenshard.utils.provenance import Lineage

TABLES = "tables.parquet"
"""The table pool, inside the artifact ``tables``: what reads a table file goes by its suffix."""


def tables_in(artifact: Any) -> Path:
    """The pool in the artifact ``tables``."""
    return Path(artifact.path, TABLES)


def path_of(artifact: Any) -> Path | None:
    """Where an artifact lies; None for one that was not given."""
    return None if artifact is None else Path(artifact.path)


def given(artifact: Any, address: str) -> str | None:
    """What a stage is to read: the path of an artifact, or an address that it reads itself; None for neither.

    Raises:
        BadConfig: if that is an address which a pod cannot read.
    """
    if artifact is not None:
        return str(artifact.path)
    require_readable(address)
    return address or None


def tables_given(artifact: Any, address: str) -> str:
    """The tables that a stage is to read, likewise.

    Raises:
        BadConfig: if there is neither, too.
    """
    found = given(artifact, address)
    if found is None:
        raise BadConfig("there are no tables. Name their address.")
    return found


@contextmanager
def stage_run(stage: str, *settings: Any) -> Iterator[StageRun]:
    """The stage's run in MLflow, where MLFLOW_TRACKING_URI names a server: a file in a pod would be gone with it.

    Args:
        stage: run name, such as ``train_cost_2``.
        settings: the stage's dataclasses, logged as the run's parameters.
    """
    log_to_stderr()
    logging.getLogger().setLevel(logging.WARNING)  # KFP's executor lets everybody talk, and FBGEMM talks a lot
    if not _has_server():
        yield StageRun()
        return
    values = {name: value for one in settings for name, value in asdict(one).items()}
    with tracking.stage_run(stage, _as_params(settings), values) as run:
        yield run


def record(
    run: StageRun | None, metrics: Any, values: Mapping[str, float | None], artifact: Path | None = None
) -> None:
    """Logs a stage's metrics, to MLflow and as its metrics artifact, and uploads what it has made to MLflow.

    Args:
        run: None where the stage has logged to MLflow itself.
    """
    known = {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
    for name, value in known.items():
        metrics.log_metric(name, value)
    if run is None:
        return
    run.metrics(known)
    if artifact is not None:
        run.artifact(artifact)


def log_to_parent(values: Mapping[str, float], origin: Mapping[str, str] | None = None) -> None:
    """Puts a loop's headline metrics, and the origin of them, on its parent run in MLflow, where MLFLOW_TRACKING_URI
    names a server."""
    if _has_server():
        tracking.log_to_parent(values, origin)


def end_loop(state: str, page: str) -> None:
    """Tells MLflow how the run ended, where that is known and MLFLOW_TRACKING_URI names a server."""
    if state != UNKNOWN and _has_server():
        tracking.end_loop(state, page)


def page_of(run_id: str) -> str:
    """The address of a run's page, where KF_PIPELINES_ENDPOINT is set in the pod; else its id."""
    endpoint = os.environ.get(ENDPOINT)
    return run_page(endpoint, run_id) if endpoint else run_id


def _has_server() -> bool:
    return bool(os.environ.get("MLFLOW_TRACKING_URI"))


def lineage(*settings: Any) -> Lineage:
    """What cost datasets say about their origin: an image has no git, so the version stands for the code."""
    return Lineage.here(_as_params(settings))


def _as_params(settings: tuple[Any, ...]) -> dict[str, Any]:
    """As sections of params.yaml: TrainCostConfig is train_cost."""
    names = [re.sub(r"(?<=.)(?=[A-Z])", "_", type(one).__name__.removesuffix("Config")).lower() for one in settings]
    return {name: asdict(one) for name, one in zip(names, settings, strict=True)}


def model_folder(folder: Path, cost_model: Path, cost_net: Path, policy: Path) -> None:
    """Puts the three networks of a round into one folder, as ``evenshard place --model`` takes it."""
    from evenshard.sharders.models import PARTS  # needs torch, which takes seconds to import

    for name, source in zip(PARTS, (cost_model, cost_net, policy), strict=True):
        shutil.copytree(source, folder / name)


def round_path(folder: Path, round_number: int) -> Path:
    """The cost dataset of a round, in the artifact ``costs``."""
    return folder / f"round_{round_number:03d}.parquet"


def round_costs(folder: Path) -> tuple[Path, ...]:
    """The cost datasets of all rounds so far, in their order."""
    return tuple(sorted(folder.glob("round_*.parquet")))


def add_round(folder: Path, round_number: int, earlier: Path | None) -> Path:
    """Copies the cost datasets of earlier rounds into ``folder``; returns where this round's is to go."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in round_costs(earlier) if earlier is not None else ():
        shutil.copy(path, folder / path.name)
    return round_path(folder, round_number)
