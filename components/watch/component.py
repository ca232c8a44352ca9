"""A training that runs, watched, on Kubeflow Pipelines."""

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
    """Says whether a training should move to another placement, from its traces; a pipeline can branch on that.

    Args:
        summary: the verdict, what the traces show beside what was predicted, what would move and when that pays back.
        observation: folder with ``observation.json`` and, where the traces can be one, the cost dataset
            ``costs.parquet``.
        placement: folder with ``placement.json`` to go on with: the new one where the move pays, else the one in use.
        plan: folder with ``plan.json``, the same for TorchRec.
        page: the same as a self-contained page.
        metrics: observed and predicted time of the slowest rank, what a step would save, and what is gained.
        request: steps that are still to come, restart_minutes, link_gb_s and surely.
        traces: a trace of every rank (.json, .json.gz), an archive of them, or a folder.
        in_use: placement.json that the training runs with, or the folder that an earlier run left.
        tables: today's table file; those of the placement where there is none.
        model_uri: predicts, such as ``models:/evenshard-cost@champion``; empty for the model that made the placement.
        traces_address: address of the traces, such as ``s3://bucket/job/traces``, in place of ``traces``: the task
            reads them itself, with the endpoint and the keys in its environment.
        in_use_address: address of the placement, in place of ``in_use``.
        tables_address: address of the tables, in place of ``tables``.

    Returns:
        Whether the move pays.
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
