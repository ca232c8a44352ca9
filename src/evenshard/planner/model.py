"""The model that answers a request: a named one, a registered one, or the one that made an earlier placement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from evenshard.measure.hardware import HardwareName
from evenshard.planner.answer import PlacementAnswer
from evenshard.sharders.models import PlacementModel, load_model
from evenshard.tracking import REGISTERED_POLICY, ModelVersion, download_model, model_version, version_of_files
from evenshard.utils.errors import BadConfig, BadInput
from evenshard.utils.s3 import is_address, local

REGISTERED = "models:/"


def model_of(where: str | Path | None, hardware: str | None = None) -> PlacementModel:
    """A model from a folder, S3, MLflow (``models:/name@alias`` or ``models:/name/version``), or a bundled one.

    Args:
        where: None is the bundled one for ``hardware``; ``bundled:h200`` names one.
            On S3 it is a folder that ``evenshard.utils.s3.upload`` left there.
        hardware: hardware that the model must have been trained on, as for ``load_model``.

    Raises:
        BadInput: if there is none, it cannot be read, or it is of other hardware.
        TrackingFailed: if MLflow cannot be reached.
    """
    if isinstance(where, str) and where.startswith(REGISTERED):
        version = model_version(where)  # an alias may name another one tomorrow
        registered: dict[str, Any] = {**_names(version), "run_id": version.run_id, "asked_for": where}
        with download_model(version.uri) as folder:
            try:
                model = load_model(folder, hardware)
            except BadInput as error:  # the user does not know the folder that it was fetched into
                raise BadConfig(str(error).replace(str(folder), version.uri)) from None
            if (
                model.policy is not None
                and (policy := version_of_files(REGISTERED_POLICY, folder, version.run_id)) is not None
            ):
                registered["policy"] = _names(policy)
        return replace(model, source=version.uri, registered=registered)
    if where is not None and is_address(where):
        with local(where) as folder:
            return replace(load_model(folder, hardware), source=str(where))
    return load_model(where, hardware)


def named_with_hardware(
    model: str | Path | PlacementModel | None, hardware: str | None
) -> tuple[PlacementModel | None, str | None]:
    """A model that may be named, and the hardware to place for: where none is named, what the model was trained on.

    Returns:
        None for what is named neither way.

    Raises:
        BadInput: as ``model_of``.
    """
    named = None if hardware is None else str(HardwareName.parse(hardware))
    if model is None:
        return None, named
    loaded = model if isinstance(model, PlacementModel) else model_of(model, named)
    if named is not None:
        loaded.require_hardware(named)
    return loaded, named or loaded.hardware


def named_model(answer: PlacementAnswer) -> str:
    """The model that an answer names, for ``model_of``.

    Raises:
        BadConfig: if it names none.
    """
    source = _model(answer).get("source")
    if not isinstance(source, str) or not source:
        raise BadConfig("the lineage of this placement names no model. Name one (--model).")
    return source


def other_model(answer: PlacementAnswer, model: PlacementModel) -> str | None:
    """One line if the model is not the one that made the answer, or None."""
    made_with = _model(answer)
    if made_with.get("sha256") == model.digest:
        return None
    return (
        f"{model.source} (sha256 {model.digest[:12]}) is not the model that this placement was made with: "
        f"{made_with.get('source')} (sha256 {str(made_with.get('sha256'))[:12]}); its figures differ from the file's"
    )


def _names(version: ModelVersion) -> dict[str, str]:
    return {"name": version.name, "version": version.version, "model_id": version.model_id}


def _model(answer: PlacementAnswer) -> dict[str, object]:
    model = answer.lineage.get("model")
    return model if isinstance(model, dict) else {}
