"""Versions of a registered model: the newest, the one of a run, or the one with the very files of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenshard.tracking.client import blamed, connect, patience, registry_uri, require_mlflow
from evenshard.tracking.registry import COST, POLICY, ModelVersion, copy_parts, model_version, register_model
from evenshard.tracking.tags import COMMIT, SHA256, VERSION, model_tags
from evenshard.utils.errors import BadFile
from evenshard.utils.messages import without_credentials
from evenshard.utils.scratch import scratch_folder


def newest_version(name: str = COST) -> ModelVersion | None:
    """The version that was registered last; None where there is none.

    Raises:
        TrackingFailed: if MLflow cannot be reached.
    """
    return _last(name, f"name = '{name}'")


def version_of_files(name: str, folder: Path, run_id: str = "") -> ModelVersion | None:
    """The last version with the very files of a model's folder; None where there is none, or no such part.

    Args:
        run_id: of a run whose version comes before those of others.

    Raises:
        TrackingFailed: if MLflow cannot be reached.
    """
    from evenshard.sharders.models import digest_of

    with scratch_folder() as scratch:
        try:
            copy_parts(folder, scratch, name)
        except BadFile:
            return None
        digest = digest_of(scratch)
    return _last(name, f"name = '{name}' AND tags.`{SHA256}` = '{digest}'", run_id)


def register_folder(folder: Path) -> tuple[ModelVersion, ModelVersion | None]:
    """Makes a model's folder a version of evenshard-cost, and of evenshard-policy where it has a policy.

    Versions that have these files already are taken: a loop has registered its last round itself.

    Raises:
        BadFile: if the folder is not a model.
        TrackingFailed: if MLflow cannot be reached, or does not take it.
    """
    from evenshard.sharders.models import load_model

    seen = load_model(folder).trained_on
    tags = {COMMIT: seen.git_commit, VERSION: seen.evenshard_version, **model_tags(folder)}
    try:
        with patience():
            version = version_of_files(COST, folder) or register_model(folder, tags)
            policy = version_of_files(POLICY, folder)
            if policy is None and (folder / "policy").is_dir():
                policy = register_model(folder, tags, name=POLICY)
    except Exception as error:  # MLflow, SQLAlchemy, requests and the stores' own clients raise dozens of kinds
        where = without_credentials(registry_uri())
        raise blamed(error, f"{folder}: MLflow at {where} did not take this model", "Name another folder.") from None
    return version, policy


def _last(name: str, wanted: str, run_id: str = "") -> ModelVersion | None:
    require_mlflow(name)
    try:
        with patience():
            known: list[Any] = list(connect().search_model_versions(wanted))
    except Exception as error:
        where = without_credentials(registry_uri())
        raise blamed(
            error, f"MLflow at {where} did not tell the versions of {name}", "Set MLFLOW_TRACKING_URI."
        ) from None
    if not known:
        return None
    of_run = [one for one in known if run_id and one.run_id == run_id]
    return model_version(f"models:/{name}/{max(int(one.version) for one in of_run or known)}")
