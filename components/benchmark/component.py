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
    """Time placements of the train tasks, and random shards.

    Round 1 places at random; then the previous round's policy proposes, and a search with its cost model proposes its
    share (benchmark.searched_share).

    Args:
        tables: the pool, as generate-tables writes it: a folder with ``tables.parquet``.
        tasks: train and test tasks, as generate-tables writes them.
        costs: cost dataset to write: a folder with ``round_001.parquet`` and so on.
        metrics: number of placements, their mean cost, the noise, and the share of time in kernels.
        config: section ``benchmark`` of params.yaml.
        measure: section ``measure`` of params.yaml.
        round_number: round of the loop.
        cost_net: cost network of the previous round.
        policy: policy of the previous round.
        cost_model: evenshard's cost model of the previous round.
        earlier: costs of the rounds before, which go along.
        part: measure only part I of N; `evenshard merge-costs` merges them.
        num_parts: parts that several machines measure side by side, each with all controls.
        num_gpus: GPUs of this pod. 2 or more must be the devices of the tasks; torchrun then measures on all at once.
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
