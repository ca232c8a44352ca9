"""Construction of pipelines by name, with the current settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenshard.base.documents import load_params
from evenshard.base.installation import require_package
from evenshard.kubeflow.cluster import Cluster, load_cluster
from evenshard.kubeflow.component import is_imported, require_readable
from evenshard.kubeflow.package import ADDRESSES, SECTIONS, check_names, hash_source

TRAIN, RETRAIN, PLACE, WATCH = "train", "retrain", "place", "watch"
PIPELINES = (TRAIN, RETRAIN, PLACE, WATCH)


def default_cluster(small: bool = False) -> Cluster:
    """Load the cluster settings in this folder: for GPU nodes, or for a cluster of 4 CPUs and 8 GB (``small``)."""
    return load_cluster(Path(__file__).parent / ("cluster_small.yaml" if small else "cluster.yaml"))


def build(
    name: str,
    params_path: Path | None,
    cluster: Cluster,
    overrides: Mapping[str, Any] | None = None,
    runs_now: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """Build a pipeline to compile or run, and return it with the values of its parameters that are set.

    Args:
        name: one of ``PIPELINES``.
        params_path: params.yaml; None for a pipeline that does not need it: place, watch.
        overrides: values of the pipeline's parameters, by name.
        runs_now: True if the run starts immediately, and will read the files that are on S3 now.

    Raises:
        BadInput: if the settings or values are invalid, or kfp is not installed.
    """
    require_package("kfp.kubernetes")
    values = dict(overrides or {})
    params = {} if params_path is None else load_params(params_path)
    # a section that is set for this run replaces that of the file, and is validated in the same way
    params |= {SECTIONS[key]: value for key, value in values.items() if key in SECTIONS}
    for key in ADDRESSES & values.keys():
        if not is_imported(str(values[key])):
            require_readable(str(values[key]))
    if name == TRAIN:
        from .dvc_rounds import list_source_files
        from .train import train_pipeline

        if files := list_source_files(params):
            values.setdefault("source", files[0])
        source = str(values.get("source", ""))
        pipeline = train_pipeline(params, cluster, source, hash_source(source, runs_now) if source else "")
    elif name == RETRAIN:
        from .retrain import retrain_pipeline

        pipeline = retrain_pipeline(params, cluster, str(values.get("tables", "")))
    elif name == WATCH:
        from .watch import watch_pipeline

        addresses = [str(values.get(key, "")) for key in ("traces", "in_use", "tables")]
        pipeline = watch_pipeline(params, cluster, *addresses)
    else:
        from .place import place_pipeline

        addresses = [str(values.get(key, "")) for key in ("tables", "model", "in_use")]
        pipeline = place_pipeline(params, cluster, *addresses)
    check_names(values, pipeline.pipeline_spec.root.input_definitions.parameters)
    return pipeline, values
