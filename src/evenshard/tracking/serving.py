"""The code that answers for a registered model where MLflow serves it, and what it takes besides tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenshard.base.knobs import Knob
from evenshard.planner.hosts import DEFAULT_DEVICES
from evenshard.planner.knobs import place_knobs
from evenshard.tracking.pyfunc import ServedCode

# The hardware is the model's; a server has no files, and nothing to measure on.
NOT_SERVED = {
    *("hardware", "default_pooling_factor", "num_measured"),
    *("model", "traffic", "hosts", "embedding_dim", "near", "max_move_gb"),
}


def served_code() -> ServedCode:
    """The script ``mlflow_model.py``, and its parameters."""
    kinds = {knob.name: knob.scalar or str for knob in _served_knobs()}
    return ServedCode(Path(__file__).with_name("mlflow_model.py"), served_parameters(), kinds)


def served_parameters() -> dict[str, Any]:
    """The knobs that a registered model takes, with their defaults: plain, or None."""
    defaults = {knob.name: knob.default for knob in _served_knobs()}
    return {**defaults, "num_devices": DEFAULT_DEVICES}


def _served_knobs() -> tuple[Knob, ...]:
    return tuple(one for one in place_knobs() if one.scalar is not None and one.name not in NOT_SERVED)
