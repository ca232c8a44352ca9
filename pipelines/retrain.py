"""Today's tables to a new model, if the old one no longer covers them, on Kubeflow Pipelines: to be run every week.

Kubeflow Pipelines branches on what a component returns; the command's exit code 3 would end the run as failed.
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
    """The pipeline ``retrain``, ready to be compiled.

    Its parameters: those of ``train``, whose loop learns from today's tables; ``tables``, their address; ``model_uri``,
    the model they are compared with; ``drift_request``, fields of ``DriftRequest``.

    Args:
        params: sections of params.yaml; ``drift`` becomes the default of ``drift_request``.
        tables_at: the address of the tables, if it is known already; see ``evenshard.kubeflow.component``.

    Raises:
        BadConfig: if a section makes no sense, or names a file that pods do not have.
    """
    num_rounds = check_rounds(params, cluster)
    section(params, "drift", DriftRequest)

    @dsl.pipeline(name="evenshard-retrain", description="Trains again when today's tables are not covered any more.")
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
