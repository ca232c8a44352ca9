"""Rewards, entropy and gradient steps by hand."""

from __future__ import annotations

import pytest
import torch

from evenshard.sharders.training import (
    FitConfig,
    balance_reward_B,
    degree_of_balance_B,
    descend,
    entropy,
    fit_minibatches,
    overflow_ratio_B,
    standardise_B,
)


def test_standardised_returns_by_hand_and_those_that_are_alike_divide_nothing_by_zero() -> None:
    torch.testing.assert_close(standardise_B(torch.tensor([-1.0, -5.0])), torch.tensor([1.0, -1.0]))
    expected = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / 1.25**0.5
    torch.testing.assert_close(standardise_B(torch.tensor([1.0, 2.0, 3.0, 4.0])), expected)
    for returns in ([-3.0], [7.0, 7.0, 7.0]):
        assert standardise_B(torch.tensor(returns)).tolist() == [0.0] * len(returns)


EVERYWHERE = torch.ones(1, 3, dtype=torch.bool)


def test_degree_of_balance_by_hand() -> None:
    """Devices that the task does not have neither lag nor lead; a cost predicted below zero counts as zero."""
    costs_BD = torch.tensor([[2.0, 4.0, 8.0], [3.0, 3.0, 3.0], [0.0, 5.0, 5.0], [-1.0, 2.0, 4.0], [0.0, 0.0, -3.0]])
    assert degree_of_balance_B(costs_BD, EVERYWHERE.expand(5, 3)).tolist() == [0.25, 1.0, 0.0, 0.0, 1.0]
    costs_BD, mask_BD = torch.tensor([[2.0, 4.0, 0.0], [2.0, 4.0, 9.0]]), torch.tensor([[True, True, False]] * 2)
    assert degree_of_balance_B(costs_BD, mask_BD).tolist() == [0.5, 0.5]


def test_overflow_is_that_of_the_fullest_device_never_a_bonus_and_taken_off_the_balance() -> None:
    used_BD = torch.tensor([[5, 15, 12], [10, 0, 3], [0, 0, 0]])
    assert overflow_ratio_B(used_BD, torch.tensor([10, 10, 10])).tolist() == [0.5, 0.0, 0.0]
    costs_BD, used_BD = torch.tensor([[2.0, 4.0, 4.0]] * 2), torch.tensor([[5, 12, 3], [5, 8, 3]])
    reward_B = balance_reward_B(costs_BD, used_BD, torch.tensor([8, 8]), EVERYWHERE.expand(2, 3))
    assert reward_B.tolist() == [0.5 - 0.5, 0.5]


def test_steps_of_gradient_descent_by_hand() -> None:
    """f(w) = w * w from 8: the rate falls from 0.25 to 0.125, and a gradient of norm 6 is cut to 2."""
    weight = torch.nn.Parameter(torch.tensor([8.0]))
    optimizer = torch.optim.SGD([weight], lr=123.0)
    config, seen = FitConfig(num_updates=2, minibatch_size=3, learning_rate=0.25), []

    def loss_of(rows_M: torch.Tensor) -> torch.Tensor:
        assert rows_M.shape == (3,) and rows_M.max() < 5
        return weight.square().sum()

    def track(updates: range) -> range:
        seen.extend(updates)
        return updates

    losses = fit_minibatches(loss_of, 5, optimizer, config, torch.Generator().manual_seed(0), track, falls_to_zero=True)
    assert losses == [64.0, 16.0] and seen == [0, 1] and weight.item() == 4 - 0.125 * 8
    descend(optimizer, weight.square().sum(), max_gradient_norm=2.0)
    assert weight.item() == pytest.approx(3 - 0.125 * 2, rel=1e-4)


def test_entropy_by_hand() -> None:
    log_probs = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]]).log()
    torch.testing.assert_close(entropy(log_probs), torch.tensor([1.0, 0.0, 1.5]) * torch.tensor(2.0).log())
