# Written by `make generate` from src/evenshard/loop/loop.py; do not edit by hand.
"""Stage ``benchmark`` of the loop on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def benchmark(
    tables: dsl.Input[dsl.Dataset],
    tasks: dsl.Input[dsl.Dataset],
    costs: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    measure: dict[str, Any],
    round_number: int,
    cost_net: dsl.Input[dsl.Model] = None,
    policy: dsl.Input[dsl.Model] = None,
    cost_model: dsl.Input[dsl.Model] = None,
    earlier: dsl.Input[dsl.Dataset] = None,
    part: int = 1,
    num_parts: int = 1,
    num_gpus: int = 0,
) -> None:
    """Measure placements of train tasks and random shards.

    Round 1 measures random placements. Later rounds measure placements proposed by the previous round's policy and,
    for the share benchmark.searched_share, by a search with that round's cost model.

    Args:
        tables: table pool written by generate-tables: a folder with ``tables.parquet``.
        tasks: train and test tasks written by generate-tables.
        costs: cost dataset to write: a folder with ``round_001.parquet`` and so on.
        metrics: number of placements, their mean cost, measurement noise, and the share of time spent in kernels.
        config: section ``benchmark`` of params.yaml.
        measure: section ``measure`` of params.yaml.
        round_number: round of the loop, from 1.
        cost_net: cost network of the previous round.
        policy: policy of the previous round.
        cost_model: evenshard's cost model of the previous round.
        earlier: costs of earlier rounds, copied to the output.
        part: measure only part I of the N parts of the round; merge the parts with `evenshard merge-costs`.
        num_parts: number N of parts of the round, which several machines measure in parallel; each part includes all
            controls.
        num_gpus: GPUs of this pod. If 2 or more, as many as the devices of a task; they measure concurrently
            (torchrun).
    """
    from evenshard.kubeflow.pod import run_in_pod

    run_in_pod(
        "benchmark",
        tables=tables,
        tasks=tasks,
        costs=costs,
        metrics=metrics,
        config=config,
        measure=measure,
        round_number=round_number,
        cost_net=cost_net,
        policy=policy,
        cost_model=cost_model,
        earlier=earlier,
        part=part,
        num_parts=num_parts,
        num_gpus=num_gpus,
    )
