"""Unrolls the rounds of params.yaml into dvc.yaml: round k's benchmark reads round k-1's policy.

python pipelines/dvc_rounds.py            writes dvc.yaml
python pipelines/dvc_rounds.py --check    exits 1 if dvc.yaml does not fit params.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from evenshard.base.outputs import HARDWARE_FILE, REPORTS, FilesInside
from evenshard.base.params import load_params, section
from evenshard.loop.loop import OF_ROUND, GenerateTablesConfig, LoopConfig
from evenshard.loop.rounds import Artifact, LoopStep, steps
from evenshard.loop.stage import Writes, flags, loop_settings, plain_inputs, set_by, uses_of
from evenshard.measure.config import MeasureConfig
from evenshard.tables.formats import TABLE_SUFFIXES
from evenshard.tables.sources import BATCH_SUFFIXES

HEADER = """\
# Written by `make dvc.yaml` from params.yaml (rounds, input files); do not edit by hand.
#
# The first stage after generate_tables depends on its files, all others on the settings behind them; and of the costs
# of all rounds, a stage depends on the newest: the networks that it goes on from name those before. Likewise the first
# benchmark names the hardware: what it measures anew, all others start from. So a change reaches the same stages as if
# each of them named everything it reads, and `dvc dag` fits a terminal.
#
# Stage hardware runs each time and takes seconds: where it finds another machine, GPU or library than last time, the
# loop measures again. DVC's cache has what the stages write; git has what says `cache: false`: metrics, the data of
# plots, the table and the hardware, which with dvc.lock are the result to commit.
"""
METRICS = "summary.json"
# What `dvc plots` draws of the report.
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
# The stage that pods have no use for: where they run is part of what a pipeline is told.
HARDWARE: dict[str, Any] = {
    "cmd": f"evenshard hardware --here {HARDWARE_FILE}",
    "always_changed": True,
    "outs": [{HARDWARE_FILE: {"cache": False}}],
}


def _files(*candidates: str | None) -> list[str]:
    return [name for name in candidates if name and name.endswith((*TABLE_SUFFIXES, *BATCH_SUFFIXES))]


def measured_with(params: dict[str, Any]) -> list[str]:
    """The files that the settings of measuring name: a recorded batch, a link, a device profile."""
    measure = section(params, "measure", MeasureConfig)
    return _files(measure.recorded_batch, measure.link, measure.hardware_name.device)


def sources(params: dict[str, Any]) -> list[str]:
    """The file that the tables come from, if they come from one."""
    return _files(section(params, "generate_tables", GenerateTablesConfig).source)


def unroll(params: dict[str, Any]) -> dict[str, Any]:
    """The stages of the loop that params.yaml describes, as dvc.yaml has them."""
    loop = steps(section(params, "loop", LoopConfig).num_rounds)
    first_reader = next(step for step in loop if step.reads)
    files_of = {"generate_tables": sources(params), "measure": measured_with(params)}
    stages = {step.name: _stage(step, step is first_reader, files_of, params) for step in loop}
    plots = [{f"{REPORTS}/{name}": how} for name, how in PLOTS.items()]
    return {"stages": {"hardware": HARDWARE, **stages}, "plots": plots}


def _stage(
    step: LoopStep, is_first_reader: bool, files_of: dict[str, list[str]], params: dict[str, Any]
) -> dict[str, Any]:
    sections = [*reversed(step.stage.sections), *(["loop"] if loop_settings(step.stage.inputs) else [])]
    deps = []
    for artifacts in step.reads.values():
        for artifact in artifacts[-1:]:
            if artifact.writer.per_round or is_first_reader:
                deps.append(artifact.path)
            else:
                sections += artifact.writer.sections
    sections = [name for name in dict.fromkeys(sections) if name in params]
    own_files = [path for name in sections for path in files_of.get(name, [])]
    others = plain_inputs(step.stage.inputs)
    sections += [f"{others[name].section}.{name}" for name in set_by(params, step.stage.inputs)]
    hardware = [HARDWARE_FILE] if step.stage.measures and is_first_reader else []
    found = {"cmd": _command(step), "deps": [*own_files, *hardware, *deps], "params": sections, **_write(step)}
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
    """The paths in a list of outputs or plots of dvc.yaml, where each is a path or one with its settings."""
    return [path for one in outputs for path in (one if isinstance(one, dict) else [one])]


def main() -> int:
    """Writes or checks dvc.yaml in the working directory."""
    text = HEADER + yaml.safe_dump(unroll(load_params(Path("params.yaml"))), sort_keys=False, width=110)
    target = Path("dvc.yaml")
    if "--check" in sys.argv[1:]:
        if not target.exists() or target.read_text() != text:
            print("dvc.yaml does not fit params.yaml. Run: make dvc.yaml", file=sys.stderr)
            return 1
        return 0
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
