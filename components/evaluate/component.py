# Written by `make generate` from src/evenshard/loop/loop.py; do not edit by hand.
"""Stage ``evaluate`` of the loop on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def evaluate(
    tables: dsl.Input[dsl.Dataset],
    tasks: dsl.Input[dsl.Dataset],
    costs: dsl.Input[dsl.Dataset],
    cost_net: dsl.Input[dsl.Model],
    policy: dsl.Input[dsl.Model],
    report: dsl.Output[dsl.Artifact],
    model: dsl.Output[dsl.Model],
    page: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    measure: dict[str, Any],
    cost_model: dsl.Input[dsl.Model] = None,
    num_gpus: int = 0,
) -> None:
    """Compare all sharders on the held-out tasks and write a report.

    Writes metrics.json, evaluation.csv, plots and their data, and prints the comparison table.

    Args:
        tables: table pool written by generate-tables: a folder with ``tables.parquet``.
        tasks: train and test tasks written by generate-tables.
        costs: cost datasets of all rounds: a folder with ``round_001.parquet`` and so on.
        cost_net: cost network of the last round.
        policy: policy of the last round.
        report: folder to write the report to.
        model: also copy the networks into one folder, for `evenshard place --model`.
        page: also write the table and plots as one page (.html).
        summary: also write the table as Markdown.
        metrics: mean cost of each sharder, and the prediction accuracy of the networks.
        config: section ``evaluate`` of params.yaml.
        measure: section ``measure`` of params.yaml.
        cost_model: evenshard's cost model of the last round; required to compare evenshard.
        num_gpus: GPUs of this pod. If 2 or more, as many as the devices of a task; they measure concurrently
            (torchrun).
    """
    from evenshard.kubeflow.pod import run_in_pod

    run_in_pod(
        "evaluate",
        tables=tables,
        tasks=tasks,
        costs=costs,
        cost_net=cost_net,
        policy=policy,
        report=report,
        model=model,
        page=page,
        summary=summary,
        metrics=metrics,
        config=config,
        measure=measure,
        cost_model=cost_model,
        num_gpus=num_gpus,
    )
