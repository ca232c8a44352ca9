"""What does a policy get for a finished placement? Every reward of the project, as pure functions.

Legend: B episodes.
"""

from __future__ import annotations

import torch


def negative_predicted_cost_B(predicted_ms_B: torch.Tensor) -> torch.Tensor:
    """Minus the predicted overall cost, [B] (DreamShard, section 3.3): the only reward, given at the end."""
    return -predicted_ms_B


def standardised_B(returns_B: torch.Tensor) -> torch.Tensor:
    """Returns minus their mean, over their deviation, [B]; zeros if all episodes ended alike."""
    centred_B = returns_B - returns_B.mean()
    return centred_B / (centred_B.square().mean().sqrt() + 1e-8)
