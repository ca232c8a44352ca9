"""What MLflow holds of a stage is the same, whether its command has run or its component."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl

from evenshard.base.outputs import REPORT
from evenshard.cli import main
from evenshard.kubeflow.component import input_name
from evenshard.loop.loop import BENCHMARK
from evenshard.loop.rounds import unroll_loop
from evenshard.loop.stage import flags
from evenshard.tracking.descriptions import NOTE
from evenshard_components.generate import component, parameters
from support.kubeflow_builders import SMALL_PARAMS
from support.tracking_builders import empty_file

NUM_ROUNDS = 2
# Tags that name a run or the settings of its loop, as do the files of costs (a pod knows its own sections alone), and
# the description, which links to runs.
OF_ONE_WAY = (
    *("key", "created_by", "params_hash", "loop_id", "costs_sha256", "costs_dvc_md5", "parentRunId", "backlog"),
    NOTE,
)
OF_TIME = ("wall_s", "kernel_share_of_wall_time")


def by_command(folder: Path) -> None:
    """The loop of dvc.yaml, in a folder whose files lie as those of pods do."""
    for step in unroll_loop(NUM_ROUNDS):
        words = [step.stage.command, "--metrics", f"{step.name}.json"]
        if step.stage.per_round:
            words += ["--round", str(step.round)]
        for name, artifacts in step.reads.items():
            if artifacts:
                words += [flags(step.stage.inputs)[name], *(path_of(folder, one.name, one.round) for one in artifacts)]
        for one in step.writes:
            words += [flags(step.stage.outputs)[one.name], path_of(folder, one.name, one.round)]
        assert main(words) == 0, step.name


def path_of(folder: Path, name: str, round_number: int) -> str:
    inside = {"tables": "tables/tables.parquet", "costs": f"costs/round_{round_number:03d}.parquet"}
    return str(folder / f"{round_number}" / inside.get(name, name))


def by_component(folder: Path) -> None:
    """The same loop, each component called as a function on artifacts."""
    made: dict[Any, dsl.Artifact] = {}
    for step in unroll_loop(NUM_ROUNDS):
        arguments: dict[str, Any] = {
            "config": SMALL_PARAMS.get(step.stage.name, {}),
            "measure": SMALL_PARAMS["measure"],
            "round_number": step.round,
            "num_rounds": NUM_ROUNDS,
        }
        for name, artifacts in step.reads.items():
            arguments[input_name(step.stage, name)] = made[artifacts[-1]] if artifacts else None
        if "costs" in {one.name for one in step.writes} and step.round > 1:
            arguments["earlier"] = next(one for key, one in made.items() if (key.name, key.round) == ("costs", 1))
        for one in step.writes:
            made[one] = dsl.Artifact(name=one.name, uri=str(folder / f"{one.round}" / one.name))
            arguments[one.name] = made[one]
        arguments["metrics"] = dsl.Metrics(name="metrics", uri=str(folder / f"{step.name}.metrics"))
        known = {one.name for one in parameters(step.stage)}
        component(step.stage.name).python_func(**{key: one for key, one in arguments.items() if key in known})
        assert arguments["metrics"].metadata


def held_after(way: Callable[[Path], None], folder: Path) -> dict[str, dict[str, Any]]:
    """What MLflow holds of each stage after a loop, by the name of its run."""
    from mlflow import MlflowClient

    (folder / "params.yaml").write_text(yaml.safe_dump({**SMALL_PARAMS, "loop": {"num_rounds": NUM_ROUNDS}}))
    uri = f"sqlite:///{empty_file(folder)}"
    report = Path(path_of(folder, "report", NUM_ROUNDS))
    report.mkdir(parents=True)
    (report / "thesis.txt").write_text("not for MLflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.delenv("MLFLOW_RUN_ID", raising=False)
        patch.setenv("EVENSHARD_LOOP_ID", "wf-1")  # as Argo does for pods
        way(folder)
    client, found = MlflowClient(uri), {}
    experiment = client.get_experiment_by_name("evenshard")
    assert experiment is not None
    for run in client.search_runs([experiment.experiment_id], "tags.mlflow.parentRunId != ''"):
        folders = {one.path: one.is_dir for one in client.list_artifacts(run.info.run_id)}
        found[run.info.run_name] = {
            "status": run.info.status,
            "params": run.data.params,
            "tags": {key: value for key, value in run.data.tags.items() if not key.endswith(OF_ONE_WAY)},
            "metrics": run.data.metrics,
            "artifacts": {one.path for path in folders for one in client.list_artifacts(run.info.run_id, path)}
            | {path for path, is_dir in folders.items() if not is_dir},
            "datasets": sorted((one.dataset.schema, one.dataset.profile) for one in run.inputs.dataset_inputs),
        }
    return found


@pytest.mark.slow
def test_both_ways_make_the_same_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    commands, components = (held_after(way, tmp_path_factory.mktemp("way")) for way in (by_command, by_component))
    assert commands.keys() == components.keys() == {step.name for step in unroll_loop(NUM_ROUNDS)}
    for step, command in commands.items():
        metrics, others = (one[step].pop("metrics") for one in (commands, components))
        for name in OF_TIME:
            assert (metrics.pop(name, None) is None) == (others.pop(name, None) is None)
        assert others == pytest.approx(metrics), step
        assert components[step] == command, step
    report = {f"reports/{name}" for name in REPORT.names}
    assert commands["evaluate"]["artifacts"] == {"evaluation.json", *report}, "only what a stage writes"


def test_a_part_is_no_run_of_the_whole_round_and_one_that_measures_nothing_is_none() -> None:
    inputs, costs = BENCHMARK.inputs(Path("t"), Path("k"), 2), Path("c")
    part = replace(inputs, part=3, num_parts=4)
    assert [BENCHMARK.run_name(one) for one in (inputs, part)] == ["benchmark_2", "benchmark_2_part_3"]
    assert BENCHMARK.tracked(inputs, BENCHMARK.outputs(costs))
    assert not BENCHMARK.tracked(inputs, BENCHMARK.outputs(costs, plan=Path("p")))
    assert not BENCHMARK.tracked(replace(inputs, budget_minutes=0.0), BENCHMARK.outputs(costs))
