"""What a registered model takes when MLflow serves it: tables, and these arguments of ``evenshard.place``."""

from __future__ import annotations

from evenshard.planner.options import place_options

NOT_SERVED = {"hardware", "default_pooling_factor", "num_measured"}
"""The hardware is the model's, the tables have pooling factors, and a server has nothing to measure on."""


def served_parameters() -> dict[str, bool | int | float | str]:
    """Names and defaults; MLflow's parameters are plain values."""
    return {
        option.name: option.default
        for option in place_options()
        if option.scalar is not None and option.default is not None and option.name not in NOT_SERVED
    }
