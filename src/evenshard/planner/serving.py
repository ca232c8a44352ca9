"""The code that answers for a registered model where MLflow serves it, and what it takes besides tables."""

from __future__ import annotations

from pathlib import Path

from evenshard.planner.cluster import DEFAULT_DEVICES
from evenshard.planner.options import place_options
from evenshard.tracking.pyfunc import ServedCode

NOT_SERVED = {"hardware", "default_pooling_factor", "num_measured"}
"""The hardware is the model's, the tables have pooling factors, and a server has nothing to measure on."""


def served_code() -> ServedCode:
    """The script ``mlflow_model.py``, and its parameters."""
    return ServedCode(Path(__file__).with_name("mlflow_model.py"), served_parameters())


def served_parameters() -> dict[str, bool | int | float | str]:
    """The arguments of ``evenshard.place`` that a registered model takes, with their defaults: plain values."""
    defaults = {option.name: option.default for option in place_options() if option.scalar is not None}
    defaults["num_devices"] = DEFAULT_DEVICES
    return {name: value for name, value in defaults.items() if value is not None and name not in NOT_SERVED}
