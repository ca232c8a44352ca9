"""``evenshard place`` on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.image import image


@dsl.component(base_image=image(), install_kfp_package=False)
def place(
    placement: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    request: dict[str, Any],
    tables: dsl.Input[dsl.Dataset] = None,
    model_uri: str = "",
    model: dsl.Input[dsl.Model] = None,
    tables_address: str = "",
    model_address: str = "",
) -> None:
    """Places your own tables with a model.

    Args:
        placement: folder with ``placement.json``.
        page: the answer as a self-contained page.
        metrics: predicted cost of a step, and a lower bound.
        request: arguments of ``evenshard.place``, such as num_devices and memory_cap_gb.
        tables: table file (.yaml, .json, .csv, .parquet), folder of traffic or DLRM batch file.
        model_uri: a registered model, such as ``models:/evenshard-cost@champion``; empty for the one that comes with
            evenshard for the hardware of the request.
        model: a model's folder, in place of ``model_uri``.
        tables_address: address of the tables, such as ``s3://bucket/tables.parquet``, in place of ``tables``: the task
            reads them itself, with the endpoint and the keys in its environment.
        model_address: address of a model's folder, likewise in place of ``model``.
    """
    from pathlib import Path

    from evenshard.kubeflow.place_request import place_tables
    from evenshard.kubeflow.pod import log_metrics, path_or_address, tables_given
    from evenshard.planner.file import save_answer
    from evenshard.planner.page.page import save_page

    answer = place_tables(
        tables_given(tables, tables_address), path_or_address(model, model_address) or model_uri or None, request
    )
    save_answer(answer, Path(placement.path, "placement.json"))
    save_page(answer, Path(page.path))
    log_metrics(metrics, {"predicted_ms": answer.predicted_ms, "lower_bound_ms": answer.lower_bound_ms})
