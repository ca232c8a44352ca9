"""Origin of a run or model as MLflow tags and inputs: code, settings, hardware, libraries and cost datasets."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from getpass import getuser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evenshard.base.documents import sha256_of
from evenshard.base.messages import UNKNOWN
from evenshard.base.outputs import DOMAIN_FILE
from evenshard.base.provenance import git_commit, params_hash
from evenshard.measure.cost_rows import read_lineage
from evenshard.sharders.training_domain import TrainingDomain
from evenshard.version import __version__

PARENT_TAG = "mlflow.parentRunId"
# Tag of a run: the versions of its registered model, as models:/ addresses.
REGISTERED_AS = "evenshard.registered"
STAGE, ROUND = "evenshard.stage", "evenshard.round"
# Tags of a loop on Kubeflow Pipelines: its outcome; and, with the suffix failed, cached or ran, names of its tasks.
OUTCOME, TASKS = "evenshard.outcome", "evenshard.tasks_"
COMMIT, PARAMS_HASH, VERSION = "evenshard.git_commit", "evenshard.params_hash", "evenshard.version"
HARDWARE, VERSIONS, LIBRARIES = "evenshard.hardware", "evenshard.versions", "evenshard.libraries"
COSTS_SHA256, COSTS_DVC_MD5 = "evenshard.costs_sha256", "evenshard.costs_dvc_md5"
SHA256 = "evenshard.model_sha256"
# Hash of the networks alone: a repeated training run gives the same hash, even on another commit.
WEIGHTS_SHA256 = "evenshard.weights_sha256"
TABLES_SHA256 = "evenshard.tables_sha256"
NUM_MEASURED = "evenshard.num_measured"
DEVICE_ERROR = "evenshard.device_error"
# MLflow limits a digest to this length; a tag has the whole hash.
DIGEST_LENGTH = 36
_LISTED = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy", "mlflow")
_commit = cache(git_commit)


def origin_tags(params: Mapping[str, Any] | None) -> dict[str, str]:
    """Return tags of this process: commit ("-dirty" with changed files), hash of params.yaml, versions and user."""
    commit = _commit()
    tags = {COMMIT: commit, VERSION: __version__, LIBRARIES: _libraries(), **_source()}
    if commit != UNKNOWN:
        tags["mlflow.source.git.commit"] = commit.removesuffix("-dirty")  # shown on MLflow's pages
    if params is not None:
        tags[PARAMS_HASH] = params_hash(params)
    return tags


def costs_tags(paths: Sequence[Path]) -> dict[str, str]:
    """Return tags of cost datasets: SHA-256 and MD5 (as in DVC) of the files, and hardware and versions inside."""
    origins = [read_lineage(path) for path in paths]
    return {
        COSTS_SHA256: ",".join(map(sha256_of, paths)),
        COSTS_DVC_MD5: ",".join(map(_md5_of, paths)),
        HARDWARE: _join_values(lineage.get("hardware", ()) for lineage in origins),
        VERSIONS: _join_values(lineage.get("versions", ()) for lineage in origins),
    }


def dataset_record(path: Path, context: str) -> dict[str, Any]:
    """Describe a cost dataset as plain values, without its rows, so that it can be logged when the file is gone.

    Args:
        context: use of the dataset: benchmark, training or evaluation.
    """
    import pyarrow.parquet as pq

    tags = costs_tags([path])
    schema = pq.read_schema(path)
    columns = [_column(name, str(kind)) for name, kind in zip(schema.names, schema.types, strict=True)]
    return {
        "dataset": {
            "name": "/".join(path.parts[-2:]),
            "digest": tags[COSTS_SHA256][:DIGEST_LENGTH],
            "source_type": "local",
            "source": json.dumps({"uri": path.as_posix()}),
            "schema": json.dumps({"mlflow_colspec": columns}),
            "profile": json.dumps({"num_rows": pq.read_metadata(path).num_rows, "hardware": tags[HARDWARE]}),
        },
        "tags": {"mlflow.data.context": context, **{key: tags[key] for key in (COSTS_SHA256, COSTS_DVC_MD5)}},
    }


def dataset_input(record: Mapping[str, Any]) -> Any:
    """Convert a ``dataset_record`` to MLflow's entity."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    return DatasetInput(Dataset(**record["dataset"]), [InputTag(key, value) for key, value in record["tags"].items()])


def _column(name: str, kind: str) -> dict[str, object]:
    if kind.startswith("list"):
        return {"name": name, "type": "array", "items": {"type": "string"}, "required": True}
    return {"name": name, "type": {"int64": "long", "double": "double"}.get(kind, "string"), "required": True}


def network_tags(folder: Path) -> dict[str, str]:
    """Return tags of a cost network's training data; empty if the folder does not record it."""
    path = folder / DOMAIN_FILE
    if not path.exists():
        return {}
    seen = TrainingDomain.load(path)
    tags = {HARDWARE: seen.hardware, VERSIONS: seen.versions, NUM_MEASURED: str(seen.num_measured)}
    tags[COSTS_SHA256] = ",".join(seen.costs_sha256)
    tags[DEVICE_ERROR] = "" if seen.device_error is None else str(seen.device_error)
    return {key: value for key, value in tags.items() if value}


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def _libraries() -> str:
    known = [f"python {sys.version.split()[0]}"]
    for name in _LISTED:
        try:
            known.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(known)


def _source() -> dict[str, str]:
    """Return program and user as MLflow's tags; omit a user without a name, as in a container."""
    program = Path(sys.argv[0]).name
    tags = {"mlflow.source.name": "evenshard" if program in ("", "-c", "-m", "__main__.py") else program}
    tags["mlflow.source.type"] = "LOCAL"
    with suppress(OSError, KeyError):
        tags["mlflow.user"] = getuser()
    return tags


def _join_values(values: Any) -> str:
    return "; ".join(sorted({value for some in values for value in some}))
