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
    """Place your own tables.

    Args:
        placement: folder with ``placement.json``.
        plan: folder with ``plan.json``, the TorchRec plan for ``evenshard.torchrec.load_plan``.
        page: the answer as a self-contained HTML page.
        difference: comparison with the current placement: tables that move, and the time saved.
        metrics: predicted step time and its lower bound, ms.
        request: arguments of ``evenshard.place``, such as num_devices and memory_cap_gb; max_move_gb limits the GB that
            move from the current placement.
        tables: table file (.yaml, .json, .csv, .parquet), folder of traffic or DLRM batch file.
        model_uri: registered model, such as ``models:/evenshard-cost@champion`` (default: the device model of the
            requested hardware).
        model: model folder, instead of ``model_uri``.
        in_use: current placement of the training job: placement.json, or the artifact ``placement`` of an earlier run.
            A TorchRec plan written by evenshard allows only a comparison, without max_move_gb.
        tables_address: address of the tables, such as ``s3://bucket/tables.parquet``, instead of ``tables``; the pod
            reads them with the S3 endpoint and keys of its environment.
        model_address: address of a model folder, instead of ``model``.
        in_use_address: address of the current placement, instead of ``in_use``.
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
