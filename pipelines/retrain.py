"""Pipeline ``retrain``: trains a new model if the champion no longer covers today's tables; to schedule weekly.

Kubeflow Pipelines branches on the return value of a component; exit code 3 of ``evenshard drift`` would fail the run.
"""

from typing import Any

from kfp import dsl

from evenshard.base.typed import section
from evenshard.kubeflow.cluster import Cluster, configure_task
from evenshard.loop.commands import DriftRequest
from evenshard_components.drift.component import drift

from .addresses import read_address
from .loop import Sections, add_exit_handler, add_loop_tasks, check_rounds, section_of, with_sections

CHAMPION = "models:/evenshard-cost@champion"


def retrain_pipeline(params: dict[str, Any], cluster: Cluster, tables_at: str = "") -> Any:
    """Return the pipeline ``retrain``.

    Its parameters are those of ``train``; ``tables``, the address of today's tables, which the loop learns from;
    ``model_uri``, the model to check; and ``drift_request``, fields of ``DriftRequest``.

    Args:
        params: sections of params.yaml; ``drift`` becomes the default of ``drift_request``.
        tables_at: address of the tables, if known; see ``evenshard.kubeflow.component``.

    Raises:
        BadConfig: if a section is invalid, or names a file that pods do not have.
    """
    num_rounds = check_rounds(params, cluster)
    section(params, "drift", DriftRequest)

    @dsl.pipeline(
        name="evenshard-retrain", description="Train a new model if the champion no longer covers today's tables."
    )
    @with_sections(params)
    def retrain(
        sections: Sections,
        tables: str,
        model_uri: str = CHAMPION,
        drift_request: dict = section_of(params, "drift"),  # type: ignore[type-arg]  # noqa: B008
    ) -> None:
        with dsl.ExitHandler(add_exit_handler(cluster), name="watch"):
            today = read_address("tables", tables, tables_at)
            asked = configure_task(drift(**today, request=drift_request, model_uri=model_uri), "drift", cluster)
            with dsl.If(asked.outputs["Output"] == True, name="retrain-due"):  # noqa: E712
                source = {name.replace("tables", "source"): one for name, one in today.items()}
                add_loop_tasks(
                    params, sections, num_rounds, cluster, source, source_may_change=True, must_register=True
                )

    return retrain
