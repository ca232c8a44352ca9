"""A component's work around its stage: finds files in artifacts, runs the stage, reports its metrics."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evenshard import tracking
from evenshard.api.serving import served_code
from evenshard.kubeflow.component import (
    EARLIER,
    METRICS,
    NUM_GPUS,
    accumulates,
    input_name,
    own_file,
    require_readable,
)
from evenshard.kubeflow.pod_backlog import backlog_of
from evenshard.kubeflow.pod_journal import kept_journal
from evenshard.kubeflow.pod_measurement import on_gpus
from evenshard.kubeflow.remote import ENDPOINT, run_page
from evenshard.kubeflow.retry import with_retries
from evenshard.stages.loop import STAGES
from evenshard.stages.record_outcome import Seen
from evenshard.stages.stage import Flag, LoopSetting, Reads, Stage, Writes, declarations_of
from evenshard.utils.console import log_to_stderr
from evenshard.utils.errors import BadConfig

# The table pool, inside the artifact ``tables``: what reads a table file goes by its suffix.
TABLES = "tables.parquet"


def run_in_pod(name: str, **arguments: Any) -> None:
    """Run a stage of the loop on the arguments of its component; see ``evenshard.kubeflow.component``.

    MLflow gets the run where MLFLOW_TRACKING_URI names a server: a file in a pod would be gone with it.

    Raises:
        BadInput: if an input cannot be read or a setting makes no sense.
        MeasurementFailed: if a kernel fails.
    """
    # after torch: the stage's code is imported here, not where a pipeline is compiled
    from evenshard.stages.runner import run_stage

    log_to_stderr()
    logging.getLogger().setLevel(logging.WARNING)  # KFP's executor shows every library's log, and FBGEMM's is long
    (stage,) = (one for one in STAGES if one.name == name)
    own = own_file(stage)
    overrides = {name: {own: path_or_address(arguments[own], arguments[f"{own}_address"])}} if own else {}
    sections = dict(zip(stage.sections, (arguments["config"], arguments.get("measure")), strict=False))
    settings = stage.settings(sections, overrides)
    inputs, outputs = _inputs(stage, arguments), _outputs(stage, arguments)
    params = {section: asdict(one) for section, one in settings.items()}
    with backlog_of(*_artifacts(stage, arguments)), _with_journal(stage, inputs, arguments) as inputs:
        if num_gpus := arguments.get(NUM_GPUS, 0):
            metrics = with_retries(on_gpus)(stage, num_gpus, params, inputs, outputs)  # the command logs to MLflow
        else:
            tracked = bool(os.environ.get("MLFLOW_TRACKING_URI"))
            metrics = run_stage(stage, settings, inputs, outputs, params, tracked, with_retries).metrics
    log_metrics(arguments[METRICS], metrics)


def _inputs(stage: Stage, arguments: Mapping[str, Any]) -> Any:
    values = {name: arguments[name] for name in declarations_of(stage.inputs, LoopSetting)}
    for name, option in declarations_of(stage.inputs, Flag).items():
        if option.parameter:
            values[name] = arguments[option.parameter]
    for name in declarations_of(stage.inputs, Reads):
        path = path_of(arguments[input_name(stage, name)])
        if path is not None:
            values[name] = round_costs(path) if accumulates(name) else _file_in(path, name)
    return stage.inputs(**values)


@contextmanager
def _with_journal(stage: Stage, inputs: Any, arguments: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the inputs of a stage; of one that measures, with a journal that outlives this pod, if it can be kept."""
    if not stage.measures:
        yield inputs
        return
    output = next(name for name, one in declarations_of(stage.outputs, Writes).items() if one.artifact)
    with kept_journal(stage.run_name(inputs), str(arguments[output].uri)) as journal:
        yield replace(inputs, journal=journal)


def _outputs(stage: Stage, arguments: Mapping[str, Any]) -> Any:
    values = {}
    for name, one in declarations_of(stage.outputs, Writes).items():
        if not one.artifact:
            continue
        path = Path(arguments[name].path)
        if accumulates(name):
            values[name] = add_round(path, arguments["round_number"], path_of(arguments[EARLIER]))
        else:
            values[name] = _file_in(path, name)
    return stage.outputs(**values)


def _artifacts(stage: Stage, arguments: Mapping[str, Any]) -> tuple[list[Path], list[Path]]:
    """Return the artifacts that a stage reads and writes; of parts side by side, the first alone reads any."""
    read = [path_of(arguments[input_name(stage, name)]) for name in declarations_of(stage.inputs, Reads)]
    written = [arguments[name].path for name, one in declarations_of(stage.outputs, Writes).items() if one.artifact]
    is_first = arguments.get("part", 1) == 1
    return [path for path in read if path is not None and is_first], [Path(path) for path in written]


def _file_in(path: Path, name: str) -> Path:
    return path / TABLES if name == "tables" else path


def path_of(artifact: Any) -> Path | None:
    """Return the path of an artifact; None for one that was not given."""
    return None if artifact is None else Path(artifact.path)


def path_or_address(artifact: Any, address: str) -> str | None:
    """Return the path of an artifact, or an address that the stage reads itself; None for neither.

    Raises:
        BadConfig: if that is an address which a pod cannot read.
    """
    if artifact is not None:
        return str(artifact.path)
    require_readable(address)
    return address or None


def require_address(name: str, artifact: Any, address: str) -> str:
    """Return the same for an input that a task needs; raise BadConfig if there is neither."""
    found = path_or_address(artifact, address)
    if found is None:
        raise BadConfig(f"the address of {name} is empty. Give one.")
    return found


def log_metrics(metrics: Any, values: Mapping[str, float | None]) -> None:
    """Log metrics as a component's metrics artifact; those that are not numbers are left out."""
    for name, value in values.items():
        if value is not None and math.isfinite(value):
            metrics.log_metric(name, float(value))


def record_end(state: str, page: str, seen: Seen) -> None:
    """Tell MLflow how the run ended, where MLFLOW_TRACKING_URI names a server."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        tracking.log_backlog(served_code)
        ended = "stopped" if state == "CANCELED" else "failed"
        tracking.end_loop(state, page, {ended: seen.failed, "cached": seen.cached, "ran": seen.ran})


def page_of(run_id: str) -> str:
    """Return the address of a run's page, where KF_PIPELINES_ENDPOINT is set in the pod; else its id."""
    endpoint = os.environ.get(ENDPOINT)
    return run_page(endpoint, run_id) if endpoint else run_id


def round_path(folder: Path, round_number: int) -> Path:
    """Return the cost dataset of a round, in the artifact ``costs``."""
    return folder / f"round_{round_number:03d}.parquet"


def round_costs(folder: Path) -> tuple[Path, ...]:
    """Return the cost datasets of all rounds so far, in their order."""
    return tuple(sorted(folder.glob("round_*.parquet")))


def add_round(folder: Path, round_number: int, earlier: Path | None) -> Path:
    """Copy the cost datasets of earlier rounds into ``folder``; return where this round's is to go."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in round_costs(earlier) if earlier is not None else ():
        shutil.copy(path, folder / path.name)
    return round_path(folder, round_number)
