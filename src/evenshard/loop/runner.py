"""Run of a stage, logged to MLflow. Commands, pods and tests run stages with this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenshard import tracking
from evenshard.base.outputs import MODEL_PARTS, FilesInside
from evenshard.base.process import on_sigterm, terminate
from evenshard.base.provenance import Lineage
from evenshard.loop.stage import Outcome, Reads, Stage, Writes, uses_of
from evenshard.measure.distributed import collective
from evenshard.tracking import StageRun
from evenshard.tracking.pyfunc import build_serving_code

Code = Callable[..., Outcome]


def run_stage(
    stage: Stage,
    settings: Mapping[str, Any],
    inputs: Any,
    outputs: Any,
    params: Mapping[str, Any],
    tracked: bool = True,
    attempts: Callable[[Code], Code] = lambda code: code,
) -> Outcome:
    """Run a stage and log it to MLflow; SIGTERM ends its MLflow run as KILLED.

    Args:
        settings: the sections of params.yaml that the stage uses, as dataclasses, by name.
        params: all known sections of params.yaml, which identify the loop in MLflow.
        tracked: False if the run should not be logged to MLflow.
        attempts: wraps the stage's code with retries of transient failures.

    Raises:
        BadInput: if an input cannot be read or a setting is invalid.
        MeasurementFailed: if a kernel fails.
    """
    if stage.measures and collective.is_follower():
        from evenshard.measure.torchrec_step import RANK_JOBS

        collective.serve(settings["measure"], RANK_JOBS)
        return Outcome({})
    arguments = (*settings.values(), inputs, outputs, *([Lineage.current(params)] if stage.takes_lineage else []))
    tracked = tracked and stage.tracked(inputs, outputs)
    values = {name: value for values in settings.values() for name, value in asdict(values).items()}
    name = stage.run_name(inputs)
    in_mlflow = tracking.stage_run(name, params, values, stage.what)
    with on_sigterm(terminate), in_mlflow if tracked else nullcontext(StageRun()) as run:
        outcome = attempts(stage.run)(*arguments)
        _log(run, stage, inputs, outputs, outcome)
    if tracked and not run.is_kept:
        tracking.log_backlog(build_serving_code)
    return outcome


def _log(run: StageRun, stage: Stage, inputs: Any, outputs: Any, outcome: Outcome) -> None:
    if outcome.curve:
        run.series(outcome.curve_name or stage.curve, outcome.curve)
    run.metrics(outcome.metrics)
    read = {name: (use, _paths(inputs, name)) for name, use in uses_of(stage.inputs, Reads).items()}
    written = {name: (use, _paths(outputs, name)) for name, use in uses_of(stage.outputs, Writes).items()}
    for path in _paths(inputs, "tables") + _paths(outputs, "tables"):
        run.tables(path)
    for use, paths in written.values():
        for path in paths if use.uploaded else ():
            if isinstance(use.output, FilesInside):  # other files there are not the stage's
                for file in filter(Path.exists, use.output.paths(path)):
                    run.artifact(file, use.path)
            else:
                run.artifact(path)
            for name in use.tables:
                run.table(Path(name).with_suffix(".json").name, path / name)
            for name, role in use.roles:
                run.costs([path / name], role)
    for declaration, paths in read.values():
        if declaration.role:
            run.costs(paths, declaration.role)
    for path in _paths(inputs, stage.learned_from):
        run.tag_training_data(path)
    if stage.concludes:
        parts = {name: path for name in MODEL_PARTS for path in _paths(inputs, name)}
        run.register(parts, build_serving_code(), outcome.metrics)
        run.conclude(outcome.metrics)


def _paths(of: Any, name: str) -> tuple[Path, ...]:
    value = getattr(of, name, None)
    return () if value is None else value if isinstance(value, tuple) else (value,)
