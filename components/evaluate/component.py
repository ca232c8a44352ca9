"""Stage 5 on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.image import image


@dsl.component(base_image=image(), install_kfp_package=False)
def evaluate(
    tables: dsl.Input[dsl.Dataset],
    tasks: dsl.Input[dsl.Dataset],
    costs: dsl.Input[dsl.Dataset],
    cost_net: dsl.Input[dsl.Model],
    policy: dsl.Input[dsl.Model],
    cost_model: dsl.Input[dsl.Model],
    report: dsl.Output[dsl.Artifact],
    model: dsl.Output[dsl.Model],
    page: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    config: dict[str, Any],
    measure: dict[str, Any],
    num_gpus: int = 0,
) -> None:
    """Times every sharder's placement of every held-out task, by kernels or a device model, and reports.

    Args:
        tables: pool, as generate_tables writes it.
        tasks: tasks, as generate_tables writes them.
        costs: folder of the cost datasets of all rounds, as merge_costs writes it.
        cost_net: DreamShard's cost network of the last round.
        policy: of the last round.
        cost_model: evenshard's, of the last round.
        report: folder of metrics.json, evaluation.csv, table.txt, evaluation_costs.parquet and the pictures.
        model: the three networks in one folder, as ``evenshard place --model`` and the pipeline ``place`` take it.
        page: table and pictures in one self-contained page.
        summary: the table.
        metrics: mean cost of each sharder, and how well the networks predict.
        config: section ``evaluate`` of params.yaml.
        measure: section ``measure`` of params.yaml.
        num_gpus: of this pod. 2 or more must be the devices of the tasks; torchrun then measures on all at once.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import model_folder, round_costs, tables_in
    from evenshard.kubeflow.pod_measurement import evaluate_all
    from evenshard.stages.evaluate import EvaluateInputs, EvaluateOutputs
    from evenshard.stages.report_page import save_report

    networks = [Path(one.path) for one in (cost_net, policy, cost_model)]
    inputs = EvaluateInputs(tables_in(tables), Path(tasks.path), round_costs(Path(costs.path)), *networks)
    evaluate_all(config, measure, inputs, EvaluateOutputs(Path(report.path)), num_gpus, metrics)
    save_report(Path(report.path), Path(page.path), Path(summary.path))
    model_folder(Path(model.path), Path(cost_model.path), Path(cost_net.path), Path(policy.path))
