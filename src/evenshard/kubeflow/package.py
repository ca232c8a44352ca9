"""How does a pipeline become a file? Compiled with the settings of the moment, package and platform spec in one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from evenshard.atomic import atomic_path
from evenshard.errors import BadConfig, BadFile
from evenshard.kubeflow.cluster import Cluster, load_cluster
from evenshard.lineage import sha256_of
from evenshard.params import load_params

TRAIN, RETRAIN, PLACE = "train", "retrain", "place"
PIPELINES = (TRAIN, RETRAIN, PLACE)
KFP_HINT = "Install them: pip install 'evenshard[kubeflow]'."


def default_cluster() -> Cluster:
    """The cluster settings that come with the pipelines."""
    return load_cluster(Path(str(_pipelines().__file__)).parent / "cluster.yaml")


def build(
    name: str, params_path: Path | None, cluster: Cluster, overrides: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """A pipeline ready to be compiled or run, and the values of those of its parameters that a user has given.

    Args:
        name: of ``PIPELINES``.
        params_path: params.yaml; None for a pipeline that can do without, which is place.
        overrides: values of the pipeline's parameters, by name.

    Raises:
        BadInput: if the settings make no sense, or kfp is not installed.
    """
    params = {} if params_path is None else load_params(params_path)
    values = dict(overrides or {})
    _pipelines()
    if name == TRAIN:
        from evenshard_pipelines.dvc_rounds import sources
        from evenshard_pipelines.train import train_pipeline

        if files := sources(params):
            values.setdefault("source", files[0])
        pipeline = train_pipeline(params, cluster, data_hash(values["source"]) if files else "")
    elif name == RETRAIN:
        from evenshard_pipelines.retrain import retrain_pipeline

        pipeline = retrain_pipeline(params, cluster)
    else:
        from evenshard_pipelines.place import place_pipeline

        pipeline = place_pipeline(params, cluster)
    _check_arguments(pipeline, values)
    return pipeline, values


def compile_to(pipeline: Any, path: Path, values: Mapping[str, Any]) -> None:
    """Writes the package and its platform spec as two YAML documents in one file.

    Args:
        values: become the defaults of the pipeline's parameters.

    Raises:
        BadConfig: if the path does not end in .yaml.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise BadConfig(f"{path}: a compiled pipeline is YAML. Name a file that ends in .yaml.")
    from kfp import compiler

    with atomic_path(path) as draft, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiler.Compiler().compile(pipeline, str(draft), pipeline_parameters=dict(values) or None)


def pipeline_documents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Package and platform spec of a compiled pipeline.

    Raises:
        BadFile: if it is missing or none.
    """
    remedy = "Write it with `evenshard pipeline compile`."
    try:
        documents = [one for one in yaml.safe_load_all(path.read_text()) if isinstance(one, dict)]
    except FileNotFoundError:
        raise BadFile(path, "no such file", remedy) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFile(path, f"not readable as YAML ({' '.join(str(error).split())})", remedy) from None
    if not documents or "deploymentSpec" not in documents[0]:
        raise BadFile(path, "is no compiled pipeline", remedy)
    return documents[0], documents[1] if len(documents) > 1 else {}


def data_hash(source: str) -> str:
    """What identifies the content of a table file: its hash in a .dvc file beside it, or its own SHA-256.

    Returns:
        "" for an address that this machine cannot read.
    """
    path = Path(source)
    pointer = path.with_name(path.name + ".dvc")
    if pointer.is_file():
        outs = (yaml.safe_load(pointer.read_text()) or {}).get("outs") or [{}]
        if "md5" in outs[0]:
            return f"md5:{outs[0]['md5']}"
    return f"sha256:{sha256_of(path)}" if path.is_file() else ""


def _check_arguments(pipeline: Any, values: Mapping[str, Any]) -> None:
    known = pipeline.pipeline_spec.root.input_definitions.parameters
    for name in values:
        if name not in known:
            raise BadConfig(f"the pipeline has no parameter {name!r}. It has {', '.join(sorted(known))}.")


def require_kfp() -> None:
    """Raises BadConfig unless Kubeflow's SDK is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import kfp.kubernetes  # noqa: F401
    except ModuleNotFoundError as error:
        raise BadConfig(f"pipelines need kfp and kfp-kubernetes ({error}). {KFP_HINT}") from None


def _pipelines() -> Any:
    """The package with the pipelines; it needs kfp."""
    require_kfp()
    import evenshard_pipelines

    return evenshard_pipelines
