"""Pipeline ``place``: places a user's tables."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.cluster import Cluster, configure_task
from evenshard.loop.decisions.requests import place_arguments
from evenshard_components.place.component import place

from .addresses import read_address


def place_pipeline(
    params: dict[str, Any], cluster: Cluster, tables_at: str = "", model_at: str = "", in_use_at: str = ""
) -> Any:
    """Return the pipeline ``place``.

    Its parameters are ``tables``, the address of a table file such as ``s3://bucket/tables.parquet``; ``request``,
    arguments of ``evenshard.place``; ``model_uri``, a registered model such as ``models:/evenshard-cost@champion``, or
    empty for the device model of the requested hardware; ``model``, the address of a model folder instead; and
    ``in_use``, the address of the current plan, with which the answer is compared, and from which it moves at most
    the request's ``max_move_gb``.

    Args:
        params: sections of params.yaml; ``place`` becomes the default of ``request``.
        tables_at, model_at, in_use_at: addresses, as far as they are known; see ``evenshard.kubeflow.component``.

    Raises:
        BadConfig: if the section is invalid.
    """
    asked = params.get("place") or {}
    place_arguments(asked)
    request_of = dict(asked)

    @dsl.pipeline(name="evenshard-place", description="Place embedding tables on the devices of a training job.")
    def place_tables(
        tables: str,
        request: dict = request_of,  # type: ignore[type-arg]
        model_uri: str = "",
        model: str = "",
        in_use: str = "",
    ) -> None:
        given = {**read_address("tables", tables, tables_at), **read_address("model", model, model_at)}
        given |= read_address("in_use", in_use, in_use_at)
        configure_task(place(request=request, model_uri=model_uri, **given), "place", cluster)

    return place_tables
