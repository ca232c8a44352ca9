"""Stage 2 on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.image import image


@dsl.component(base_image=image(), install_kfp_package=False)
def benchmark(
    tables: dsl.Input[dsl.Dataset],
    tasks: dsl.Input[dsl.Dataset],
    costs: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    measure: dict[str, Any],
    round_number: int,
    part: int = 1,
    num_parts: int = 1,
    num_gpus: int = 0,
    cost_net: dsl.Input[dsl.Model] = None,
    policy: dsl.Input[dsl.Model] = None,
    cost_model: dsl.Input[dsl.Model] = None,
    earlier: dsl.Input[dsl.Dataset] = None,
) -> None:
    """Times one part of a round's placements, by kernels or a device model.

    Round 1 places at random; later rounds time what the previous round's policy and a search with its cost model
    propose. With several GPUs in the pod, torchrun measures on all of them at once.

    Args:
        tables: pool, as generate_tables writes it.
        tasks: tasks, as generate_tables writes them.
        costs: folder with ``round_001.parquet`` and so on: what was measured here, beside the rounds of ``earlier``.
        metrics: how many placements, their mean cost, the noise, and the share of time in kernels.
        config: section ``benchmark`` of params.yaml.
        measure: section ``measure`` of params.yaml.
        round_number: of the loop, from 1.
        part: which part of the round, from 1.
        num_parts: parts that the round is timed in.
        num_gpus: of this pod. 2 or more must be the devices of the tasks.
        cost_net: DreamShard's cost network of the previous round.
        policy: of the previous round.
        cost_model: evenshard's, of the previous round.
        earlier: the folder of the round before, where the round is measured in one part; else it goes to merge_costs.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import add_round, path_of, tables_in
    from evenshard.kubeflow.pod_measurement import measure_round
    from evenshard.stages.benchmark import BenchmarkInputs, BenchmarkOutputs

    inputs = BenchmarkInputs(
        tables_in(tables),
        Path(tasks.path),
        round_number,
        path_of(cost_net),
        path_of(policy),
        path_of(cost_model),
        part=part,
        num_parts=num_parts,
    )
    outputs = BenchmarkOutputs(add_round(Path(costs.path), round_number, path_of(earlier)))
    measure_round(config, measure, inputs, outputs, num_gpus, metrics)
