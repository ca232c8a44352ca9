"""Rewards: pure functions of costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.reward import negative_predicted_cost_B, standardised_B


def test_a_cheaper_prediction_is_worth_more() -> None:
    assert negative_predicted_cost_B(torch.tensor([2.0, 5.0])).tolist() == [-2.0, -5.0]


def test_standardised_returns_by_hand() -> None:
    torch.testing.assert_close(standardised_B(torch.tensor([-1.0, -5.0])), torch.tensor([1.0, -1.0]))
    expected = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / 1.25**0.5
    torch.testing.assert_close(standardised_B(torch.tensor([1.0, 2.0, 3.0, 4.0])), expected)


@pytest.mark.parametrize("returns", [[-3.0], [7.0, 7.0, 7.0]])
def test_returns_that_are_all_alike_teach_nothing_and_divide_nothing_by_zero(returns: list[float]) -> None:
    assert standardised_B(torch.tensor(returns)).tolist() == [0.0] * len(returns)


@settings(deadline=None)
@given(
    returns=st.lists(st.integers(-1000, 1000).map(float), min_size=2, max_size=10).filter(lambda r: len(set(r)) > 1),
    scale=st.sampled_from([1e-2, 1.0, 1e3]),
)
def test_the_scale_and_level_of_returns_do_not_matter(returns: list[float], scale: float) -> None:
    returns_B = torch.tensor(returns)
    standardised = standardised_B(returns_B)
    assert float(standardised.mean()) == pytest.approx(0, abs=1e-5)
    assert float(standardised.square().mean()) == pytest.approx(1, rel=1e-4)
    torch.testing.assert_close(standardised_B(scale * (returns_B - 5)), standardised, atol=1e-3, rtol=1e-3)
