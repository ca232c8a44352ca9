"""A stage's report about its own work."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """Final metrics, and the curve that led there.

    Attributes:
        metrics: by name.
        curve: the loss of every update, the predicted cost of every update, or the measured cost of every placement,
            in order; empty where there is none.
    """

    metrics: dict[str, float]
    curve: list[float] = field(default_factory=list)
