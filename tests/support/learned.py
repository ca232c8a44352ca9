"""A model that has learned of simulated H200s, with the profile ``h200`` as it was before an H200 was measured."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from evenshard.sharders.models import PlacementModel, load_model

DATA = Path(__file__).parents[1] / "data"
LEARNED = DATA / "models/learned_h200"
LEARNED_DEVICE = DATA / "devices/h200.yaml"


@cache
def learned_model() -> PlacementModel:
    return load_model(LEARNED)
