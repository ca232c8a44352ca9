"""The pipelines by name, made with the settings of the moment."""

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
    """The cluster settings that come with the pipelines: for GPU nodes and the like, or for 4 CPUs and 8 GB in all."""
    return load_cluster(Path(__file__).parent / ("cluster_small.yaml" if small else "cluster.yaml"))


def build(
    name: str,
    params_path: Path | None,
    cluster: Cluster,
    overrides: Mapping[str, Any] | None = None,
    runs_now: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """A pipeline ready to be compiled or run, and the values of those of its parameters that a user has given.

    Args:
        name: one of ``PIPELINES``.
        params_path: params.yaml; None for a pipeline that can do without: place, watch.
        overrides: values of the pipeline's parameters, by name.
        runs_now: whether the run starts at once, so that what is on S3 now is what it will read.

    Raises:
        BadInput: if the settings or values make no sense, or kfp is not installed.
    """
    require_package("kfp.kubernetes")
    values = dict(overrides or {})
    params = {} if params_path is None else load_params(params_path)
    # a section that is given for the run is checked, and used, as if it stood in the file
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
