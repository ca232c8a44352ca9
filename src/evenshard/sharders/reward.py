"""The rewards of all policies, as pure functions.

Legend: B episodes, D devices.
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


def degree_of_balance_B(costs_BD: torch.Tensor, device_mask_BD: torch.Tensor) -> torch.Tensor:
    """Cost of the cheapest device over that of the dearest, [B], 0 to 1 (AutoShard, section 2).

    A predicted cost below 0 counts as 0. Devices that all cost nothing are balanced: 1.
    """
    costs_BD = costs_BD.clamp(min=0.0)
    least_B = costs_BD.masked_fill(~device_mask_BD, torch.inf).amin(dim=1)
    most_B = costs_BD.masked_fill(~device_mask_BD, 0.0).amax(dim=1)
    return torch.where(most_B > 0, least_B / most_B.clamp(min=torch.finfo(costs_BD.dtype).tiny), 1.0)


def overflow_ratio_B(used_bytes_BD: torch.Tensor, memory_cap_B: torch.Tensor) -> torch.Tensor:
    """Excess of the fullest device over its memory, as a share of that memory, [B]; 0 where everything fits."""
    excess_B = used_bytes_BD.amax(dim=1) - memory_cap_B
    return excess_B.clamp(min=0) / memory_cap_B


def balance_reward_B(
    costs_BD: torch.Tensor, used_bytes_BD: torch.Tensor, memory_cap_B: torch.Tensor, device_mask_BD: torch.Tensor
) -> torch.Tensor:
    """Degree of balance minus the worst device's overflow ratio, [B] (AutoShard, section 3.3), given at the end."""
    return degree_of_balance_B(costs_BD, device_mask_BD) - overflow_ratio_B(used_bytes_BD, memory_cap_B)
