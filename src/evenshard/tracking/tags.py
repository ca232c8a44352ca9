"""Tags that say where a run or model comes from: code, settings, hardware, libraries, cost datasets."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from getpass import getuser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evenshard.measure.cost_rows import read_lineage
from evenshard.sharders.trained_on import TRAINED_ON, TrainedOn
from evenshard.utils.provenance import UNKNOWN, git_commit, params_hash, sha256_of
from evenshard.version import __version__

PARENT_TAG = "mlflow.parentRunId"
# Tag of a run: the model versions that hold its model, as models:/ addresses.
REGISTERED_AS = "evenshard.registered"
STAGE, ROUND = "evenshard.stage", "evenshard.round"
# Tags of a loop on Kubeflow Pipelines: how it ended; and, with failed, cached or ran behind it, names of its tasks.
OUTCOME, TASKS = "evenshard.outcome", "evenshard.tasks_"
COMMIT, PARAMS_HASH, VERSION = "evenshard.git_commit", "evenshard.params_hash", "evenshard.version"
HARDWARE, VERSIONS, LIBRARIES = "evenshard.hardware", "evenshard.versions", "evenshard.libraries"
COSTS_SHA256, COSTS_DVC_MD5 = "evenshard.costs_sha256", "evenshard.costs_dvc_md5"
SHA256 = "evenshard.model_sha256"
# Hash of the networks alone: training again what has not changed gives the same, on another commit too.
WEIGHTS_SHA256 = "evenshard.weights_sha256"
TABLES_SHA256 = "evenshard.tables_sha256"
NUM_MEASURED = "evenshard.num_measured"
DEVICE_ERROR = "evenshard.device_error"
PROGRAM = "evenshard"
_LISTED = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy", "mlflow")


def origin_tags(params: Mapping[str, Any] | None) -> dict[str, str]:
    """Tags of what runs now: commit ("-dirty" with changed files), hash of params.yaml, versions, program and user."""
    commit = _commit()
    tags = {COMMIT: commit, VERSION: __version__, LIBRARIES: _libraries(), **_source()}
    if commit != UNKNOWN:
        tags["mlflow.source.git.commit"] = commit.removesuffix("-dirty")  # which MLflow's pages show
    if params is not None:
        tags[PARAMS_HASH] = params_hash(params)
    return tags


def costs_tags(paths: Sequence[Path]) -> dict[str, str]:
    """Tags of cost datasets: each file's hash, as we and as DVC count it, and the hardware and versions inside.

    Raises:
        BadFile: if one cannot be read.
    """
    origins = [read_lineage(path) for path in paths]
    return {
        COSTS_SHA256: ",".join(map(sha256_of, paths)),
        COSTS_DVC_MD5: ",".join(map(_md5_of, paths)),
        HARDWARE: _join_values(one.get("hardware", ()) for one in origins),
        VERSIONS: _join_values(one.get("versions", ()) for one in origins),
    }


def network_tags(folder: Path) -> dict[str, str]:
    """Tags of a cost network's folder: what it was trained on; none if that is unknown.

    Raises:
        BadFile: if it cannot be read.
    """
    path = folder / TRAINED_ON
    if not path.exists():
        return {}
    seen = TrainedOn.load(path)
    tags = {HARDWARE: seen.hardware, VERSIONS: seen.versions, NUM_MEASURED: str(seen.num_measured)}
    tags[COSTS_SHA256] = ",".join(seen.costs_sha256)
    tags[DEVICE_ERROR] = "" if seen.device_error is None else str(seen.device_error)
    return {key: value for key, value in tags.items() if value}


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


@cache
def _commit() -> str:
    return git_commit()


def _libraries() -> str:
    known = [f"python {sys.version.split()[0]}"]
    for name in _LISTED:
        try:
            known.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(known)


def _source() -> dict[str, str]:
    """Program and user as MLflow's pages show them; nothing about a user without a name, as in a container."""
    program = Path(sys.argv[0]).name
    tags = {"mlflow.source.name": PROGRAM if program in ("", "-c", "-m", "__main__.py") else program}
    tags["mlflow.source.type"] = "LOCAL"
    with suppress(OSError, KeyError):
        tags["mlflow.user"] = getuser()
    return tags


def _join_values(values: Any) -> str:
    return "; ".join(sorted({one for some in values for one in some}))
