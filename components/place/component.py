"""``evenshard place`` on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def place(
    placement: dsl.Output[dsl.Artifact],
    plan: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    difference: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    request: dict[str, Any],
    tables: dsl.Input[dsl.Dataset] = None,
    model_uri: str = "",
    model: dsl.Input[dsl.Model] = None,
    in_use: dsl.Input[dsl.Artifact] = None,
    tables_address: str = "",
    model_address: str = "",
    in_use_address: str = "",
) -> None:
    """Places your own tables with a model.

    Args:
        placement: folder with ``placement.json``.
        plan: folder with ``plan.json``, the same for TorchRec: ``evenshard.torchrec.load_plan`` takes it.
        page: the answer as a self-contained page.
        difference: what changes against the plan in use, what moves, and what that saves.
        metrics: predicted cost of a step, and a lower bound.
        request: arguments of ``evenshard.place``, such as num_devices and memory_cap_gb; max_move_gb bounds what moves
            from the plan in use.
        tables: table file (.yaml, .json, .csv, .parquet), folder of traffic or DLRM batch file.
        model_uri: a registered model, such as ``models:/evenshard-cost@champion``; empty for the device model
            of the hardware that the request names.
        model: a model's folder, in place of ``model_uri``.
        in_use: the plan that the training runs with: placement.json, or to compare alone evenshard's plan for TorchRec,
            or the folder that an earlier run left.
        tables_address: address of the tables, such as ``s3://bucket/tables.parquet``, in place of ``tables``: the task
            reads them itself, with the endpoint and the keys in its environment.
        model_address: address of a model's folder, in place of ``model``.
        in_use_address: address of the plan in use, in place of ``in_use``.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import log_metrics, path_or_address, require_address
    from evenshard.loop.decisions.requests import place_tables, save_placement

    answer, text = place_tables(
        require_address("tables", tables, tables_address),
        path_or_address(model, model_address) or model_uri or None,
        request,
        path_or_address(in_use, in_use_address),
    )
    save_placement(answer, Path(placement.path), Path(plan.path), Path(page.path))
    Path(difference.path).write_text(text)
    log_metrics(metrics, {"predicted_ms": answer.predicted_ms, "lower_bound_ms": answer.lower_bound_ms})
