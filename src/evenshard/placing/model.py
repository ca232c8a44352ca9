"""Which model answers: the one that is named, a registered one, or the one that made a placement before?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evenshard.errors import BadConfig
from evenshard.models import ANY, SIMULATED, PlacementModel, load_model
from evenshard.placing.answer import PlacementAnswer
from evenshard.tracking import download_model

BUNDLED = "bundled:"
REGISTERED = "models:/"


def model_of(where: str | Path | None, hardware: str | None) -> PlacementModel:
    """A model from a folder, from MLflow (``models:/name@alias`` or ``models:/name/version``), or the bundled one.

    Raises:
        BadInput: if there is none, it cannot be read, or it is of other hardware.
    """
    if isinstance(where, str) and where.startswith(REGISTERED):
        return replace(load_model(download_model(where), hardware), source=where)
    return load_model(where, hardware)


def named_model(answer: PlacementAnswer) -> tuple[str | None, str]:
    """The model that an answer names, as what ``model_of`` takes: where it is, and its hardware.

    Raises:
        BadConfig: if it names none.
    """
    source = _model(answer).get("source")
    if not isinstance(source, str) or not source:
        raise BadConfig("the lineage of this placement names no model. Name one (--model).")
    if source.startswith(BUNDLED):
        return None, SIMULATED + source.removeprefix(BUNDLED)
    return source, ANY


def other_model(answer: PlacementAnswer, model: PlacementModel) -> str | None:
    """One line if the model is not the one that made the answer, or None."""
    made_with = _model(answer)
    if made_with.get("sha256") == model.digest:
        return None
    return (
        f"{model.source} (sha256 {model.digest[:12]}) is not the model that this placement was made with: "
        f"{made_with.get('source')} (sha256 {str(made_with.get('sha256'))[:12]}); its figures differ from the file's"
    )


def _model(answer: PlacementAnswer) -> dict[str, object]:
    model = answer.lineage.get("model")
    return model if isinstance(model, dict) else {}
