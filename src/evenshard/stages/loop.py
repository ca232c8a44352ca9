"""The number of rounds of the loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopConfig:
    """Section ``loop`` of params.yaml.

    Attributes:
        num_rounds: rounds that dvc.yaml unrolls (``make dvc.yaml`` writes it anew).
    """

    num_rounds: int
