"""Check on Kubeflow Pipelines if a training job should move to another placement."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.component import image


@dsl.component(base_image=image(), install_kfp_package=False)
def watch(
    summary: dsl.Output[dsl.Markdown],
    observation: dsl.Output[dsl.Artifact],
    placement: dsl.Output[dsl.Artifact],
    plan: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    request: dict[str, Any],
    traces: dsl.Input[dsl.Dataset] = None,
    in_use: dsl.Input[dsl.Artifact] = None,
    tables: dsl.Input[dsl.Dataset] = None,
    model_uri: str = "",
    traces_address: str = "",
    in_use_address: str = "",
    tables_address: str = "",
) -> bool:
    """Decide from traces if a training job should move to another placement; a pipeline can branch on the result.

    Args:
        summary: verdict, observed and predicted times, the tables that would move, and when the move pays back.
        observation: folder with ``observation.json`` and, if the traces allow, the cost dataset ``costs.parquet``.
        placement: folder with the ``placement.json`` to use from now on: the new placement if the move pays, else the
            current one.
        plan: folder with ``plan.json``, the TorchRec plan of that placement.
        page: that placement as a self-contained HTML page.
        metrics: observed and predicted time of the slowest rank, the saving per step, and the time gained in total.
        request: steps (number of remaining steps), restart_minutes, link_gb_s and surely, as in ``WatchConfig``.
        traces: a trace of each rank (.json, .json.gz), an archive of them, or a folder.
        in_use: current placement.json of the job, or the artifact ``placement`` of an earlier run.
        tables: today's table file (default: the tables of the placement).
        model_uri: model for predictions, such as ``models:/evenshard-cost@champion`` (default: the model that made the
            placement).
        traces_address: address of the traces, such as ``s3://bucket/job/traces``, instead of ``traces``; the pod reads
            them with the S3 endpoint and keys of its environment.
        in_use_address: address of the placement, instead of ``in_use``.
        tables_address: address of the tables, instead of ``tables``.

    Returns:
        True if the job should move.
    """
    from pathlib import Path

    from evenshard.kubeflow.pod import log_metrics, path_or_address, require_address
    from evenshard.loop.decisions.requests import save_placement, watch_training

    found, text = watch_training(
        require_address("traces", traces, traces_address),
        require_address("in_use", in_use, in_use_address),
        path_or_address(tables, tables_address),
        model_uri,
        request,
        Path(observation.path),
    )
    save_placement(found.best, Path(placement.path), Path(plan.path), Path(page.path))
    Path(summary.path).write_text(text)
    known: dict[str, float | None] = {
        "observed_ms": found.comparison.observed_ms,
        "predicted_ms": found.comparison.predicted_ms,
        "saves_ms": found.difference.times.saves_ms,
        "break_even_steps": found.paid.break_even_steps if found.paid else None,
        "gained_seconds": found.paid.gained_seconds if found.paid else 0.0,
        "pays": float(found.pays),
    }
    log_metrics(metrics, known)
    return found.pays
