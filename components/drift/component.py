"""``evenshard drift`` on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def drift(
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    request: dict[str, Any],
    model_uri: str,
    tables: dsl.Input[dsl.Dataset] = None,
    tables_address: str = "",
) -> bool:
    """Says whether a model still covers today's tables; a pipeline can branch on that.

    Args:
        summary: the verdict, why, and the tables of today beside those of the training.
        metrics: part of the load outside of the training data and part of the tables that are rare there, per cent.
        request: batch_size, num_devices, tolerated_pct and so on, as for the command.
        model_uri: a registered model, such as ``models:/evenshard-cost@champion``, or a model's folder.
        tables: table file (.yaml, .json, .csv, .parquet), folder of traffic or DLRM batch file.
        tables_address: address of the tables, such as ``s3://bucket/tables.parquet``, in place of ``tables``: the task
            reads them itself, with the endpoint and the keys in its environment.

    Returns:
        Whether a retrain is due.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import log_metrics, require_address
    from evenshard.loop.decisions.requests import check_drift

    found, text = check_drift(require_address("tables", tables, tables_address), model_uri, request)
    Path(summary.path).write_text(text)
    log_metrics(metrics, {"outside_load_pct": found.outside_load_pct, "rare_pct": found.rare_pct})
    return found.retrain_due
