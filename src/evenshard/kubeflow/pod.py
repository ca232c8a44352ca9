"""Execution of a stage in a component's pod: artifacts, journal, GPUs, metrics, and runs not yet logged to MLflow."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evenshard.base.console import log_to_stderr
from evenshard.base.errors import BadConfig, MeasurementFailed
from evenshard.base.outputs import scratch_folder
from evenshard.base.process import environment, on_sigterm, terminate
from evenshard.base.retry import with_retries
from evenshard.kubeflow import component
from evenshard.kubeflow.component import input_name, is_accumulated, require_readable
from evenshard.kubeflow.pod_journal import keep_journal
from evenshard.loop.loop import STAGES
from evenshard.loop.stage import Reads, Stage, Writes, flags, plain_inputs, uses_of
from evenshard.tracking import BACKLOG, BACKLOG_NAME

TABLES = "tables.parquet"  # the table pool inside the artifact ``tables``; its suffix selects the reader
log = logging.getLogger(__name__)


def run_in_pod(name: str, **arguments: Any) -> None:
    """Run a stage of the loop with the arguments of its component; see ``evenshard.kubeflow.component``.

    The run is logged to MLflow only if MLFLOW_TRACKING_URI names a server: a local file would be lost with the pod.
    """
    # imported here, because compiling a pipeline must not import torch
    from evenshard.loop.runner import run_stage

    log_to_stderr()
    logging.getLogger().setLevel(logging.WARNING)  # KFP's executor shows all libraries' logs, and FBGEMM logs a lot
    (stage,) = (stage for stage in STAGES if stage.name == name)
    own = component.find_file_setting(stage)
    overrides = {name: {own: path_or_address(arguments[own], arguments[f"{own}_address"])}} if own else {}
    sections = dict(zip(stage.sections, (arguments["config"], arguments.get("measure")), strict=False))
    settings = stage.settings(sections, overrides)
    inputs, outputs = _inputs(stage, arguments), _outputs(stage, arguments)
    params = {section: asdict(values) for section, values in settings.items()}
    output = next(iter(_written(stage, arguments).values()))
    outliving = keep_journal(stage.run_name(inputs), str(output.uri)) if stage.measures else nullcontext()
    with carry_backlog(*_artifacts(stage, arguments)), outliving as journal:
        inputs = replace(inputs, journal=journal) if stage.measures else inputs
        if num_gpus := arguments.get(component.NUM_GPUS, 0):
            metrics = with_retries(_run_command)(stage, num_gpus, params, inputs, outputs)  # the command logs to MLflow
        else:
            tracked = bool(os.environ.get("MLFLOW_TRACKING_URI"))
            metrics = run_stage(stage, settings, inputs, outputs, params, tracked, with_retries).metrics
    log_metrics(arguments[component.METRICS], metrics)


def _inputs(stage: Stage, arguments: Mapping[str, Any]) -> Any:
    values = {name: arguments[one.parameter] for name, one in plain_inputs(stage.inputs).items() if one.parameter}
    for name in uses_of(stage.inputs, Reads):
        path = path_of(arguments[input_name(stage, name)])
        if path is not None:
            values[name] = round_costs(path) if is_accumulated(name) else _file_in(path, name)
    return stage.inputs(**values)


def _outputs(stage: Stage, arguments: Mapping[str, Any]) -> Any:
    values = {}
    for name, artifact in _written(stage, arguments).items():
        path = Path(artifact.path)
        if is_accumulated(name):
            values[name] = add_round(path, arguments["round_number"], path_of(arguments[component.EARLIER]))
        else:
            values[name] = _file_in(path, name)
    return stage.outputs(**values)


def _written(stage: Stage, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name, use in uses_of(stage.outputs, Writes).items() if use.artifact}


def _artifacts(stage: Stage, arguments: Mapping[str, Any]) -> tuple[list[Path], list[Path]]:
    """Return the input artifacts (none for parallel parts after the first) and output artifacts of a stage."""
    read = [path_of(arguments[input_name(stage, name)]) for name in uses_of(stage.inputs, Reads)]
    is_first = arguments.get("part", 1) == 1
    written = [Path(artifact.path) for artifact in _written(stage, arguments).values()]
    return [path for path in read if path is not None and is_first], written


def _file_in(path: Path, name: str) -> Path:
    return path / TABLES if name == "tables" else path


def path_of(artifact: Any) -> Path | None:
    """Return the path of an artifact; None if it was not given."""
    return None if artifact is None else Path(artifact.path)


def path_or_address(artifact: Any, address: str) -> str | None:
    """Return the path of an artifact, or an address that a pod can read itself; None without either."""
    if artifact is not None:
        return str(artifact.path)
    require_readable(address)
    return address or None


def require_address(name: str, artifact: Any, address: str) -> str:
    """Return path or address of a required input; raise BadConfig if it has neither."""
    if (found := path_or_address(artifact, address)) is None:
        raise BadConfig(f"the address of {name} is empty. Set it.")
    return found


def log_metrics(metrics: Any, values: Mapping[str, float | None]) -> None:
    """Log all finite values to a component's metrics artifact."""
    for name, value in values.items():
        if value is not None and math.isfinite(value):
            metrics.log_metric(name, float(value))


