"""Measuring in a pod: on processors in this process; on GPUs in one of its own, or with torchrun over all at once.

After a kernel that fails, a process can do no more with its GPU: another try needs another process.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from evenshard.kubeflow.pod import lineage, log_to_parent, record, stage_run
from evenshard.kubeflow.retry import with_retries
from evenshard.measure.config import MeasureConfig
from evenshard.planner.serving import served_code
from evenshard.stages import benchmark, evaluate
from evenshard.utils.errors import BadConfig, MeasurementFailed
from evenshard.utils.params import section
from evenshard.utils.scratch import scratch_folder

log = logging.getLogger(__name__)


def measure_round(
    config: Mapping[str, Any],
    measure: Mapping[str, Any],
    inputs: benchmark.BenchmarkInputs,
    outputs: benchmark.BenchmarkOutputs,
    num_gpus: int,
    metrics: Any,
) -> None:
    """Stage ``benchmark``: measures a round, or a part of it.

    Args:
        config, measure: sections of params.yaml.
        num_gpus: of this pod; one plays the devices in turn, from 2 on torchrun measures on all of them at once.
        metrics: the component's metrics artifact.

    Raises:
        BadInput: if an input cannot be read or a setting makes no sense.
        MeasurementFailed: if a kernel fails.
    """
    params = {"benchmark": dict(config), "measure": dict(measure)}
    settings = section(params, "benchmark", benchmark.BenchmarkConfig)
    measuring = section(params, "measure", MeasureConfig)
    if num_gpus:
        found = with_retries(on_gpus)("benchmark", num_gpus, params, {**_flags(inputs), "out": outputs.costs})
        record(None, metrics, found)
        return
    with stage_run(inputs.name, settings, measuring) as run:
        outcome = with_retries(benchmark.run)(settings, measuring, inputs, outputs, lineage(settings, measuring))
        run.series("measured_ms_per_placement", outcome.curve)
        record(run, metrics, outcome.metrics, outputs.costs)
        run.tables(inputs.tables)
        run.costs([outputs.costs], "benchmark")


def evaluate_all(
    config: Mapping[str, Any],
    measure: Mapping[str, Any],
    inputs: evaluate.EvaluateInputs,
    outputs: evaluate.EvaluateOutputs,
    num_gpus: int,
    metrics: Any,
) -> None:
    """Stage ``evaluate``, likewise."""
    params = {"evaluate": dict(config), "measure": dict(measure)}
    settings = section(params, "evaluate", evaluate.EvaluateConfig)
    measuring = section(params, "measure", MeasureConfig)
    if num_gpus:
        with_retries(on_gpus)("evaluate", num_gpus, params, {**_flags(inputs), "out": outputs.report})
        record(None, metrics, evaluate.headline(json.loads((outputs.report / "metrics.json").read_text())))
        return  # the command has logged to MLflow
    with stage_run("evaluate", settings, measuring) as run:
        evaluation = with_retries(evaluate.run)(settings, measuring, inputs, outputs, lineage(settings, measuring))
        record(None, metrics, evaluate.headline(evaluation.metrics))
        run.tables(inputs.tables)
        headline = evaluate.headline(evaluation.metrics)
        run.evaluation(outputs.report, inputs.networks, served_code(), inputs.costs, headline)
    log_to_parent(evaluate.headline(evaluation.metrics), run.origin)


def _flags(inputs: Any) -> dict[str, Any]:
    """The inputs of a stage as the flags of its command, which have the same names."""
    return {one.name: getattr(inputs, one.name) for one in fields(inputs)}


def on_gpus(command: str, num_gpus: int, params: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, float]:
    """Runs a measuring command of evenshard, one process for each GPU under torchrun; returns its metrics.

    Args:
        command: benchmark or evaluate.
        num_gpus: of the pod. 2 or more must be the devices of the tasks.
        params: sections of params.yaml.
        flags: by name; None leaves a flag out.

    Raises:
        BadConfig: if the one process says that its input is bad.
        MeasurementFailed: if the command fails otherwise; what it said stands in the pod's log.
    """
    with scratch_folder() as scratch:
        settings, metrics = scratch / "params.yaml", scratch / "metrics.json"
        settings.write_text(json.dumps(dict(params)))
        words = [sys.executable]
        if num_gpus > 1:
            words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus)]
        words += ["-m", "evenshard", command, "--params", str(settings), "--metrics", str(metrics)]
        for name, value in flags.items():
            if value is not None:
                values = value if isinstance(value, tuple) else (value,)
                words += [f"--{name.replace('_', '-')}", *map(str, values)]
        log.info("%d GPUs: %s", num_gpus, " ".join(words))
        done = subprocess.run(words, cwd=scratch)
        if done.returncode == 2 and num_gpus == 1:  # torchrun tells 1 of everything
            raise BadConfig(f"{command}: bad input. See above.")
        if done.returncode:
            raise MeasurementFailed(f"{command} on {num_gpus} GPUs ended with exit code {done.returncode}. See above.")
        found: dict[str, float] = json.loads(metrics.read_text())
        return found
