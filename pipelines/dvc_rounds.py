"""Generator of dvc.yaml: the loop of params.yaml with its rounds unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from evenshard.base.outputs import HARDWARE_FILE, REPORTS, FilesInside
from evenshard.base.typed import section
from evenshard.loop.loop import OF_ROUND, GenerateTablesConfig, LoopConfig
from evenshard.loop.rounds import Artifact, LoopStep, unroll_loop
from evenshard.loop.stage import Writes, flags, loop_settings, plain_inputs, read_inputs, uses_of
from evenshard.measure.config import MeasureConfig
from evenshard.tables.formats import TABLE_SUFFIXES
from evenshard.tables.sources import BATCH_SUFFIXES

HEADER = """\
# Written by `make generate` from params.yaml (rounds, input files); do not edit by hand.
#
# A stage depends on the files that its command reads, and on its sections of params.yaml. The code is not a dependency:
# after a change of the code, `dvc repro --force` runs all stages.
#
# Stage hardware runs every time, within seconds. If it finds another machine, GPU or library than last time, the loop
# measures again. Outputs with `cache: false` (metrics, data of plots, the table and the hardware) are committed to git
# together with dvc.lock; DVC's cache stores all other outputs.
"""
METRICS = "summary.json"
# Plots of the report for `dvc plots`.
PLOTS: dict[str, dict[str, Any]] = {
    "sharders.csv": {
        "title": "Mean cost of a step by sharder, held-out tasks",
        "template": "bar_horizontal_sorted",
        "x": "mean_measured_ms",
        "y": "sharder",
        "x_label": "ms per step",
    },
    "predicted_vs_measured.csv": {
        "title": "Predicted against measured cost of unseen tables",
        "template": "scatter",
        "x": "max_device_ms",
        "y": "predicted_ms",
        "x_label": "measured ms per step",
        "y_label": "predicted ms per step",
    },
    "cost_per_round.json": {
        "title": "Mean measured cost of the placements that each round tried",
        "template": "simple",
        "x": "round",
        "y": ["policy_ms", "search_ms"],
        "y_label": "ms per step",
    },
}
# The only stage of dvc.yaml that is not in the loop: it reruns the measurements on another machine.
HARDWARE: dict[str, Any] = {
    "cmd": f"evenshard hardware --here {HARDWARE_FILE}",
    "always_changed": True,
    "outs": [{HARDWARE_FILE: {"cache": False}}],
}


def _files(*candidates: str | None) -> list[str]:
    return [name for name in candidates if name and name.endswith((*TABLE_SUFFIXES, *BATCH_SUFFIXES))]


def list_measure_files(params: dict[str, Any]) -> list[str]:
    """List the files that section ``measure`` names: a recorded batch, a link, a device profile."""
    measure = section(params, "measure", MeasureConfig)
    return _files(measure.recorded_batch, measure.link, measure.hardware_name.device)


def list_source_files(params: dict[str, Any]) -> list[str]:
    """List the files that section ``generate_tables`` names: the source of the tables, if it is a file."""
    return _files(section(params, "generate_tables", GenerateTablesConfig).source)


def dvc_yaml(params: dict[str, Any]) -> str:
    """Return the text of dvc.yaml."""
    return HEADER + yaml.safe_dump(unroll(params), sort_keys=False, width=110)


def unroll(params: dict[str, Any]) -> dict[str, Any]:
    """Return the stages of the loop that params.yaml describes, as dvc.yaml has them."""
    files_of = {"generate_tables": list_source_files(params), "measure": list_measure_files(params)}
    loop = unroll_loop(section(params, "loop", LoopConfig).num_rounds)
    stages = {step.name: _stage(step, files_of, params) for step in loop}
    plots = [{f"{REPORTS}/{name}": how} for name, how in PLOTS.items()]
    return {"stages": {"hardware": HARDWARE, **stages}, "plots": plots}


def _stage(step: LoopStep, files_of: dict[str, list[str]], params: dict[str, Any]) -> dict[str, Any]:
    stage = step.stage
    others = plain_inputs(stage.inputs)
    sections = [*stage.sections, *(["loop"] if loop_settings(stage.inputs) else [])]
    sections = [name for name in sections if name in params]
    deps = [path for name in sections for path in files_of.get(name, [])]
    deps += [HARDWARE_FILE] if stage.measures else []
    deps += [artifact.path for artifacts in step.reads.values() for artifact in artifacts]
    settings = [*sections, *(f"{others[name].section}.{name}" for name in read_inputs(params, stage.inputs))]
    found = {"cmd": _command(step), "deps": deps, "params": settings, **_write(step)}
    return {key: value for key, value in found.items() if value}


def _command(step: LoopStep) -> str:
    words = ["evenshard", step.stage.command]
    inputs = flags(step.stage.inputs)
    if step.stage.per_round:
        words += [inputs["round"], str(step.round)]
    for name, artifacts in step.reads.items():
        words += [inputs[name], *(one.path for one in artifacts)] if artifacts else []
    for one in step.writes:
        words += [flags(step.stage.outputs)[one.name], one.path] if one.path else []
    if metrics := _metrics_path(step):
        words += ["--metrics", metrics]
    return " ".join(words)


def _metrics_path(step: LoopStep) -> str:
    return f"{OF_ROUND.format(round=step.round)}/{step.stage.name}.json" if step.stage.per_round else ""


def _write(step: LoopStep) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"outs": [], "metrics": []}
    for one in step.writes:
        output = uses_of(one.writer.outputs, Writes)[one.name].output
        for path in filter(None, _paths(one)):
            name = Path(path).name
            in_git = isinstance(output, FilesInside) and name in output.in_git
            found["metrics" if name == METRICS else "outs"].append({path: {"cache": False}} if in_git else path)
    if metrics := _metrics_path(step):
        found["outs"].append(metrics)
    return found


def _paths(artifact: Artifact) -> list[str]:
    output = uses_of(artifact.writer.outputs, Writes)[artifact.name].output
    return (
        [str(path) for path in output.paths(Path(artifact.path))]
        if isinstance(output, FilesInside)
        else [artifact.path]
    )


def paths(outputs: Sequence[Any]) -> list[str]:
    """Return the paths in a list of outputs or plots of dvc.yaml, whose entries are a path or a path with settings."""
    return [path for one in outputs for path in (one if isinstance(one, dict) else [one])]