def round_path(folder: Path, round_number: int) -> Path:
    """Return the path of a round's cost dataset in the artifact ``costs``."""
    return folder / f"round_{round_number:03d}.parquet"


def round_costs(folder: Path) -> tuple[Path, ...]:
    """List the cost datasets of all rounds so far, in order."""
    return tuple(sorted(folder.glob("round_*.parquet")))


def add_round(folder: Path, round_number: int, earlier: Path | None) -> Path:
    """Copy the cost datasets of earlier rounds into ``folder``; return the path for this round's."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in round_costs(earlier) if earlier is not None else ():
        shutil.copy(path, folder / path.name)
    return round_path(folder, round_number)


def _run_command(stage: Stage, num_gpus: int, params: Mapping[str, Any], inputs: Any, outputs: Any) -> dict[str, float]:
    """Run the command of a stage that measures, under torchrun if the pod has several GPUs; return its metrics.

    The command is a separate process, because a process cannot use its GPU after a kernel failed.
    """
    with scratch_folder() as scratch:
        settings, metrics = scratch / "params.yaml", scratch / "metrics.json"
        settings.write_text(json.dumps(dict(params)))
        words = [sys.executable]
        if num_gpus > 1:
            words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus)]
        words += ["-m", "evenshard", stage.command, "--params", str(settings), "--metrics", str(metrics)]
        for of in (inputs, outputs):
            for name, flag in flags(type(of)).items():
                value = getattr(of, name)
                if value is not None:
                    words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
        log.info("%d GPUs: %s", num_gpus, " ".join(words))
        code = _exit_code(words, scratch)
        if code == 2 and num_gpus == 1:  # torchrun returns 1 for all failures
            raise BadConfig(f"{stage.command}: bad input. See the log above.")
        if code:
            raise MeasurementFailed(f"{stage.command} on {num_gpus} GPUs failed: exit code {code}. See the log above.")
        found: dict[str, float] = json.loads(metrics.read_text())
        return found


def _exit_code(words: Sequence[str], folder: Path) -> int:
    """Run a command, forward SIGTERM to it, and return its exit code."""
    stopped = []
    with subprocess.Popen(words, cwd=folder) as child:

        def stop() -> None:
            stopped.append(True)
            child.terminate()

        with on_sigterm(stop):
            code = child.wait()
    if stopped:
        terminate()
    return code


@contextmanager
def carry_backlog(inputs: Iterable[Path], outputs: Iterable[Path]) -> Iterator[None]:
    """Move runs not yet logged to MLflow from the input artifacts to the first output folder.

    A pod's files are lost with the pod, and other pods see only the artifacts that they read. If EVENSHARD_BACKLOG
    names a folder on a volume, all pods and the exit handler share this folder, and nothing is moved.
    """
    if os.environ.get(BACKLOG):
        yield
        return
    with scratch_folder() as scratch:
        own = scratch / BACKLOG_NAME
        _move_runs(inputs, own)
        try:
            with environment({BACKLOG: str(own)}):
                yield
        finally:
            target = next(filter(Path.is_dir, outputs), None)
            if target is not None and own.is_dir():
                _move_runs([scratch], target / BACKLOG_NAME)


def _move_runs(folders: Iterable[Path], target: Path) -> None:
    for backlog in filter(Path.is_dir, (folder / BACKLOG_NAME for folder in folders)):
        for run in sorted(backlog.glob("[!.]*")):
            target.mkdir(parents=True, exist_ok=True)
            if not (target / run.name).exists():
                shutil.move(run, target / run.name)
        shutil.rmtree(backlog)
