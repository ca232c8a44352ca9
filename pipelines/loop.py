"""Tasks of the loop on Kubeflow Pipelines, with rounds unrolled when a pipeline is compiled, as in dvc.yaml.

The benchmark of round k reads the networks of round k-1. One pod measures it, or several pods measure parts in
parallel, which are merged.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from kfp import dsl

from evenshard.base.errors import BadConfig, require
from evenshard.base.messages import brief
from evenshard.base.typed import section
from evenshard.kubeflow.cluster import MEASURING, Cluster, configure_task
from evenshard.kubeflow.component import EARLIER, NUM_GPUS, find_file_setting, input_name, is_accumulated
from evenshard.loop.loop import LOOP_SECTIONS, STAGES, BenchmarkConfig, GenerateTablesConfig, LoopConfig
from evenshard.loop.rounds import Artifact, LoopStep, unroll_loop
from evenshard.loop.stage import loop_settings, plain_inputs, read_inputs
from evenshard.tracking import MUST_REGISTER, RETRIES
from evenshard_components.merge_costs.component import merge_costs
from evenshard_components.record_outcome.component import record_outcome

from .dvc_rounds import list_measure_files

MOST_RETRIES = "10"  # retries of MLflow's client in the last stage: ten minutes in total
# Sections of params.yaml as parameters of a pipeline, which a run can change; num_rounds is fixed at compilation.
Sections = dict[str, Any]


def section_of(params: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a section of params.yaml as the default of a pipeline's parameter; empty if the section is missing."""
    return dict(params.get(name) or {})


def with_sections(params: dict[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add one parameter to a pipeline for each section that stages use, such as ``benchmark_config``.

    Args:
        params: sections of params.yaml, the defaults of these parameters.

    Returns:
        A decorator of a function whose first argument is ``sections``.
    """

    def decorator(pipeline: Callable[..., None]) -> Callable[..., None]:
        def take(*arguments: Any) -> None:
            values = signature.bind(*arguments).arguments
            pipeline({name: values.pop(f"{name}_config") for name in LOOP_SECTIONS}, **values)

        _, *own = inspect.signature(pipeline).parameters.values()
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        of_sections = [
            inspect.Parameter(f"{name}_config", kind, default=section_of(params, name), annotation=dict)
            for name in LOOP_SECTIONS
        ]
        all_of_them = sorted((*of_sections, *own), key=lambda one: one.default is not inspect.Parameter.empty)
        signature = inspect.Signature(all_of_them)
        take.__signature__ = signature  # type: ignore[attr-defined]  # where kfp looks
        return take

    return decorator


def add_loop_tasks(
    params: dict[str, Any],
    sections: Sections,
    num_rounds: int,
    cluster: Cluster,
    source: dict[str, Any],
    data_hash: Any = "",
    source_may_change: bool = False,
    must_register: bool = False,
) -> None:
    """Add the tasks of the loop to the pipeline under construction.

    Args:
        params: sections of params.yaml when the pipeline is compiled; they set inputs of stages from other sections.
        source: arguments of generate_tables that name the user's own tables.
        data_hash: hash of that file.
        source_may_change: True if the content of that file is unknown, so that Kubeflow must not reuse a cached result.
        must_register: True if the last task must fail when MLflow does not register the model.
    """
    made: dict[Artifact, Any] = {}
    for step in unroll_loop(num_rounds):
        stage = step.stage
        given = {"config": sections[stage.name]}
        given |= {name: num_rounds for name in loop_settings(stage.inputs)}
        given |= {input_name(stage, name): value for name, value in read_inputs(params, stage.inputs).items()}
        if stage.per_round:
            given[input_name(stage, "round")] = step.round
        if stage.measures:
            given |= {"measure": sections["measure"], NUM_GPUS: cluster.stages[stage.name].gpus}
        for name, artifacts in step.reads.items():
            if artifacts:  # the newest artifact contains all rounds so far
                given[input_name(stage, name)] = made[artifacts[-1]]
        if find_file_setting(stage):
            given |= {**source, "data_hash": data_hash}
        task = _add(step, given, made, cluster)
        if find_file_setting(stage) and source_may_change:
            task.set_caching_options(False)
        if stage.concludes:  # no later stage can log a run that MLflow misses
            task.set_env_variable(RETRIES, MOST_RETRIES)
            if must_register:
                task.set_env_variable(MUST_REGISTER, "1")
        made |= {one: task.outputs[one.name] for one in step.writes}


def _add(step: LoopStep, given: dict[str, Any], made: dict[Artifact, Any], cluster: Cluster) -> Any:
    name = step.stage.name
    component = getattr(import_module(f"evenshard_components.{name}.component"), name)
    collected = next((one.name for one in step.writes if is_accumulated(one.name)), "")
    before = {EARLIER: made[Artifact(collected, step.round - 1)]} if collected and step.round > 1 else {}
    if cluster.num_parts == 1 or "num_parts" not in plain_inputs(step.stage.inputs):
        return _name(configure_task(component(**given, **before), name, cluster), step)
    with dsl.ParallelFor(items=[*range(1, cluster.num_parts + 1)], name=f"parts_{step.round}") as part:
        task = component(**given, part=part, num_parts=cluster.num_parts)
        _name(configure_task(task, name, cluster), step)
    merged = merge_costs(parts=dsl.Collected(task.outputs[collected]), round_number=step.round, **before)
    return configure_task(merged, "merge_costs", cluster).set_display_name(f"merge_costs_{step.round}")


def _name(task: Any, step: LoopStep) -> Any:
    return task.set_display_name(step.name) if step.stage.per_round else task


def add_exit_handler(cluster: Cluster) -> Any:
    """Add the exit handler of a pipeline."""
    return configure_task(record_outcome(run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER), "record_outcome", cluster)


def check_rounds(params: dict[str, Any], cluster: Cluster) -> int:
    """Check that the settings can run in pods, before the run starts, and return the number of rounds.

    Raises:
        BadConfig: if a section is invalid, or names a file that pods do not have.
    """
    files = [name for name in list_measure_files(params) if not Path(name).is_absolute()]
    if files:
        raise BadConfig(
            f"params section measure names the file {brief(files[0])}, which pods do not have. Copy it into the image "
            f"or to a mounted volume, and set its absolute path there."
        )
    for stage in STAGES:
        stage.settings(params, {})
    round_of = section(params, "benchmark", BenchmarkConfig)
    jobs = round_of.placements_per_round + round_of.shards_per_round
    require(
        cluster.num_parts <= max(jobs, 1),
        f"num_parts is {cluster.num_parts}, but a round measures {jobs} placements and shards. Set at most {jobs}.",
    )
    num_devices = section(params, "generate_tables", GenerateTablesConfig).num_devices
    for name in MEASURING:
        gpus = cluster.stages[name].gpus
        require(
            gpus in (0, 1, num_devices),
            f"{name} gets {gpus} GPUs, but generate_tables.num_devices is {num_devices}. Set gpus to {num_devices} to "
            f"measure the devices concurrently, or to 1 to measure them in turn.",
        )
    return section(params, "loop", LoopConfig).num_rounds
