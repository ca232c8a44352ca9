"""The model that answers a request: a simulated device's own, a learned one, or the one of an earlier placement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.measure.hardware import HardwareName
from evenshard.planner.answer import PlacementAnswer, model_lineage
from evenshard.sharders.model import DeviceModel, Model
from evenshard.tracking import REGISTERED_POLICY, ModelVersion, download_model, model_version, version_of_files
from evenshard.utils.errors import BadConfig, BadInput
from evenshard.utils.extras import require_package
from evenshard.utils.installation import how_to_train
from evenshard.utils.messages import brief
from evenshard.utils.s3 import is_address, local

if TYPE_CHECKING:
    from evenshard.sharders.models import PlacementModel

REGISTERED = "models:/"
# Prefix of a device model's name, before its profile: simulated:h200.
SIMULATED = "simulated:"


def model_of(where: str | Path | None, hardware: str | None = None) -> Model:
    """A model from a folder, S3 or MLflow (``models:/name@alias`` or ``models:/name/version``), or a device model.

    Args:
        where: None or ``simulated:h200`` for the device model of simulated hardware. On S3: the address
            of a folder.

    Raises:
        BadInput: if there is none, it cannot be read, or it is of other hardware.
        TrackingFailed: if MLflow cannot be reached.
    """
    device = _device_model(where, hardware)
    if device is not None:
        return device
    require_package("torch")
    from evenshard.sharders.models import load_model

    assert where is not None
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
    if is_address(where):
        with local(where) as folder:
            return replace(load_model(folder, hardware), source=str(where))
    return load_model(Path(where), hardware)


def learned_model_of(where: str | Path | None, hardware: str | None = None) -> PlacementModel:
    """A model that has learned from measured costs; arguments and errors of ``model_of``.

    Raises:
        BadConfig: if a device model is meant.
    """
    require_package("torch")
    from evenshard.sharders.models import PlacementModel

    found = model_of(where, hardware)
    if not isinstance(found, PlacementModel):
        raise BadConfig(
            f"{found.source} is a device model, which has learned from no costs. Name a learned one: a round's folder "
            "such as work/round_3, or models:/evenshard-cost@champion."
        )
    return found


def _device_model(where: str | Path | None, hardware: str | None) -> DeviceModel | None:
    """Return the device model that is asked for; None where a learned one is."""
    named = str(where or "")
    if named.startswith(SIMULATED):
        found = DeviceModel(named)
        if hardware is not None:
            found.require_hardware(hardware)
    elif where is not None:
        return None
    elif hardware is not None and HardwareName.parse(hardware).kind.is_simulated:
        found = DeviceModel(str(HardwareName.parse(hardware)))
    else:
        raise BadConfig(
            f"there is no model for hardware {brief(hardware)}. Train one with {how_to_train()} and name its folder "
            f"(--model work/round_3), or place for a simulated device, such as simulated:h100."
        )
    assert found.profile  # a file that cannot be read is told here
    return found


def named_with_hardware(model: str | Path | Model | None, hardware: str | None) -> tuple[Model | None, str | None]:
    """A model that may be named, and the hardware to place for: where none is named, what the model was trained on.

    Returns:
        None for what is named neither way.

    Raises:
        BadInput: as ``model_of``.
    """
    named = None if hardware is None else str(HardwareName.parse(hardware))
    if model is None:
        return None, named
    loaded = model_of(model, named) if isinstance(model, str | Path) else model
    if named is not None:
        loaded.require_hardware(named)
    return loaded, named or loaded.hardware


def named_model(answer: PlacementAnswer) -> str:
    """The model that an answer names, for ``model_of``.

    Raises:
        BadConfig: if it names none.
    """
    source = model_lineage(answer).get("source")
    if not isinstance(source, str) or not source:
        raise BadConfig("the lineage of this placement names no model. Name one (--model).")
    return source


def other_model(answer: PlacementAnswer, model: Model) -> str | None:
    """One line if the model is not the one that made the answer, or None."""
    made_with = model_lineage(answer)
    if made_with.get("sha256") == model.digest:
        return None
    return (
        f"{model.source} (sha256 {model.digest[:12]}) is not the model that this placement was made with: "
        f"{made_with.get('source')} (sha256 {str(made_with.get('sha256'))[:12]}); its figures differ from the file's"
    )


def _names(version: ModelVersion) -> dict[str, str]:
    return {"name": version.name, "version": version.version, "model_id": version.model_id}
