"""``evenshard place`` on Kubeflow Pipelines."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.image import image


@dsl.component(base_image=image(), install_kfp_package=False)
def place(
    tables: dsl.Input[dsl.Dataset],
    placement: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    request: dict[str, Any],
    model_uri: str = "",
    model: dsl.Input[dsl.Model] = None,
) -> None:
    """Places your own tables with a model.

    Args:
        tables: table file (.yaml, .json, .csv, .parquet), folder of traffic or DLRM batch file.
        placement: folder with ``placement.json``.
        page: the answer as a self-contained page.
        metrics: predicted cost of a step, and a lower bound.
        request: arguments of ``evenshard.place``, such as num_devices and memory_cap_gb.
        model_uri: a registered model, such as ``models:/evenshard-cost@champion``; empty for the one that comes with
            evenshard for the hardware of the request.
        model: a model's folder, in place of ``model_uri``.
    """
    from pathlib import Path

    from evenshard.kubeflow.in_pod import path_of, record
    from evenshard.kubeflow.place_request import place_tables
    from evenshard.placing.file import save_answer
    from evenshard.placing.page import save_page

    answer = place_tables(Path(tables.path), path_of(model) or model_uri or None, request)
    save_answer(answer, Path(placement.path, "placement.json"))
    save_page(answer, Path(page.path))
    record(None, metrics, {"predicted_ms": answer.predicted_ms, "lower_bound_ms": answer.lower_bound_ms})
