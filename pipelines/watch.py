"""Pipeline ``watch``: decides from traces if a running training should move; to schedule daily."""

from typing import Any

from kfp import dsl

from evenshard.base.typed import section
from evenshard.kubeflow.cluster import Cluster, configure_task
from evenshard.loop.commands import WatchConfig
from evenshard_components.watch.component import watch

from .addresses import read_address


def watch_pipeline(
    params: dict[str, Any], cluster: Cluster, traces_at: str = "", in_use_at: str = "", tables_at: str = ""
) -> Any:
    """Return the pipeline ``watch``, whose output is True if a move pays.

    Its parameters are ``traces``, the address of the traces of the training's ranks; ``in_use``, the address of its
    current placement.json; ``tables``, the address of today's table file, or empty; ``model_uri``, the model for
    predictions, or empty for the model that made the placement; and ``watch_request``, fields of ``WatchConfig``.

    Args:
        params: sections of params.yaml; ``watch`` becomes the default of ``watch_request``.
        traces_at, in_use_at, tables_at: addresses, as far as they are known; see ``evenshard.kubeflow.component``.

    Raises:
        BadConfig: if the section is invalid.
    """
    section(params, "watch", WatchConfig)
    request_of = dict(params.get("watch") or {})

    @dsl.pipeline(name="evenshard-watch", description="Decide if a training job should move to another placement.")
    def watch_job(
        traces: str,
        in_use: str,
        tables: str = "",
        model_uri: str = "",
        watch_request: dict = request_of,  # type: ignore[type-arg]
    ) -> bool:
        given = {**read_address("traces", traces, traces_at), **read_address("in_use", in_use, in_use_at)}
        given |= read_address("tables", tables, tables_at)
        asked = configure_task(watch(request=watch_request, model_uri=model_uri, **given), "watch", cluster)
        return asked.outputs["Output"]  # type: ignore[no-any-return]  # a channel of kfp's

    return watch_job
