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
    """Check if a model still covers today's tables; a pipeline can branch on the result.

    Args:
        summary: verdict, its reasons, and today's tables compared with the training data.
        metrics: share of the load outside the training range, and share of tables that are rare in the training data,
            per cent.
        request: settings of ``evenshard drift``, such as batch_size, num_devices and tolerated_pct.
        model_uri: registered model, such as ``models:/evenshard-cost@champion``, or a model folder.
        tables: table file (.yaml, .json, .csv, .parquet), folder of traffic or DLRM batch file.
        tables_address: address of the tables, such as ``s3://bucket/tables.parquet``, instead of ``tables``; the pod
            reads them with the S3 endpoint and keys of its environment.

    Returns:
        True if retraining is due.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import log_metrics, require_address
    from evenshard.loop.decisions.requests import check_drift

    found, text = check_drift(require_address("tables", tables, tables_address), model_uri, request)
    Path(summary.path).write_text(text)
    log_metrics(metrics, {"outside_load_pct": found.outside_load_pct, "rare_pct": found.rare_pct})
    return found.retrain_due
