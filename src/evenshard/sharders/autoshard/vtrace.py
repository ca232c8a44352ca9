"""V-trace: the targets of a learner for steps that another policy took (IMPALA, arXiv 1802.01561, section 4.1).

Legend: U steps of an unroll, B slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class VTrace:
    """Attributes:
    target_UB: what the value head should say.
    advantage_UB: what the policy gradient weighs the log-probabilities with; the importance weight is in it.
    """

    target_UB: torch.Tensor
    advantage_UB: torch.Tensor


@torch.no_grad()
def v_trace(
    log_ratio_UB: torch.Tensor,
    reward_UB: torch.Tensor,
    discount_UB: torch.Tensor,
    value_UB: torch.Tensor,
    bootstrap_B: torch.Tensor,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace:
    """Targets and advantages of an unroll. Nothing of it carries gradients.

    With log-ratios of 0 the targets are the n-step returns that end in the bootstrap value.

    Args:
        log_ratio_UB: log-probability of the choice under the learner, minus that under the actor.
        reward_UB: reward of the step.
        discount_UB: gamma, and 0 where the episode ended with the step.
        value_UB: the learner's value before the step.
        bootstrap_B: the learner's value after the last step.
        clip_rho: highest importance weight of a step's own surprise: what the values converge to.
        clip_c: highest weight with which later surprises are handed back: how fast they do.
    """
    ratio_UB = log_ratio_UB.exp()
    rho_UB, c_UB = ratio_UB.clamp(max=clip_rho), ratio_UB.clamp(max=clip_c)
    next_value_UB = torch.cat([value_UB[1:], bootstrap_B[None]])
    surprise_UB = rho_UB * (reward_UB + discount_UB * next_value_UB - value_UB)
    correction_B = torch.zeros_like(bootstrap_B)
    target_UB = torch.empty_like(value_UB)
    for step in reversed(range(len(value_UB))):
        correction_B = surprise_UB[step] + discount_UB[step] * c_UB[step] * correction_B
        target_UB[step] = value_UB[step] + correction_B
    next_target_UB = torch.cat([target_UB[1:], bootstrap_B[None]])
    return VTrace(target_UB, rho_UB * (reward_UB + discount_UB * next_target_UB - value_UB))
