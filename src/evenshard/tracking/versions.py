"""Which version of a registered model is meant: the newest, the one that a run made, or a folder's that is none yet?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenshard.errors import BadConfig, BadInput
from evenshard.tracking.client import connect, first_line, patience, registry_uri, require_mlflow, without_password
from evenshard.tracking.registry import COST, POLICY, ModelVersion, model_version, register_model
from evenshard.tracking.tags import COMMIT, VERSION, model_tags


def newest_version(name: str = COST) -> ModelVersion | None:
    """The version that was registered last; None where there is none.

    Raises:
        BadConfig: if MLflow cannot be reached.
    """
    return _last(name, f"name = '{name}'")


def version_of_run(name: str, run_id: str) -> ModelVersion | None:
    """The version that a run made; None where it made none.

    Raises:
        BadConfig: if MLflow cannot be reached.
    """
    return _last(name, f"name = '{name}' AND run_id = '{run_id}'")


def register_folder(folder: Path) -> tuple[ModelVersion, ModelVersion | None]:
    """Makes a model's folder a version of evenshard-cost, and of evenshard-policy where it has a policy.

    Raises:
        BadFile: if the folder is no model.
        BadConfig: if MLflow cannot be reached, or does not take it.
    """
    from evenshard.models import load_model

    seen = load_model(folder).trained_on
    tags = {COMMIT: seen.git_commit, VERSION: seen.evenshard_version, **model_tags(folder)}
    try:
        with patience():
            version = register_model(folder, tags)
            policy = register_model(folder, tags, name=POLICY) if (folder / "policy").is_dir() else None
    except BadInput:
        raise
    except Exception as error:  # MLflow, SQLAlchemy, requests and the stores' own clients raise dozens of kinds
        where = without_password(registry_uri())
        raise BadConfig(f"{folder}: MLflow at {where} did not take this model ({first_line(error)}).") from None
    return version, policy


def _last(name: str, wanted: str) -> ModelVersion | None:
    require_mlflow(name)
    try:
        with patience():
            known: list[Any] = list(connect().search_model_versions(wanted))
    except Exception as error:
        where = without_password(registry_uri())
        raise BadConfig(
            f"MLflow at {where} did not tell the versions of {name} ({first_line(error)}). Set MLFLOW_TRACKING_URI."
        ) from None
    if not known:
        return None
    return model_version(f"models:/{name}/{max(int(one.version) for one in known)}")
