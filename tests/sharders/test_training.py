"""Rewards: pure functions of costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.sharders.training import (
    balance_reward_B,
    degree_of_balance_B,
    overflow_ratio_B,
    standardise_B,
)


def test_standardised_returns_by_hand() -> None:
    torch.testing.assert_close(standardise_B(torch.tensor([-1.0, -5.0])), torch.tensor([1.0, -1.0]))
    expected = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / 1.25**0.5
    torch.testing.assert_close(standardise_B(torch.tensor([1.0, 2.0, 3.0, 4.0])), expected)


@pytest.mark.parametrize("returns", [[-3.0], [7.0, 7.0, 7.0]])
def test_returns_that_are_all_alike_teach_nothing_and_divide_nothing_by_zero(returns: list[float]) -> None:
    assert standardise_B(torch.tensor(returns)).tolist() == [0.0] * len(returns)


@settings(deadline=None)
@given(
    returns=st.lists(st.integers(-1000, 1000).map(float), min_size=2, max_size=10).filter(lambda r: len(set(r)) > 1),
    scale=st.sampled_from([1e-2, 1.0, 1e3]),
)
def test_the_scale_and_level_of_returns_do_not_matter(returns: list[float], scale: float) -> None:
    returns_B = torch.tensor(returns)
    standardised = standardise_B(returns_B)
    assert float(standardised.mean()) == pytest.approx(
        0, abs=1e-3
    )  # of numbers that differ in their fourth digit, in FP32
    assert float(standardised.square().mean()) == pytest.approx(1, rel=1e-4)
    torch.testing.assert_close(standardise_B(scale * (returns_B - 5)), standardised, atol=1e-3, rtol=1e-3)


# AutoShard -----------------------------------------------------------------------------------------------------------

EVERYWHERE = torch.ones(1, 3, dtype=torch.bool)


def test_degree_of_balance_by_hand() -> None:
    costs_BD = torch.tensor([[2.0, 4.0, 8.0], [3.0, 3.0, 3.0], [0.0, 5.0, 5.0]])
    assert degree_of_balance_B(costs_BD, EVERYWHERE.expand(3, 3)).tolist() == [0.25, 1.0, 0.0]


def test_devices_the_task_does_not_have_neither_lag_nor_lead() -> None:
    costs_BD = torch.tensor([[2.0, 4.0, 0.0], [2.0, 4.0, 9.0]])
    mask_BD = torch.tensor([[True, True, False]] * 2)
    assert degree_of_balance_B(costs_BD, mask_BD).tolist() == [0.5, 0.5]


def test_a_cost_predicted_below_zero_counts_as_zero_and_zeros_divide_nothing() -> None:
    assert degree_of_balance_B(torch.tensor([[-1.0, 2.0, 4.0]]), EVERYWHERE).tolist() == [0.0]
    assert degree_of_balance_B(torch.tensor([[0.0, 0.0, -3.0]]), EVERYWHERE).tolist() == [1.0]


def test_overflow_is_that_of_the_fullest_device_and_never_a_bonus() -> None:
    used_BD = torch.tensor([[5, 15, 12], [10, 0, 3], [0, 0, 0]])
    assert overflow_ratio_B(used_BD, torch.tensor([10, 10, 10])).tolist() == [0.5, 0.0, 0.0]


def test_overflow_is_taken_off_the_balance() -> None:
    costs_BD, used_BD = torch.tensor([[2.0, 4.0, 4.0]] * 2), torch.tensor([[5, 12, 3], [5, 8, 3]])
    reward_B = balance_reward_B(costs_BD, used_BD, torch.tensor([8, 8]), EVERYWHERE.expand(2, 3))
    assert reward_B.tolist() == [0.5 - 0.5, 0.5]
