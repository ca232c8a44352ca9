"""A model that has learned: of H200s, simulated, written by an earlier version; it must stay readable."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from evenshard.sharders.models import PlacementModel, load_model

LEARNED = Path(__file__).parents[1] / "data/models/learned_h200"


@cache
def learned() -> PlacementModel:
    """The model."""
    return load_model(LEARNED)
