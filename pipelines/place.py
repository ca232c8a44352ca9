"""Own tables to a placement, on Kubeflow Pipelines: with a model of evenshard's or one's own."""

from typing import Any

from kfp import dsl

from evenshard.kubeflow.cluster import Cluster
from evenshard.kubeflow.place_request import PlaceRequest
from evenshard.kubeflow.pod_spec import placed
from evenshard.params import section
from evenshard_components.place.component import place


def place_pipeline(params: dict[str, Any], cluster: Cluster) -> Any:
    """The pipeline ``place``, ready to be compiled.

    Its parameters: ``tables``, the address of a table file such as ``s3://bucket/tables.parquet``; ``request``, fields
    of ``PlaceRequest``; ``model_uri``, a registered model such as ``models:/evenshard-cost@champion``, or empty for the
    one that comes with evenshard; ``model``, the address of a model's folder in its place.

    Args:
        params: sections; ``place`` becomes the default of ``request``.

    Raises:
        BadConfig: if the section makes no sense.
    """
    request_of = dict(params.get("place") or {})
    section({"place": request_of}, "place", PlaceRequest)

    @dsl.pipeline(name="evenshard-place", description="Places embedding tables over the devices of a training job.")
    def place_tables(
        tables: str,
        request: dict = request_of,  # type: ignore[type-arg]
        model_uri: str = "",
        model: str = "",
    ) -> None:
        own = dsl.importer(artifact_uri=tables, artifact_class=dsl.Dataset, reimport=True).output
        asked = {"tables": own, "request": request}
        with dsl.If(model == "", name="a-model-by-name"):
            placed(place(**asked, model_uri=model_uri), "place", cluster)
        with dsl.Else(name="a-model-of-ones-own"):
            folder = dsl.importer(artifact_uri=model, artifact_class=dsl.Model, reimport=True).output
            placed(place(**asked, model=folder), "place", cluster)

    return place_tables
