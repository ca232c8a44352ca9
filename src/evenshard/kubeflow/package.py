"""Compiled pipeline files: the pipeline spec and the platform spec in one YAML file."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from evenshard.base.documents import read_yaml, sha256_of
from evenshard.base.errors import BadConfig, BadFile, BadInput, StorageFailed
from evenshard.base.messages import brief
from evenshard.base.outputs import atomic_path
from evenshard.base.s3 import content_hash, is_address
from evenshard.base.typed import section
from evenshard.kubeflow.component import is_imported, require_readable
from evenshard.loop.commands import DriftRequest, WatchConfig
from evenshard.loop.decisions.requests import place_arguments
from evenshard.loop.loop import LOOP_SECTIONS

# Parameters of pipelines that are addresses; see ``evenshard.kubeflow.component``.
ADDRESSES = {"tables", "source", "model", "in_use", "traces"}
# Parameters of pipelines that are sections of params.yaml, with the name of the section.
SECTIONS = {
    "request": "place",
    "drift_request": "drift",
    "watch_request": "watch",
    **{f"{name}_config": name for name in LOOP_SECTIONS},
}
log = logging.getLogger(__name__)


def compile_to(pipeline: Any, path: Path, values: Mapping[str, Any]) -> None:
    """Compile a pipeline to a YAML file with two documents, pipeline spec and platform spec.

    Args:
        values: defaults of the pipeline's parameters.

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
    """Read the pipeline spec and the platform spec of a compiled pipeline; raise BadFile if they cannot be read."""
    remedy = "Write it with `evenshard pipeline compile`."
    documents = [document for document in read_yaml(path, remedy, remedy, most=100) if isinstance(document, dict)]
    if not documents or "deploymentSpec" not in documents[0]:
        raise BadFile(path, "is not a compiled pipeline", remedy)
    return documents[0], documents[1] if len(documents) > 1 else {}


def require_fits(package: Path, values: Mapping[str, Any]) -> None:
    """Raise BadInput unless a compiled pipeline can run with these parameter values."""
    spec, _ = pipeline_documents(package)
    check_names(values, spec["root"].get("inputDefinitions", {}).get("parameters", {}))
    if "request" in values:
        place_arguments(values["request"])
    for name, kind in (("drift", DriftRequest), ("watch", WatchConfig)):
        if f"{name}_request" in values:
            section({name: values[f"{name}_request"]}, name, kind)
    imported = _importer_parameters(spec)
    for key in ADDRESSES & values.keys():
        if key not in imported:
            require_readable(str(values[key]))
        elif not is_imported(str(values[key])):
            raise BadConfig(
                f"{brief(values[key])}: {package} was compiled to import {key} with Kubeflow. Compile it with this "
                f"address (--set {key}=...)."
            )


def hash_source(source: str, runs_now: bool = True) -> str:
    """Return the hash of a table file's content, from its .dvc file or computed as SHA-256; "" if unknown.

    Args:
        runs_now: True if the run starts immediately. Otherwise the hash of a file on S3 is unknown, as it may change.
    """
    if is_address(source):
        try:
            return content_hash(source) if runs_now else ""
        except (BadInput, StorageFailed) as error:
            log.info("%s Cached results are not reused, because the content of these tables is unknown.", error)
            return ""
    path = Path(source)
    pointer = path.with_name(path.name + ".dvc")
    if pointer.is_file():
        match read_yaml(pointer, "Write it with `dvc add`."):
            case {"outs": [{"md5": str() as md5}, *_]}:
                return f"md5:{md5}"
    return f"sha256:{sha256_of(path)}" if path.is_file() else ""


def _importer_parameters(spec: Mapping[str, Any]) -> set[str]:
    """Return the parameters of a compiled pipeline whose values are addresses for Kubeflow's importer."""
    components, executors = spec["components"], spec["deploymentSpec"]["executors"]
    importers = [name for name, one in components.items() if "importer" in executors.get(one.get("executorLabel"), {})]
    dags = [component["dag"] for component in (spec["root"], *components.values()) if "dag" in component]
    tasks = [task for dag in dags for task in dag["tasks"].values() if task["componentRef"]["name"] in importers]
    found = {task["inputs"]["parameters"]["uri"].get("componentInputParameter", "") for task in tasks}
    return {name.removeprefix("pipelinechannel--") for name in found}


def check_names(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise BadConfig for a name that is not a parameter of the pipeline."""
    for name in values:
        if name not in known:
            raise BadConfig(f"the pipeline has no parameter {brief(name)}. Choose from {', '.join(sorted(known))}.")
